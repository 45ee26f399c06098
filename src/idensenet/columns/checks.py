"""What columns that were read from a file must be, before anything relies on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from idensenet.columns.categories import Categories
from idensenet.columns.columns import Columns
from idensenet.columns.grids import Grid


def check_saved(columns: Columns) -> Columns:
    """The same columns, if each is one and their categories are those that were counted.

    Raises:
        ValueError: They are not.
    """
    for column in columns.columns:
        plain = isinstance(column.name, str) and isinstance(column.dtype, str) and isinstance(column.ordered, bool)
        if not plain or not (_is_grid(column.grid) and _are_values(column.categories)):
            raise ValueError(f"its column {str(column.name)!r:.80} is not described as a column is.")
    if not columns.columns or len(set(columns.names)) < len(columns.names):
        raise ValueError("its columns have no names of their own.")
    sizes = tuple(len(column.categories) for column in columns.columns if column.categories is not None)
    if not _are_counted(columns.categories, sizes):
        raise ValueError("the counts of its categories are of other categories.")
    return columns


def check_of_flow(columns: Columns, shape: Sequence[int], context: int, integers: Sequence[int]) -> None:
    """Refuse columns that do not stand for the numbers that a flow takes.

    Args:
        columns: The columns.
        shape: The shape of a sample.
        context: The length of its context.
        integers: Which of its numbers are whole.

    Raises:
        ValueError: They do not.
    """
    if tuple(shape) != (len(columns.amounts),) or tuple(integers) != columns.integers:
        raise ValueError(f"its columns ({columns.in_words('real', 'grid'):.200}) are not the numbers that its flow takes.")
    if columns.categories is not None and columns.indicators != context:
        raise ValueError(f"its categories are {columns.indicators} numbers, and its flow takes {context}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_grid(grid: Grid | None) -> bool:
    return grid is None or (all(map(_is_number, grid)) and grid.step > 0)


def _are_values(values: Sequence[Any] | None) -> bool:
    if values is None:
        return True
    return len(values) > 0 and all(isinstance(value, str | int | float) and value == value for value in values)


def _are_counted(found: Categories | None, sizes: tuple[int, ...]) -> bool:
    if found is None or not sizes:
        return found is None and not sizes
    if found.sizes != sizes or not found.rows or len(found.rows) != len(found.counts):
        return False
    counted = all(_is_number(count) and count > 0 for count in found.counts)
    within = (
        len(row) == len(sizes) and all(type(k) is int and 0 <= k < size for k, size in zip(row, sizes, strict=True))
        for row in found.rows
    )
    return counted and all(within)
