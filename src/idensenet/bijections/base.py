"""What every bijection can do."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from idensenet.draws import Draws
from idensenet.errors import ShapeError
from idensenet.lipschitz.certificate import OperatorNorms


class Bijection(nn.Module, ABC):
    """An invertible map of [batch, *event]. Value and log-determinant travel together, both ways.

    Where `conditional` is true, every method takes a `context` as well, [batch, features]: it is a bijection for each.
    """

    @property
    def conditional(self) -> bool:
        return False

    @abstractmethod
    def forward(self, x: Tensor, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """y = F(x), and log|det J_F(x)| of shape [batch]."""

    @abstractmethod
    def inverse(self, y: Tensor, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """x with F(x) = y, and the log-determinant of the inverse map, -log|det J_F(x)|."""

    @abstractmethod
    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        """Guaranteed a, b with a |x - y| <= |F(x) - F(y)| <= b |x - y|; 0 and infinity where there are none."""

    def encode(self, x: Tensor) -> Tensor:
        """F(x) alone. Meant to be replaced where the log-determinant is what costs."""
        return self.forward(x)[0]

    def decode(self, y: Tensor) -> Tensor:
        """The inverse alone. Meant to be replaced where the log-determinant is what costs."""
        return self.inverse(y)[0]

    def initialize(self, x: Tensor) -> Tensor:
        """Take from a batch what is to be taken from data, once; returns F(x)."""
        return self.encode(x)


def constant_log_det(x: Tensor, value: Tensor) -> Tensor:
    """A log-determinant that is the same for every sample."""
    return value.to(x.dtype).expand(len(x))


def no_log_det(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=x.dtype, device=x.device)


def sum_event(x: Tensor) -> Tensor:
    return x.flatten(1).sum(1)


def check_event(x: Tensor, shape: tuple[int, ...], what: str) -> None:
    if tuple(x.shape[1:]) != shape:
        raise ShapeError(f"{what} takes tensors of shape (batch, {', '.join(map(str, shape))}), not {tuple(x.shape)}.")
