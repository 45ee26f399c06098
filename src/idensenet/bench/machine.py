"""What the machine itself reaches: a plain convolution and a plain matrix product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from idensenet.bench.timing import Row, in_turns


@dataclass(frozen=True)
class Machine:
    """Floating point operations per second, in units of 1e9."""

    convolution: float
    product: float
    rows: tuple[Row, ...]


def measure_machine(batch: int = 8, channels: int = 181, filters: int = 89, side: int = 32, repeats: int = 7) -> Machine:
    """The 3x3 convolution that the small CIFAR-10 model spends its time in, and a square product of about the same work."""
    x = torch.randn(batch, channels, side, side).contiguous(memory_format=torch.channels_last)
    kernel = torch.randn(filters, channels, 3, 3)
    size = 1024 if side == 32 else 64
    a, b = torch.randn(2, size, size)
    with torch.no_grad():
        work = {"convolution": lambda: F.conv2d(x, kernel, padding=1), "product": lambda: a @ b}
        times = in_turns(work, repeats, 2)
    flops = {"convolution": 2 * batch * filters * channels * 9 * side * side, "product": 2 * size**3}
    rates = {name: flops[name] / min(times[name].seconds) / 1e9 for name in work}
    rows = tuple(
        Row(f"machine: a plain {name}", rates[name], rates[name] * times[name].deviation / times[name].median, "GFLOP/s")
        for name in work
    )
    return Machine(rates["convolution"], rates["product"], rows)
