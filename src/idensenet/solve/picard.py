"""x <- y - g(x): the reference, as fast as L."""

from __future__ import annotations

from torch import Tensor

from idensenet.solve.solver import Function, Memory, Solver


class Picard(Solver):
    """The fixed-point iteration of the Banach theorem; the residual shrinks by L at least, every step.

    Args:
        tol: Residual per square root of the dimension at which a sample stops; by default 5e-7 in float32, 1e-12 in float64.
        max_steps: Most steps.

    >>> import torch
    >>> from idensenet.solve import solve
    >>> solve(lambda x: 0.5 * torch.tanh(x), torch.ones(1, 1), Picard()).converged
    tensor([True])
    """

    accelerated = False

    def propose(self, g: Function, x: Tensor, residual: Tensor, memory: Memory, plain: Tensor) -> Tensor:
        return x - residual
