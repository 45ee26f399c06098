"""Rearrangements: volumes do not change."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from idensenet.bijections.base import Bijection, Call, check_event, no_log_det
from idensenet.errors import ShapeError
from idensenet.lipschitz.certificate import OperatorNorms


class Squeeze(Bijection):
    """[c, h, w] -> [4c, h/2, w/2]: every 2 x 2 patch becomes channels.

    >>> import torch
    >>> Squeeze()(torch.zeros(1, 3, 4, 6))[0].shape
    torch.Size([1, 12, 2, 3])
    """

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        if x.ndim != 4 or x.shape[2] % 2 or x.shape[3] % 2:
            raise ShapeError(f"A squeeze halves both sides of an image, so they must be even; the shape is {tuple(x.shape)}.")
        # pixel_unshuffle and its inverse do the same, but leave an empty batch as it is
        n, c, h, w = x.shape
        rows = x.reshape(n, c, h // 2, 2, w // 2, 2)
        return rows.permute(0, 1, 3, 5, 2, 4).flatten(1, 3), no_log_det(x)

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        if y.ndim != 4 or y.shape[1] % 4:
            raise ShapeError(f"Undoing a squeeze needs a number of channels that 4 divides; the shape is {tuple(y.shape)}.")
        n, c, h, w = y.shape
        patches = y.reshape(n, c // 4, 2, 2, h, w)
        return patches.permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3), no_log_det(y)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        return 1.0, 1.0


class Flatten(Bijection):
    """[c, h, w] -> [c h w].

    Args:
        shape: Shape of an event.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        check_event(x, self.shape, "This flattening")
        return x.flatten(1), no_log_det(x)

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        check_event(y, (math.prod(self.shape),), "Undoing this flattening")
        return y.view(-1, *self.shape), no_log_det(y)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        return 1.0, 1.0
