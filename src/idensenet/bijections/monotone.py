"""Monotone blocks: the graph of a contraction, turned by 45 degrees (Ahn et al., 2022)."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

from idensenet.bijections.residual import ContractionStack
from idensenet.draws import Draws
from idensenet.lipschitz.branch import Branch
from idensenet.lipschitz.conditional import Given
from idensenet.lipschitz.networks import Stack
from idensenet.logdet import ExactLogDet, LogDet, PowerSeries
from idensenet.precision import EXACT, Precision
from idensenet.solve import Solution, Solver, solve
from idensenet.solve.implicit import with_implicit_gradient
from idensenet.solve.small import DIMS, SmallSolver

ROOT = math.sqrt(2)
LOG_RATIO = PowerSeries(((1.0, -1.0), (-1.0, 1.0)))  # log(1 - t) - log(1 + t) = -2 (t + t^3 / 3 + t^5 / 5 + ...)
EAGER = SmallSolver()
TRAINING = 1e-4  # tolerance in float32: a third of the evaluations less, and far below the noise of a gradient


def negative(g: Branch | Given) -> Branch | Given:
    """-g: every branch closes with a linear map, so its weight and its bias change sign."""
    if isinstance(g, Given):
        return Given(_negative(g.inner), g.embedded)
    return _negative(g)


def _negative(g: Branch) -> Branch:
    *others, weight, bias = g.tensors()
    return g.replaced([*others, -weight, -bias])


class MonotoneBlock(ContractionStack):
    """y from x through w, for each of the K blocks of g: x = (w + g(w)) / sqrt 2 and y = (w - g(w)) / sqrt 2.

    The forward pass solves w + g(w) = sqrt 2 x, the inverse w - g(w) = sqrt 2 y. With J the Jacobian of g at w,

        log|det dy/dx| = log det(I - J) - log det(I + J),
        (1 - L) / (1 + L) <= |dy| / |dx| <= (1 + L) / (1 - L),   L = Lip(g) < 1.

    So with L = 0.9 one block has slopes of up to 19, where x + g(x) has 1.9. Gradients through w are implicit. Products
    are never rounded, since a rounded equation has no solution.

    Args:
        g: The networks.
        log_det: The estimator of log-determinants in training.
        eval_log_det: The estimator in evaluation; `log_det` by default.
        solver: Solves the equations of a block.
        norm: An ActNorm of K blocks.
        save: Save memory: rebuild each block in the backward pass instead of keeping it.

    >>> from idensenet.lipschitz import Pieces, dense_block
    >>> block = MonotoneBlock(dense_block([2], 3, 16, Pieces(), blocks=4))
    >>> x = torch.randn(5, 2)
    >>> y, log_det = block(x)
    >>> bool(torch.allclose(block.inverse(y)[0], x, atol=1e-4))
    True
    """

    series = LOG_RATIO
    explicit = False

    def prepared(self, precision: Precision) -> Stack:
        return self.g.prepared(EXACT)

    def forward_block(self, g: Branch | Given, x: Tensor, method: LogDet | None, draws: Draws) -> tuple[Tensor, Tensor | None]:
        target = ROOT * x
        if isinstance(method or self.eval_log_det, ExactLogDet) and x.ndim == 2 and x.shape[1] <= DIMS:
            small = self.walk if self.walk is not None and torch.is_grad_enabled() and not self.save else EAGER
            w, measured = small(g, target, self.solver, self.series, self.save)
            return ROOT * w - x, None if method is None else measured
        solver = self._solver(x)
        solution = solve(g.eager(), target.detach(), solver)
        solution.raise_unless_converged()
        w = with_implicit_gradient(g.eager(), solver, solution.value, target)
        measured = None if method is None else method.measure(g, w, draws, self.series, self.save)[1]
        return ROOT * w - x, measured

    def _solver(self, x: Tensor) -> Solver:
        """In training a residual of TRAINING will do for w and for its gradient, unless a tolerance was chosen."""
        if not self.training or self.solver.tol is not None or x.dtype == torch.float64:
            return self.solver
        solver = copy.copy(self.solver)
        solver.tol = TRAINING
        return solver

    def inverse_block(self, g: Branch | Given, y: Tensor) -> Solution:
        target, opposite = ROOT * y, negative(g)
        solution = solve(opposite, target.detach(), self.solver)
        w = with_implicit_gradient(opposite, self.solver, solution.value, target)
        return replace(solution, value=ROOT * w - y, residual=ROOT * solution.residual)  # an error of w counts sqrt 2 times

    def constants(self, bound: float) -> tuple[float, float]:
        if bound >= 1:
            return 0.0, math.inf
        return (1 - bound) / (1 + bound), (1 + bound) / (1 - bound)

    def compiled(self) -> SmallSolver:
        return SmallSolver(compile=True)
