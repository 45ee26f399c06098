"""Tables as they come: checked column by column, and given back in the form they had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import validate_data

from idensenet.data.store import Array
from idensenet.errors import DataError, OptionError

Pair = tuple[float | None, float | None]


def column_names(table: object) -> list[str] | None:
    """The names of the columns of a data frame, or None."""
    columns = getattr(table, "columns", None)
    return None if columns is None else [str(name) for name in columns]


def is_frame(table: object) -> bool:
    """Whether this is a data frame of pandas."""
    return type(table).__module__.split(".")[0] == "pandas" and column_names(table) is not None


def as_frame(rows: Array, names: Sequence[str]) -> Any:
    """Rows as a data frame of pandas."""
    from pandas import DataFrame  # type: ignore[import-untyped]

    return DataFrame(rows, columns=list(names))


def check_numbers(table: object, what: str = "X") -> None:
    """Raises a DataError that names the column and the row of the first value that is not a finite number."""
    names = column_names(table)
    if names is None:
        values = np.asarray(table)
        if values.ndim != 2 or values.dtype.kind not in "fOU":
            return  # whole numbers are finite, and other shapes are refused by scikit-learn
        names, columns = [str(i) for i in range(values.shape[1])], list(values.T)
    else:
        columns = [np.asarray(table[name]) for name in table.columns]  # type: ignore[index, attr-defined]
    for name, column in zip(names, columns, strict=True):
        bad = _first_bad(column)
        if bad is not None:
            row, value = bad
            if isinstance(value, str):
                told, remedy = repr(value[:40]), "encode the column as numbers, or leave it out"
            else:
                told, remedy = "NaN" if value != value else "infinity", "drop or fill such rows"
            raise DataError(f"Column {name!r} of {what} has {told} in row {row}, which is not a finite number; {remedy}.")


def _first_bad(column: Array) -> tuple[int, Any] | None:
    """The place and the value of the first entry that is no finite number."""
    if column.dtype.kind in "biu":
        return None
    try:
        numbers = column.astype(np.float64)
    except (TypeError, ValueError):
        return next(
            ((row, value) for row, value in enumerate(column) if isinstance(value, str) and not _is_number(value)), None
        )
    bad = np.flatnonzero(~np.isfinite(numbers))
    return (int(bad[0]), float(numbers[bad[0]])) if len(bad) else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def bounds_of(x: Array, bounds: Mapping[str | int, Pair], names: Sequence[str] | None) -> tuple[Pair, ...]:
    """A pair of bounds for each column, after a look at the rows; nothing if no column has any.

    Args:
        x: The rows.
        bounds: Lower and upper bounds by the name or the number of a column.
        names: The names of the columns, if they have any.
    """
    columns: dict[str | int, int] = {i: i for i in range(x.shape[1])}
    columns.update({name: i for i, name in enumerate([] if names is None else names)})
    found: list[Pair] = [(None, None)] * x.shape[1]
    for name, pair in bounds.items():
        if name not in columns:
            known = ", ".join(map(repr, range(x.shape[1]) if names is None else names))
            raise OptionError(f"bounds has {name!r}, which is no column; the columns are {known}.")
        low, high = (end if given is None else given for end, given in zip((-np.inf, np.inf), pair, strict=True))
        column = x[:, columns[name]]
        bad = np.flatnonzero((column <= low) | (column >= high))
        if len(bad):
            raise DataError(
                f"Column {name!r} has {column[bad[0]]:.6g} in row {bad[0]}, which is not strictly between its bounds {pair}; "
                "widen the bounds a little, or drop such rows."
            )
        found[columns[name]] = pair[0], pair[1]
    return tuple(found) if bounds else ()


def checked_rows(estimator: Any, X: ArrayLike, y: ArrayLike | str | None = "no_validation", fit: bool = True) -> Any:
    """The rows of X as float64 (and y), after scikit-learn's checks; errors name the column.

    Args:
        estimator: The estimator, which remembers the columns.
        X: Rows.
        y: Classes; by default there are none, and none are asked for.
        fit: Whether this is what the estimator is fitted to.
    """
    try:
        return validate_data(estimator, X, y, dtype=np.float64, reset=fit, ensure_min_samples=2 if fit else 1)
    except (TypeError, ValueError):
        check_numbers(X)  # says more, if a value is to blame
        raise
