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
    bfloat16: float  # of the same convolution
    rows: tuple[Row, ...]

    @property
    def has_bfloat16(self) -> bool:
        """Whether bfloat16 repays its conversions: a processor without units for it is slower with it."""
        return self.bfloat16 > 1.3 * self.convolution


def measure_machine(batch: int = 8, channels: int = 181, filters: int = 89, side: int = 32, repeats: int = 7) -> Machine:
    """The 3x3 convolution that the small CIFAR-10 model spends its time in, and a square product of about the same work."""
    x = torch.randn(batch, channels, side, side).contiguous(memory_format=torch.channels_last)
    kernel = torch.randn(filters, channels, 3, 3)
    size = 1024 if side == 32 else 64
    a, b = torch.randn(2, size, size)
    low_x, low_kernel = x.bfloat16(), kernel.bfloat16()
    with torch.no_grad():
        work = {
            "convolution": lambda: F.conv2d(x, kernel, padding=1),
            "product": lambda: a @ b,
            "convolution in bfloat16": lambda: F.conv2d(low_x, low_kernel, padding=1),
        }
        times = in_turns(work, repeats, 2)
    convolution = 2 * batch * filters * channels * 9 * side * side
    flops = {"convolution": convolution, "product": 2 * size**3, "convolution in bfloat16": convolution}
    rates = {name: flops[name] / min(times[name].seconds) / 1e9 for name in work}
    rows = tuple(
        Row(f"machine: a plain {name}", rates[name], rates[name] * times[name].deviation / times[name].median, "GFLOP/s")
        for name in work
    )
    return Machine(rates["convolution"], rates["product"], rates["convolution in bfloat16"], rows)
