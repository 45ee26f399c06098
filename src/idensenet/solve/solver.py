"""Solving x + g(x) = y, sample by sample: small objects that propose a step, and one loop that drives them all."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from idensenet.errors import OptionError
from idensenet.logdet.gradient import wide
from idensenet.precision import EXACT
from idensenet.solve.solution import Solution, Status

Function = Callable[[Tensor], Tensor]


@runtime_checkable
class PerSample(Protocol):
    """A function that differs from sample to sample, so that it must know which of them are still running."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def take(self, index: Tensor) -> PerSample: ...


class Memory:
    """What a solver remembers of the samples that are still running: here, nothing."""

    def begin(self, x: Tensor, gx: Tensor) -> None:
        """The first points, and g there."""

    def take(self, index: Tensor) -> None:
        """Keep these samples only."""


class Solver(ABC):
    """Proposes the next point; the loop evaluates it and falls back to the fixed-point step where it did not help.

    `tol` is the residual asked for, per square root of a dimension (the Euclidean norm is compared with tol * sqrt(D)); by
    default 5e-7 in float32 and 1e-12 in float64. It is never asked to be below the rounding of y itself.
    """

    accelerated = True  # whether a proposal is more than the fixed-point step

    def __init__(self, tol: float | None = None, max_steps: int = 1000) -> None:
        if tol is not None and not tol > 0:
            raise OptionError(f"tol={tol} must be positive.")
        if max_steps < 1:
            raise OptionError(f"max_steps={max_steps} must be at least 1.")
        self.tol, self.max_steps = tol, max_steps

    def start(self, g: Function, y: Tensor) -> tuple[Tensor, Memory]:
        """Where to begin, and what to remember from then on.

        Args:
            g: The function.
            y: The right-hand side.

        Returns:
            The first point, and what the solver remembers.
        """
        return y, Memory()

    @abstractmethod
    def propose(self, g: Function, x: Tensor, residual: Tensor, memory: Memory, plain: Tensor) -> Tensor:
        """The next points, given the last accepted ones; `plain` marks samples whose last proposal was refused.

        Args:
            g: The function.
            x: The points of the samples that are still running.
            residual: x + g(x) - y there.
            memory: What `start` returned.
            plain: Samples whose last proposal was refused.

        Returns:
            The next points.
        """


def size(r: Tensor) -> Tensor:
    """The Euclidean norm of each sample, also where squares overflow; NaN where the norm itself does."""
    flat = r.flatten(1)
    norm: Tensor = torch.linalg.vector_norm(flat, dim=1)
    if bool(torch.isfinite(norm).all()):  # nearly always; the loop waits for the device in every step anyway
        return norm
    largest = flat.detach().abs().amax(1, keepdim=True).clamp(min=torch.finfo(r.dtype).tiny)
    scaled = largest[:, 0] * torch.linalg.vector_norm(flat / largest, dim=1)
    return torch.where(torch.isfinite(norm), norm, torch.where(torch.isfinite(scaled), scaled, torch.nan))


def goals(y: Tensor, solver: Solver) -> Tensor:
    """The residual asked for, for each sample."""
    default = 1e-12 if y.dtype == torch.float64 else 5e-7  # a hundred blocks add up to 1e-5
    tol = default if solver.tol is None else solver.tol
    rounding = size(2 * torch.finfo(y.dtype).eps * y)  # which no y makes infinite
    return torch.clamp(rounding, min=tol * math.prod(y.shape[1:]) ** 0.5)


@torch.no_grad()
def solve(g: Function, y: Tensor, solver: Solver) -> Solution:
    """x with x + g(x) = y, to the solver's tolerance where it can be had."""
    with EXACT.products(y.device):
        return _solve(g, y, solver)


def _solve(g: Function, y: Tensor, solver: Solver) -> Solution:
    goal = goals(y, solver)
    value, status = y.clone(), torch.full((len(y),), int(Status.STEP_LIMIT), device=y.device)
    steps, norm, growth = torch.zeros_like(status), size(y), torch.zeros_like(goal)

    index = torch.arange(len(y), device=y.device)
    (x, memory), target = solver.start(g, y), y
    gx = g(x)
    memory.begin(x, gx)
    r = x + gx - target
    now = size(r)
    first = now.clone()
    plain = torch.full_like(index, not solver.accelerated, dtype=torch.bool)  # who takes a fixed-point step
    for step in range(solver.max_steps + 1):
        done = now <= goal[index]
        lost = ~torch.isfinite(now) | (now > 1e6 * (first[index] + 1))
        keep = (~(done | lost)).nonzero().flatten()
        last = len(keep) == 0 or step == solver.max_steps
        if last or len(keep) < len(index):
            value[index], norm[index], steps[index] = x, now, step
            status[index] = torch.where(done, int(Status.CONVERGED), torch.where(lost, int(Status.DIVERGED), status[index]))
        if last:
            break
        if len(keep) < len(index):
            index, x, target, r, now, plain = index[keep], x[keep], target[keep], r[keep], now[keep], plain[keep]
            memory.take(keep)
            if isinstance(g, PerSample):
                g = g.take(keep)
        candidate = torch.where(wide(plain, x), x - r, solver.propose(g, x, r, memory, plain))
        r_new = candidate + g(candidate) - target
        new = size(r_new)
        better = new < now
        factor = torch.where(plain, new / now, 0.0)
        # near the rounding of y a step changes nothing any more; that is no sign of expansion
        growth[index] = torch.maximum(growth[index], torch.where(now > 8 * goal[index], factor, 0.0))
        accept = better | plain
        x = torch.where(wide(accept, x), candidate, x)
        r = torch.where(wide(accept, r), r_new, r)
        now = torch.where(accept, new, now)
        plain = ~accept if solver.accelerated else plain
    return Solution(value, status, steps, norm, growth)
