"""From integer levels to numbers that have a density."""

from __future__ import annotations

import torch
from torch import Tensor

from idensenet.draws import Draws


def dequantize(x: Tensor, dtype: torch.dtype, draws: Draws) -> Tensor:
    """x + u with u uniform on [0, 1), in [0, levels)."""
    like = x.to(dtype)
    return like + draws.uniform(like)[0]


def quantize(x: Tensor, levels: int) -> Tensor:
    """The level each number belongs to, uint8."""
    return x.detach().floor().clamp(0, levels - 1).to(torch.uint8)
