"""The pieces of work that are measured."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from idensenet.flow import Flow
from idensenet.training.clipping import clip


def images_for(flow: Flow, batch: int) -> Tensor:
    """Noise on a gradient: what it shows does not matter for the time it takes."""
    assert flow.levels is not None
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(batch, *flow.shape, generator=generator)
    ramp = torch.linspace(0, 1, flow.shape[-1])
    return ((0.7 * ramp + 0.3 * noise) * (flow.levels - 1)).round().to(torch.uint8)


def stepper(flow: Flow, x: Tensor | Callable[[], Tensor], lr: float = 1e-5, limit: float | None = 1.0) -> Callable[[], None]:
    """A whole training step: forward, backward, clipping, optimiser; the norms follow at the start of the next."""
    parameters = list(flow.parameters())
    optimizer = torch.optim.Adam(parameters, lr, fused=True)
    generator = torch.Generator(flow.device).manual_seed(0)

    def step() -> None:
        batch = x if isinstance(x, Tensor) else x()
        optimizer.zero_grad()
        (-flow.log_prob(batch, generator).mean() / flow.dims).backward()  # type: ignore[no-untyped-call]
        if limit is not None:
            clip(parameters, limit)
        optimizer.step()

    return step


def flops_of(work: Callable[[], object]) -> float:
    """Floating point operations of convolutions and matrix products, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())
