"""A dense layer on values and tangents as one node of the graph.

Left to autograd, the compiled step of a layer keeps more maps than it needs and its backward pass goes over the wide maps
several times: once for gradients of the slopes, which are zero, once to turn their layout, and once to add what came through
the concatenation to what came through the product. Here the backward pass computes the activation again, which is cheap, in one
pass over the memory, and the addition is made in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from idensenet.lipschitz.activations import Activation, Branches
from idensenet.lipschitz.block import biased, fused, grow, products, sloped


def activate_back(grad: Tensor, moved: Tensor, bias: Tensor, activation: Activation, n: int, own: Branches) -> tuple[Any, ...]:
    """The gradients for values, tangents, bias and the parameters of the activation, from that of the activated rows."""

    def forth(value: Tensor, tangent: Tensor, bias: Tensor, *own: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = activation.curves(biased(value, bias), *own)
        return torch.cat(values, 1), sloped(tangent, slopes)

    back = torch.func.vjp(forth, *torch.split(moved, [n, len(moved) - n]), bias, *own)[1]
    found: tuple[Any, ...] = back(tuple(torch.split(grad, [n, len(grad) - n])))
    return found


Needed = tuple[bool, bool]  # the gradient of the rows, of the weight


def _apply_back(grad: Tensor, rows: Tensor, weight: Tensor, needed: Needed) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of `apply` for its rows and its weight."""
    if weight.ndim == 2:
        return grad @ weight if needed[0] else None, grad.mT @ rows if needed[1] else None
    sides = [weight.shape[-1] // 2] * 2
    found = torch.ops.aten.convolution_backward(
        grad, rows, weight, None, [1, 1], sides, [1, 1], False, [0, 0], 1, [*needed, False]
    )
    return found[0], found[1]


def _products_back(
    value: Tensor, tangent: Tensor, rows: Tensor, weight: Tensor, low: bool, needed: Needed
) -> tuple[Tensor | None, Tensor | None]:
    """The same of `products`, from the gradients for values and for tangents."""
    if not low:
        return _apply_back(torch.cat([value, tangent]), rows, weight, needed)
    own, others = torch.split(rows, [len(value), len(tangent)])
    high = _apply_back(value, own, weight, needed)
    rounded = _apply_back(tangent.bfloat16(), others.bfloat16(), weight.bfloat16(), needed)
    of_rows, of_weight = [None if a is None or b is None else (a, b.to(a.dtype)) for a, b in zip(high, rounded, strict=True)]
    return torch.cat(of_rows) if of_rows else None, of_weight[0] + of_weight[1] if of_weight else None


class _DenseStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, activation: Activation, n: int, low: bool, *own: Tensor
    ) -> Any:
        moved = products(rows, weight, n, low)
        wide, slopes = fused(grow, True)(rows, moved, bias, activation, n)
        ctx.save_for_backward(rows, weight, moved, bias, *own)
        ctx.activation, ctx.n, ctx.low = activation, n, low
        ctx.mark_non_differentiable(*slopes)
        ctx.set_materialize_grads(False)  # no zeros for the slopes
        return wide, *slopes

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "A compiled block has no graph of its gradient (create_graph=True): use flow.compile_blocks(False) before."
            )
        grad = grads[0]
        rows, weight, moved, bias, *own = ctx.saved_tensors
        old = rows.shape[1]
        step = fused(activate_back, True)
        value, tangent, *others = step(grad[:, old:], moved, bias, ctx.activation, ctx.n, tuple(own))
        of_rows, of_weight = _products_back(value, tangent, rows, weight, ctx.low, ctx.needs_input_grad[:2])
        if of_rows is not None:
            of_rows += grad[:, :old]
        return of_rows, of_weight, others[0], None, None, None, *others[1:]


def dense_step(
    rows: Tensor, weight: Tensor, bias: Tensor, activation: Activation, n: int, low: bool = False
) -> tuple[Tensor, Branches]:
    """[rows ; the activated product with them] for n rows of values and the tangents behind them; and the slopes, which carry
    no graph. With `low` the products of the tangents are in bfloat16, also backwards."""
    wide, *slopes = _DenseStep.apply(rows, weight, bias, activation, n, low, *activation.parameters())  # type: ignore[no-untyped-call]
    return wide, tuple(slopes)
