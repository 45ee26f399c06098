"""Hybrid models: one flow that is a density and a classifier, four kinds of blocks, three weights of the density."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import torch

from idensenet.report.pictures import image_grid
from idensenet.reproduce import images, paper
from idensenet.reproduce.experiment import Cell, Claim, Experiment, Plan, Result, Table, Work
from idensenet.reproduce.runs import Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "coupling": "coupling",
    "coupling + 1x1 convolution": "glow",
    "residual blocks": "resflow",
    "dense blocks": "idensenet",
}
WEIGHTS = {"0": "0", "1/D": "1/D", "1": "1"}
LAST = 5  # evaluations that a score is averaged over


def plan(kind: str, weight: str, budget: str) -> Plan:
    recipe = f"cifar10-{KINDS[kind]}-hybrid" if budget == "paper" else f"cifar10-{KINDS[kind]}-tiny-hybrid"
    options: dict[str, Any] = {"train.weight": weight}
    if weight == "0":
        options["train.objective"] = "classification"
    if budget != "smoke":
        options["train.eval_samples"] = 10_000 if budget == "paper" else 500  # accuracies need more than scores
    if budget == "cpu":
        options["train.eval_every"] = 120  # the last five evaluations are averaged
    return images.plan(recipe, budget, options, f"{recipe}-{weight.replace('/', 'per')}")


def plans(budget: str) -> list[Plan]:
    return [plan(kind, weight, budget) for kind in KINDS for weight in WEIGHTS]


def last_mean(run: Trained, name: str) -> Cell:
    """The average of the last evaluations, with their spread as its error."""
    values = [value for *_, value in run.curve(name)][-LAST:]
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Cell(statistics.fmean(values), error)


def _collect(work: Work) -> Result:
    rows = []
    for kind, (zero, per_dimension, one) in paper.HYBRID.items():
        runs = {weight: work.runs[plan(kind, weight, work.budget).name] for weight in WEIGHTS}
        cells = []
        for weight, theirs in (("0", (zero, None)), ("1/D", per_dimension), ("1", one)):
            accuracy = last_mean(runs[weight], "accuracy")
            cells.append(Cell(100 * (accuracy.ours or 0.0), 100 * (accuracy.error or 0.0), theirs[0]))
            if weight != "0":
                found = last_mean(runs[weight], "bits_per_dim")
                cells.append(Cell(found.ours, found.error, theirs[1]))
        rows.append((kind, tuple(cells)))
    columns = ("accuracy %, lambda 0", "accuracy %, 1/D", "bits/dim, 1/D", "accuracy %, 1", "bits/dim, 1")
    samples = work.runs[plan("dense blocks", "1", work.budget).name].config.train.eval_samples
    table = Table(f"Average of the last {LAST} evaluations on {samples:,} held-out images", columns, tuple(rows))
    return Result((table,), tuple(_claims(table, samples)), ("One run of each. The errors are over the evaluations averaged.",))


def _claims(table: Table, samples: int) -> list[Claim]:
    """Dense blocks against the best of the others, and against residual blocks."""
    claims = []
    for column in table.columns:
        cells = {row: table.cell(row, column) for row, _ in table.rows}
        dense = cells.pop("dense blocks")
        percent = column.startswith("accuracy")

        def ahead(row: str, cells: dict[str, Cell] = cells, dense: Cell = dense, sign: int = 1 if percent else -1) -> float:
            return sign * ((dense.ours or 0.0) - (cells[row].ours or 0.0))

        best = min(cells, key=ahead)
        for other, text in (
            (best, "dense blocks are the best"),
            ("residual blocks", "dense blocks are ahead of residual blocks"),
        ):
            # over evaluations; and for accuracies, of a difference between two on so many images
            error = math.hypot(dense.error or 0.0, cells[other].error or 0.0)
            error = max(error, 100 * math.sqrt(0.5 / samples)) if percent else error
            gap = ahead(other)
            holds = None if abs(gap) < 2 * error else gap > 0
            claims.append(Claim(f"{column}: {text}", holds, f"ahead of {other} by {gap:+.2f}, resolution {2 * error:.2f}"))
    return claims


# Samples


def _sample_plans(budget: str) -> list[Plan]:
    return [plan("dense blocks", weight, budget) for weight in ("1/D", "1")]


def _samples(work: Work) -> Result:
    pages, rows = [], []
    for weight in ("1/D", "1"):
        run = work.runs[plan("dense blocks", weight, work.budget).name]
        flow = run.flow
        assert flow.levels is not None
        work.report(f"samples at lambda {weight}")
        drawn = flow.sample(images.SAMPLES[work.budget], generator=torch.Generator(flow.device).manual_seed(0))
        pages.append((weight, image_grid(drawn, flow.levels, 8)))
        edge = ((drawn == 0) | (drawn == flow.levels - 1)).double().mean()
        rows.append((f"lambda {weight}", (last_mean(run, "bits_per_dim"), Cell(100 * float(edge)))))

    def figure() -> Figure:
        from matplotlib.figure import Figure

        page = Figure(figsize=(8.4, 3.6))
        axes: Any = page.subplots(1, 2)
        for axis, (weight, grid) in zip(axes, pages, strict=True):
            axis.imshow(grid.numpy(), interpolation="nearest")
            axis.set_axis_off()
            axis.set_title(f"lambda = {weight}")
        page.tight_layout()
        return page

    table = Table("Dense blocks", ("bits/dim", "% of levels at the edge"), tuple(rows))
    return Result((table,), (), ("Temperature 1, averaged weights, seed 0.",), figure)


def _budget(budget: str) -> str:
    if budget == "paper":
        return "as published: 400 epochs of the full models"
    return images.budget_in_words(budget) + ("; heads of 64 channels, counted in the 0.30M" if budget == "cpu" else "")


EXPERIMENTS = (
    Experiment("table-hybrid", "Hybrid models", "section 4.3", _collect, plans, _budget),
    Experiment("samples-hybrid", "Samples of hybrid models", "appendix C.2", _samples, _sample_plans, _budget),
)
