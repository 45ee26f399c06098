"""Rows from a CSV, Parquet or NPY file, checked cell by cell, in the units of the file.

Nothing is standardised here: the model does that itself, so that its densities are in the user's units.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from idensenet.columns import Names
from idensenet.columns.nominal import is_number
from idensenet.data.csv_rows import PLAIN, TextFormat, csv_rows
from idensenet.data.parquet import read_parquet
from idensenet.data.store import Array, load_array
from idensenet.data.tabular import EXACT, Table, check_cells, check_exact, choose, is_text, numeric_only
from idensenet.errors import DataError, MissingDataError, OptionError


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
    readers = {".npy": _read_npy, ".parquet": read_parquet, ".pq": read_parquet}
    ending = path.suffix.lower()
    if ending in (".csv", ".tsv", ".txt"):
        table = _read_csv(path, columns, nominal, text)
    elif ending in readers:
        table = readers[ending](path, columns, nominal)
    else:
        raise OptionError(f"{path} ends in {path.suffix!r}; tables are read from .csv, .tsv, .txt, .parquet, .pq and .npy.")
    if not len(table.values) or not table.columns:
        raise DataError(f"{path} has {len(table.values)} rows of {len(table.columns)} columns, so there is nothing in it.")
    check_cells(table, path)
    return table


def _read_csv(path: Path, columns: Sequence[str] | None, nominal: Names, form: TextFormat) -> Table:
    """The columns of a CSV file; empty cells become NaN."""
    names, rows = csv_rows(path, form)
    chosen = choose(names, columns, path)
    other: dict[str, str] = {}
    values = np.full((len(rows), len(chosen)), np.nan)
    as_is: dict[str, Array] = {}
    for k, column in enumerate(chosen):
        cells = [row[column] for _, row in rows]
        strange = next((i for i, cell in enumerate(cells) if cell and not is_number(cell)), None)
        if is_text(names[column], nominal) or (strange is not None and nominal == "auto"):
            as_is[names[column]] = np.array(cells, object)
        elif strange is not None:
            other[names[column]] = f"{cells[strange]!r} in line {rows[strange][0]}"
        else:
            values[:, k] = [float(cell) if cell else np.nan for cell in cells]
    numeric_only(path, other)
    return Table(values, tuple(names[c] for c in chosen), as_is)


def _read_npy(path: Path, columns: Sequence[str] | None, nominal: Names) -> Table:
    """A matrix, or a vector as one column."""
    array = load_array(path)
    if array.dtype.kind not in "fiub" or array.ndim not in (1, 2):
        raise DataError(f"{path} holds {array.dtype} of shape {array.shape}; a table is a matrix of numbers.")
    array = array[:, None] if array.ndim == 1 else array
    names = [f"x{i}" for i in range(array.shape[1])]
    chosen = choose(names, columns, path)
    dtype = np.float32 if array.dtype in (np.float32, np.float16) else np.float64
    text = {names[c]: np.array(array[:, c].tolist(), object) for c in chosen if is_text(names[c], nominal)}
    values = np.array(array[:, chosen], dtype)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        large = [names[chosen[i]] for i in np.flatnonzero((np.abs(values) >= EXACT).any(0))]
        check_exact(path, [name for name in large if name not in text])
    return Table(values, tuple(names[c] for c in chosen), text)
