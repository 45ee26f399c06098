"""A residual branch g as one function of tensors: its value, its tangents and the slopes it met.

Every way to compute a block calls `push`: eager and compiled, exact and stochastic log-determinants, solvers, vectors and
images. Its Jacobian `BranchMap` is made of the same weights and slopes.

In a dense block h_i = [a_i h_(i-1) ; b_i s_i], so every h_i is the plain concatenation of s_0, s_1, ..., s_i up to one factor
per channel. The factors multiply the columns of the weights, which are small, and never the maps, which are large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import hardshrink

from idensenet.lipschitz.activations import Activation, Slopes
from idensenet.lipschitz.dense import DenseLayer
from idensenet.lipschitz.linear import LipschitzMap
from idensenet.lipschitz.linearmap import LinearMap

if TYPE_CHECKING:
    from typing import Self

Kind = type[LipschitzMap]
Part = tuple[Tensor, ...]  # the tensors of one step of one block: weight and bias, or a factor; parameters of the activation
Pushed = tuple[Tensor, Tensor | None, tuple[Slopes, ...]]
AT_ONCE = 1 << 26  # bytes of features
TINY = 1e-25  # smaller numbers become zero: subnormal ones slow a CPU down a hundredfold


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a branch: a linear map, or a mere factor, and the activation behind it; a dense step also keeps its input."""

    linear: LipschitzMap | None
    activation: Activation | None = None
    dense: DenseLayer | None = None


