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
from idensenet.logdet.base import LOG_ONE_PLUS, Linearizable, LogDet, PowerSeries
from idensenet.logdet.gradient import dot, neumann

Probe = Literal["rademacher", "gaussian"]


def draw_probes(draws: Draws, x: Tensor, probes: int, kind: Probe, small: bool = False) -> Tensor:
    """Probe vectors [probes, *x.shape] with identity covariance; with `small`, signs in a byte each."""
    source = x.detach()
    if kind == "gaussian":
        probe = draws.normal(source, probes)
    else:
        probe = draws.rademacher(source, probes).to(torch.int8 if small else source.dtype)
    return probe.contiguous()  # or products would be rounded differently where a graph is recorded


def weighted_series(weights: Tensor, f: PowerSeries, J: LinearMap, probe: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
    """The first terms with weights [terms, (probes,) batch or 1]: values [probes, batch], and u for the gradient."""
    power, value, u = probe, torch.zeros_like(dot(probe, probe)), torch.zeros_like(probe)
    for k, weight in enumerate(weights.to(probe.dtype), 1):
        power = power if k == 1 else J.rmatvec(power)
        if (c := f.coefficient(k)) != 0:
            value = value + c * weight * dot(power, product)
            u = u + (k * c * weight).view(*weight.shape, *[1] * (probe.ndim - 2)) * power
    return value, u


def series_log_det(
    g: Linearizable, x: Tensor, probe: Tensor, term_weights: Tensor, f: PowerSeries = LOG_ONE_PLUS, save: bool = False
) -> tuple[Tensor, Tensor]:
    """g(x) and tr f(J) for given probes [probes, *x.shape] and weights: no draw and no decision inside."""
    gx, values = neumann(g, x, probe, partial(weighted_series, term_weights, f), save)
    return gx, values.mean(0)


def checked_counts(**counts: int) -> None:
    """Raises an OptionError unless every count is at least one."""
    for name, value in counts.items():
        if value < 1:
            raise OptionError(f"{name}={value} must be at least 1.")


class WeightedLogDet(LogDet):
    """The first terms of the series, with weights."""

    probes: int
    probe: Probe

    @abstractmethod
    def draw_weights(self, draws: Draws, x: Tensor) -> Tensor:
        """[terms, (probes,) batch or 1], for as many terms as there are.

        Args:
            draws: Source of random numbers.
            x: Samples [batch, *event].

        Returns:
            The weights.
        """

    def measure(self, g: Linearizable, x: Tensor, draws: Draws, f: PowerSeries, save: bool = False) -> tuple[Tensor, Tensor]:
        probe = draw_probes(draws, x, self.probes, self.probe, save)
        weights = self.draw_weights(draws, x)
        return neumann(g, x, probe, partial(weighted_series, weights, f), save)


class SeriesLogDet(WeightedLogDet):
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

    def draw_weights(self, draws: Draws, x: Tensor) -> Tensor:
        return torch.ones(self.terms, 1, device=x.device)
