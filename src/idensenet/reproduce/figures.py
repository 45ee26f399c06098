"""The figures of the derivations: the norm of the CLipSwish Jacobian, and the range of the normalised eta."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from idensenet.lipschitz.activations import LipSwish
from idensenet.lipschitz.dense import concatenation_weights
from idensenet.reproduce import paper
from idensenet.reproduce.experiment import Cell, Claim, Experiment, Result, Table, Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETAS = (0.1, 0.5, 1.0, 2.0)


def jacobian_norm(x: Tensor, b: float) -> Tensor:
    """sqrt(phi1'^2 + phi2'^2) of [LipSwish(x), LipSwish(-x)] with the factor b inside the sigmoid."""
    phi = LipSwish().to(x.dtype)
    with torch.no_grad():
        phi.beta.fill_(math.log(math.expm1(b)))  # softplus(beta) = b
        (_, (up,)), (_, (down,)) = phi.linearize(x), phi.linearize(-x)
    return torch.hypot(up, -down)


def maxima(b: float, cells: int = 400_000) -> list[tuple[float, float]]:
    """(x, value) of the local maxima of the norm, x to about 1e-4 / b."""
    x = torch.linspace(-20 / b, 20 / b, cells + 1, dtype=torch.float64)
    y = jacobian_norm(x, b)
    inner = (y[1:-1] > y[:-2]) & (y[1:-1] >= y[2:])
    return [(float(a), float(c)) for a, c in zip(x[1:-1][inner], y[1:-1][inner], strict=True)]


def _clipswish_figure() -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4))
    axis = figure.add_axes((0.11, 0.15, 0.86, 0.75))
    x = torch.linspace(-20, 20, 2001, dtype=torch.float64)
    for b in BETAS:
        axis.plot(x, jacobian_norm(x, b), label=f"softplus(beta) = {b:g}")
        peaks = maxima(b)
        axis.plot([p[0] for p in peaks if abs(p[0]) <= 20], [p[1] for p in peaks if abs(p[0]) <= 20], "k.", markersize=5)
    axis.axhline(paper.CLIPSWISH_CONSTANT, color="#888888", linewidth=0.9, linestyle="--")
    axis.text(-20, paper.CLIPSWISH_CONSTANT + 0.006, "1.004")
    axis.set_title("Norm of the Jacobian of [LipSwish(x), LipSwish(-x)]")
    axis.set_xlabel("x")
    axis.grid(True)
    axis.legend(loc="lower right")
    return figure


def _clipswish(work: Work) -> Result:
    rows = []
    for b in BETAS:
        (left, top), (right, other) = maxima(b)
        rows.append((f"softplus(beta) = {b:g}", (Cell(left), Cell(right), Cell(max(top, other), None, 1.004))))
    table = Table("Where the norm is largest", ("x of the left maximum", "x of the right one", "norm there"), tuple(rows), 4)
    tops = [cells[2].ours or 0.0 for _, cells in rows]
    spread = max(tops) - min(tops)
    claims = (
        Claim("the constant is about 1.004", abs(tops[0] - 1.004) < 5e-4, f"largest norm {max(tops):.7f}"),
        Claim("it is the same for every beta", spread < 1e-8, f"the maxima for four values of beta differ by {spread:.1e}"),
    )
    notes = (
        "The scaled constant is 1.10437 / 1.1: below the 1.004 that CLipSwish divides by, so the bound is valid.",
        "The maxima lie at x = +-2.3994 / softplus(beta).",
    )
    return Result((table,), claims, notes, _clipswish_figure)


def reachable(count: int = 401, reach: float = 1000.0) -> Tensor:
    """Normalised weights for raw ones from (-reach, reach) to (reach, -reach), [count, 2]."""
    sweep = torch.linspace(-1, 1, count, dtype=torch.float64)
    raw = reach * sweep.sign() * sweep.abs() ** 3
    return torch.stack([concatenation_weights(torch.stack([k, -k]), 2.0) for k in raw])


def _concatenation_figure() -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.8, 3.8))
    axis = figure.add_axes((0.16, 0.14, 0.8, 0.78))
    points = reachable()
    axis.plot(points[:, 0], points[:, 1])
    middle = math.sqrt(0.5)
    axis.plot([middle], [middle], "o")
    axis.annotate("eta1 = eta2:\nnot learned", (middle, middle), xytext=(0.3, 0.42), arrowprops={"arrowstyle": "-"})
    axis.set_xlabel("normalised eta1, weight of the input")
    axis.set_ylabel("normalised eta2, of the transformation")
    axis.set_title("Range of the concatenation")
    axis.set_xlim(0, 1.05)
    axis.set_ylim(0, 1.05)
    axis.set_aspect("equal")
    axis.grid(True)
    return figure


def _concatenation(work: Work) -> Result:
    points = reachable()
    equal = concatenation_weights(torch.ones(2, dtype=torch.float64), 2.0)
    table = Table(
        "Normalised weights",
        ("eta1", "eta2"),
        (
            ("smallest reached", (Cell(float(points[:, 0].min()), None, 0.0), Cell(float(points[:, 1].min()), None, 0.0))),
            ("largest reached", (Cell(float(points[:, 0].max()), None, 1.0), Cell(float(points[:, 1].max()), None, 1.0))),
            ("raw weights equal", tuple(Cell(float(value), None, math.sqrt(0.5)) for value in equal)),
        ),
        4,
    )
    off = float((points.square().sum(1) - 1).abs().max())
    claims = (
        Claim("the pair lies on the unit circle", off < 1e-12, f"|eta1^2 + eta2^2 - 1| is at most {off:.1e}"),
        Claim(
            "equal weights give sqrt(2) / 2 each, the case that is not learned",
            bool((equal - math.sqrt(0.5)).abs().max() < 1e-12),
            f"({float(equal[0]):.6f}, {float(equal[1]):.6f})",
        ),
    )
    notes = ("A raw weight k gives softplus(k) + 0.1, so the ends of the arc are approached and not reached.",)
    return Result((table,), claims, notes, _concatenation_figure)


EXPERIMENTS = (
    Experiment("figure-clipswish", "The Lipschitz constant of CLipSwish", "appendix A.3", _clipswish),
    Experiment("figure-concatenation", "The range of the learnable concatenation", "section 3.3", _concatenation),
)
