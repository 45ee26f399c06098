"""Nominal columns, whose values are names and not amounts: strings, categories, booleans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from idensenet.columns.grids import Array
from idensenet.errors import DataError

MANY = 20  # categories from which a column that is unlike a few rows is taken for an identifier
Value = str | int | float | bool


def is_number(text: str) -> bool:
    """Whether a value of a table is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # which Python takes and no table means


def _levels(column: Any) -> Any:
    """The categories of a column of pandas that has some, or None."""
    return getattr(getattr(column, "dtype", None), "categories", None)


def is_nominal(column: Any, name: str) -> bool:
    """Whether a column of a data frame is nominal by its type: categories, booleans, or text that is not all numbers."""
    kind = getattr(getattr(column, "dtype", None), "kind", "O")
    if _levels(column) is not None or kind == "b":
        return True
    if kind in "mM":
        raise DataError(f"Column {name!r} holds dates or times; turn it into numbers, such as days since the first one.")
    if kind not in "OUT":
        return False
    return any(isinstance(value, bool | np.bool_) or (isinstance(value, str) and not is_number(value)) for value in column)


def values_of(column: Any, name: str, what: str = "X") -> list[Value]:
    """The values of a nominal column as plain ones; a missing one is an error."""
    found: list[Value] = []
    for row, value in enumerate(column.tolist() if hasattr(column, "tolist") else column):
        plain = value.item() if isinstance(value, np.generic) else value
        if not isinstance(plain, str | int | float | bool) or plain != plain:
            missing = plain is None or isinstance(plain, float) or type(plain).__name__ in ("NAType", "NaTType")
            told = "no value" if missing else f"a {type(plain).__name__}"
            remedy = "drop such rows, or fill in a category" if missing else "write it as text"
            raise DataError(f"Column {name!r} of {what} has {told} in row {row} ({value!r:.80}); {remedy}.")
        found.append(plain)
    return found


def categories_of(column: Any, name: str, asked: bool, rows: int | None = None) -> tuple[Value, ...]:
    """The known categories of a column, in order.

    Args:
        column: An array, or a column of a data frame.
        name: The name of the column, for errors.
        asked: Whether it was named as nominal; otherwise a column with nearly as many categories as rows is refused.
        rows: How many rows there are, if `column` has only its different values.
    """
    values = values_of(column, name)
    rows = rows or len(values)
    levels = _levels(column)
    if levels is not None:
        return tuple(values_of(levels, name))
    found = {False, True} if all(isinstance(value, bool) for value in values) else set(values)
    if not asked and len(found) > MANY and 2 * len(found) > rows:
        raise DataError(
            f"Column {name!r} has {len(found)} different values in {rows} rows, such as {values[0]!r:.40}, as names or "
            "identifiers have; drop it, or name it in categorical."
        )
    return tuple(sorted(found, key=lambda value: (isinstance(value, str), value)))


def codes_of(column: Any, categories: Sequence[Value], name: str) -> Array:
    """The number of the category of each row, -1 for an unknown one."""
    places: dict[Value, int] = {str(value): i for i, value in enumerate(categories)}  # as text has them
    places |= {value: i for i, value in enumerate(categories)}
    return np.array([places.get(value, -1) for value in values_of(column, name)], np.int64)
