"""The Neumann gradient, attached to a true value.

With a probe v (E v v' = I), weights w_k and f(t) = sum_k c_k t^k, the value is the mean of sum_k w_k c_k v' J^k v, and its
derivative the mean of u' dJ v with u = sum_k w_k k c_k (J')^(k-1) v. So u is computed without a graph, and u' J v is
differentiated. u' J v is not tr f(J): the value is returned, and only the gradient of u' J v goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from idensenet.lipschitz.linearmap import LinearMap
from idensenet.logdet.base import Linearizable

Series = Callable[[LinearMap, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(J, probe, J probe) -> values [probes, batch] and u [probes, batch, *event]; runs without a graph."""


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products over the event: [probes, batch, *event] twice -> [probes, batch]."""
    return (a * b).flatten(2).sum(2)


def wide(a: Tensor, like: Tensor) -> Tensor:
    """`a` with dimensions of one behind its own, so that it multiplies tensors like `like`."""
    return a.view(*a.shape, *[1] * (like.ndim - a.ndim))


def _no_second_derivative() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "A stochastic log-determinant has no graph of its gradient (create_graph=True): "
            "use ExactLogDet for second derivatives."
        )


def fresh(tensors: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor]:
    """The same numbers as new leaves, which require a gradient where one is needed."""
    return [tensor.detach().requires_grad_(each) for tensor, each in zip(tensors, needed, strict=True)]


def gradients(outputs: Sequence[Tensor], leaves: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients of outputs, given theirs, for the leaves that require one; None for the others."""
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(torch.autograd.grad(outputs, wanted, grads, allow_unused=True) if wanted else ())
    return [next(found) if leaf.requires_grad else None for leaf in leaves]


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
    """`value` with the gradient of `surrogate`."""
    attached: Tensor = _Attach.apply(value, surrogate)  # type: ignore[no-untyped-call]
    return attached


class _Recomputed(torch.autograd.Function):
    """g(x) and its values, saving x, the probe and u; the backward pass rebuilds the rest."""

    @staticmethod
    def forward(ctx: Any, g: Linearizable, series: Series, x: Tensor, probe: Tensor, *tensors: Tensor) -> Any:
        vector = probe.to(x.dtype)
        gx, product, J = g.push(x, vector)
        value, u = series(J, vector, product)
        ctx.g = g
        ctx.save_for_backward(x, probe, u, *tensors)
        return gx, value

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        _no_second_derivative()
        x, probe, u, *tensors = ctx.saved_tensors
        with torch.enable_grad():
            x, *leaves = fresh([x, *tensors], [True, *ctx.needs_input_grad[4:]])
            gx, product, _ = ctx.g.replaced(leaves).push(x, probe.to(x.dtype))
            by_x, *others = gradients([gx, dot(u, product)], [x, *leaves], grads)
        return None, None, by_x, None, *others


def neumann(g: Linearizable, x: Tensor, probe: Tensor, series: Series, save: bool = False) -> tuple[Tensor, Tensor]:
    """g(x), and per probe and sample the value of `series` with its gradient. The signs of a probe may be bytes."""
    if save and torch.is_grad_enabled():
        gx, value = _Recomputed.apply(g, series, x, probe, *g.tensors())  # type: ignore[no-untyped-call]
        return gx, value
    probe = probe.to(x.dtype)
    gx, product, J = g.push(x, probe)
    with torch.no_grad():
        value, u = series(J, probe, product)
    if torch.is_grad_enabled() and product.requires_grad:
        value = attach(value, dot(u, product))
    return gx, value
