"""A series that runs as long as its terms matter, sample by sample, and a roulette tail that keeps it unbiased."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from idensenet.draws import Draws
from idensenet.errors import OptionError
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.logdet.base import Estimate, Linearizable, LogDet, Recompute
from idensenet.logdet.gradient import dot, neumann
from idensenet.logdet.roulette import Geometric, Law
from idensenet.logdet.series import Probe, checked_counts, draw_probes, next_power, over_probes


class AdaptiveLogDet(LogDet):
    """Terms for certain until one falls below `tolerance` nats per dimension, then N more by roulette.

    The stop looks at the term |v' J^k v| / k and at |(J')^k v| / k, the size a term has by chance, and depends on the probe
    only. N is independent of both, so for every probe the expectation is the whole series. After `max_terms` the roulette
    starts in any case.
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
        self.law, self.probes, self.probe = law or Geometric(0.5), probes, probe

    def _series(self, lengths: Tensor, J: LinearMap, probe: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
        batch, small = probe.shape[1], self.tolerance * math.prod(probe.shape[2:])
        value, u = probe.new_zeros(probe.shape[:2]), torch.zeros_like(probe)
        index = torch.arange(batch, device=probe.device)  # the samples still running
        lengths = lengths.to(probe.device).expand_as(value)
        stop = torch.full_like(value, self.law.limit + self.max_terms, dtype=torch.long)  # certain terms, once known
        power, product_part, J_part, sign, k = probe, product, J, 1.0, 0
        while len(index):
            k += 1
            certain = k <= stop[:, index]
            chance = self.law.survival((k - stop[:, index]).clamp(min=0))
            reached = k - stop[:, index] <= lengths[:, index]
            weight = torch.where(certain, 1.0, torch.where(reached, 1 / chance, 0.0)).to(probe.dtype)
            term = dot(power, product_part) / k
            value[:, index] += sign * weight * term
            u[:, index] += sign * weight.view(*weight.shape, *[1] * (probe.ndim - 2)) * power
            size = torch.maximum(term.abs(), power.flatten(2).norm(dim=2) / k)
            if k >= self.min_terms:
                done = certain & ((size <= small) | (k >= self.max_terms))
                stop[:, index] = torch.where(done, k, stop[:, index])
            running = (k < stop[:, index] + lengths[:, index]).any(0)
            keep = running.nonzero().flatten()
            if len(keep) == 0:
                break
            if 2 * len(keep) <= len(index):  # fewer samples pay for the copy
                index, power, product_part = index[keep], power[:, keep], product_part[:, keep]
                J_part = J_part.take(keep)
            power = next_power(J_part, power)
            sign = -sign
        return value, u

    def __call__(self, g: Linearizable, x: Tensor, draws: Draws, recompute: Recompute = False) -> tuple[Tensor, Estimate]:
        probe = draw_probes(draws, x, self.probes, self.probe, bool(recompute))
        lengths = self.law.lengths(draws, x, self.probes)
        gx, values = neumann(g, x, probe, partial(self._series, lengths), recompute)
        return gx, over_probes(values)
