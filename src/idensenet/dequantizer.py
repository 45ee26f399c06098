"""Noise that is learned: u in (0, 1) for every pixel, given the image (Ho et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from idensenet.bijections import checkerboard_mask
from idensenet.bijections.base import sum_event
from idensenet.draws import Draws
from idensenet.errors import OptionError

LAYERS = 4
LIMIT = 3.0  # of the logarithm of a scale


class Dequantizer(nn.Module):
    """u = sigmoid(h(logit(v), x)) with v uniform and h a chain of affine couplings that read the image x.

    With q the density of u, log p(x) >= E[log p(x + u) - log q(u | x)]. It starts as the identity, so that u is uniform.

    Args:
        shape: (channels, height, width).
        levels: Number of levels of a pixel.
        width: Hidden channels of the couplings.
    """

    masks: Tensor

    def __init__(self, shape: Sequence[int], levels: int, width: int = 32) -> None:
        super().__init__()
        if len(shape) != 3:
            raise OptionError(f"dequantization='variational' is for images; the shape is {tuple(shape)}.")
        self.shape, self.levels, self.width = tuple(shape), levels, width
        self.register_buffer("masks", torch.stack([checkerboard_mask(shape, i % 2 == 1) for i in range(LAYERS)]))
        self.nets = nn.ModuleList(_net(2 * shape[0], width) for _ in range(LAYERS))

    def forward(self, x: Tensor, draws: Draws, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """u for each pixel of x [batch, *shape], and log q(u | x) [batch]."""
        image = (x.to(dtype) + 0.5) * (2 / self.levels) - 1
        edge = torch.finfo(dtype).eps / 2
        v = draws.uniform(image)[0].clamp(edge, 1 - edge)
        z, log_q = torch.logit(v), sum_event(torch.log(v) + torch.log1p(-v))
        for mask, net in zip(self.masks, self.nets, strict=True):
            scale, shift = net(torch.cat([z * mask, image], 1)).chunk(2, 1)
            scale, shift = (1 - mask) * LIMIT * torch.tanh(scale / LIMIT), (1 - mask) * shift
            z, log_q = z * torch.exp(scale) + shift, log_q - sum_event(scale)
        return torch.sigmoid(z), log_q - sum_event(logsigmoid(z) + logsigmoid(-z))


def _net(channels: int, width: int) -> nn.Sequential:
    """As many channels as come in; zero at first."""
    last = nn.Conv2d(width, channels, 3, padding=1)
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, width, 1), nn.SiLU(), last)
