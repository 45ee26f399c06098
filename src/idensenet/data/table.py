"""Rows from a CSV, Parquet or NPY file, checked cell by cell, in the units of the file.

Nothing is standardised here: the model does that itself, so that its densities are in the user's units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from idensenet.columns import Names
from idensenet.columns.nominal import is_number
from idensenet.data.csv_rows import PLAIN, TextFormat, csv_rows
from idensenet.data.store import Array, load_array
from idensenet.errors import DataError, MissingDataError, NonFiniteError, OptionError, UnknownNameError, nearest
from idensenet.extras import needs

EXACT = 2.0**53  # below which float64 has all whole numbers


@dataclass(frozen=True)
class Table:
    """Numbers, [rows, columns], in float32 or float64, all finite, and the names of the columns.

    Nominal columns have NaN there, and their values are in `text`, by name.
    """

    values: Array
    columns: tuple[str, ...]
    text: Mapping[str, Array] = field(default_factory=dict)

    def column(self, name: str) -> Array:
        """The values of one column."""
        return self.text[name] if name in self.text else self.values[:, self.columns.index(name)]


def read_table(path: Path, columns: Sequence[str] | None = None, nominal: Names = None, text: TextFormat = PLAIN) -> Table:
    """All rows of a file in their order: the numeric columns, or those that are named.

    Other columns are an error unless `columns` leaves them out. Columns of a file without names are x0, x1, ...

    Args:
        path: The file.
        columns: Names of columns; all by default.
        nominal: Names of columns that are read as they are; "auto" for those that are not numeric.
        text: How a CSV file is written, where that cannot be told from its content.
    """
    if not path.is_file():
        raise MissingDataError(f"There is no table {path}; give a CSV, Parquet or NPY file.")
    readers = {".npy": _read_npy, ".parquet": _read_parquet, ".pq": _read_parquet}
    ending = path.suffix.lower()
    if ending in (".csv", ".tsv", ".txt"):
        table = _read_csv(path, columns, nominal, text)
    elif ending in readers:
        table = readers[ending](path, columns, nominal)
    else:
        raise OptionError(f"{path} ends in {path.suffix!r}; tables are read from .csv, .tsv, .txt, .parquet, .pq and .npy.")
    if not len(table.values) or not table.columns:
        raise DataError(f"{path} has {len(table.values)} rows of {len(table.columns)} columns, so there is nothing in it.")
    for name, values in table.text.items():
        if missing := [row for row, value in enumerate(values) if value is None or value == ""]:
            raise NonFiniteError(
                f"Row {missing[0] + 1} of {path} is empty in column {name!r}; remove such rows or fill them in."
            )
    bad = np.argwhere(~np.isfinite(table.values) & [name not in table.text for name in table.columns])
    if len(bad):
        row, column = bad[0]
        value = table.values[row, column]
        what = "empty or not a number (NaN)" if np.isnan(value) else "infinite"
        raise NonFiniteError(
            f"Row {row + 1} of {path} is {what} in column {table.columns[column]!r}"
            f"{f', as are {len(bad) - 1} more cells' if len(bad) > 1 else ''}; remove such rows or fill them in."
        )
    return table


def check_once(names: Sequence[str]) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise OptionError(f"Column {name!r} is named twice; name it once.")


def _choose(names: Sequence[str], columns: Sequence[str] | None, path: Path) -> list[int]:
    """The positions of the wanted columns."""
    if twice := sorted({n for n in names if list(names).count(n) > 1}):
        raise DataError(f"{path} has two columns named {twice[0]!r}; give each its own name.")
    check_once(columns or ())
    for name in columns or ():
        if name not in names:
            raise UnknownNameError(f"{path} has no column {name!r}; {nearest(name, list(names))}")
    return list(range(len(names))) if columns is None else [list(names).index(n) for n in columns]


def _numeric_only(path: Path, other: dict[str, str]) -> None:
    """Refuse columns that are not numeric; `other` maps their names to an example."""
    if other:
        commas = any(re.search(r"\d,\d|;|\\t", why.partition(" in line")[0]) for why in other.values())
        hint = "; decimal commas are read with --data.decimal ','" if commas else ""
        raise DataError(
            f"{path} has columns that are not numeric: {', '.join(f'{n!r} ({why})' for n, why in other.items())}; "
            f"remove them, name the columns to use, or name these as nominal{hint}."
        )


def _is_text(name: str, nominal: Names) -> bool:
    """Whether a column was named as nominal."""
    return nominal is not None and not isinstance(nominal, str) and name in nominal


def _read_csv(path: Path, columns: Sequence[str] | None, nominal: Names, form: TextFormat) -> Table:
    """The columns of a CSV file; empty cells become NaN."""
    names, rows = csv_rows(path, form)
    chosen = _choose(names, columns, path)
    other: dict[str, str] = {}
    values = np.full((len(rows), len(chosen)), np.nan)
    as_is: dict[str, Array] = {}
    for k, column in enumerate(chosen):
        cells = [row[column] for _, row in rows]
        strange = next((i for i, cell in enumerate(cells) if cell and not is_number(cell)), None)
        if _is_text(names[column], nominal) or (strange is not None and nominal == "auto"):
            as_is[names[column]] = np.array(cells, object)
        elif strange is not None:
            other[names[column]] = f"{cells[strange]!r} in line {rows[strange][0]}"
        else:
            values[:, k] = [float(cell) if cell else np.nan for cell in cells]
    _numeric_only(path, other)
    return Table(values, tuple(names[c] for c in chosen), as_is)


def _read_npy(path: Path, columns: Sequence[str] | None, nominal: Names) -> Table:
    """A matrix, or a vector as one column."""
    array = load_array(path)
    if array.dtype.kind not in "fiub" or array.ndim not in (1, 2):
        raise DataError(f"{path} holds {array.dtype} of shape {array.shape}; a table is a matrix of numbers.")
    array = array[:, None] if array.ndim == 1 else array
    names = [f"x{i}" for i in range(array.shape[1])]
    chosen = _choose(names, columns, path)
    dtype = np.float32 if array.dtype in (np.float32, np.float16) else np.float64
    text = {names[c]: np.array(array[:, c].tolist(), object) for c in chosen if _is_text(names[c], nominal)}
    values = np.array(array[:, chosen], dtype)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        large = [names[chosen[i]] for i in np.flatnonzero((np.abs(values) >= EXACT).any(0))]
        _check_exact(path, [name for name in large if name not in text])
    return Table(values, tuple(names[c] for c in chosen), text)


def _check_exact(path: Path, names: Sequence[str]) -> None:
    """Refuse whole numbers that float64 would round."""
    if names:
        raise DataError(
            f"Column {names[0]!r} of {path} has whole numbers of 2^53 and more, which float64 cannot represent; leave it out "
            "with --data.columns, or subtract an offset from it."
        )


def _read_parquet(path: Path, columns: Sequence[str] | None, nominal: Names) -> Table:
    """The columns of a Parquet file; what is missing becomes NaN."""
    with needs(f"Reading {path}"):
        import pyarrow
        from pyarrow import parquet
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            chosen = _choose(schema.names, columns, path)
            names = tuple(schema.names[c] for c in chosen)
            kinds = {name: schema.field(name).type for name in names}
            is_type = pyarrow.types
            checks = (is_type.is_integer, is_type.is_floating, is_type.is_boolean, is_type.is_decimal)
            other = {name: str(kind) for name, kind in kinds.items() if not any(check(kind) for check in checks)}
            named = {name for name, kind in kinds.items() if _is_text(name, nominal)}
            if nominal == "auto":
                named = {name for name, kind in kinds.items() if is_type.is_boolean(kind) or _is_string(kind, is_type)}
            _numeric_only(path, {name: why for name, why in other.items() if name not in named})
            content = file.read(columns=list(names))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet, it is damaged or cut short: {error}") from error
    small = all(is_type.is_float32(kind) for kind in kinds.values())
    text = {name: np.array(content[name].to_pylist(), object) for name in names if name in named}
    rows = content.num_rows
    values = [np.full(rows, np.nan) if name in named else _numbers(content[name], pyarrow) for name in names]
    wide = [name for name, kind in kinds.items() if is_type.is_integer(kind) and kind.bit_width == 64]
    _check_exact(path, [name for name in wide if np.nanmax(np.abs(values[names.index(name)]), initial=0.0) >= EXACT])
    return Table(np.stack(values, 1).astype(np.float32 if small else np.float64), names, text)


def _is_string(kind: Any, is_type: Any) -> bool:
    kind = kind.value_type if is_type.is_dictionary(kind) else kind
    return bool(is_type.is_string(kind) or is_type.is_large_string(kind))


def _numbers(column: Any, pyarrow: Any) -> Array:
    if pyarrow.types.is_boolean(column.type):
        column = column.cast(pyarrow.int8())
    return np.asarray(column.cast(pyarrow.float64(), safe=False).to_numpy(), np.float64)
