"""Probabilities of nominal columns: one table for all of them together, smoothed so that every combination is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from idensenet.columns.grids import Array


@dataclass(frozen=True)
class Categories:
    """p(c) for c = (c_1, ..., c_m), the categories of a row in m columns.

        p(c) = (n(c) + S q(c)) / (N + S),   q(c) = prod_j (n_j(c_j) + 1/2) / (N + K_j / 2)

    with n(c) of N rows equal to c, S different rows among them, and n_j(k) rows with category k out of K_j in column j. This is
    Witten and Bell's smoothing (1991) towards independent columns. It sums to one over all combinations of known categories. It
    is close to the share of equal rows where there are many, and at most ln((N + S) / S) below independence where they are few.

    Args:
        sizes: K_j.
        rows: The different rows, [S, m], as numbers of categories.
        counts: n(c) of each of them.
    """

    sizes: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    counts: tuple[float, ...]

    @classmethod
    def fit(cls, codes: Array, sizes: Sequence[int], weight: Array | None = None) -> Categories:
        """From rows of numbers of categories, and how much each row counts: one of weight two as two equal rows.

        Weights that add up to less than the rows are worth (1 / sum of squared shares) are raised to that.
        """
        return Counting(sizes).add(codes, weight).categories()

    @cached_property
    def _found(self) -> dict[tuple[int, ...], float]:
        return dict(zip(self.rows, self.counts, strict=True))

    @cached_property
    def total(self) -> float:
        return float(sum(self.counts))

    @cached_property
    def marginals(self) -> list[Array]:
        """The probabilities of the categories of each column alone."""
        rows, counts = np.array(self.rows, np.int64), np.array(self.counts)
        found = [np.bincount(rows[:, j], counts, size) + 0.5 for j, size in enumerate(self.sizes)]
        return [each / each.sum() for each in found]

    def log_prob(self, codes: Array, left_out: float = 0.0) -> Array:
        """log p(c) of each row; minus infinity for an unknown category, which has the number -1.

        Args:
            codes: Numbers of categories, [rows, m].
            left_out: Weight that is taken from n(c) and N: one, for the probability of a row by all others.
        """
        known = np.asarray((codes >= 0).all(1))
        codes = np.where(known[:, None], codes, 0)
        independent = np.prod([p[codes[:, j]] for j, p in enumerate(self.marginals)], axis=0)
        counts = np.array([self._found.get(tuple(row), 0.0) for row in codes.tolist()])
        different = len(self.rows)
        mass = np.maximum(counts - left_out, 0) + different * independent
        return np.where(known, np.log(mass / (max(self.total - left_out, 0) + different)), -np.inf)

    def sample(self, n: int, random: np.random.Generator) -> Array:
        """Rows of numbers of categories, [n, m]."""
        counts = np.array(self.counts)
        seen = np.array(self.rows, np.int64)[random.choice(len(counts), n, p=counts / counts.sum())]
        free = np.stack([random.choice(len(p), n, p=p) for p in self.marginals], 1)
        smoothed = random.random(n) < len(counts) / (self.total + len(counts))
        return np.where(smoothed[:, None], free, seen)

    # As numbers for a flow

    def one_hot(self, codes: Array) -> Array:
        """Zeros and a one for each column, [rows, sum of K_j]; zeros alone for an unknown category."""
        parts = [(codes[:, j, None] == np.arange(size)) for j, size in enumerate(self.sizes)]
        return np.concatenate(parts, 1).astype(np.float64)

    def codes(self, one_hot: Array) -> Array:
        """The numbers of categories that `one_hot` was made of."""
        parts = np.split(one_hot, np.cumsum(self.sizes)[:-1], 1)
        return np.stack([np.where(part.any(1), part.argmax(1), -1) for part in parts], 1)

    # As plain data

    def as_dict(self) -> dict[str, Any]:
        return {"sizes": list(self.sizes), "rows": [list(row) for row in self.rows], "counts": list(self.counts)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Categories:
        return cls(tuple(values["sizes"]), tuple(map(tuple, values["rows"])), tuple(values["counts"]))


class Counting:
    """How often each row of categories was seen, while rows come block by block.

    Args:
        sizes: The number of categories of each column.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self.counts: dict[tuple[int, ...], float] = {}
        self.total = self.squares = 0.0

    def add(self, codes: Array, weight: Array | None = None) -> Counting:
        """More rows of numbers of categories, and how much each counts."""
        weight = np.ones(len(codes)) if weight is None else np.asarray(weight, np.float64)
        self.total, self.squares = self.total + float(weight.sum()), self.squares + float(np.square(weight).sum())
        codes, weight = codes[weight > 0], weight[weight > 0]
        rows, place = np.unique(codes, axis=0, return_inverse=True)
        for row, count in zip(rows.tolist(), np.bincount(place.reshape(-1), weight, len(rows)).tolist(), strict=True):
            self.counts[tuple(row)] = self.counts.get(tuple(row), 0.0) + count
        return self

    def categories(self) -> Categories:
        """The probabilities that follow. Weights that add up to less than the rows are worth are raised to that."""
        factor = max(1.0, self.total / self.squares) if self.squares else 1.0
        rows = sorted(self.counts)
        return Categories(self.sizes, tuple(rows), tuple(factor * self.counts[row] for row in rows))