def _moved(kind: Kind, step: Step, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product with the weight of a step, or with its factor."""
    return weight * rows if step.linear is None else kind.product(rows, weight, bias)


def _joined(kind: Kind, step: Step, before: Tensor, made: Sequence[Tensor]) -> Tensor:
    """What a step returns: what its activation made, next to what came in if the step is dense."""
    parts = [before, *made] if step.dense is not None else made
    return torch.cat(tuple(parts), kind.channels) if len(parts) > 1 else parts[0]


def _sloped(kind: Kind, slope: Tensor | None, rows: Tensor) -> Tensor:
    """The slopes of the samples times rows that hold one or several vectors for each sample."""
    if slope is None:
        return rows
    n = slope.shape[kind.samples]
    if n == 1 or rows.shape[kind.samples] == n:
        return slope * rows
    vectors: Tensor = rows.unflatten(kind.samples, (-1, n))  # type: ignore[no-untyped-call]
    return (slope.unsqueeze(kind.samples) * vectors).flatten(kind.samples, kind.samples + 1)


def push(plan: Plan, parts: Sequence[Part], x: Tensor, v: Tensor | None = None, slopes: bool = True) -> Pushed:
    """g(x), the product J v and the slopes of the activations.

    Args:
        plan: The steps.
        parts: The tensors of each step, prepared: normalised weights with all factors in them.
        x: Samples [batch, *event].
        v: Vectors [probes, batch, *event], or none.
        slopes: Whether to compute slopes where there is no v.

    Returns:
        g(x); J v, or None; for each activation its slopes, in the layout of the maps.
    """
    kind, rounded = plan.kind, parts[-1][0].dtype
    rows = kind.enter(x).to(rounded)
    sizes = [rows.shape[kind.samples]]  # values, and behind them tangents
    if v is not None:
        tangents = kind.enter(v).to(rounded)
        sizes.append(tangents.shape[kind.samples])
        rows = torch.cat([rows, tangents], kind.samples)
    found: list[Slopes] = []
    for step, part in zip(plan.steps, parts, strict=True):
        weight, bias, own = (part[0], None, part[1:]) if step.linear is None else (part[0], part[1], part[2:])
        moved = _moved(kind, step, rows, weight, bias if v is None else None)
        value, *tangent = torch.split(moved, sizes, kind.samples)
        if v is not None and bias is not None:
            value = value + bias.view(-1, *[1] * (rows.ndim - 1 - kind.channels))
        if step.activation is None:
            rows = torch.cat([value, *tangent], kind.samples) if tangent else value
            continue
        made, derivative = step.activation.curves(value, *own)
        if slopes or tangent:
            found.append(derivative())
        if tangent:
            pairs = zip(made, found[-1], strict=True)
            made = tuple(torch.cat([part, _sloped(kind, slope, tangent[0])], kind.samples) for part, slope in pairs)
        rows = _joined(kind, step, rows, made)
    value, *tangent = torch.split(rows, sizes, kind.samples)
    result = kind.leave(value.to(x.dtype), x.shape[:1])
    return result, kind.leave(tangent[0].to(x.dtype), v.shape[:2]) if v is not None else None, tuple(found)


def pull(plan: Plan, parts: Sequence[Part], slopes: Sequence[Slopes], u: Tensor) -> Tensor:
    """J' u for vectors [..., batch, *event], given the slopes at the samples."""
    kind, waiting = plan.kind, list(slopes)
    rows = kind.enter(u)
    for step, (weight, *_) in zip(reversed(plan.steps), reversed(parts), strict=True):
        kept = None
        if step.activation is not None:
            each = waiting.pop()
            if step.dense is not None:
                assert each[0] is not None
                grown = len(each) * each[0].shape[kind.channels]
                kept, rows = torch.split(rows, [rows.shape[kind.channels] - grown, grown], kind.channels)
            made = [_sloped(kind, *pair) for pair in zip(each, rows.chunk(len(each), kind.channels), strict=True)]
            rows = sum(made[1:], made[0])
        rows = rows.to(weight.dtype)
        rows = weight * rows if step.linear is None else kind.product_back(rows, weight)
        if kept is not None:
            rows = rows + kept
    return hardshrink(kind.leave(rows.to(u.dtype), u.shape[: -kind.event]), TINY)


@dataclass(frozen=True, eq=False)
class Plan:
    """What the blocks of a stack share: the kind of their linear maps, the steps, and the functions, compiled or not."""

    kind: Kind
    steps: tuple[Step, ...]
    push: Callable[..., Pushed] = push
    pull: Callable[..., Tensor] = pull


class BranchMap(LinearMap):
    """The Jacobian of a branch at a batch of samples: prepared weights and the slopes between them."""

    def __init__(self, branch: Branch, slopes: Sequence[Slopes]) -> None:
        self.branch, self.slopes = branch, slopes

    def matvec(self, v: Tensor) -> Tensor:
        plan, kind, parts = self.branch.plan, self.branch.plan.kind, self.branch.parts
        tangent, waiting = kind.enter(v).to(parts[-1][0].dtype), iter(self.slopes)
        for step, (weight, *_) in zip(plan.steps, parts, strict=True):
            moved = _moved(kind, step, tangent, weight)
            made = [moved] if step.activation is None else [_sloped(kind, slope, moved) for slope in next(waiting)]
            tangent = _joined(kind, step, tangent, made)
        return kind.leave(tangent.to(v.dtype), v.shape[: -kind.event])

    def rmatvec(self, u: Tensor) -> Tensor:
        plan = self.branch.plan
        return plan.pull(plan, self.branch.parts, self.slopes, u)

    def take(self, index: Tensor) -> BranchMap:
        samples = self.branch.plan.kind.samples
        chosen = [tuple(None if s is None else s.index_select(samples, index) for s in each) for each in self.slopes]
        return BranchMap(self.branch, chosen)


class Branch:
    """g of one block, prepared: what estimators and solvers take for a network.

    Args:
        plan: The steps of the stack.
        parts: The tensors of each step of this block.
    """

    def __init__(self, plan: Plan, parts: Sequence[Part]) -> None:
        self.plan, self.parts = plan, tuple(parts)

    def __call__(self, x: Tensor) -> Tensor:
        """g(x). Where no gradient is recorded, large batches go in parts: more features at once are no faster."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or (pieces := self._pieces(x)) <= 1:
            return self.plan.push(self.plan, self.parts, x, None, False)[0]
        return torch.cat([self.plan.push(self.plan, self.parts, part, None, False)[0] for part in x.chunk(pieces)])

    def _pieces(self, x: Tensor) -> int:
        features = self.parts[-1][0].shape[1] * math.prod(x.shape[2:])
        return -(-len(x) * features * x.element_size() // AT_ONCE)

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        """g(x) and its Jacobian."""
        value, _, slopes = self.plan.push(self.plan, self.parts, x)
        return value, BranchMap(self, slopes)

    def push(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, LinearMap]:
        """g(x), J v for vectors [probes, *x.shape], and J."""
        value, product, slopes = self.plan.push(self.plan, self.parts, x, v)
        assert product is not None
        return value, product, BranchMap(self, slopes)

    def eager(self) -> Branch:
        """The same without compiled functions: solvers meet one batch size after another, and each would be compiled anew."""
        return Branch(replace(self.plan, push=push, pull=pull), self.parts)

    def tensors(self) -> list[Tensor]:
        """All tensors that a gradient may be asked for."""
        return [tensor for part in self.parts for tensor in part]

    def replaced(self, tensors: Sequence[Tensor]) -> Self:
        """The same branch with other tensors, in the order of `tensors()`."""
        waiting = iter(tensors)
        return type(self)(self.plan, [tuple(next(waiting) for _ in part) for part in self.parts])
