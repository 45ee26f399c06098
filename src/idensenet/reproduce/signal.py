"""How much of the distance between two random points an activation keeps (tables of preserved signals)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from idensenet.lipschitz import activation
from idensenet.reproduce import paper
from idensenet.reproduce.experiment import Cell, Claim, Experiment, Result, Table, Work

DIMENSIONS = (1, 128, 1024)
NAMES = {
    "sigmoid": "sigmoid",
    "lipswish": "LipSwish",
    "leakylipswish": "LeakyLipSwish",
    "clipswish": "CLipSwish",
    "cpila": "CPila",
    "sine": "sine pair",
    "crelu": "CReLU",
    "identity": "identity",
}
PAIRS = {"smoke": 2_000, "cpu": 100_000, "paper": 100_000}
AT_ONCE = 2_000  # pairs
SEED = 0


class Ratio(NamedTuple):
    mean: float
    error: float
    most: float


def _distance(difference: Tensor) -> Tensor:
    return difference.square().sum(1).sqrt()


@torch.no_grad()
def preserved(name: str, deviation: float, dims: int, pairs: int, seed: int = SEED) -> Ratio:
    """The ratio |f(v) - f(w)| / |v - w| over pairs of normal points: mean, its standard error, and maximum."""
    phi = activation(name).double()
    generator = torch.Generator().manual_seed(seed)
    found = []
    for start in range(0, pairs, AT_ONCE):
        v, w = deviation * torch.randn(2, min(AT_ONCE, pairs - start), dims, dtype=torch.float64, generator=generator)
        found.append(_distance(phi(v) - phi(w)) / _distance(v - w))
    ratios = torch.cat(found)
    return Ratio(float(ratios.mean()), float(ratios.std() / math.sqrt(pairs)), float(ratios.max()))


def _collect(work: Work, deviation: float, published: dict[str, paper.Ratios]) -> Result:
    rows = []
    for name, title in NAMES.items():
        cells: list[Cell] = []
        for i, dims in enumerate(DIMENSIONS):
            work.report(f"{title}, D = {dims}")
            ratio = preserved(name, deviation, dims, PAIRS[work.budget])
            theirs = published[title][i] if title in published else (None, None)
            cells += [Cell(ratio.mean, ratio.error, theirs[0]), Cell(ratio.most, None, theirs[1])]
        rows.append((title, tuple(cells)))
    columns = tuple(f"{what}, D = {dims}" for dims in DIMENSIONS for what in ("mean", "maximum"))
    table = Table(f"Ratio of distances, N(0, {deviation:g}), {PAIRS[work.budget]:,} pairs", columns, tuple(rows))
    claims = _claims(table)
    if deviation > 1:
        claims += _wider(table, [preserved("clipswish", 1.0, dims, PAIRS[work.budget]) for dims in DIMENSIONS])
    return Result((table,), claims, (f"The deviation of the normal distribution is {deviation:g}.",))


def _means(table: Table) -> dict[str, list[float]]:
    columns = [column for column in table.columns if column.startswith("mean")]
    return {row: [table.cell(row, column).ours or 0.0 for column in columns] for row, _ in table.rows}


def _wider(table: Table, narrow: list[Ratio]) -> tuple[Claim, ...]:
    """Against CLipSwish with deviation 1."""
    ours = _means(table)
    pairs = list(zip(ours["CLipSwish"], (ratio.mean for ratio in narrow), strict=True))
    return (
        Claim(
            "CLipSwish keeps more than with N(0, 1)",
            all(wide > before for wide, before in pairs),
            ", ".join(f"{wide:.2f} against {before:.2f}" for wide, before in pairs),
        ),
        Claim(
            "sigmoid loses a considerable amount, with means close to zero",
            max(ours["sigmoid"]) < 0.1,
            ", ".join(f"{mean:.2f}" for mean in ours["sigmoid"]),
        ),
    )


def _claims(table: Table) -> tuple[Claim, ...]:
    ours = _means(table)
    best = all(c > max(s, n) for c, s, n in zip(ours["CLipSwish"], ours["sigmoid"], ours["LipSwish"], strict=True))
    compared = [cell for _, cells in table.rows for cell in cells if cell.paper is not None]
    worst = [
        max(abs((cell.ours or 0.0) - (cell.paper or 0.0)) for cell in compared if (cell.error is not None) == mean)
        for mean in (True, False)
    ]
    near = worst[0] <= 0.01 and worst[1] <= 0.03
    return (
        Claim(
            "CLipSwish keeps more of the signal on average than sigmoid and LipSwish",
            best,
            ", ".join(f"{c:.2f} against {n:.2f}" for c, n in zip(ours["CLipSwish"], ours["LipSwish"], strict=True)),
        ),
        Claim(
            "the numbers of the table (means within 0.01, maxima within 0.03)",
            near,
            f"largest distance of a mean {worst[0]:.3f}, of a maximum {worst[1]:.3f}",
        ),
    )


def _budget(budget: str) -> str:
    return "in full" if PAIRS[budget] == PAIRS["paper"] else f"{PAIRS[budget]:,} pairs in place of {PAIRS['paper']:,}"


EXPERIMENTS = (
    Experiment(
        "table-signal",
        "How much signal activations preserve, N(0, 1)",
        "section 5.1",
        lambda work: _collect(work, 1.0, paper.SIGNAL),
        budget=_budget,
    ),
    Experiment(
        "table-signal-wide",
        "How much signal activations preserve, N(0, 5)",
        "appendix D.1",
        lambda work: _collect(work, 5.0, paper.SIGNAL_WIDE),
        budget=_budget,
    ),
)
