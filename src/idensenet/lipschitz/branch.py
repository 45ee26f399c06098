"""A residual branch g as one function of tensors: its value, its tangents and the slopes it met.

Every way to compute a block calls `push`: eager and compiled, exact and stochastic log-determinants, solvers, vectors and
images. Its Jacobian `BranchMap` is made of the same weights and slopes.

In a dense block h_i = [a_i h_(i-1) ; b_i s_i], so every h_i is the plain concatenation of s_0, s_1, ..., s_i up to one factor
per channel. The factors multiply the columns of the weights, which are small, and never the maps, which are large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import hardshrink

from idensenet.lipschitz.activations import Activation, Slopes
from idensenet.lipschitz.linear import LipschitzMap
from idensenet.lipschitz.linearmap import LinearMap

if TYPE_CHECKING:
    from typing import Self

Part = tuple[Tensor, ...]  # the tensors of one step of one block: [weight, bias,] parameters of the activation
Pushed = tuple[Tensor, Tensor | None, tuple[Slopes, ...]]
AT_ONCE = 1 << 26  # bytes of features
TINY = 1e-25  # smaller numbers become zero: subnormal ones slow a CPU down a hundredfold


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a branch: a linear map, an activation behind it, and whether the input is kept next to the result."""

    linear: bool
    activation: Activation | None
    dense: bool = False


@dataclass(frozen=True, eq=False)
class Plan:
    """What the blocks of a stack have in common: the steps, and the kind of their linear maps."""

    kind: type[LipschitzMap]
    steps: tuple[Step, ...]


def _joined(kind: type[LipschitzMap], step: Step, before: Tensor, made: Sequence[Tensor]) -> Tensor:
    """What a step returns: what its activation made, next to what came in if the step is dense."""
    parts = [before, *made] if step.dense else made
    return torch.cat(tuple(parts), kind.channels) if len(parts) > 1 else parts[0]


def _sloped(kind: type[LipschitzMap], tangent: Tensor, slopes: Slopes) -> list[Tensor]:
    """Tangents of one or several probes times each of the slopes of the samples."""
    n = _samples(kind, slopes)
    if n == 1 or tangent.shape[kind.samples] == n:
        return [tangent if slope is None else slope * tangent for slope in slopes]
    probes: Tensor = tangent.unflatten(kind.samples, (-1, n))  # type: ignore[no-untyped-call]
    return [
        tangent if slope is None else (slope.unsqueeze(kind.samples) * probes).flatten(kind.samples, kind.samples + 1)
        for slope in slopes
    ]


def _samples(kind: type[LipschitzMap], slopes: Slopes) -> int:
    assert slopes[0] is not None
    return slopes[0].shape[kind.samples]


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
        weight, bias, own = (part[0], part[1], part[2:]) if step.linear else (None, None, part)
        moved = rows if weight is None else kind.product(rows, weight, bias if v is None else None)
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
            pairs = zip(made, _sloped(kind, tangent[0], found[-1]), strict=True)
            made = tuple(torch.cat(pair, kind.samples) for pair in pairs)
        rows = _joined(kind, step, rows, made)
    value, *tangent = torch.split(rows, sizes, kind.samples)
    result = kind.leave(value.to(x.dtype), x.shape[:1])
    return result, kind.leave(tangent[0].to(x.dtype), v.shape[:2]) if v is not None else None, tuple(found)


def pull(plan: Plan, weights: Sequence[Tensor | None], slopes: Sequence[Slopes], u: Tensor) -> Tensor:
    """J' u for vectors [..., batch, *event], given transposed weights, last step first."""
    kind, dtype, lead = plan.kind, u.dtype, u.shape[: -plan.kind.event]
    rows = kind.enter(u)
    waiting = list(slopes)
    for step, weight in zip(reversed(plan.steps), weights, strict=True):
        kept = None
        if step.activation is not None:
            each = waiting.pop()
            made = rows
            if step.dense:
                assert each[0] is not None
                grown = len(each) * each[0].shape[kind.channels]
                kept, made = torch.split(rows, [rows.shape[kind.channels] - grown, grown], kind.channels)
            rows = _slopes_back(kind, made, each)
        if weight is not None:
            rows = kind.product(rows.to(weight.dtype), weight)
        if kept is not None:
            rows = rows + kept
    return hardshrink(kind.leave(rows.to(dtype), lead), TINY)


