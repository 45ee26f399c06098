"""Pictures of models and data, as files."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from idensenet.data.source import Samples, Source
from idensenet.files import write_atomically
from idensenet.flow import Flow
from idensenet.report.drawing import save_figure
from idensenet.report.plane import density_figure, frame_of, pairs_figure, scatter_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETWEEN = 96  # grey level of the lines between images
ROW = 14  # images in a row of a round trip
MOST_IMAGES = 64  # images in the picture of a round trip


# Images


def image_grid(images: Tensor, levels: int, columns: int = 8, scale: int = 1, gap: int = 2) -> Tensor:
    """[n, c, h, w] levels -> one uint8 picture [height, width, 3], row by row, enlarged `scale` times."""
    n, _, h, w = images.shape
    columns = max(1, min(columns, n))
    rows = max(1, -(-n // columns))
    pixels = (images.cpu().float() * (255 / (levels - 1))).round().clamp(0, 255).to(torch.uint8)
    pixels = pixels.expand(n, 3, h, w).repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    h, w = h * scale, w * scale
    page = torch.full((rows * (h + gap) + gap, columns * (w + gap) + gap, 3), BETWEEN, dtype=torch.uint8)
    for i in range(n):
        top, left = gap + i // columns * (h + gap), gap + i % columns * (w + gap)
        page[top : top + h, left : left + w] = pixels[i].permute(1, 2, 0)
    return page


def image_png(page: Tensor) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(page.numpy()).save(file, "png")
    return file.getvalue()


def save_image(page: Tensor, path: Path) -> None:
    write_atomically(path, image_png(page))


def magnification(side: int) -> int:
    """How often to enlarge small images, so that a person can see them."""
    return max(1, 64 // side)


# Points


def density_picture(flow: Flow, data: Tensor, samples: Tensor, path: Path) -> None:
    """Data, learned density and samples side by side."""
    save_figure(lambda: density_figure(flow, data, samples), path)


def scatter_picture(data: Tensor, samples: Tensor, names: tuple[str, ...], path: Path) -> None:
    """Histograms of up to four columns and their pairs: data below the diagonal, samples above it."""
    save_figure(lambda: pairs_figure([("data", data), ("samples", samples)], names), path)


def points_picture(samples: Tensor, path: Path) -> None:
    """Samples that are not images: points in the plane, or pairs of up to four columns."""
    if samples.shape[1] == 2:
        save_figure(lambda: scatter_figure(samples), path)
    else:
        save_figure(lambda: pairs_figure([("samples", samples)]), path)


def first_of(flow: Flow, samples: Samples, count: int) -> tuple[Tensor, Tensor | None]:
    """The first rows of a table in the number type of a flow, and their contexts for a conditional one."""
    rows = samples.batch(np.arange(count))
    given = None if rows.context is None else rows.context.to(flow.device, flow.dtype)
    return rows.x.to(flow.dtype), given


def in_units(flow: Flow, x: Tensor) -> Tensor:
    """Rows in the units of the table that a flow was trained on."""
    if flow.columns is None or not flow.integers:
        return x
    return torch.from_numpy(np.stack(flow.columns.in_units(x.detach().cpu().numpy()), 1))


def run_picture(flow: Flow, source: Source, path: Path, seed: int = 0) -> None:
    """What the model makes, in the form that suits its data: a density, a grid of samples, or histograms."""
    generator = torch.Generator(flow.device).manual_seed(seed)
    if flow.levels is not None:
        samples = flow.sample(64, generator)
        save_image(image_grid(samples, flow.levels, scale=magnification(flow.shape[1])), path)
        return
    count = min(len(source.test), 10_000)
    data, given = first_of(flow, source.test, count)
    samples = flow.sample(count, generator, context=given)
    if flow.shape == (2,) and not flow.context and not flow.integers:
        density_picture(flow, data, samples, path)
    else:
        scatter_picture(in_units(flow, data), in_units(flow, samples), source.columns, path)


# Round trips


def error_factor(error: Tensor) -> float:
    """What to multiply errors by so that they can be seen: 1, 2 or 5 times a power of ten, the largest one still below 1."""
    found = error[torch.isfinite(error)]
    largest = float(found.max()) if len(found) else 0.0
    if not 0 < largest < 1:
        return 1.0
    power = 10.0 ** math.floor(-math.log10(largest))
    return power * max(step for step in (1, 2, 5) if step * power * largest <= 1 or step == 1)


def reconstruction_picture(flow: Flow, before: Tensor, after: Tensor, error: Tensor, path: Path) -> None:
    """A round trip x -> z -> x: what went in, what came back, and the difference. `error` is in units of the whole range."""
    before, after, error = before.detach().cpu(), after.detach().cpu(), error.detach().cpu()
    if flow.levels is None:
        save_figure(lambda: _vector_round_trip(before, after, error), path)
    else:
        levels = flow.levels
        save_figure(lambda: _image_round_trip(before, after, error, levels), path)


def _image_round_trip(before: Tensor, after: Tensor, error: Tensor, levels: int) -> Figure:
    from matplotlib.figure import Figure

    n, _, h, w = before.shape
    shown, factor = min(n, MOST_IMAGES), error_factor(error)
    columns, scale = min(shown, ROW), magnification(h)
    parts = (before / levels, after / levels, error.nan_to_num(1.0) * factor)
    groups = [slice(i, min(i + columns, shown)) for i in range(0, shown, columns)]
    full = columns * (w * scale + 2) + 2
    strips = []
    for group in groups:
        for values in parts:
            strip = image_grid(values[group].clamp(0, 1) * 255, 256, columns, scale)
            strips.append(torch.nn.functional.pad(strip, (0, 0, 0, full - strip.shape[1]), value=BETWEEN))
    page, tall = torch.cat(strips), len(strips[0])
    width = max(0.55 * columns, 5.0) + 1.0  # inches: labels on the left, the strips, a title above
    strips_height = (width - 1.0) * len(page) / full
    height = strips_height + 0.4
    figure = Figure(figsize=(width, height))
    axis = figure.add_axes((0.9 / width, 0.05 / height, (width - 1.0) / width, strips_height / height))
    axis.imshow(page.numpy(), interpolation="nearest", aspect="auto")
    axis.set_xticks([])
    labels = ["original", "came back", f"error\nx {factor:,.0f}"] * len(groups)
    axis.set_yticks([tall * (i + 0.5) for i in range(len(strips))], labels, fontsize=8)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    some = f"the first {shown} of {n} images; " if shown < n else ""
    axis.set_title(f"{some}error per range of a pixel: largest {float(error.max()):.2g}, mean {float(error.mean()):.2g}")
    return figure


def _vector_round_trip(before: Tensor, after: Tensor, error: Tensor) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2))
    left, right = figure.add_axes((0.05, 0.11, 0.4, 0.8)), figure.add_axes((0.54, 0.13, 0.44, 0.78))
    plane = before.shape[1] > 1
    x, y = (before[:, 0], before[:, 1]) if plane else (before[:, 0], before[:, 0])
    back_x, back_y = (after[:, 0], after[:, 1]) if plane else (before[:, 0], after[:, 0])
    left.plot(x, y, "o", markersize=6, markerfacecolor="none", label="original")
    left.plot(back_x, back_y, ".", markersize=4, label="came back")
    if before.shape[1] == 2:
        frame = frame_of(before)
        left.set_xlim(frame[:2])
        left.set_ylim(frame[2:])
    left.set_title("there and back" if before.shape[1] <= 2 else "there and back, the first two columns")
    left.set_box_aspect(1)
    left.grid(True)
    left.legend(loc="upper right", ncols=2)
    size = error.double().flatten(1).norm(dim=1)
    exact, bad = int((size == 0).sum()), int((~torch.isfinite(size)).sum())
    usual = size[torch.isfinite(size) & (size > 0)].log10()
    if len(usual):
        right.hist(usual.numpy(), bins=min(40, max(8, len(usual) // 4)), color="C2")
    extra = [f"{exact} exact" if exact else "", f"{bad} not finite" if bad else ""]
    right.set_title(", ".join([f"error of {len(size)} samples", *filter(None, extra)]))
    right.set_xlabel("log10 of the Euclidean error")
    right.set_ylabel("samples")
    right.grid(True, axis="y")
    return figure
