"""One training step: the only one. The trainer, the scikit-learn estimators and the benchmark call it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from idensenet.flow import Flow, Prepared
from idensenet.precision import EXACT, Precision
from idensenet.training.averaging import Average
from idensenet.training.clipping import clip


def training_step(
    flow: Flow,
    losses: Iterable[Callable[[Prepared], Tensor]],
    optimizer: torch.optim.Optimizer,
    *,
    precision: Precision = EXACT,
    limit: float | None = None,
    share: Callable[[Sequence[Tensor]], None] | None = None,
    average: Average | None = None,
    number: int = 0,
) -> Tensor:
    """Prepare the weights, compute the losses and their gradients, clip them, step the optimiser, update the averaged weights.

    A step whose gradient is not finite leaves the weights as they are. That is decided on the device: nothing waits for it.

    Args:
        flow: The model, in training mode.
        losses: Functions of the prepared weights, one for each batch; their gradients are added up.
        optimizer: A fused Adam or AdamW with all parameters of the flow.
        precision: How the products of the blocks are rounded, forwards and backwards.
        limit: Bound on the norm of the gradient.
        share: Called with the parameters once they have gradients: several processes average them here.
        average: Averaged weights to update.
        number: The number of the step, which decides the decay of the average.

    Returns:
        The norm of the gradient before clipping; it is not finite where the step was skipped.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad()
    with precision.products(flow.device):
        for loss in losses:
            loss(flow.prepare(precision)).backward()  # type: ignore[no-untyped-call]
    if share is not None:
        share(parameters)
    norm = clip(parameters, limit)
    optimizer.grad_scale, optimizer.found_inf = None, skipped(norm)  # type: ignore[attr-defined]
    optimizer.step()
    if average is not None:
        average.update(parameters, number)
    return norm


def skipped(norm: Tensor) -> Tensor:
    """1 where a step with this norm of the gradient was skipped, else 0."""
    return (~torch.isfinite(norm)).float()
