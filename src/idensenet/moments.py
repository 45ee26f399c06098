"""Mean and covariance of rows that come block by block, without a loss of digits."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Moments:
    """What is known of the rows so far. Blocks are merged by the formula of Chan, Golub and LeVeque (1983).

    With n_a, n_b rows, means m_a, m_b and scatter matrices S_a, S_b, both blocks together have

        S = S_a + S_b + (n_a n_b / n) d d',   d = m_b - m_a,   n = n_a + n_b

    and no sum of squares is ever taken that a large mean would dominate. Weights take the place of counts.

    >>> both = Moments.of(np.array([[1.0], [3.0]])).add(np.array([[8.0]]))
    >>> both.mean.item(), round(both.deviation.item(), 6)
    (4.0, 2.94392)
    """

    def __init__(self) -> None:
        self.rows = 0
        self.total = self.squares = 0.0  # of weights
        self.mean: Array = np.zeros(0)
        self.scatter: Array = np.zeros((0, 0))
        self.largest: Array = np.zeros(0)  # absolute value of each column
        self.first: Array = np.zeros(0)
        self.constant: Array = np.zeros(0, bool)

    @classmethod
    def of(cls, rows: Array, weight: Array | None = None) -> Moments:
        return cls().add(rows, weight)

    def add(self, rows: Array, weight: Array | None = None) -> Moments:
        """More rows, [n, columns], and how much each counts."""
        if len(rows) == 0:
            return self
        x = np.asarray(rows, np.float64)
        if self.rows == 0:
            self.first, self.constant = x[0].copy(), np.ones(x.shape[1], bool)
            self.mean, self.largest = np.zeros(x.shape[1]), np.zeros(x.shape[1])
            self.scatter = np.zeros((x.shape[1], x.shape[1]))
        self.rows += len(x)
        self.constant &= (x == self.first).all(0)
        self.largest = np.maximum(self.largest, np.abs(x).max(0))
        each = np.ones(len(x)) if weight is None else np.asarray(weight, np.float64)
        total = float(each.sum())
        self.squares += float(np.square(each).sum())
        if total == 0:
            return self
        with np.errstate(over="ignore", invalid="ignore"):
            mean = x.mean(0) if weight is None else each @ x / total
            centred = x - mean
            away, both = mean - self.mean, self.total + total
            self.scatter = (
                self.scatter
                + (centred.T * each) @ centred
                + np.outer(away, away) * (self.total * total / both if self.total else 0.0)
            )
            self.mean = mean if self.total == 0 else self.mean + away * (total / both)
        self.total = both
        return self

    @property
    def covariance(self) -> Array:
        return self.scatter / self.total

    @property
    def deviation(self) -> Array:
        with np.errstate(invalid="ignore"):
            return np.sqrt(self.scatter.diagonal() / self.total)

    @property
    def worth(self) -> float:
        """How many rows of equal weight the rows are worth; one of weight two counts as two."""
        return max(self.total**2 / self.squares, self.total)
