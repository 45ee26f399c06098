"""The pieces of work that are measured."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from idensenet.flow import Flow, Prepared
from idensenet.precision import EXACT, Precision
from idensenet.training.step import training_step


def images_for(flow: Flow, batch: int) -> Tensor:
    """Noise on a gradient: what it shows does not matter for the time it takes."""
    assert flow.levels is not None
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(batch, *flow.shape, generator=generator)
    ramp = torch.linspace(0, 1, flow.shape[-1])
    return ((0.7 * ramp + 0.3 * noise) * (flow.levels - 1)).round().to(torch.uint8)


def stepper(
    flow: Flow,
    x: Tensor | Callable[[], Tensor],
    lr: float = 1e-5,
    limit: float | None = 1.0,
    precision: Precision = EXACT,
) -> Callable[[], None]:
    """The training step of the trainer, on a batch of its own or one that is drawn each time."""
    optimizer = torch.optim.Adam(flow.parameters(), lr, fused=True)
    generator = torch.Generator(flow.device).manual_seed(0)

    def loss(prepared: Prepared) -> Tensor:
        batch = x if isinstance(x, Tensor) else x()
        return -flow.log_prob(batch, generator, prepared=prepared).mean() / flow.dims

    def step() -> None:
        training_step(flow, [loss], optimizer, precision=precision, limit=limit)

    return step


def flops_of(work: Callable[[], object]) -> float:
    """Floating point operations of convolutions and matrix products, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())
