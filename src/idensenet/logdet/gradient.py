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
from idensenet.lipschitz.linear import norms_as_of
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.lipschitz.scope import updates
from idensenet.logdet.base import Linearizable, Recompute, push

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


def bits_of(signs: Tensor) -> Tensor:
    """The signs of a probe, eight to a byte.

    >>> bits_of(torch.tensor([1, -1, 1, 1], dtype=torch.int8))
    tensor([13], dtype=torch.uint8)
    """
    flat = torch.nn.functional.pad((signs > 0).flatten().to(torch.uint8), (0, -signs.numel() % 8))
    return (flat.view(-1, 8) << torch.arange(8, dtype=torch.uint8, device=signs.device)).sum(1, dtype=torch.uint8)


def signs_of(bits: Tensor, like: Tensor, probes: int) -> Tensor:
    """The probe [probes, *like.shape] again."""
    each = (bits[:, None] >> torch.arange(8, dtype=torch.uint8, device=bits.device)) & 1
    return each.flatten()[: probes * like.numel()].view(probes, *like.shape).to(like.dtype) * 2 - 1


class _Recomputed(torch.autograd.Function):
    """g(x) and its log-determinant, keeping x, the bits of the probe and u; the backward pass rebuilds the rest.

    With `again`, u is not kept either, and the series is evaluated once more.
    """

    @staticmethod
    def forward(
        ctx: Any, g: Linearizable, series: Series, again: bool, low: bool, x: Tensor, probe: Tensor, *parameters: Tensor
    ) -> Any:
        vector = probe.to(x.dtype)
        gx, product, J = push(g, x, vector, low)
        value, u = series(J, vector, product)
        ctx.g, ctx.series, ctx.low, ctx.updates = g, series if again else None, low, updates.count
        ctx.probes = 0 if probe.is_floating_point() else len(probe)
        ctx.save_for_backward(x, bits_of(probe) if ctx.probes else probe, None if again else u, *parameters)
        return gx, value

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        _no_second_derivative()
        x, probe, u, *parameters = ctx.saved_tensors
        with torch.enable_grad(), norms_as_of(ctx.updates, ctx.g.net if isinstance(ctx.g, Given) else ctx.g):
            x = x.detach().requires_grad_()
            vector = signs_of(probe, x.detach(), ctx.probes) if ctx.probes else probe
            gx, product, J = push(ctx.g, x, vector, ctx.low)
            if u is None:
                with torch.no_grad():
                    _, u = ctx.series(J, vector, product)
            surrogate = dot(u, product)
            found = torch.autograd.grad((gx, surrogate), [x, *parameters], grads, allow_unused=True)
        return None, None, None, None, found[0], None, *found[1:]


def neumann(
    g: Linearizable, x: Tensor, probe: Tensor, series: Series, recompute: Recompute = False, low: bool = False
) -> tuple[Tensor, Tensor]:
    """g(x), and per probe and sample the value of `series` with its gradient. The signs of a probe may be bytes.

    With `low`, products with J are in bfloat16, those of the values never.
    """
    if recompute and torch.is_grad_enabled():
        parameters = [p for p in g.parameters() if p.requires_grad] if isinstance(g, nn.Module | Given) else []
        gx, value = _Recomputed.apply(g, series, recompute == "input", low, x, probe, *parameters)  # type: ignore[no-untyped-call]
        return gx, value
    probe = probe.to(x.dtype)
    gx, product, J = push(g, x, probe, low)
    with torch.no_grad():
        value, u = series(J, probe, product)
    if torch.is_grad_enabled() and product.requires_grad:
        value = attach(value, dot(u, product))
    return gx, value
