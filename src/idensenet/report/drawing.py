"""The house style that all figures share: sizes, colours in two themes, and figures as PNG.

Every picture of the package, of its results, examples and benchmarks is drawn with it. A figure is at most `WIDEST` inches
wide: pages show it at about 800 pixels, where a text of 9 points is still 10 pixels tall.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idensenet.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 160
WIDEST = 9.6  # inches
INKED = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor")
LINED = ("axes.edgecolor", "grid.color", "xtick.color", "ytick.color")
PLAIN: dict[str, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "font.size": 9,
    "image.cmap": "magma",  # of densities
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.5,
    "savefig.dpi": DPI,
}


@dataclass(frozen=True)
class Theme:
    """Colours of a figure, equal to the colours of the page around it."""

    paper: str
    ink: str
    line: str
    cycle: tuple[str, ...]


LIGHT = Theme("#ffffff", "#333a45", "#dde1e7", ("#2f6fd0", "#d9622b", "#2e9367", "#8a56c2"))
DARK = Theme("#1b1f26", "#c3cad5", "#3a414d", ("#79aaf5", "#f0935f", "#67c79b", "#b994e8"))


@contextmanager
def themed(theme: Theme = LIGHT) -> Iterator[None]:
    """Figures that are made and saved inside have the house style.

    Args:
        theme: The colours.

    >>> from matplotlib.figure import Figure
    >>> with themed():
    ...     axis = Figure(figsize=(4.2, 2.8)).add_subplot()
    >>> bool(axis.spines["top"].get_visible())
    False
    """
    import matplotlib
    from cycler import cycler

    settings: dict[Any, Any] = dict.fromkeys(INKED, theme.ink) | dict.fromkeys(LINED, theme.line) | PLAIN
    settings |= {"figure.facecolor": theme.paper, "axes.facecolor": theme.paper, "axes.prop_cycle": cycler(color=theme.cycle)}
    with matplotlib.rc_context(settings):
        yield


@dataclass(frozen=True)
class Drawing:
    """A picture as PNG, and perhaps the same for a dark page."""

    light: bytes
    dark: bytes | None = None


def png(figure: Figure, dpi: int = DPI) -> bytes:
    """A figure drawn once; savefig would do it twice."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure.set_dpi(dpi)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    file = io.BytesIO()
    Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(file, "png")
    return file.getvalue()


def draw(make: Callable[[], Figure]) -> Drawing:
    """A figure in both themes."""
    parts = []
    for theme in (LIGHT, DARK):
        with themed(theme):
            parts.append(png(make()))
    return Drawing(*parts)


def save_figure(make: Callable[[], Figure], path: str | Path) -> None:
    """Write a figure in the light theme, as a file that appears whole or not at all.

    Args:
        make: Makes the figure; it is called inside the theme, so that all of its parts follow it.
        path: The PNG file.
    """
    with themed():
        write_atomically(Path(path), png(make()))
