"""The Neumann gradient, attached to a true value.

With a probe v (E v v' = I) and weights c_k, the value is the mean of sum_k c_k (-1)^(k+1)/k v' J^k v, and its derivative
the mean of u' dJ v with u = sum_k c_k (-1)^(k+1) (J')^(k-1) v. So u is computed without a graph, and u' J v is
differentiated. u' J v is not the log-determinant: the value is returned, and only the gradient of u' J v goes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from idensenet.lipschitz.conditional import Given
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.lipschitz.scope import norms_settled
from idensenet.logdet.base import Linearizable, push

Series = Callable[[LinearMap, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(J, probe, J probe) -> values [probes, batch] and u [probes, batch, *event]; runs without a graph."""


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products over the event: [probes, batch, *event] twice -> [probes, batch]."""
    return (a * b).flatten(2).sum(2)


def _no_second_derivative() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "A stochastic log-determinant has no graph of its gradient (create_graph=True): "
            "use ExactLogDet for second derivatives."
        )


class _Attach(torch.autograd.Function):
    """The value of one tensor with the gradient of another."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, surrogate: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        _no_second_derivative()
        return None, grads[0]


def attach(value: Tensor, surrogate: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        return value.detach() + (surrogate - surrogate.detach())
    attached: Tensor = _Attach.apply(value, surrogate)  # type: ignore[no-untyped-call]
    return attached


class _Recomputed(torch.autograd.Function):
    """g(x) and its log-determinant, keeping x, u and the probe as it came; the backward pass rebuilds the rest."""

    @staticmethod
    def forward(ctx: Any, g: Linearizable, series: Series, x: Tensor, probe: Tensor, *parameters: Tensor) -> Any:
        vector = probe.to(x.dtype)
        gx, product, J = push(g, x, vector)
        value, u = series(J, vector, product)
        ctx.g = g
        ctx.save_for_backward(x, probe, u, *parameters)
        return gx, value

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        _no_second_derivative()
        x, probe, u, *parameters = ctx.saved_tensors
        with torch.enable_grad(), norms_settled():
            x = x.detach().requires_grad_()
            gx, product, _ = push(ctx.g, x, probe.to(x.dtype))
            surrogate = dot(u, product)
            found = torch.autograd.grad((gx, surrogate), [x, *parameters], grads, allow_unused=True)
        return None, None, found[0], None, *found[1:]


def neumann(g: Linearizable, x: Tensor, probe: Tensor, series: Series, recompute: bool = False) -> tuple[Tensor, Tensor]:
    """g(x), and per probe and sample the value of `series` with its gradient. The signs of a probe may be bytes."""
    if recompute and torch.is_grad_enabled():
        parameters = [p for p in g.parameters() if p.requires_grad] if isinstance(g, nn.Module | Given) else []
        gx, value = _Recomputed.apply(g, series, x, probe, *parameters)  # type: ignore[no-untyped-call]
        return gx, value
    probe = probe.to(x.dtype)
    gx, product, J = push(g, x, probe)
    with torch.no_grad():
        value, u = series(J, probe, product)
    if torch.is_grad_enabled() and product.requires_grad:
        value = attach(value, dot(u, product))
    return gx, value
