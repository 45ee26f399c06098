"""What every bijection can do, and what one public call hands down to its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from idensenet.draws import Draws, default_draws
from idensenet.errors import ShapeError
from idensenet.lipschitz.certificate import OperatorNorms
from idensenet.lipschitz.linear import refresh_norms
from idensenet.precision import EXACT, Precision


@dataclass(frozen=True)
class Call:
    """What one public call works with. A bijection made of parts hands `call.part(i)` to its i-th part.

    Args:
        draws: The source of random numbers.
        prepared: What `prepared` of the bijection returned: normalised weights.
        context: A vector for each sample, or None.
        log_det: Whether the log-determinant is wanted. If not, one that costs anything may be left at zero.
        learn: Whether to take from this batch what is to be taken from data, once.
    """

    draws: Draws
    prepared: Any = None
    context: Tensor | None = None
    log_det: bool = True
    learn: bool = False

    def part(self, i: int) -> Call:
        """The call for the i-th part."""
        return Call(self.draws.fold(i), self.prepared[i], self.context, self.log_det, self.learn)


class Bijection(nn.Module, ABC):
    """An invertible map of [batch, *event]. Value and log-determinant travel together, both ways.

    To write one, implement `push`, `pull` and `bi_lipschitz`. Override `prepared` if something depends on the weights alone and
    is worth computing once per call. Everybody else calls `forward`, `inverse`, `encode`, `decode` and `initialize`, which all
    take a `context` [batch, features]; a bijection that has no use for it ignores it.
    """

    @abstractmethod
    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        """y = F(x), and log|det J_F(x)| of shape [batch].

        Args:
            x: Samples [batch, *event].
            call: What the call works with; hand `call.part(i)` to the i-th part.

        Returns:
            y of the shape of the output, and log-determinants [batch].
        """

    @abstractmethod
    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        """x with F(x) = y, and the log-determinant of the inverse map, -log|det J_F(x)|.

        Args:
            y: Outputs of `push`.
            call: What the call works with; hand `call.part(i)` to the i-th part.

        Returns:
            x, and log-determinants of the inverse map [batch].
        """

    @abstractmethod
    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        """Guaranteed a, b with a |x - y| <= |F(x) - F(y)| <= b |x - y|; 0 and infinity where there are none.

        Args:
            norms: Certified norms of linear maps, computed once.

        Returns:
            The lower and the upper constant.
        """

    def prepared(self, precision: Precision) -> Any:
        """What `push` and `pull` find in `call.prepared`, given norms that are up to date.

        Args:
            precision: How products are rounded.

        Returns:
            Anything; None by default.
        """
        return None

    # For everybody

    def prepare(self, precision: Precision = EXACT) -> Any:
        """Everything that depends on the weights alone, for the weights as they are now: their norms are checked here.

        Args:
            precision: How products are rounded.

        Returns:
            What `prepared` returns.
        """
        refresh_norms(self)
        return self.prepared(precision)

    def call(self, x: Tensor, draws: Draws | None, context: Tensor | None, log_det: bool = True, learn: bool = False) -> Call:
        """A call of this bijection on its own.

        Args:
            x: Samples, for their device and content.
            draws: Source of random numbers; by default as the mode says.
            context: A vector for each sample, or None.
            log_det: Whether the log-determinant is wanted.
            learn: Whether to initialise from this batch.

        Returns:
            The call.
        """
        return Call(draws or default_draws(x, self.training), self.prepare(), context, log_det, learn)

    def forward(self, x: Tensor, draws: Draws | None = None, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """y = F(x), and log|det J_F(x)| of shape [batch].

        Args:
            x: Samples [batch, *event].
            draws: Source of random numbers; by default as the mode says.
            context: A vector for each sample, or None.

        Returns:
            y and the log-determinants [batch].
        """
        with EXACT.products(x.device):
            return self.push(x, self.call(x, draws, context))

    def inverse(self, y: Tensor, draws: Draws | None = None, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x with F(x) = y, and the log-determinant of the inverse map, -log|det J_F(x)|.

        Args:
            y: Outputs of `forward`.
            draws: Source of random numbers; by default as the mode says.
            context: A vector for each sample, or None.

        Returns:
            x and the log-determinants of the inverse map [batch].
        """
        with EXACT.products(y.device):
            return self.pull(y, self.call(y, draws, context))

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """F(x) alone.

        Args:
            x: Samples [batch, *event].
            context: A vector for each sample, or None.

        Returns:
            y.
        """
        with EXACT.products(x.device):
            return self.push(x, self.call(x, None, context, log_det=False))[0]

    def decode(self, y: Tensor, context: Tensor | None = None) -> Tensor:
        """The inverse alone.

        Args:
            y: Outputs of `encode`.
            context: A vector for each sample, or None.

        Returns:
            x.
        """
        with EXACT.products(y.device):
            return self.pull(y, self.call(y, None, context, log_det=False))[0]

    @torch.no_grad()
    def initialize(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Set what depends on data from a batch, once; returns F(x).

        Args:
            x: Samples [batch, *event].
            context: A vector for each sample, or None.

        Returns:
            F(x).
        """
        with EXACT.products(x.device):
            return self.push(x, self.call(x, None, context, log_det=False, learn=True))[0]


def constant_log_det(x: Tensor, value: Tensor) -> Tensor:
    """A log-determinant that is the same for every sample."""
    return value.to(x.dtype).expand(x.shape[0])


def no_log_det(x: Tensor) -> Tensor:
    """A log-determinant of zero for every sample."""
    return torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)


def sum_event(x: Tensor) -> Tensor:
    """The sum over each sample."""
    return x.flatten(1).sum(1)


def check_event(x: Tensor, shape: tuple[int, ...], what: str) -> None:
    """Raises a ShapeError unless samples have this shape."""
    if tuple(x.shape[1:]) != shape:
        raise ShapeError(f"{what} takes tensors of shape (batch, {', '.join(map(str, shape))}), not {tuple(x.shape)}.")
