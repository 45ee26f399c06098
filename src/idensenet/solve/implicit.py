"""Gradients through the inverse, by the implicit function theorem.

x + g(x) = y gives dx = (I + J)^(-1) (dy - dg), so the gradient with respect to y is w with (I + J') w = dL/dx, and with
respect to a parameter of g it is -w' dg. The linear equation is of the same kind as the one of the inverse.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from idensenet.lipschitz.conditional import Given
from idensenet.lipschitz.linear import norms_as_of
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.lipschitz.networks import Network
from idensenet.lipschitz.scope import updates, without_autocast
from idensenet.solve.anderson import Anderson
from idensenet.solve.solver import PerSample, Solver, solve, spread


class _Transposed(PerSample):
    def __init__(self, J: LinearMap) -> None:
        self.J = J

    def __call__(self, x: Tensor) -> Tensor:
        return self.J.rmatvec(x)

    def take(self, index: Tensor) -> _Transposed:
        return _Transposed(self.J.take(index))


class _ImplicitInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Network | Given, solver: Solver, x: Tensor, y: Tensor, *parameters: Tensor) -> Tensor:
        ctx.g, ctx.solver, ctx.updates = g, solver, updates.count
        ctx.save_for_backward(x, *parameters)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("The inverse has first derivatives only (create_graph=True was asked for).")
        x, *parameters = ctx.saved_tensors
        (grad,) = grads
        with norms_as_of(ctx.updates, ctx.g.net if isinstance(ctx.g, Given) else ctx.g), without_autocast(x.device):
            _, J = ctx.g.linearize(x)
            scale = grad.flatten(1).norm(dim=1).clamp(min=torch.finfo(grad.dtype).tiny) / math.prod(grad.shape[1:]) ** 0.5
            solution = solve(_Transposed(J), grad / spread(scale, grad), Anderson(ctx.solver.tol))
            solution.raise_unless_converged()
            w = solution.value * spread(scale, grad)
            found: tuple[Tensor | None, ...] = ()
            if parameters:
                with torch.enable_grad():
                    found = torch.autograd.grad(ctx.g(x.detach()), parameters, -w, allow_unused=True)
        return None, None, None, w, *found


def with_implicit_gradient(g: Network | Given, solver: Solver, x: Tensor, y: Tensor) -> Tensor:
    """x = F^(-1)(y), found without a graph, as a differentiable function of y and of the parameters of g."""
    parameters = [p for p in g.parameters() if p.requires_grad]
    inverse: Tensor = _ImplicitInverse.apply(g, solver, x, y, *parameters)  # type: ignore[no-untyped-call]
    return inverse
