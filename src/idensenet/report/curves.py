"""How a run went: figures of its metrics over its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from idensenet.report.drawing import Drawing, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Formatter

Entry = Mapping[str, Any]
HELD_OUT = {"nats": "nats", "bits/dim": "bits_per_dim", "accuracy": "accuracy"}  # a metric in training and in evaluation


FEW = 2  # values that make no curve


@dataclass(frozen=True)
class Line:
    """Values over steps, with standard errors if they are known."""

    label: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...] = ()

    @property
    def finite(self) -> list[float]:
        return [v for v in self.values if math.isfinite(v)]

    @property
    def curved(self) -> bool:
        """Whether there are enough values for a curve."""
        return len(self.finite) > FEW


@dataclass(frozen=True)
class Panel:
    """One figure: its lines, and horizontal lines with a name."""

    title: str
    lines: tuple[Line, ...]
    levels: tuple[tuple[str, float], ...] = ()
    logarithmic: bool = False
    from_zero: bool = False

    @property
    def curved(self) -> bool:
        """Whether one of its lines has enough values for a curve."""
        return any(line.curved for line in self.lines)

    def describe(self) -> str:
        """In words, for those who do not see the figure."""
        parts = [f"{line.label} from {line.finite[0]:.4g} to {line.finite[-1]:.4g}" for line in self.lines if line.finite]
        return f"{self.title} over the steps of the run: {'; '.join(parts)}"


def line_of(entries: Sequence[Entry], kind: str, name: str, label: str) -> Line:
    found = [entry for entry in entries if entry.get("kind") == kind and isinstance(entry.get(name), int | float)]
    errors = tuple(float(entry.get(f"{name}_error", math.nan)) for entry in found) if kind == "eval" else ()
    return Line(label, tuple(int(e["step"]) for e in found), tuple(float(e[name]) for e in found), errors)


def panels(entries: Sequence[Entry], entropy: float | None = None, clip: float | None = None) -> list[Panel]:
    """What there is to show: score, classification, gradient norm, learning rate, skipped steps."""
    found = []
    images = any("bits_per_dim" in entry or "bits/dim" in entry for entry in entries)
    score = "bits/dim" if images else "nats"
    titles = {
        score: f"Negative log-density, {'bits per dimension' if images else 'nats'}",
        "bits/class": "Cross-entropy of the classes, bits",
        "accuracy": "Accuracy",
    }
    for name, title in titles.items():
        both = [line_of(entries, "train", name, "training")]
        if name in HELD_OUT:
            both.append(line_of(entries, "eval", HELD_OUT[name], "held out, averaged weights"))
        level = (("entropy of the data", entropy),) if name == score and entropy is not None else ()
        found.append(Panel(title, tuple(line for line in both if line.finite), level))
    bound = (("clipped to", clip),) if clip is not None else ()
    found.append(Panel("Norm of the gradient", (line_of(entries, "train", "gradient", "before clipping"),), bound, True))
    found.append(Panel("Learning rate", (line_of(entries, "train", "lr", "rate"),), from_zero=True))
    skipped = line_of(entries, "train", "skipped", "skipped so far")
    found.append(Panel("Steps skipped, their gradient not being finite", (skipped,), from_zero=True))
    return [panel for panel in found if any(line.finite for line in panel.lines)]


def _cut(axis: Axes, panel: Panel) -> None:
    """Leave out a start that is so high that nothing else could be seen."""
    values = [v for line in panel.lines for v in line.finite]
    later = [v for line in panel.lines for v in line.finite[len(line.finite) // 5 :]] + [v for _, v in panel.levels]
    low, high = min([*values, *later]), max(later)
    if len(values) > 10 and max(values) - low > 3 * (high - low) > 0:
        axis.set_ylim(low - 0.08 * (high - low), high + 0.15 * (high - low))
        axis.annotate("starts higher", (0.02, 0.97), xycoords="axes fraction", va="top", fontsize=8, style="italic")


def _plainly() -> Formatter:
    """Numbers as one would write them."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:g}")


def _logarithmic(axis: Axes, ratio: float) -> None:
    """A logarithmic axis with plain numbers, few of them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if ratio < 100 else (1.0,)))
    axis.yaxis.set_major_formatter(_plainly())
    axis.yaxis.set_minor_formatter(NullFormatter())


def curve_figure(panel: Panel) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.8, 2.6))
    axis = figure.add_axes((0.15, 0.17, 0.81, 0.72))
    axis.set_title(panel.title)
    for line in panel.lines:
        few = len(line.steps) <= 12
        errors = [e if math.isfinite(e) else 0.0 for e in line.errors]
        style = "-" if line.curved else "none"  # two points are no curve
        if any(errors):
            axis.errorbar(
                line.steps, line.values, yerr=errors, marker=".", linestyle=style, capsize=2, elinewidth=1, label=line.label
            )
        else:
            axis.plot(line.steps, line.values, marker="." if few or line.errors else None, linestyle=style, label=line.label)
    for name, value in panel.levels:
        axis.axhline(value, color="C2", linestyle=(0, (4, 3)), linewidth=1.1, label=f"{name} {value:.4g}")
    values = [v for line in panel.lines for v in line.finite]
    if panel.logarithmic and min(values) > 0 and max(values) > 4 * min(values):
        _logarithmic(axis, max(values) / min(values))
    elif not panel.logarithmic:
        _cut(axis, panel)
    if panel.from_zero:
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(_plainly())
    axis.set_xlabel("step")
    axis.locator_params(axis="x", integer=True)
    axis.grid(True, axis="y")
    if len(panel.lines) + len(panel.levels) > 1:
        axis.legend()
    return figure


def curves(found: Sequence[Panel]) -> list[tuple[Drawing, str]]:
    """Each panel as a picture, and what it shows in words."""
    return [(draw(lambda panel=panel: curve_figure(panel)), panel.describe()) for panel in found]  # type: ignore[misc]
