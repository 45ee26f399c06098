"""A series that runs as long as its terms matter, sample by sample, and a roulette tail that keeps it unbiased."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from idensenet.draws import Draws
from idensenet.errors import OptionError
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.logdet.base import Linearizable, LogDet, PowerSeries
from idensenet.logdet.gradient import dot, neumann
from idensenet.logdet.roulette import Law, uniforms
from idensenet.logdet.series import Probe, checked_counts, draw_probes

FACTORS = 0.5, 0.9  # between which q lies
NEVER = 1 << 40


class _Tail:
    """How far beyond the certain terms each series runs, from one uniform for each: [probes, batch]."""

    def __init__(self, law: Law | None, uniform: Tensor) -> None:
        self.law, self.uniform = law, uniform
        self.lengths = None if law is None else law.draw(uniform)
        self.q = torch.full_like(uniform, FACTORS[0])

    def follow(self, where: Tensor, factor: Tensor, index: Tensor) -> None:
        """Take the factor by which powers shrink for q, where the certain terms have ended."""
        q = factor.to(self.q.dtype).nan_to_num(FACTORS[0]).clamp(*FACTORS)
        self.q[:, index] = torch.where(where, q, self.q[:, index])

    def chance(self, n: Tensor, index: Tensor) -> Tensor:
        """P(N >= n), which is one for n = 0."""
        return self.q[:, index] ** n if self.law is None else self.law.survival(n)

    def reached(self, n: Tensor, index: Tensor) -> Tensor:
        if self.lengths is None:
            return self.uniform[:, index] < self.chance(n, index)
        return n <= self.lengths[:, index]


class AdaptiveLogDet(LogDet):
    """Terms for certain until one falls below `tolerance` nats per dimension, then N more by roulette.

    The stop looks at the term |v' J^k v| / k and at |(J')^k v| / k, the size a term has by chance, and depends on the probe
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

    def _series(self, uniform: Tensor, f: PowerSeries, J: LinearMap, probe: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
        batch, small = probe.shape[1], self.tolerance * math.prod(probe.shape[2:])
        value, u = probe.new_zeros(probe.shape[:2]), torch.zeros_like(probe)
        index = torch.arange(batch, device=probe.device)  # the samples still running
        tail = _Tail(self.law, uniform.to(probe.device).expand(value.shape))
        stop = torch.full_like(value, NEVER, dtype=torch.long)  # certain terms, once known
        power, product_part, J_part, k = probe, product, J, 0
        before, length = probe.flatten(2).norm(dim=2), product.flatten(2).norm(dim=2)
        while len(index):
            k += 1
            past = (k - stop[:, index]).clamp(min=0)  # terms that are not certain
            weight = torch.where(tail.reached(past, index), 1 / tail.chance(past, index), 0.0).to(probe.dtype)
            term, c = dot(power, product_part) / k, k * f.coefficient(k)
            value[:, index] += c * weight * term
            u[:, index] += (c * weight).view(*weight.shape, *[1] * (probe.ndim - 2)) * power
            if k > 1:
                length = power.flatten(2).norm(dim=2)
            size = torch.maximum(term.abs(), (before if k == 1 else length) / k)
            if k >= self.min_terms:
                done = (stop[:, index] == NEVER) & ((size <= small) | (k >= self.max_terms))
                stop[:, index] = torch.where(done, k, stop[:, index])
                tail.follow(done, length / before, index)
            running = tail.reached((k + 1 - stop[:, index]).clamp(min=0), index).any(0)
            keep = running.nonzero().flatten()
            if len(keep) == 0:
                break
            before = before if k == 1 else length
            if 2 * len(keep) <= len(index):  # fewer samples pay for the copy
                index, power, product_part, before = index[keep], power[:, keep], product_part[:, keep], before[:, keep]
                J_part = J_part.take(keep)
            power = J_part.rmatvec(power)
        return value, u

    def measure(self, g: Linearizable, x: Tensor, draws: Draws, f: PowerSeries, save: bool = False) -> tuple[Tensor, Tensor]:
        probe = draw_probes(draws, x, self.probes, self.probe, save)
        return neumann(g, x, probe, partial(self._series, uniforms(draws, x, self.probes), f), save)
