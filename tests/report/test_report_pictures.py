"""Pictures: their size, that they show something, and that they show the right thing."""

import numpy as np
import pytest
import torch
from PIL import Image

from idensenet.report.curves import line_of, panels
from idensenet.report.drawing import DARK, DPI, LIGHT, draw
from idensenet.report.markup import png_size
from idensenet.report.pictures import (
    error_factor,
    image_grid,
    magnification,
    points_picture,
    reconstruction_picture,
    run_picture,
    save_image,
)
from idensenet.report.plane import TOY_FRAME, density_grid, frame_of, pairs_figure, plane_figure
from report_runs import image_flow, image_source, table_source, toy_flow, toy_source


def pixels(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def not_blank(path, shape=None):
    found = pixels(path)
    assert len(np.unique(found[::3, ::3] @ np.array([1 << 16, 1 << 8, 1]))) > 5
    if shape is not None:
        assert found.shape[:2] == shape
    return found


def test_image_grid_puts_every_image_in_its_place(tmp_path):
    images = torch.arange(11)[:, None, None, None].expand(11, 1, 3, 4).to(torch.uint8)
    grid = image_grid(images, 17, columns=4, scale=2, gap=2)
    assert grid.shape == (3 * (6 + 2) + 2, 4 * (8 + 2) + 2, 3)
    for i in range(11):
        top, left = 2 + i // 4 * 8, 2 + i % 4 * 10
        assert (grid[top : top + 6, left : left + 8] == round(i * 255 / 16)).all()
    save_image(grid, tmp_path / "grid.png")
    assert (pixels(tmp_path / "grid.png") == grid.numpy()).all()
    assert image_grid(images[:2], 17).shape == (3 + 4, 2 * (4 + 2) + 2, 3)  # no empty columns
    assert not list(tmp_path.glob("*.part"))


def test_colours_of_an_image_are_kept():
    image = torch.tensor([255, 128, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    assert image_grid(image, 256, gap=0).flatten().tolist() == [255, 128, 0]


@pytest.mark.parametrize(("side", "scale"), [(8, 8), (28, 2), (32, 2), (64, 1), (200, 1)])
def test_magnification(side, scale):
    assert magnification(side) == scale


def test_run_picture(tmp_path):
    flow = image_flow()
    run_picture(flow, image_source(flow), tmp_path / "image.png")
    not_blank(tmp_path / "image.png", (8 * 66 + 2, 8 * 66 + 2))
    run_picture(toy_flow(), toy_source(), tmp_path / "toy.png")
    not_blank(tmp_path / "toy.png", (int(3.25 * DPI), 9 * DPI))
    flow = toy_flow(shape=(3,), initialized=False)
    run_picture(flow, table_source(3), tmp_path / "table.png")
    not_blank(tmp_path / "table.png", (int(6.8 * DPI), int(6.5 * DPI)))


@pytest.mark.parametrize(("n", "dims"), [(50, 2), (3000, 2), (40, 1), (40, 6)])
def test_points_picture(tmp_path, n, dims):
    points_picture(torch.randn(n, dims), tmp_path / "points.png")
    not_blank(tmp_path / "points.png")


def test_density_grid_has_x_to_the_right_and_integrates_to_one():
    flow = toy_flow().double()
    frame = (-8.0, 8.0, -10.0, 10.0)
    grid = density_grid(flow, frame, side=160)
    assert float(grid.sum()) * (16 / 160) * (20 / 160) == pytest.approx(1, abs=0.01)
    x = torch.tensor([[-8 + 16 * 100.5 / 160, -10 + 20 * 60.5 / 160]], dtype=torch.float64)
    assert float(grid[60, 100]) == pytest.approx(float(flow.log_prob(x).detach().exp()), rel=1e-9)


def test_histogram_is_not_upside_down():
    from idensenet.report.drawing import png, themed

    with themed():
        content = png(plane_figure(None, torch.tensor([[2.0, 3.0]]).expand(50, 2), TOY_FRAME))
    import io

    found = np.asarray(Image.open(io.BytesIO(content)).convert("L"), dtype=float)
    rows, columns = (found > 200).nonzero()
    assert rows.mean() / len(found) == pytest.approx((4.5 - 3) / 9, abs=0.03)
    assert columns.mean() / len(found) == pytest.approx((2 + 4.5) / 9, abs=0.03)


def test_frame_is_that_of_the_data_where_toy_sets_are_not():
    assert frame_of(torch.from_numpy(toy_source().test.x)) == TOY_FRAME
    left, right, bottom, top = frame_of(torch.tensor([[170.0, 0.001], [190.0, 0.003], [180.0, 0.002]]))
    assert 165 < left < 170 < 190 < right < 195
    assert 0 < bottom < 0.001 < 0.003 < top < 0.004
    left, right, _, _ = frame_of(torch.zeros(5, 2))
    assert left < 0 < right


@pytest.mark.parametrize(
    ("largest", "factor"),
    [(0.0, 1), (1.8e-6, 500_000), (3e-6, 200_000), (9e-6, 100_000), (0.4, 2), (2.0, 1), (float("nan"), 1)],
)
def test_error_factor(largest, factor):
    assert error_factor(torch.tensor([0.0, largest])) == pytest.approx(factor)


def round_trip(flow, x):
    with torch.no_grad():
        before = flow.dequantize(x)
        after, _ = flow.inverse(flow(x)[0])
    return before, after, (after - before).abs() / (flow.levels or 1)


@pytest.mark.parametrize("n", [1, 20, 70])
def test_reconstruction_of_images(tmp_path, n):
    flow = image_flow()
    x = torch.from_numpy(image_source(flow).test.x[:n])
    before = flow.dequantize(x)
    error = torch.zeros_like(before)
    error[:, :, 0, 0] = 2e-6  # the corner is off
    reconstruction_picture(flow, before, before + error * 17, error, tmp_path / "trip.png")
    found = not_blank(tmp_path / "trip.png")
    white = (found[len(found) // 10 :, found.shape[1] // 3 :] == 255).all(2).mean()
    assert 0 < white < 0.5  # the corner of the error, enlarged to white


@pytest.mark.parametrize("dims", [1, 2, 4])
def test_reconstruction_of_vectors(tmp_path, dims):
    flow = toy_flow(shape=(dims,), initialized=False)
    reconstruction_picture(flow, *round_trip(flow, torch.randn(100, dims)), tmp_path / "trip.png")
    not_blank(tmp_path / "trip.png", (int(4.2 * DPI), 9 * DPI))
    x = torch.zeros(3, dims)
    reconstruction_picture(flow, x, x, x, tmp_path / "exact.png")
    reconstruction_picture(flow, x, x, x + float("nan"), tmp_path / "nan.png")
    not_blank(tmp_path / "nan.png")


def test_both_themes_have_their_colours():
    drawing = draw(lambda: pairs_figure([("data", torch.randn(50, 2))]))
    import io

    for content, theme in ((drawing.light, LIGHT), (drawing.dark, DARK)):
        corner = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))[-1, 0]
        assert "#" + "".join(f"{int(c):02x}" for c in corner) == theme.paper
    assert png_size(drawing.light) == png_size(drawing.dark)


def test_panels_are_those_of_which_there_are_numbers():
    entries = [
        {"kind": "train", "step": 10, "nats": 3.0, "gradient": float("nan"), "lr": 0.1},
        {"kind": "eval", "step": 10, "nats": 3.5, "nats_error": 0.1},
        {"kind": "train", "step": 20, "nats": 2.5, "gradient": 0.5, "lr": 0.1, "memory": "0.4 GB"},
    ]
    found = panels(entries, entropy=2.0, clip=1.0)
    assert [panel.title.split(",")[0] for panel in found] == ["Negative log-density", "Norm of the gradient", "Learning rate"]
    assert found[0].levels == (("entropy of the data", 2.0),)
    assert "training from 3 to 2.5; held out, averaged weights from 3.5 to 3.5" in found[0].describe()
    line = line_of(entries, "eval", "nats", "held out")
    assert (line.steps, line.values, line.errors) == ((10,), (3.5,), (0.1,))
    assert panels([]) == []
