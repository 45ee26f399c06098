"""Columns with bounds: onto all numbers and back, so that samples stay inside and densities are in the units of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from idensenet.bijections.base import Bijection, Call, check_event, sum_event
from idensenet.errors import OptionError
from idensenet.lipschitz.certificate import OperatorNorms

Bounds = Sequence[tuple[float | None, float | None]]


class Bounded(Bijection):
    """A logit between two bounds, a logarithm above or below one, and the identity where there is none, for each dimension.

    At the bounds and outside of them the log-determinant is minus infinity, so that a density is zero there.

    Args:
        bounds: A lower and an upper bound for each dimension, None for none.

    >>> Bounded([(0, 1), (None, None)])(torch.tensor([[0.5, 3.0], [2.0, 3.0]]))[1]
    tensor([1.3863,   -inf])
    """

    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        self.bounds = tuple((low, high) for low, high in bounds)
        for i, (low, high) in enumerate(self.ends):
            if not low < high:
                raise OptionError(f"bounds of column {i} are {low:g} and {high:g}: the lower one must be below the upper one.")

    @property
    def ends(self) -> list[tuple[float, float]]:
        """The bounds, minus infinity and infinity for none."""
        return [(-math.inf if low is None else low, math.inf if high is None else high) for low, high in self.bounds]

    def _at(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Lower and upper bounds, which of them are there, and their distance where both are, else one."""
        lower, upper = torch.tensor(self.ends, dtype=x.dtype, device=x.device).unbind(1)
        low, high = torch.isfinite(lower), torch.isfinite(upper)
        return lower, upper, low, high, torch.where(low & high, upper - lower, 1.0)

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        check_event(x, (len(self.bounds),), "This map of bounded columns")
        lower, upper, low, high, width = self._at(x)
        inside = (x > lower) & (x < upper)
        somewhere = torch.where(low, lower + width / 2, torch.where(high, upper - width / 2, 0.0))
        x = torch.where(inside, x, somewhere)
        above, below = torch.log(torch.where(low, x - lower, 1.0)), torch.log(torch.where(high, upper - x, 1.0))
        y = above - below + torch.where(low | high, 0.0, x)
        log_det = sum_event(torch.log(width) - above - below)
        return y, torch.where(inside.all(1), log_det, -math.inf)

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        check_event(y, (len(self.bounds),), "Undoing this map of bounded columns")
        lower, upper, low, high, width = self._at(y)
        both = low & high
        away = torch.where(low, y, -y)  # the logarithm of the distance from the only bound
        distance = torch.exp(torch.where(both | ~(low | high), 0.0, away))
        x = torch.where(low, lower + distance, torch.where(high, upper - distance, y))
        x = torch.where(both, torch.where(both, lower, 0.0) + width * torch.sigmoid(y), x)
        x = torch.clamp(x, torch.nextafter(lower, upper), torch.nextafter(upper, lower))  # rounding may reach a bound
        slope = torch.where(both, torch.log(width) + logsigmoid(y) + logsigmoid(-y), torch.where(low | high, away, 0.0))
        return x, sum_event(slope)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        known = [(math.isfinite(low), math.isfinite(high), high - low) for low, high in self.ends]
        least = min(4 / width if low and high else 0.0 if low or high else 1.0 for low, high, width in known)
        return least, math.inf if any(low or high for low, high, _ in known) else 1.0
