"""Tables of the estimators: which columns are nominal or discrete, and the numbers that a flow makes of them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from idensenet.columns import Column, Columns, Names
from idensenet.data.store import Array


def column_names(table: object) -> list[str] | None:
    """The names of the columns of a data frame, or None."""
    columns = getattr(table, "columns", None)
    return None if columns is None else [str(name) for name in columns]


def is_frame(table: object) -> bool:
    """Whether this is a data frame of pandas."""
    return type(table).__module__.split(".")[0] == "pandas" and column_names(table) is not None


def _column(table: Any, place: int) -> Any:
    return table.iloc[:, place] if is_frame(table) else table[:, place]


def _as_table(X: ArrayLike) -> Any:
    """A data frame as it is, and anything else as an array."""
    return X if is_frame(X) else np.asarray(X)


def first_look(X: ArrayLike, categorical: Names) -> Columns:
    """The columns of a table, nominal ones found; of an array all are numbers, unless others are named."""
    table = _as_table(X)
    if getattr(table, "ndim", 0) != 2:
        return Columns(())  # which scikit-learn refuses
    names = column_names(table) or [str(i) for i in range(table.shape[1])]
    if not is_frame(table) and (categorical is None or isinstance(categorical, str)):
        Columns.nominal_of([], [], [], categorical)  # a wrong word is an error here too
        return Columns(tuple(Column(name) for name in names))
    columns = [_column(table, i) for i in range(len(names))]
    dtypes = [str(column.dtype) for column in columns] if is_frame(table) else ["float64"] * len(names)
    return Columns.nominal_of(columns, names, dtypes, categorical)


def with_codes(X: ArrayLike, columns: Columns) -> Any:
    """The table with numbers of categories in nominal columns, and -1 for unknown ones."""
    nominal, table = columns.of("nominal"), _as_table(X)
    if not nominal or getattr(table, "ndim", 0) != 2 or table.shape[1] != len(columns.columns):
        return X
    codes = {i: columns.coded(_column(table, i), i) for i in nominal}
    if is_frame(table):
        table = table.copy(deep=False)
        for i, found in codes.items():
            table.isetitem(i, found)
        return table
    table = np.array(table, object)
    for i, found in codes.items():
        table[:, i] = found
    return table


def second_look(found: Columns, x: Array, discrete: Names) -> Columns:
    """Finds the columns on a grid; a warning names those that nobody has named."""
    columns = found.discrete_of(x, discrete)
    if isinstance(discrete, str) and columns.of("grid"):
        warnings.warn(
            f"Discrete columns were found, with values on a grid and many of them equal: {columns.in_words('grid')}. They are "
            "scored by the probability of a value, and samples lie on the grid; discrete=None treats them as real numbers.",
            stacklevel=4,
        )
    return columns


def warn_of_unknown(columns: Columns, x: Array, X: ArrayLike) -> None:
    """Warnings that name values that the table of `fit` cannot have."""
    if columns.unknown(x):
        table = _as_table(X)
        for sentence in columns.surprises(x, [_column(table, i) for i in range(len(columns.columns))]):
            warnings.warn(sentence, stacklevel=4)


def joined(first: Array | None, second: Array | None) -> Array | None:
    """Two parts of a context side by side."""
    parts = [part for part in (first, second) if part is not None]
    return np.concatenate(parts, 1) if parts else None


def as_table(columns: Columns, values: list[Array], frame: bool) -> Any:
    """Columns in the form that the table of `fit` had: a data frame with its types, or an array."""
    if not frame:
        return (
            np.stack(values, 1) if all(v.dtype != object for v in values) else np.stack([v.astype(object) for v in values], 1)
        )
    from pandas import Categorical, DataFrame, Series  # type: ignore[import-untyped]

    found = []
    for column, each in zip(columns.columns, values, strict=True):
        if column.dtype == "category":
            found.append(Series(Categorical(each, categories=list(column.categories or ()), ordered=column.ordered)))
            continue
        if column.dtype.lower().startswith(("int", "uint")) and column.categories is None:
            limits = np.iinfo(column.dtype.lower())
            each = np.clip(np.round(each), limits.min, limits.max)
        castable = column.categories is not None or column.dtype.lower().startswith(("int", "uint", "float"))
        found.append(Series(each).astype(column.dtype) if castable else Series(each))
    table = DataFrame(dict(enumerate(found)))
    table.columns = columns.names
    return table
