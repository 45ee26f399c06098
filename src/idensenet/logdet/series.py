"""tr f(J) = sum_k c_k tr(J^k), the traces by Hutchinson's probes."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from idensenet.draws import Draws
from idensenet.errors import OptionError
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.logdet.base import Linearizable, LogDet, PowerSeries
from idensenet.logdet.gradient import Series, dot, neumann, wide

Probe = Literal["rademacher", "gaussian"]


def weighted_series(weights: Tensor, f: PowerSeries, J: LinearMap, probe: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
    """The first terms with weights [terms, (probes,) batch or 1]: values [probes, batch], and u for the gradient."""
    power, value, u = probe, torch.zeros_like(dot(probe, probe)), torch.zeros_like(probe)
    for k, weight in enumerate(weights.to(probe.dtype), 1):
        power = power if k == 1 else J.rmatvec(power)
        if (c := f.coefficient(k)) != 0:
            value = value + c * weight * dot(power, product)
            u = u + wide(k * c * weight.expand_as(value), probe) * power
    return value, u


def checked_counts(**counts: int) -> None:
    """Raises an OptionError unless every count is at least one."""
    for name, value in counts.items():
        if value < 1:
            raise OptionError(f"{name}={value} must be at least 1.")


class ProbedLogDet(LogDet):
    """Estimates tr f(J) from random probe vectors with identity covariance. To write one, implement `series`."""

    probes: int
    probe: Probe

    @abstractmethod
    def series(self, draws: Draws, x: Tensor, f: PowerSeries) -> Series:
        """Draws all further random numbers and returns the function that sums the series.

        Args:
            draws: Source of random numbers.
            x: Samples [batch, *event].
            f: The function of the Jacobian.

        Returns:
            A function of (J, probe, J probe).
        """

    def measure(self, g: Linearizable, x: Tensor, draws: Draws, f: PowerSeries, save: bool = False) -> tuple[Tensor, Tensor]:
        source = x.detach()
        if self.probe == "gaussian":
            probe = draws.normal(source, self.probes)
        else:
            probe = draws.rademacher(source, self.probes).to(torch.int8 if save else source.dtype)  # signs fit into bytes
        probe = probe.contiguous()  # or products would be rounded differently where a graph is recorded
        return neumann(g, x, probe, self.series(draws, x, f), save)


class SeriesLogDet(ProbedLogDet):
    """A fixed number of terms: biased, for log(1 + t) by at most D L^(n+1) / ((n + 1)(1 - L)).

    Args:
        terms: Number of terms.
        probes: Number of probe vectors.
        probe: Distribution of the probe vectors: rademacher or gaussian.

    Raises:
        OptionError: A count is below one.
    """

    def __init__(self, terms: int = 10, probes: int = 1, probe: Probe = "rademacher") -> None:
        checked_counts(terms=terms, probes=probes)
        self.terms, self.probes, self.probe = terms, probes, probe

    def series(self, draws: Draws, x: Tensor, f: PowerSeries) -> Series:
        return partial(weighted_series, torch.ones(self.terms, 1, device=x.device), f)
