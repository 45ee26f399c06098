"""One house style: whoever draws a figure draws it with `drawing`, and no picture is wider than its text can bear."""

import re
from pathlib import Path

import pytest
from PIL import Image

from idensenet.report.drawing import DPI, LIGHT, WIDEST, save_figure
from idensenet.report.pictures import ROW
from idensenet.reproduce.experiment import Cell, Table
from idensenet.reproduce.writing import PER_STRIP, comparison_figure

ROOT = Path(__file__).parents[2]
DRAWING = [
    path
    for folder in ("src", "examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "matplotlib.figure import Figure" in path.read_text()
]
STYLED = re.compile(r"from idensenet\.report\.drawing import .*(themed|save_figure|draw\b|png)")
DRAWN_BY_OTHERS = {"plane", "figures", "toy", "density", "hybrids", "images", "eta", "scaling", "experiment", "variants"}


def test_there_is_something_to_check():
    assert len(DRAWING) > 12


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: str(path.relative_to(ROOT)))
def test_figures_are_drawn_in_the_house_style(path):
    text = path.read_text()
    assert "pyplot" not in text
    assert "rcParams" not in text
    assert "plt." not in text
    if path.stem not in DRAWN_BY_OTHERS and path.parent.name not in ("reproduce", "bench"):
        assert STYLED.search(text) or path.name == "drawing.py"


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: str(path.relative_to(ROOT)))
def test_figures_are_not_too_wide_for_their_text(path):
    for width in re.findall(r"figsize=\((?:min\()?([\d.]+)\b(?! \*)", path.read_text()):
        assert float(width) <= WIDEST


# docs/likelihood.png is older than this rule: benchmarks/likelihood.py draws it narrower, and has not been run again since
PICTURES = [p for folder in ("results", "docs", "benchmarks") for p in sorted((ROOT / folder).rglob("*.png"))]


@pytest.mark.parametrize("path", [p for p in PICTURES if p.name != "likelihood.png"], ids=lambda path: path.name)
def test_pictures_are_not_wider_than_a_page_shows_them(path):
    with Image.open(path) as image:
        assert image.width <= WIDEST * DPI


def test_a_round_trip_of_images_is_no_wider():
    assert 0.55 * ROW + 1 <= WIDEST


@pytest.mark.parametrize("columns", [1, 3, 5, 7])
def test_comparisons_of_many_columns_go_on_below(columns, tmp_path):
    names = tuple(f"column {i}" for i in range(columns))
    rows = tuple((f"row {i}", tuple(Cell(float(i + j), paper=float(i)) for j in range(columns))) for i in range(2))
    table = Table("Nats", names, rows)
    made = []
    save_figure(lambda: made.append(comparison_figure([table])) or made[0], tmp_path / "wide.png")
    (figure,) = made
    assert figure.get_figwidth() <= WIDEST
    titles = [axis.get_title(loc="left") for axis in figure.axes if axis.axison]
    assert titles == list(names)
    assert len(figure.axes) == -(-columns // PER_STRIP) * min(columns, PER_STRIP)
    assert "Nats" in [text.get_text() for axis in figure.axes for text in axis.texts]
    with Image.open(tmp_path / "wide.png") as image:
        assert "#{:02x}{:02x}{:02x}".format(*image.convert("RGB").getpixel((0, 0))) == LIGHT.paper
