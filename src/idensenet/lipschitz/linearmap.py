"""Linear maps with a transpose: what `linearize` returns with the value.

Vectors have the shape of the input, or one more leading dimension of probes: [batch, *event] or [probes, batch, *event].
Products are plain tensor arithmetic, so they carry a graph exactly where their tensors do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class LinearMap(ABC):
    """J with `matvec(v) = J v` and `rmatvec(u) = J' u`, one map per sample of the batch."""

    @abstractmethod
    def matvec(self, v: Tensor) -> Tensor:
        """J v."""

    @abstractmethod
    def rmatvec(self, u: Tensor) -> Tensor:
        """J' u."""

    @abstractmethod
    def take(self, index: Tensor) -> LinearMap:
        """The maps of some samples only."""
