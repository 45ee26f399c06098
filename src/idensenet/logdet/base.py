"""tr f(J) of residual branches: one interface for all ways to get it.

A residual block x + g(x) asks for f(t) = log(1 + t), since log det(I + J) = tr log(I + J).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor

from idensenet.draws import Draws
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.registry import Registry


class Linearizable(Protocol):
    """A prepared branch g, as far as the log-determinant is concerned."""

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]: ...

    def push(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, LinearMap]: ...

    def tensors(self) -> list[Tensor]: ...

    def replaced(self, tensors: Sequence[Tensor]) -> Self: ...


@dataclass(frozen=True)
class PowerSeries:
    """f(t) = sum_j a_j log(1 + s_j t), given by its pairs (a_j, s_j) with |s_j| <= 1; so f(0) = 0.

    >>> LOG_ONE_PLUS.coefficient(1), LOG_ONE_PLUS.coefficient(2)
    (1.0, -0.5)
    """

    pairs: tuple[tuple[float, float], ...]

    def coefficient(self, k: int) -> float:
        """c_k of f(t) = sum_k c_k t^k. The derivative f' has the coefficients k c_k."""
        return sum(a * (-1.0) ** (k + 1) * s**k / k for a, s in self.pairs)


LOG_ONE_PLUS = PowerSeries(((1.0, 1.0),))


@dataclass(frozen=True)
class Estimate:
    """tr f(J) per sample, summed over blocks. `standard_error` is None for an exact value or a single probe."""

    value: Tensor
    standard_error: Tensor | None = None


class LogDet(ABC):
    """A way to compute tr f(J), block by block. Nothing is drawn but from `draws`.

    To write one, implement `measure`; it returns one value for each probe and sample, and their mean is the estimate.
    """

    @abstractmethod
    def measure(self, g: Linearizable, x: Tensor, draws: Draws, f: PowerSeries, save: bool = False) -> tuple[Tensor, Tensor]:
        """g(x), and values of tr f(J) for each probe and sample: [probes, batch].

        Args:
            g: The prepared branch.
            x: Samples [batch, *event].
            draws: The source of all random numbers.
            f: The function of the Jacobian.
            save: Save memory: keep little, and rebuild the block in the backward pass. No number changes.

        Returns:
            g(x), and the values [probes, batch].
        """

    def total(self, found: Tensor, f: PowerSeries) -> Estimate:
        """The sum over blocks, from what `measure` returned for each of them.

        Args:
            found: The values of all blocks, [blocks, ...].
            f: The function of the Jacobian.

        Returns:
            The estimate.
        """
        probes = found.shape[1]
        error = (found.detach().var(1).sum(0) / probes).sqrt() if probes > 1 else None
        return Estimate(found.mean(1).sum(0), error)


LOG_DETS: Registry[LogDet] = Registry("log-determinant method")


def register_log_det(name: str, make: type[LogDet]) -> None:
    """Make an estimator usable by name in `--logdet.method` and `--logdet.eval_method`; it is called without arguments.

    Args:
        name: The name.
        make: The class; it is called without arguments.

    Raises:
        OptionError: Another estimator has this name.
    """
    LOG_DETS.register(name, lambda *_: make())
