"""Newton's method with the whole Jacobian, for small dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

from idensenet.errors import InputError
from idensenet.logdet.exact import jacobian
from idensenet.solve.solver import Function, Memory, Solver


class Newton(Solver):
    """x <- x - (I + J)^(-1) (x + g(x) - y); g must be a network, which can be linearised.

    Args:
        tol: Residual per square root of the dimension at which a sample stops; by default 5e-7 in float32, 1e-12 in float64.
        max_steps: Most steps.
    """

    def propose(self, g: Function, x: Tensor, residual: Tensor, memory: Memory, plain: Tensor) -> Tensor:
        linearize = getattr(g, "linearize", None)
        if linearize is None:
            raise InputError(
                "Newton needs a g with `linearize`, such as a DenseBlock; use Picard or Anderson for a plain function."
            )
        matrix = jacobian(linearize(x)[1], x)
        matrix = torch.eye(matrix.shape[1], dtype=x.dtype, device=x.device) + matrix
        step: Tensor = torch.linalg.solve(matrix, residual.flatten(1)).view_as(x)
        return x - step
