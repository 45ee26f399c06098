"""What the learned concatenation passes on: heat maps over scales, blocks and layers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from idensenet.report.concatenation import NAMES, ScaleWeights, concatenation_weights
from idensenet.report.drawing import WIDEST
from idensenet.reproduce import images
from idensenet.reproduce.experiment import Cell, Claim, Experiment, Plan, Result, Table, Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EARLIER, LAST = "mean of the earlier layers", "mean of the last layer"
LITTLE = 0.3  # of a weight between 0 and 1


def plan(budget: str) -> Plan:
    if budget == "paper":
        return images.plan("cifar10-idensenet-small", budget)
    return images.plan("cifar10-idensenet-tiny", budget, {"model.fc_blocks": 2}, "cifar10-idensenet-tiny-connected")


def _figure(scales: Sequence[ScaleWeights]) -> Figure:
    from matplotlib.figure import Figure

    blocks = max(len(scale.values[0]) for scale in scales)
    depth = max(scale.depth for scale in scales)
    figure = Figure(figsize=(min(WIDEST, 0.55 * blocks * depth + 2.2), 2 * (0.34 * len(scales) + 0.75)))
    axes: Any = figure.subplots(2, 1)
    labels = [f"{j + 1}{'abcdefgh'[k]}" for j in range(blocks) for k in range(depth)]
    for which, axis in enumerate(axes):
        grid = [
            [
                scale.values[which][j][k] if j < len(scale.values[which]) and k < len(scale.values[which][j]) else float("nan")
                for j in range(blocks)
                for k in range(depth)
            ]
            for scale in scales
        ]
        picture = axis.imshow(grid, aspect="auto", cmap="viridis", vmin=0, vmax=1)
        for i, line in enumerate(grid):
            for j, value in enumerate(line):
                if value == value and len(line) <= 16:
                    axis.text(
                        j, i, f"{value:.2f}", ha="center", va="center", fontsize=7, color="white" if value < 0.6 else "black"
                    )
        axis.set_title(NAMES[which])
        axis.set_xticks(range(len(labels)), labels)
        axis.set_yticks(range(len(scales)), ["FC" if "connected" in s.title else s.title for s in scales])
        axis.spines[:].set_visible(False)
    figure.tight_layout()
    figure.colorbar(picture, ax=list(axes)).outline.set_visible(False)
    return figure


def claims_of(table: Table) -> tuple[Claim, ...]:
    last = {row: table.cell(row, LAST).ours or 0.0 for row, _ in table.rows}
    earlier = {row: table.cell(row, EARLIER).ours or 0.0 for row, _ in table.rows}
    connected = {row: value for row, value in last.items() if "connected" in row}
    scales = {row: value for row, value in last.items() if row not in connected}
    little = all(value < LITTLE for value in scales.values())
    words = ", ".join(f"{row}: {value:.2f} (earlier layers {earlier[row]:.2f})" for row, value in scales.items())
    claims = [Claim("in every scale the last layers give little weight to their input", little, words)]
    for value in connected.values():
        more, most = value > max(scales.values()), max(scales.values())
        evidence = f"{value:.2f} in the last layers, {most:.2f} at most elsewhere"
        claims.append(Claim("in fully connected blocks this is less pronounced", more if little else None, evidence))
    return tuple(claims)


def _collect(work: Work) -> Result:
    run = work.runs[plan(work.budget).name]
    scales = concatenation_weights(run.flow)
    rows = []
    for scale in scales:
        first = scale.values[0]
        last = statistics.fmean(row[-1] for row in first)
        other = statistics.fmean(value for row in first for value in row[:-1])
        rows.append((scale.title, (Cell(other), Cell(last), Cell(min(v for row in first for v in row)))))
    table = Table("eta1, the weight of the input", (EARLIER, LAST, "smallest"), tuple(rows))
    notes = (f"{run.step:,} steps; all weights start at 0.71. The letters number the layers of a block.",)
    return Result((table,), claims_of(table), notes, lambda: _figure(scales))


def _budget(budget: str) -> str:
    return images.budget_in_words(budget, "2-2-2 blocks and 2 fully connected ones")


EXPERIMENTS = (
    Experiment("figure-eta", "Weights of the concatenation", "appendix D.3", _collect, lambda budget: [plan(budget)], _budget),
)
