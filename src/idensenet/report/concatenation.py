"""Heat maps of the weights of the concatenation: how much of its input and of its transformation a dense layer passes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from idensenet.flow import Flow
from idensenet.lipschitz import LipschitzConv2d, LipschitzMap
from idensenet.lipschitz.dense import DenseLayer
from idensenet.report.drawing import Drawing, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("eta1, weight of the input", "eta2, weight of the transformation")


def is_fully_connected(flow: Flow, stack: nn.Module) -> bool:
    """Whether the residual blocks of a stack of an image model work on flattened maps."""
    maps = [m for m in stack.modules() if isinstance(m, LipschitzMap)]
    return len(flow.shape) == 3 and not any(isinstance(m, LipschitzConv2d) for m in maps)


def block_titles(flow: Flow) -> dict[str, str]:
    """The name of every residual block in words: 'scale 1, block 2'."""
    titles = {}
    for name, stack, _ in flow.named_blocks():
        scale, number = name.split(".")
        titles[name] = (
            f"fully connected, block {number}" if is_fully_connected(flow, stack) else f"scale {scale}, block {number}"
        )
    return titles


@dataclass(frozen=True)
class ScaleWeights:
    """The weights of one scale: values[i][j][k] is eta_(i+1) of layer k + 1 in block j + 1."""

    title: str
    values: tuple[list[list[float]], list[list[float]]]

    @property
    def depth(self) -> int:
        return max(len(row) for row in self.values[0])


def concatenation_weights(flow: Flow) -> list[ScaleWeights]:
    """Per scale, the fully connected blocks last; nothing if there is no dense layer."""
    titles = block_titles(flow)
    found: dict[str, tuple[list[list[float]], list[list[float]]]] = {}
    for name, stack, k in flow.named_blocks():
        layers = [layer.eta()[k].detach().double().tolist() for layer in stack.modules() if isinstance(layer, DenseLayer)]
        if layers:
            rows = found.setdefault(titles[name].split(",")[0], ([], []))
            for i in range(2):
                rows[i].append([eta[i] for eta in layers])
    return [ScaleWeights(title, values) for title, values in found.items()]


def heat_figure(scale: ScaleWeights, which: int, low: float, high: float) -> Figure:
    """Blocks from left to right, layers from bottom to top."""
    from matplotlib.figure import Figure

    rows = scale.values[which]
    blocks, depth = len(rows), scale.depth
    height = 0.36 * depth + 0.86
    figure = Figure(figsize=(4.6, height))
    axis = figure.add_axes((0.1, 0.5 / height, 0.76, 0.36 * depth / height))
    grid = [[row[k] if k < len(row) else float("nan") for row in rows] for k in range(depth)]
    picture = axis.imshow(grid, origin="lower", aspect="auto", cmap="viridis", vmin=low, vmax=high)
    for k, line in enumerate(grid):
        for j, value in enumerate(line):
            if blocks <= 10 and value == value:
                ink = "white" if value < low + 0.6 * (high - low) else "black"
                axis.text(j, k, f"{value:.2f}", ha="center", va="center", color=ink, fontsize=7 if blocks > 6 else 8.5)
    axis.set_title(f"{scale.title}: {NAMES[which]}")
    every = max(1, -(-blocks // 16))
    axis.set_xticks(range(0, blocks, every), [str(j + 1) for j in range(0, blocks, every)])
    axis.set_yticks(range(depth), [str(k + 1) for k in range(depth)])
    axis.set_xlabel("block")
    axis.set_ylabel("layer")
    axis.spines[:].set_visible(False)
    bar = figure.colorbar(picture, cax=figure.add_axes((0.875, 0.5 / height, 0.02, 0.36 * depth / height)))
    bar.outline.set_visible(False)
    bar.ax.locator_params(nbins=4)
    return figure


def heat_maps(flow: Flow) -> list[tuple[Drawing, str]]:
    """Two heat maps per scale on one colour scale, and what they show in words."""
    scales = concatenation_weights(flow)
    every = [value for scale in scales for part in scale.values for row in part for value in row]
    if not every:
        return []
    middle, spread = (min(every) + max(every)) / 2, max(max(every) - min(every), 0.1) / 2
    pictures = []
    for scale in scales:
        for which in range(2):
            values = [value for row in scale.values[which] for value in row]
            words = f"Heat map, {scale.title}: {NAMES[which]}, from {min(values):.3f} to {max(values):.3f}"

            def make(scale: ScaleWeights = scale, which: int = which) -> Figure:
                return heat_figure(scale, which, middle - spread, middle + spread)

            pictures.append((draw(make), words))
    return pictures
