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
from idensenet.lipschitz.block import apply, biased, fused, grow, sloped


def activate_back(grad: Tensor, moved: Tensor, bias: Tensor, activation: Activation, n: int, own: Branches) -> tuple[Any, ...]:
    """The gradients for values, tangents, bias and the parameters of the activation, from that of the activated rows."""

    def forth(value: Tensor, tangent: Tensor, bias: Tensor, *own: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = activation.curves(biased(value, bias), *own)
        return torch.cat(values, 1), sloped(tangent, slopes)

    back = torch.func.vjp(forth, *torch.split(moved, [n, len(moved) - n]), bias, *own)[1]
    found: tuple[Any, ...] = back(tuple(torch.split(grad, [n, len(grad) - n])))
    return found


def _apply_back(grad: Tensor, rows: Tensor, weight: Tensor, needed: tuple[bool, bool]) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of `apply` for its rows and its weight."""
    if weight.ndim == 2:
        return grad @ weight if needed[0] else None, grad.mT @ rows if needed[1] else None
    sides = [weight.shape[-1] // 2] * 2
    found = torch.ops.aten.convolution_backward(
        grad, rows, weight, None, [1, 1], sides, [1, 1], False, [0, 0], 1, [*needed, False]
    )
    return found[0], found[1]


class _DenseStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, activation: Activation, n: int, *own: Tensor) -> Any:
        moved = apply(rows, weight)
        wide, slopes = fused(grow, True)(rows, moved, bias, activation, n)
        ctx.save_for_backward(rows, weight, moved, bias, *own)
        ctx.activation, ctx.n = activation, n
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
        of_rows, of_weight = _apply_back(torch.cat([value, tangent]), rows, weight, ctx.needs_input_grad[:2])
        if of_rows is not None:
            of_rows += grad[:, :old]
        return of_rows, of_weight, others[0], None, None, *others[1:]


def dense_step(rows: Tensor, weight: Tensor, bias: Tensor, activation: Activation, n: int) -> tuple[Tensor, Branches]:
    """[rows ; the activated product with them] for n rows of values and the tangents behind them; and the slopes, which carry
    no graph."""
    wide, *slopes = _DenseStep.apply(rows, weight, bias, activation, n, *activation.parameters())  # type: ignore[no-untyped-call]
    return wide, tuple(slopes)
