"""The different values of a column, which may come block by block."""

from __future__ import annotations

import numpy as np

from idensenet.columns.grids import Array, has_no_grid


class Distinct:
    """How many rows there are, their different values, and the least and the greatest of them.

    The values of a column that has too many to lie on a grid, whatever comes, are dropped: `values` is None then.
    """

    def __init__(self) -> None:
        self.rows, self.low, self.high = 0, np.inf, -np.inf
        self.values: Array | None = np.empty(0)

    @classmethod
    def of(cls, values: Array) -> Distinct:
        """All values of a column at once."""
        found = cls()
        found.rows, found.values = len(values), np.unique(values)
        found.low, found.high = float(found.values[0]), float(found.values[-1])
        return found

    def add(self, values: Array) -> None:
        """More rows."""
        self.rows += len(values)
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        if self.values is not None:
            self.values = np.union1d(self.values, values.astype(np.float64))
            if has_no_grid(self.values):
                self.values = None
