"""Gradients through the inverse, by the implicit function theorem.

x + g(x) = y gives dx = (I + J)^(-1) (dy - dg), so the gradient with respect to y is w with (I + J') w = dL/dx, and with
respect to a parameter of g it is -w' dg. The linear equation is of the same kind as the one of the inverse.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from idensenet.lipschitz.linearmap import LinearMap
from idensenet.logdet.base import Linearizable
from idensenet.logdet.gradient import fresh, gradients, wide
from idensenet.precision import EXACT
from idensenet.solve.anderson import Anderson
from idensenet.solve.solver import PerSample, Solver, size, solve


class _Transposed(PerSample):
    def __init__(self, J: LinearMap) -> None:
        self.J = J

    def __call__(self, x: Tensor) -> Tensor:
        return self.J.rmatvec(x)

    def take(self, index: Tensor) -> _Transposed:
        return _Transposed(self.J.take(index))


def check_first_derivative() -> None:
    """Raises an error in the backward pass of a function whose gradient has no graph."""
    if torch.is_grad_enabled():
        raise RuntimeError("The inverse has first derivatives only (create_graph=True was asked for).")


class _ImplicitInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Linearizable, solver: Solver, x: Tensor, y: Tensor, *tensors: Tensor) -> Tensor:
        ctx.g, ctx.solver = g, solver
        solution = x.clone()
        ctx.save_for_backward(solution, *tensors)  # what comes out is kept by what comes next anyway
        return solution

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        check_first_derivative()
        x, *tensors = ctx.saved_tensors
        (grad,) = grads
        with EXACT.products(x.device):
            leaves = fresh(tensors, ctx.needs_input_grad[4:])
            with torch.enable_grad():
                gx, J = ctx.g.replaced(leaves).linearize(x.detach())
            scale = size(grad).clamp(min=torch.finfo(grad.dtype).tiny) / math.prod(grad.shape[1:]) ** 0.5
            solution = solve(_Transposed(J), grad / wide(scale, grad), Anderson(ctx.solver.tol))
            solution.raise_unless_converged()
            w = solution.value * wide(scale, grad)
            found = gradients([gx], leaves, [-w])
        return None, None, None, w, *found


def with_implicit_gradient(g: Linearizable, solver: Solver, x: Tensor, y: Tensor) -> Tensor:
    """x = F^(-1)(y), found without a graph, as a differentiable function of y and of the tensors of g."""
    tensors = g.tensors()
    if not torch.is_grad_enabled() or not (y.requires_grad or any(t.requires_grad for t in tensors)):
        return x
    inverse: Tensor = _ImplicitInverse.apply(g, solver, x, y, *tensors)  # type: ignore[no-untyped-call]
    return inverse
