"""The dense block, with its concatenation weights folded into the linear maps.

With h_i = [a_i h_(i-1) ; b_i s_i], every h_i is the plain concatenation of s_0, s_1, ..., s_i up to one factor per channel.
So the factors multiply the columns of the weights, which are small, and never the maps, which are large: value, tangent and
transposed products are convolutions, activations and concatenations, and nothing else.

Rows are samples, or samples of several probes one after the other: [rows, *event].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from idensenet.lipschitz.linearmap import LinearMap, convolve, flipped


def laid_out(rows: Tensor) -> Tensor:
    """Maps with their channels next to each other, as convolutions are fastest."""
    return rows.contiguous(memory_format=torch.channels_last) if rows.ndim == 4 else rows


def apply(rows: Tensor, weight: Tensor) -> Tensor:
    """A matrix on vectors, a convolution on maps."""
    return F.linear(rows, weight) if weight.ndim == 2 else convolve(rows, weight)


def apply_transposed(rows: Tensor, weight: Tensor) -> Tensor:
    return apply(rows, weight.mT if weight.ndim == 2 else flipped(weight))


def biased(rows: Tensor, bias: Tensor) -> Tensor:
    return rows + (bias[:, None, None] if rows.ndim == 4 else bias)


def per_sample(function: Callable[[Tensor], Tensor], rows: Tensor, batch: int) -> Tensor:
    """A function that knows `batch` samples, on the rows of one or several probes."""
    if len(rows) == batch:
        return function(rows)
    if rows.ndim == 2:
        return function(rows.view(-1, batch, rows.shape[1])).flatten(0, 1)
    return torch.cat([function(part) for part in torch.split(rows, batch)])


class DenseBlockMap(LinearMap):
    """The Jacobian of a dense block: folded weights and the slopes of its activations."""

    def __init__(self, first: Tensor | None, weights: Sequence[Tensor], slopes: Sequence[LinearMap], batch: int) -> None:
        self.first, self.weights, self.slopes, self.batch = first, list(weights), list(slopes), batch

    def _rows(self, v: Tensor) -> tuple[Tensor, Sequence[int]]:
        event = v.ndim - (3 if self.weights[0].ndim == 4 else 1)
        lead = v.shape[:event]
        return laid_out(v.flatten(0, event - 1) if event > 1 else v), lead

    def matvec(self, v: Tensor) -> Tensor:
        rows, lead = self._rows(v)
        if self.first is not None:
            rows = apply(rows, self.first)
        for weight, slope in zip(self.weights, self.slopes, strict=False):
            rows = torch.cat([rows, per_sample(slope.matvec, apply(rows, weight), self.batch)], 1)
        rows = apply(rows, self.weights[-1])
        return rows.view(*lead, *rows.shape[1:]) if len(lead) > 1 else rows

    def rmatvec(self, u: Tensor) -> Tensor:
        rows, lead = self._rows(u)
        rows = apply_transposed(rows, self.weights[-1])
        for weight, slope in zip(reversed(self.weights[:-1]), reversed(self.slopes), strict=True):
            width = weight.shape[1]
            rows = rows[:, :width] + apply_transposed(per_sample(slope.rmatvec, rows[:, width:], self.batch), weight)
        if self.first is not None:
            rows = apply_transposed(rows, self.first)
        return rows.view(*lead, *rows.shape[1:]) if len(lead) > 1 else rows

    def take(self, index: Tensor) -> DenseBlockMap:
        return DenseBlockMap(self.first, self.weights, [slope.take(index) for slope in self.slopes], len(index))
