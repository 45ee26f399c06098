"""A series that runs as long as its terms matter, sample by sample, and a roulette tail that keeps it unbiased."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from idensenet.draws import Draws
from idensenet.errors import OptionError
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.logdet.base import PowerSeries
from idensenet.logdet.gradient import Series, dot, wide
from idensenet.logdet.roulette import Law, uniforms
from idensenet.logdet.series import Probe, ProbedLogDet, checked_counts

FACTORS = 0.5, 0.9  # between which q lies
NEVER = 1 << 40


class AdaptiveLogDet(ProbedLogDet):
    """Terms for certain until one falls below `tolerance` nats per dimension, then N more by roulette.

    The stopping rule uses the term |v' J^k v| / k and |(J')^k v| / k, the typical size of a term, and depends on the probe
    only. Given the probe, the draw of N is independent of all else, so for every probe the expectation is the whole series.
    After `max_terms` the roulette starts in any case.

    Unless a law is given, N is geometric with P(N >= n) = q^n, and q is the factor by which the last power has shrunk, within
    FACTORS: the variance is finite where q > rho^2, and short where terms fall fast.

    Args:
        tolerance: Size of a term, in nats per dimension, at which a sample stops.
        min_terms: Number of terms that are always computed.
        max_terms: Number of terms after which the tail begins in any case.
        law: Distribution of the length of the tail; by default geometric, as fast as the powers shrink.
        probes: Number of probe vectors.
        probe: Distribution of the probe vectors: rademacher or gaussian.
    """

    def __init__(
        self,
        tolerance: float = 1e-5,
        min_terms: int = 2,
        max_terms: int = 100,
        law: Law | None = None,
        probes: int = 1,
        probe: Probe = "rademacher",
    ) -> None:
        checked_counts(min_terms=min_terms, probes=probes)
        if not tolerance > 0:
            raise OptionError(f"tolerance={tolerance} must be positive.")
        if max_terms < min_terms:
            raise OptionError(f"max_terms={max_terms} must be at least min_terms={min_terms}.")
        self.tolerance, self.min_terms, self.max_terms = tolerance, min_terms, max_terms
        self.law, self.probes, self.probe = law, probes, probe

    def series(self, draws: Draws, x: Tensor, f: PowerSeries) -> Series:
        return partial(self._sum, uniforms(draws, x, self.probes), f)

    def _sum(self, uniform: Tensor, f: PowerSeries, J: LinearMap, probe: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
        """Values and u; one uniform for each series decides how far it runs beyond the certain terms."""
        small = self.tolerance * math.prod(probe.shape[2:])
        value, u = probe.new_zeros(probe.shape[:2]), torch.zeros_like(probe)
        index = torch.arange(probe.shape[1], device=probe.device)  # the samples still running
        uniform = uniform.to(probe.device).expand(value.shape)
        stop = torch.full_like(value, NEVER, dtype=torch.long)  # certain terms, once known
        q = torch.full_like(uniform, FACTORS[0])

        def chance(k: int) -> Tensor:
            """The probability that a series reaches term k: one as long as terms are certain."""
            beyond = (k - stop[:, index]).clamp(min=0)
            return q[:, index] ** beyond if self.law is None else self.law.survival(beyond)

        power, k, before = probe, 0, product.flatten(2).norm(dim=2)
        while len(index):
            k += 1
            reached = chance(k)
            weight = torch.where(uniform[:, index] < reached, 1 / reached, 0.0).to(probe.dtype)
            term, c = dot(power, product) / k, k * f.coefficient(k)
            value[:, index] += c * weight * term
            u[:, index] += wide(c * weight, probe) * power
            length = power.flatten(2).norm(dim=2)
            if k >= self.min_terms:
                small_now = torch.maximum(term.abs(), length / k) <= small
                done = (stop[:, index] == NEVER) & (small_now | (k >= self.max_terms))
                stop[:, index] = torch.where(done, k, stop[:, index])
                factor = (before / length if k == 1 else length / before).to(q.dtype)  # by which powers shrink
                q[:, index] = torch.where(done, factor.nan_to_num(FACTORS[0]).clamp(*FACTORS), q[:, index])
            keep = (uniform[:, index] < chance(k + 1)).any(0).nonzero().flatten()
            if len(keep) == 0:
                break
            before = length
            if 2 * len(keep) <= len(index):  # fewer samples pay for the copy
                index, power, product, before = index[keep], power[:, keep], product[:, keep], before[:, keep]
                J = J.take(keep)
            power = J.rmatvec(power)
        return value, u
