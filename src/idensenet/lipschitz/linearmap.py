"""Linear maps with a transpose: what `linearize` returns beside the value.

Vectors have the shape of the input, or one more leading dimension of probes: [batch, *event] or [probes, batch, *event].
Everything is plain tensor arithmetic, so a product carries a graph exactly where its tensors do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor


def rounding(low: bool, like: Tensor) -> AbstractContextManager[object]:
    """Inside, products are in bfloat16, if that is wanted."""
    return torch.autocast(like.device.type, torch.bfloat16) if low else nullcontext()


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """Zero-padded convolution that keeps the map's size, for [..., channels, height, width]."""
    lead = x.shape[:-3]
    y = F.conv2d(x.flatten(0, -4) if len(lead) > 1 else x, weight, padding=weight.shape[-1] // 2)
    return y.view(*lead, *y.shape[1:]) if len(lead) > 1 else y


def flipped(weight: Tensor) -> Tensor:
    """The kernel of the transposed operator: with odd kernels and zero padding, it is a convolution again."""
    return weight.transpose(0, 1).flip(2, 3)


class LinearMap(ABC):
    """J with `matvec(v) = J v` and `rmatvec(u) = J' u`, one map per sample of the batch."""

    @abstractmethod
    def matvec(self, v: Tensor) -> Tensor: ...

    @abstractmethod
    def rmatvec(self, u: Tensor) -> Tensor: ...

    @abstractmethod
    def take(self, index: Tensor) -> LinearMap:
        """The maps of some samples only."""


class MatrixMap(LinearMap):
    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def matvec(self, v: Tensor) -> Tensor:
        return F.linear(v, self.weight)

    def rmatvec(self, u: Tensor) -> Tensor:
        return u @ self.weight

    def take(self, index: Tensor) -> MatrixMap:
        return self


class ConvolutionMap(LinearMap):
    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self._flipped: Tensor | None = None  # kept where no gradient is recorded

    def matvec(self, v: Tensor) -> Tensor:
        return convolve(v, self.weight)

    def rmatvec(self, u: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return convolve(u, flipped(self.weight))
        if self._flipped is None:
            self._flipped = flipped(self.weight)
        return convolve(u, self._flipped)

    def take(self, index: Tensor) -> ConvolutionMap:
        return self


class DiagonalMap(LinearMap):
    """v -> slope * v: an activation that acts on each number alone."""

    def __init__(self, slope: Tensor) -> None:
        self.slope = slope

    def matvec(self, v: Tensor) -> Tensor:
        return self.slope * v

    def rmatvec(self, u: Tensor) -> Tensor:
        return self.slope * u

    def take(self, index: Tensor) -> DiagonalMap:
        return DiagonalMap(self.slope[index])


class StackedDiagonalMap(LinearMap):
    """v -> [upper * v ; lower * v] along channels: a concatenated activation."""

    def __init__(self, upper: Tensor, lower: Tensor) -> None:
        self.upper, self.lower = upper, lower

    def matvec(self, v: Tensor) -> Tensor:
        return torch.cat([self.upper * v, self.lower * v], 1 - self.upper.ndim)

    def rmatvec(self, u: Tensor) -> Tensor:
        first, second = u.chunk(2, 1 - self.upper.ndim)
        return torch.addcmul(self.upper * first, self.lower, second)

    def take(self, index: Tensor) -> StackedDiagonalMap:
        return StackedDiagonalMap(self.upper[index], self.lower[index])


def diagonal(slopes: Sequence[Tensor]) -> LinearMap:
    """The Jacobian of an activation, from the slopes of what it makes of each number."""
    return DiagonalMap(*slopes) if len(slopes) == 1 else StackedDiagonalMap(*slopes)


class DenseLayerMap(LinearMap):
    """v -> [a v ; b A v] along channels: the weighted concatenation."""

    def __init__(self, a: Tensor, b: Tensor, inner: LinearMap, channels: int, channel_dim: int) -> None:
        self.a, self.b, self.inner, self.channels, self.channel_dim = a, b, inner, channels, channel_dim

    def matvec(self, v: Tensor) -> Tensor:
        return torch.cat([self.a * v, self.b * self.inner.matvec(v)], self.channel_dim)

    def rmatvec(self, u: Tensor) -> Tensor:
        grown = u.shape[self.channel_dim] - self.channels
        upper, lower = torch.split(u, [self.channels, grown], self.channel_dim)
        return self.a * upper + self.inner.rmatvec(self.b * lower)

    def take(self, index: Tensor) -> DenseLayerMap:
        return DenseLayerMap(self.a, self.b, self.inner.take(index), self.channels, self.channel_dim)


class Composition(LinearMap):
    """The maps one after the other, first to last."""

    def __init__(self, maps: Sequence[LinearMap]) -> None:
        self.maps = list(maps)

    def matvec(self, v: Tensor) -> Tensor:
        for each in self.maps:
            v = each.matvec(v)
        return v

    def rmatvec(self, u: Tensor) -> Tensor:
        for each in reversed(self.maps):
            u = each.rmatvec(u)
        return u

    def take(self, index: Tensor) -> Composition:
        return Composition([each.take(index) for each in self.maps])
