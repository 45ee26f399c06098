"""Stacks of convolutions whose norm never exceeds `coeff`, on maps of a known size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from idensenet.errors import OptionError, ShapeError
from idensenet.lipschitz import norms
from idensenet.lipschitz.fingerprint import SKETCH, sketch
from idensenet.lipschitz.linear import LipschitzMap
from idensenet.precision import for_norms

AT_ONCE = 1 << 23  # bytes of singular vectors that are computed together: memory must not grow with the depth of a model
ROUNDING = 1e-6  # relative change of a weight when its number type changes
JUMP, DRIFT = 0.1, 0.2  # a kernel that has moved so far, at once or in all, relative to its length, is searched from scratch


class LipschitzConv2d(LipschitzMap):
    """A zero-padded convolution that keeps the map's size; `size` is that size, known at construction.

    Kernels of one pixel are matrices, and their norm is exact. Larger ones are iterated, to a relative `tolerance`.

    Args:
        inputs: Number of input channels.
        outputs: Number of output channels.
        kernel: Side length of the kernel, odd.
        size: (height, width) of the maps.
        coeff: Bound on the norm, strictly between 0 and 1.
        norm: p: 1, 2 or infinity.
        blocks: K, the number of blocks in the stack.
    """

    channels, samples, event = 1, 0, 3
    sketch: Tensor  # [2, K, SKETCH]: of the last weight, and of the last one whose singular vectors were searched from scratch

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        size: tuple[int, int],
        coeff: float = 0.98,
        norm: float = 2.0,
        blocks: int = 1,
    ) -> None:
        if kernel % 2 == 0:
            raise OptionError(f"kernel={kernel} must be odd, so that the convolution keeps the size of its map.")
        place = (1, 1) if kernel == 1 else tuple(size)
        start = torch.Generator().manual_seed(0)  # the same on every rank, and no draw from anybody's generator
        right = torch.randn(inputs, *place, generator=start)
        right = (right / right.norm()).expand(blocks, *right.shape).clone()
        weight = torch.empty(blocks, outputs, inputs, kernel, kernel)
        super().__init__(weight, coeff, norm, torch.zeros(blocks, outputs, *place), right)
        self.kernel, self.size = kernel, (size[0], size[1])
        self.maps = None if kernel == 1 else self.size
        self.tolerance, self.iterated = 1e-3, kernel > 1 and self.norm == 2
        self.register_buffer("sketch", torch.zeros(2, blocks, SKETCH))

    @staticmethod
    def laid_out(x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def enter(x: Tensor) -> Tensor:
        return x.flatten(0, -4).contiguous(memory_format=torch.channels_last)

    @staticmethod
    def leave(rows: Tensor, lead: Sequence[int]) -> Tensor:
        return rows.view(*lead, *rows.shape[1:])

    @staticmethod
    def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.conv2d(rows, weight, bias, padding=weight.shape[-1] // 2)

    @staticmethod
    def product_back(rows: Tensor, weight: Tensor) -> Tensor:
        return F.conv_transpose2d(rows, weight, padding=weight.shape[-1] // 2)

    def check(self, x: Tensor, expansion: int = 1) -> None:
        want = (self.inputs // expansion, *self.size)
        if x.shape[-3:] != want:
            raise ShapeError(f"This convolution takes maps of shape {want}, not a tensor of shape {tuple(x.shape)}.")

    def norm_product(self) -> Tensor:
        if not self.iterated:
            return super().norm_product()
        with for_norms(self.weight):
            active = (self.sigma > self.coeff).tolist()  # below coeff the weight is used as it is, and its norm has no part
            slopes = [
                norms.convolution_norm_gradient(u, v, self.kernel) if on else None
                for on, u, v in zip(active, self.left, self.right, strict=True)
            ]
        pairs = zip(slopes, self.weight, strict=True)
        return torch.stack([w.new_zeros(()) if slope is None else (slope * w).sum() for slope, w in pairs])

    def singular(self, back: bool) -> tuple[Tensor, Tensor, Tensor]:
        if not self.iterated:
            return super().singular(back)
        now, (last, searched) = sketch(self.weight), self.sketch
        # a part of the weight may have grown that v does not see: then, and where no training step follows, search again
        jump, drift = (JUMP, DRIFT) if self.training else (ROUNDING, ROUNDING)
        near = (now - last).norm(dim=1) < jump * last.norm(dim=1)
        near &= (now - searched).norm(dim=1) < drift * searched.norm(dim=1)
        known = torch.where(near, self.sigma, math.inf)
        self.sketch.copy_(torch.stack([now, torch.where(near[:, None], searched, now)]))
        each = (self.left[0].numel() + self.right[0].numel()) * self.left.element_size()
        together = max(1, AT_ONCE // each)
        parts = [torch.split(tensor, together) for tensor in (self.weight.detach(), self.right, known, self.left)]
        found = [norms.convolution_norms(w, v, self.tolerance, k, u, back) for w, v, k, u in zip(*parts, strict=True)]
        sigma, left, right = (torch.cat(each) for each in zip(*found, strict=True))
        return sigma, left, right

    def estimated(self) -> bool:
        if self.training or not self.iterated:
            return False
        last, searched = self.sketch
        return bool(((last - searched).norm(dim=1) > ROUNDING * searched.norm(dim=1)).any())
