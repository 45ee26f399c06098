"""Columns whose values lie on a grid: whole numbers, and numbers that were rounded."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

TIES = 2  # rows for each distinct value, on average, from which a column on a grid is taken for discrete
FINER = 12  # how many steps the smallest gap between two values may have
CELLS = 1 << 22  # most cells between the least and the greatest value, so that their numbers are exact in float32
OFF = 0.01  # share of a step by which rounding may move a value off its grid


class Grid(NamedTuple):
    """The values origin + k step, for whole k."""

    origin: float
    step: float

    def numbers(self, values: Array) -> Array:
        """k of the nearest value on the grid."""
        return np.asarray(np.round((values.astype(np.float64) - self.origin) / self.step))

    def off(self, values: Array) -> Array:
        """Which values are not on the grid."""
        k = (values - self.origin) / self.step
        found: Array = np.abs(k - np.round(k)) > OFF
        return found

    def values(self, numbers: Array) -> Array:
        """The values of these k, without the rounding of the last digits: 5.1 and not 5.1000000000000005."""
        found, place = np.unique(self.origin + np.round(numbers.astype(np.float64)) * self.step, return_inverse=True)
        exact: Array = np.array([float(f"{value:.14g}") for value in found], np.float64)
        return np.asarray(exact[place.reshape(-1)])


def grid_of(values: Array) -> Grid | None:
    """The coarsest grid that all values lie on, or None if they have none.

    The step is the greatest one that all differences are multiples of, if the smallest of them is at most `FINER` steps. It
    must be clearly larger than the rounding of the numbers.

    >>> grid_of(np.array([4.3, 5.1, 4.9, 7.9]))
    Grid(origin=4.3, step=0.2)
    >>> grid_of(np.array([0.0, 1.0, 2.0**0.5])) is None
    True
    """
    found = np.unique(np.asarray(values, np.float64))
    size = max(abs(found[0]), abs(found[-1]))
    rounding, single = 64 * np.finfo(np.float64).eps * size, 2 * np.finfo(np.float32).eps * size  # which it may come from
    found = found[np.append(True, np.diff(found) > rounding)]
    if len(found) < 2:
        return None
    gaps = np.diff(found)
    for parts in range(1, FINER + 1):
        step = gaps.min() / parts
        if step < 1000 * rounding or np.ptp(found) / step > CELLS:
            return None
        numbers = np.append(0, np.cumsum(np.round(gaps / step)))
        step = np.ptp(found) / numbers[-1]
        near = min(OFF * step, 1e-6 * step + single)
        if np.abs(found - found[0] - step * numbers).max() <= near:
            return Grid(float(found[0]), float(f"{step:.12g}"))
    return None


def tied_grid(values: Array, rows: int | None = None) -> Grid | None:
    """The grid of a column that is taken for discrete unasked: on average at least `TIES` rows share a value.

    Args:
        values: The column.
        rows: How many rows it has, if `values` are only the different ones.
    """
    found = np.unique(values)
    return None if TIES * len(found) > (rows or len(values)) else grid_of(found)


def has_no_grid(found: Array) -> bool:
    """Whether rising values can lie on no grid, also together with others: two of them are too close for their range.

    More values make the range larger and the smallest gap smaller, and so the number of cells larger.
    """
    if len(found) < 2:
        return False
    rounding = 64 * np.finfo(np.float64).eps * max(abs(found[0]), abs(found[-1]))
    gaps = np.diff(found)
    gaps = gaps[gaps > rounding]
    return len(gaps) > 0 and bool(gaps.min() < max(1000 * rounding, np.ptp(found) / CELLS))
