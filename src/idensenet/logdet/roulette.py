"""Russian roulette: some terms for certain, the rest by chance, each divided by the chance that it is reached."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import partial

import torch
from torch import Tensor

from idensenet.draws import Draws
from idensenet.errors import OptionError
from idensenet.logdet.base import PowerSeries
from idensenet.logdet.gradient import Series
from idensenet.logdet.series import Probe, ProbedLogDet, checked_counts, weighted_series


def uniforms(draws: Draws, x: Tensor, probes: int) -> Tensor:
    """One for every probe, [probes, batch] or [probes, 1]: as independent as the probes, whose spread is the error."""
    return torch.stack([draws.fold(i).lengths(len(x), x.device) for i in range(probes)])


class Law(ABC):
    """The law of N >= 0, the number of terms after the certain ones."""

    limit: int  # P(N > limit) is below 1e-16

    @abstractmethod
    def survival(self, n: Tensor) -> Tensor:
        """P(N >= n), float64.

        Args:
            n: Counts.

        Returns:
            Probabilities.
        """

    def lengths(self, draws: Draws, x: Tensor, probes: int) -> Tensor:
        """N for every probe, [probes, batch] or [probes, 1].

        Args:
            draws: Source of random numbers.
            x: Samples [batch, *event].
            probes: Number of probe vectors.

        Returns:
            Counts.
        """
        return self.draw(uniforms(draws, x, probes))

    def draw(self, uniform: Tensor) -> Tensor:
        """N from uniforms on [0, 1): the number of n >= 1 with u < P(N >= n).

        Args:
            uniform: Numbers from 0 to 1.

        Returns:
            Counts.
        """
        chance = self.survival(torch.arange(1, self.limit + 1, device=uniform.device))
        return torch.searchsorted(-chance, -uniform.contiguous(), right=False)

    def weights(self, lengths: Tensor, exact_terms: int, terms: int) -> Tensor:
        """[terms, *lengths.shape]: 1 for the exact terms, then 1 / P(N >= n) up to each length, then 0.

        Args:
            lengths: Counts.
            exact_terms: Number of terms that are always computed.
            terms: Number of terms in all.

        Returns:
            The weights.
        """
        n = torch.arange(1 - exact_terms, terms - exact_terms + 1, device=lengths.device).clamp(min=0)
        n = n.view(-1, *[1] * lengths.ndim)
        return torch.where(n <= lengths, 1 / self.survival(n), 0.0)


class Geometric(Law):
    """P(N >= n) = (1 - p)^n. The variance is finite where 1 - p > rho^2, rho the spectral radius of J.

    Args:
        p: Probability to stop after each term, strictly between 0 and 1.

    Raises:
        OptionError: p lies outside.
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0 < p < 1:
            raise OptionError(f"p={p} of a geometric law must lie strictly between 0 and 1.")
        self.p = p
        self.limit = math.ceil(-40 / math.log1p(-p))

    def survival(self, n: Tensor) -> Tensor:
        return (1 - self.p) ** n.double()


class Poisson(Law):
    """P(N >= n) of a Poisson law; the paper's choice, with mean 2. In theory its variance is infinite for every rho > 0.

    Args:
        mean: Mean number of further terms.

    Raises:
        OptionError: The mean is not positive.
    """

    def __init__(self, mean: float = 2.0) -> None:
        if not mean > 0:
            raise OptionError(f"mean={mean} of a Poisson law must be positive.")
        self.mean = mean
        self.limit = int(mean + 20 * mean**0.5 + 20)

    def survival(self, n: Tensor) -> Tensor:
        n = n.double()
        tail = torch.special.gammainc(n.clamp(min=1), torch.full_like(n, self.mean))
        return torch.where(n >= 1, tail, 1.0)


class RouletteLogDet(ProbedLogDet):
    """The Russian roulette estimator: `exact_terms` terms for certain, the rest by `law`; unbiased (Chen et al., 2019).

    By default one more term on average: with Rademacher probes the spread of its gradient is no larger than with the paper's
    `Poisson(2.0)` and Gaussian probes.

    Args:
        law: Distribution of the number of further terms; Poisson(1) by default.
        exact_terms: Number of terms that are always computed.
        probes: Number of probe vectors.
        probe: Distribution of the probe vectors: rademacher or gaussian.

    Raises:
        OptionError: A count is below one.
    """

    def __init__(self, law: Law | None = None, exact_terms: int = 2, probes: int = 1, probe: Probe = "rademacher") -> None:
        checked_counts(exact_terms=exact_terms, probes=probes)
        self.law = law or Poisson(1.0)
        self.exact_terms, self.probes, self.probe = exact_terms, probes, probe

    def draw_weights(self, draws: Draws, x: Tensor) -> Tensor:
        """The weights of as many terms as the longest series of the batch has.

        Args:
            draws: Source of random numbers.
            x: Samples [batch, *event].

        Returns:
            The weights [terms, probes, batch or 1].
        """
        lengths = self.law.lengths(draws, x, self.probes)
        terms = self.exact_terms + (int(lengths.max()) if lengths.numel() else 0)
        return self.law.weights(lengths, self.exact_terms, terms).to(x.device, x.dtype)

    def series(self, draws: Draws, x: Tensor, f: PowerSeries) -> Series:
        return partial(weighted_series, self.draw_weights(draws, x), f)