def _slopes_back(kind: type[LipschitzMap], rows: Tensor, slopes: Slopes) -> Tensor:
    """The transposed product with the derivative of an activation."""
    n = _samples(kind, slopes)
    several = rows.shape[kind.samples] != n
    if several:
        rows = rows.unflatten(kind.samples, (-1, n))  # type: ignore[no-untyped-call]
        slopes = tuple(None if slope is None else slope.unsqueeze(kind.samples) for slope in slopes)
    channels = kind.channels + (several and kind.samples < kind.channels)
    parts = rows.chunk(len(slopes), channels)
    plain = [part for slope, part in zip(slopes, parts, strict=True) if slope is None]
    total = sum(plain[1:], plain[0]) if plain else None
    for slope, part in zip(slopes, parts, strict=True):
        if slope is not None:
            total = slope * part if total is None else torch.addcmul(total, slope, part)
    assert total is not None
    return total.flatten(kind.samples, kind.samples + 1) if several else total


Push = Callable[..., Pushed]
Pull = Callable[..., Tensor]


class BranchMap(LinearMap):
    """The Jacobian of a branch at a batch of samples: prepared weights and the slopes between them."""

    def __init__(self, branch: Branch, slopes: Sequence[Slopes]) -> None:
        self.branch, self.slopes = branch, slopes
        self._back: list[Tensor | None] | None = None

    def matvec(self, v: Tensor) -> Tensor:
        plan, kind = self.branch.plan, self.branch.plan.kind
        weights = self.branch.weights()
        tangent, waiting = kind.enter(v).to(self.branch.parts[-1][0].dtype), iter(self.slopes)
        for step, weight in zip(plan.steps, weights, strict=True):
            moved = tangent if weight is None else kind.product(tangent, weight)
            made = [moved] if step.activation is None else _sloped(kind, moved, next(waiting))
            tangent = _joined(kind, step, tangent, made)
        return kind.leave(tangent.to(v.dtype), v.shape[: -kind.event])

    def rmatvec(self, u: Tensor) -> Tensor:
        return self.branch.pull(self._transposed(), self.slopes, u)

    def _transposed(self) -> list[Tensor | None]:
        """Transposed weights, last step first; kept where no gradient is recorded."""
        if self._back is None or torch.is_grad_enabled():
            transposed = self.branch.plan.kind.transposed
            back = [None if weight is None else transposed(weight) for weight in reversed(self.branch.weights())]
            if torch.is_grad_enabled():
                return back
            self._back = back
        return self._back

    def take(self, index: Tensor) -> BranchMap:
        samples = self.branch.plan.kind.samples
        chosen = [tuple(None if s is None else s.index_select(samples, index) for s in each) for each in self.slopes]
        part = BranchMap(self.branch, chosen)
        part._back = self._back
        return part


class Branch:
    """g of one block, prepared: what estimators and solvers take for a network.

    Args:
        plan: The steps of the stack.
        parts: The tensors of each step of this block.
        push: The function that computes it, compiled or not.
        pull: The transposed product, compiled or not.
    """

    def __init__(self, plan: Plan, parts: Sequence[Part], push: Push = push, pull: Pull = pull) -> None:
        self.plan, self.parts = plan, tuple(parts)
        self._push, self._pull = push, pull
        self.pull: Callable[..., Tensor] = partial(pull, plan)

    def __call__(self, x: Tensor) -> Tensor:
        """g(x). Where no gradient is recorded, large batches go in parts: more features at once are no faster."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or (pieces := self._pieces(x)) <= 1:
            return self._push(self.plan, self.parts, x, None, False)[0]
        return torch.cat([self._push(self.plan, self.parts, part, None, False)[0] for part in x.chunk(pieces)])

    def _pieces(self, x: Tensor) -> int:
        features = self.parts[-1][0].shape[1] * math.prod(x.shape[2:])
        return -(-len(x) * features * x.element_size() // AT_ONCE)

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        """g(x) and its Jacobian."""
        value, _, slopes = self._push(self.plan, self.parts, x)
        return value, BranchMap(self, slopes)

    def push(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, LinearMap]:
        """g(x), J v for vectors [probes, *x.shape], and J."""
        value, product, slopes = self._push(self.plan, self.parts, x, v)
        assert product is not None
        return value, product, BranchMap(self, slopes)

    def eager(self) -> Branch:
        """The same without compiled functions: solvers meet one batch size after another, and each would be compiled anew."""
        return Branch(self.plan, self.parts)

    def weights(self) -> list[Tensor | None]:
        """The weight of each step; None for a step without a linear map."""
        return [part[0] if step.linear else None for step, part in zip(self.plan.steps, self.parts, strict=True)]

    def tensors(self) -> list[Tensor]:
        """All tensors that a gradient may be asked for."""
        return [tensor for part in self.parts for tensor in part]

    def replaced(self, tensors: Sequence[Tensor]) -> Self:
        """The same branch with other tensors, in the order of `tensors()`."""
        waiting = iter(tensors)
        parts = [tuple(next(waiting) for _ in part) for part in self.parts]
        return type(self)(self.plan, parts, self._push, self._pull)
