"""Columns of whole numbers: noise gives them a density, and an average over points of a cell gives its probability back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count, islice

import torch
from torch import Tensor, nn

from idensenet.draws import Draws

POINTS = 16  # of a cell, in evaluation
ROWS = 4096  # that are evaluated together, at points of their cells
Terms = Callable[[Tensor, int], Sequence[Tensor]]


def _directions(number: int) -> list[float]:
    """Fractions of square roots of primes, which no whole multiples relate to each other."""
    primes = (n for n in count(2) if all(n % p for p in range(2, math.isqrt(n) + 1)))
    return [math.sqrt(p) % 1 for p in islice(primes, number)]


class Cells(nn.Module):
    """Some columns of a table hold whole numbers k, and stand for the cells [k, k + 1).

    The mass of a cell is the integral of the density over it, P(k) = E p(k + u) with u uniform. `points` yields u for an
    average that is unbiased for every number of points: a lattice with a random shift, folded so that it has no edges.

    Args:
        columns: Their positions.
        width: Number of columns of the table.

    >>> cells = Cells([1], 2)
    >>> cells.floor(torch.tensor([[0.5, 7.9]]))
    tensor([[0.5000, 7.0000]])
    """

    mask: Tensor  # which columns hold whole numbers

    def __init__(self, columns: Sequence[int], width: int) -> None:
        super().__init__()
        self.columns, self.width = tuple(columns), width
        self.register_buffer("mask", torch.tensor([i in self.columns for i in range(width)]), persistent=False)

    def spread(self, x: Tensor, u: Tensor) -> Tensor:
        """x + u in these columns, strictly inside of the cells also after rounding."""
        up, down = torch.full_like(x, math.inf), torch.full_like(x, -math.inf)
        inside = torch.clamp(x + u, torch.nextafter(x, up), torch.nextafter(x + 1, down))
        return torch.where(self.mask, inside, x)

    def noisy(self, x: Tensor, draws: Draws) -> Tensor:
        """x with uniform noise, one draw for each sample."""
        return self.spread(x, draws.uniform(x)[0])

    def points(self, x: Tensor, draws: Draws, number: int) -> Tensor:
        """x at points of its cell, [points, batch, columns]."""
        steps = dict(zip(self.columns, [1 / number, *_directions(len(self.columns) - 1)], strict=True))
        along = torch.tensor([steps.get(i, 0.0) for i in range(self.width)], dtype=x.dtype, device=x.device)
        place = torch.arange(number, dtype=x.dtype, device=x.device)[:, None, None]
        u = torch.remainder(place * along + draws.uniform(x), 1.0)
        return self.spread(x.expand(number, *x.shape), 1 - (2 * u - 1).abs())

    def average(self, x: Tensor, draws: Draws, number: int, terms: Terms) -> tuple[Tensor, list[Tensor]]:
        """The logarithm of the mean density over a cell, [batch], and its terms at the points, [points, batch].

        Args:
            x: Rows with whole numbers in these columns.
            draws: Where the shift of the lattice comes from.
            number: How many points.
            terms: Called with rows at points, and how often the batch is repeated in them; the first three of what it returns
                add up to the log-density.
        """
        found: list[list[Tensor]] = []
        for some in torch.split(self.points(x, draws, number), max(1, ROWS // max(1, len(x)))):
            parts = terms(some.flatten(0, 1), len(some))
            found.append([part.reshape(*some.shape[:2], *part.shape[1:]) for part in parts])
        whole = [torch.cat(parts) for parts in zip(*found, strict=True)]
        log_prob = torch.logsumexp(whole[0] + whole[1] + whole[2], 0) - math.log(number)
        return torch.where(self.whole(x), log_prob, -math.inf), whole

    def floor(self, x: Tensor) -> Tensor:
        """The whole numbers of the cells that samples lie in."""
        return torch.where(self.mask, x.floor(), x)

    def whole(self, x: Tensor) -> Tensor:
        """Whether all of these columns hold whole numbers, [batch]."""
        return ((x == x.floor()) | ~self.mask).all(1)
