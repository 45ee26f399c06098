"""Pictures of densities and points in the plane, and of the pairs of more columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from idensenet.flow import Flow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Frame = tuple[float, float, float, float]  # left, right, bottom, top
TOY_FRAME: Frame = (-4.5, 4.5, -4.5, 4.5)  # all toy sets fit in
MOST_COLUMNS = 4


def _range(values: Tensor, margin: float = 0.1) -> tuple[float, float]:
    """Where nearly all values are, with a margin on either side."""
    low, high = torch.quantile(values.detach().cpu().double(), torch.tensor([0.001, 0.999], dtype=torch.float64)).tolist()
    pad = margin * (high - low) or max(abs(high), 1.0) * margin
    return low - pad, high + pad


def frame_of(points: Tensor) -> Frame:
    """The part of the plane to show: a fixed square for toy sets, otherwise where the data is."""
    left, right = _range(points[:, 0])
    bottom, top = _range(points[:, 1])
    fits = max(map(abs, (left, right, bottom, top))) <= 6 and max(right - left, top - bottom) > 2
    return TOY_FRAME if fits else (left, right, bottom, top)


def density_grid(flow: Flow, frame: Frame = TOY_FRAME, side: int = 200) -> Tensor:
    """exp(log_prob) at the centres of side x side cells of the frame, rows from bottom to top."""
    steps = (torch.arange(side, device=flow.device, dtype=flow.dtype) + 0.5) / side
    left, right, bottom, top = frame
    y, x = torch.meshgrid(bottom + (top - bottom) * steps, left + (right - left) * steps, indexing="ij")
    with torch.no_grad():
        return flow.log_prob(torch.stack([x, y], -1).view(-1, 2)).exp().view(side, side)


def _bare(axis: Any, frame: Frame) -> None:
    """A picture without ticks; square, unless the two axes have different units."""
    axis.set_xlim(frame[:2])
    axis.set_ylim(frame[2:])
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.set_box_aspect(1)


def draw_histogram(axis: Any, points: Tensor, frame: Frame) -> None:
    """How many points there are in each cell, black for none."""
    x, y = points.detach().cpu().double().numpy().T
    bounds = [list(frame[:2]), list(frame[2:])]
    bins = min(100, max(40, int(0.9 * len(x) ** 0.5)))
    counts, *_, mesh = axis.hist2d(x, y, bins=bins, range=bounds, cmap="magma", rasterized=True)
    filled = counts[counts > 0]
    if filled.size:
        mesh.set_clim(0, float(torch.quantile(torch.from_numpy(filled), 0.995)))
    _bare(axis, frame)


def draw_density(axis: Any, flow: Flow, frame: Frame) -> None:
    grid = density_grid(flow, frame).cpu().numpy()
    axis.imshow(grid, origin="lower", extent=frame, cmap="magma", vmin=0, aspect="auto", interpolation="bilinear")
    _bare(axis, frame)


def plane_figure(flow: Flow | None, points: Tensor, frame: Frame) -> Figure:
    """One square without a border: the density of a flow, or a histogram of points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6, 2.6))
    axis = figure.add_axes((0, 0, 1, 1))
    if flow is None:
        draw_histogram(axis, points, frame)
    else:
        draw_density(axis, flow, frame)
    return figure


def density_figure(flow: Flow, data: Tensor, samples: Tensor) -> Figure:
    """Data, learned density and samples side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.25))
    axes = figure.subplots(1, 3, gridspec_kw={"left": 0.005, "right": 0.995, "bottom": 0.01, "top": 0.91, "wspace": 0.02})
    frame = frame_of(data)
    draw_histogram(axes[0], data, frame)
    draw_density(axes[1], flow, frame)
    draw_histogram(axes[2], samples, frame)
    for axis, title in zip(axes, ("data", "learned density", "samples"), strict=True):
        axis.set_title(title)
    return figure


def scatter_figure(points: Tensor) -> Figure:
    """Points in the plane: each of them, or a histogram if there are many."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5))
    axis = figure.add_axes((0.1, 0.06, 0.88, 0.88))
    frame = frame_of(points)
    if len(points) >= 2000:
        draw_histogram(axis, points, frame)
    else:
        x, y = points.detach().cpu().numpy().T
        axis.plot(x, y, ".", markersize=5, alpha=0.6, markeredgewidth=0)
        axis.set_xlim(frame[:2])
        axis.set_ylim(frame[2:])
        axis.set_box_aspect(1)
        axis.grid(True)
    axis.set_title(f"{len(points):,} samples")
    return figure


def pairs_figure(sets: Sequence[tuple[str, Tensor]], names: Sequence[str] = ()) -> Figure:
    """Histograms of up to four columns, and their pairs: the first set below the diagonal, the second above it."""
    from matplotlib.figure import Figure

    first = sets[0][1]
    count = min(MOST_COLUMNS, first.shape[1])
    names = [names[i] if i < len(names) else f"column {i + 1}" for i in range(count)]
    width, height = (2.0 * count + 0.5, 2.0 * count + 0.8) if count > 1 else (4.5, 3.2)
    figure = Figure(figsize=(width, height))
    room = {"left": 0.55 / width, "right": 1 - 0.1 / width, "bottom": 0.3 / height, "top": 1 - 0.5 / height}
    axes = figure.subplots(count, count, squeeze=False, gridspec_kw={**room, "wspace": 0.12, "hspace": 0.25})
    bounds = [_range(first[:, i]) for i in range(count)]
    for i in range(count):
        for j in range(count):
            axis = axes[i][j]
            if i == j:
                for _, points in sets:
                    values = points[:, i].detach().cpu().double().numpy()
                    axis.hist(values, bins=40, range=bounds[i], density=True, histtype="step", linewidth=1.3)
                axis.set_title(names[i])
                axis.set_yticks([])
            elif i < j and len(sets) < 2:
                axis.set_visible(False)
                continue
            else:
                place = 1 if i < j else 0
                shown = sets[place][1][:1500].detach().cpu()
                axis.plot(shown[:, j], shown[:, i], ".", color=f"C{place}", markersize=3, alpha=0.5, markeredgewidth=0)
                axis.set_ylim(bounds[i])
                axis.tick_params(labelleft=j == 0)
            axis.set_xlim(bounds[j])
            axis.tick_params(labelsize=7, labelbottom=i == count - 1)
            axis.locator_params(axis="x", nbins=4)
    if len(sets) > 1:
        handles = [axes[0][0].plot([], [], color=f"C{k}", label=label)[0] for k, (label, _) in enumerate(sets)]
        figure.legend(handles=handles, loc="upper right", ncols=2)
    return figure
