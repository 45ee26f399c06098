"""Affine coupling: one part is scaled and shifted by functions of the other (Dinh et al., 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from idensenet.bijections.base import Bijection, Call, check_event, sum_event
from idensenet.errors import OptionError
from idensenet.lipschitz.certificate import OperatorNorms


def channel_mask(shape: Sequence[int], swap: bool) -> Tensor:
    """1 where the input passes unchanged: the first half of the channels, or the second."""
    if shape[0] < 2:
        raise OptionError(f"A coupling over channels needs at least two of them; the shape is {tuple(shape)}.")
    first = torch.arange(shape[0]) < (shape[0] + 1) // 2
    return (first ^ swap).float().view(-1, *[1] * (len(shape) - 1)).expand(*shape).clone()


def checkerboard_mask(shape: Sequence[int], swap: bool) -> Tensor:
    """1 on every other place of the image, as on the white squares of a board."""
    if len(shape) != 3:
        raise OptionError(f"A checkerboard needs images, [channels, height, width]; the shape is {tuple(shape)}.")
    rows, columns = torch.arange(shape[1])[:, None], torch.arange(shape[2])
    return ((rows + columns + int(swap)) % 2 == 0).float().expand(*shape).clone()


class Coupling(Bijection):
    """y = m x + (1 - m)(s x + t) with (s, t) from `net(m x)` and s = sigmoid(. + 2), m a mask of zeros and ones.

    `net` returns twice the channels of its input: first what becomes the scale, then the shift.

    Args:
        net: A network from [batch, *event] to twice the channels.
        mask: Zeros and ones in the shape of an event; ones pass unchanged.
    """

    mask: Tensor

    def __init__(self, net: nn.Module, mask: Tensor) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mask", mask)

    def _scale_and_shift(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        check_event(x, tuple(self.mask.shape), "This coupling")
        raw, shift = self.net(x * self.mask).chunk(2, 1)
        log_scale = torch.nn.functional.logsigmoid(raw + 2) * (1 - self.mask)
        return torch.exp(log_scale), shift * (1 - self.mask), sum_event(log_scale)

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        scale, shift, log_det = self._scale_and_shift(x)
        return x * scale + shift, log_det

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        scale, shift, log_det = self._scale_and_shift(y)
        return (y - shift) / scale, -log_det

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        return 0.0, math.inf  # nothing bounds the network


def coupling_net(shape: Sequence[int], width: int) -> nn.Sequential:
    """3x3, 1x1, 3x3 convolutions (or three matrices) of `width`, ending at zero, so that the coupling starts tame."""
    c = shape[0]
    if len(shape) == 1:
        last: nn.Module = nn.Linear(width, 2 * c)
        layers = [nn.Linear(c, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), last]
    else:
        last = nn.Conv2d(width, 2 * c, 3, padding=1)
        layers = [nn.Conv2d(c, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 1), nn.ReLU(), last]
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(*layers)
