"""w + g(w) = y in a few dimensions, for training: Newton steps with the whole Jacobian, the batch kept together.

`solve` drops samples as they converge and asks a solver for each step, which costs more than g itself where g is small. Here
all samples take the same steps, and a step is one function of tensors that can be compiled. The last one is made with a graph:

    w = w* - (I + J)^-1 (w* + g(w*) - y),   w* and J = J(w*) without a graph,

so that its derivatives are the implicit ones, (I + J)^-1 (dy - dg).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from idensenet.lipschitz.branch import Branch, Part, Plan
from idensenet.lipschitz.conditional import Given
from idensenet.lipschitz.networks import compiled
from idensenet.logdet import PowerSeries
from idensenet.logdet.exact import value_and_jacobian, value_and_spectrum
from idensenet.precision import EXACT
from idensenet.solve.implicit import check_first_derivative
from idensenet.solve.solver import Solver, goals, solve

DIMS = 8  # up to which it is used
STEPS = 12  # samples that take more are handed to the solver
NEAR = 1e-5  # in float32, the residual per square root of a dimension from which the last step starts
Where = tuple[Plan, Sequence[Part], Tensor | None]
State = tuple[Tensor, Tensor, Tensor, Tensor]  # w, its residual, (I + J)^-1, and who takes a fixed-point step next


def _inverse(J: Tensor) -> Tensor:
    """(I + J)^-1 for [batch, D, D], two by two in closed form."""
    if J.shape[-1] != 2:
        found: Tensor = torch.linalg.inv(J + torch.eye(J.shape[-1], dtype=J.dtype, device=J.device))
        return found
    a, b, c, d = J.flatten(1).unbind(1)
    a, d = a + 1, d + 1
    return (torch.stack([d, -b, -c, a], 1) / (a * d - b * c)[:, None]).view_as(J)


def _times(A: Tensor, r: Tensor) -> Tensor:
    return (A * r[:, None]).sum(2)


def begin(plan: Plan, parts: Sequence[Part], embedded: Tensor | None, y: Tensor, goal: Tensor) -> tuple[State, Tensor]:
    """The state after a first step from w = y, and whether any sample is above its goal."""
    r, J = value_and_jacobian(branch(plan, parts, embedded), y)
    plain = torch.zeros_like(y[:, 0], dtype=torch.bool)
    return advance(plan, parts, embedded, y, goal, (y, r, _inverse(J), plain))


def advance(
    plan: Plan, parts: Sequence[Part], embedded: Tensor | None, y: Tensor, goal: Tensor, state: State
) -> tuple[State, Tensor]:
    """A Newton step; where one did not lower the residual, a fixed-point step, which does if g is contractive."""
    w, r, A, plain = state
    candidate = w - torch.where(plain[:, None], r, _times(A, r))
    gw, J = value_and_jacobian(branch(plan, parts, embedded), candidate)
    new = candidate + gw - y
    accept = plain | (new.square().sum(1) < r.square().sum(1))
    chosen = accept[:, None]
    w, r = torch.where(chosen, candidate, w), torch.where(chosen, new, r)
    return (w, r, torch.where(chosen[..., None], _inverse(J), A), ~accept), above(r, goal)


def finish(
    plan: Plan, parts: Sequence[Part], embedded: Tensor | None, f: PowerSeries, y: Tensor, goal: Tensor, w: Tensor, A: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """w with its implicit gradient, what the exact tr f(J) at w follows from, and whether any sample is above its goal."""
    g = branch(plan, parts, embedded)
    w = w - _times(A, w + g(w) - y)
    gw, measured = value_and_spectrum(g, w, f)
    return w, measured, above((w + gw - y).detach(), goal)


def above(r: Tensor, goal: Tensor) -> Tensor:
    return ~(r.square().sum(1) <= goal.square()).all()  # also where r is not a number


def branch(plan: Plan, parts: Sequence[Part], embedded: Tensor | None) -> Branch | Given:
    g = Branch(plan, parts)
    return g if embedded is None else Given(g, embedded)


class _Once(torch.autograd.Function):
    """The same tensor; (I + J)^-1 has no graph, so a second derivative would be wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        check_first_derivative()
        return grads[0]


class SmallSolver:
    """The three functions, compiled or not."""

    def __init__(self, compile: bool = False) -> None:
        make: Callable[[Any], Any] = (lambda each: compiled(each, cpp_wrapper=True)) if compile else (lambda each: each)
        self.begin, self.advance, self.finish = make(begin), make(advance), make(finish)

    def __call__(self, g: Branch | Given, y: Tensor, solver: Solver, f: PowerSeries, save: bool) -> tuple[Tensor, Tensor]:
        """w with its implicit gradient, and what the exact tr f(J) at w follows from; to save memory, rebuilt when needed."""
        inner, embedded = (g.inner, g.embedded) if isinstance(g, Given) else (g, None)
        where, goal = (inner.plan, inner.parts, embedded), goals(y.detach(), solver)
        near = goal if y.dtype == torch.float64 else torch.clamp(goal, min=NEAR * y.shape[1] ** 0.5)
        w, A = self._near(where, y.detach(), near, solver)
        found = self._last(where, f, y, goal, w, A, save)
        if bool(found[2]):  # the last step was not enough
            w, A = self._near(where, y.detach(), goal, solver)
            found = self._last(where, f, y, goal, w, A, save)
        return found[0], found[1]

    def _last(self, where: Where, f: PowerSeries, y: Tensor, goal: Tensor, w: Tensor, A: Tensor, save: bool) -> list[Tensor]:
        if not torch.is_grad_enabled():
            return list(self.finish(*where, f, y, goal, w, A))
        if save:
            found = checkpoint(self.finish, *where, f, y, goal, w, A, use_reentrant=False, preserve_rng_state=False)
        else:
            found = self.finish(*where, f, y, goal, w, A)
        if self.finish is not finish:  # compiled code refuses second derivatives by itself
            return list(found)
        return [_Once.apply(found[0]), _Once.apply(found[1]), found[2]]  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _near(self, where: Where, y: Tensor, goal: Tensor, solver: Solver) -> tuple[Tensor, Tensor]:
        """w with a residual below the goal, and (I + J)^-1 there."""
        with EXACT.products(y.device):
            state, late = self.begin(*where, y, goal)
            for _ in range(STEPS):
                if not bool(late):
                    return state[0], state[2]
                state, late = self.advance(*where, y, goal, state)
            solution = solve(branch(*where), y, solver)
            solution.raise_unless_converged()
            return solution.value, _inverse(value_and_jacobian(branch(*where), solution.value)[1])
