"""Tables as they come: checked column by column, and given back in the form they had."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import validate_data

from idensenet.columns.nominal import is_number
from idensenet.data.store import Array
from idensenet.errors import DataError
from idensenet.sklearn.columns import column_names, first_look, with_codes


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
                told, remedy = repr(value[:40]), "name the column in categorical, encode it as numbers, or leave it out"
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
        return next(((row, value) for row, value in enumerate(column) if isinstance(value, str) and not is_number(value)), None)
    bad = np.flatnonzero(~np.isfinite(numbers))
    return (int(bad[0]), float(numbers[bad[0]])) if len(bad) else None


def checked_rows(estimator: Any, X: ArrayLike, y: ArrayLike | str | None = "no_validation", fit: bool = True) -> Any:
    """The rows of X as float64 (and y), after scikit-learn's checks; nominal columns as numbers. Errors name the column.

    Args:
        estimator: The estimator, which remembers the columns.
        X: Rows.
        y: Classes; by default there are none, and none are asked for.
        fit: Whether this is what the estimator is fitted to.
    """
    again = fit and estimator.warm_start and hasattr(estimator, "flow_")
    columns = estimator.columns_ if again or not fit else first_look(X, estimator.categorical)
    coded = with_codes(X, columns)
    try:
        found = validate_data(estimator, coded, y, dtype=np.float64, reset=fit, ensure_min_samples=2 if fit else 1)
    except (TypeError, ValueError):
        check_numbers(coded)  # says more, if a value is to blame
        raise
    if fit:
        estimator._first_look = columns
    return found
