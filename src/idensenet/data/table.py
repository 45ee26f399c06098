"""Rows of numbers from a CSV, Parquet or NPY file, checked cell by cell, in the units of the file.

Nothing is standardised here: the model does that itself, so that its densities are in the user's units.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idensenet.data.shuffle import split_keys, split_rows
from idensenet.data.source import Source, Split
from idensenet.data.store import Array, load_array
from idensenet.draws import content_keys
from idensenet.errors import DataError, MissingDataError, NonFiniteError, OptionError, UnknownNameError, nearest

EXACT = 2.0**53  # below which float64 has all whole numbers


@dataclass(frozen=True)
class Table:
    """Numbers, [rows, columns], in float32 or float64, all finite, and the names of the columns."""

    values: Array
    columns: tuple[str, ...]


@dataclass(frozen=True)
class TextFormat:
    """How a CSV file is written: whether its first line has names (None: found from its content), and the decimal sign."""

    header: bool | None = None
    decimal: str | None = None


PLAIN = TextFormat()


def open_table(
    path: Path,
    *,
    columns: Sequence[str] | None = None,
    context: Sequence[str] = (),
    seed: int = 0,
    test_fraction: float = 0.1,
    split: str = "content",
    split_at: float | None = None,
    text: TextFormat = PLAIN,
) -> Source:
    """A table as a data set, its rows divided at random, and always in the same way, into training and test.

    The content of a row decides whether it is held out, so that neither order nor new rows move it; with split="position", as
    in versions before 0.2, its place in the file does.
    """
    table, given = read_with_context(path, columns, context, text)
    if split == "position":
        train, test = split_rows(len(table.values), test_fraction, seed)
        split_at = None
    else:
        content = torch.from_numpy(np.concatenate([table.values, given.values], 1).astype(np.float64))
        train, test, split_at = split_keys(content_keys(content, seed).numpy(), test_fraction, seed, split_at)
    note = f"The table is {path}, {len(table.values):,} rows of {len(table.columns)} columns"
    note += f", given {', '.join(context)}." if context else "."
    first, second = (Split(table.values[rows], context=given.values[rows] if context else None) for rows in (train, test))
    shape = (len(table.columns),)
    source = Source("table", first, second, shape, columns=table.columns, context=given.columns, notes=(note,))
    return replace(source, places=np.concatenate([train, test]), split_at=split_at)


def read_with_context(
    path: Path, columns: Sequence[str] | None, context: Sequence[str], text: TextFormat = PLAIN
) -> tuple[Table, Table]:
    """The columns that are modelled, which are all the others by default, and those that are given."""
    if both := sorted(set(columns or ()) & set(context)):
        raise OptionError(f"Column {both[0]!r} is to be modelled and to be given; name it in one place only.")
    _check_once(context)
    table = read_table(path, [*columns, *context] if columns is not None else None, text)
    for name in context:
        if name not in table.columns:
            raise UnknownNameError(f"{path} has no column {name!r}; {nearest(name, list(table.columns))}")
    chosen = [i for i, name in enumerate(table.columns) if name not in context]
    given = [table.columns.index(name) for name in context]
    if not chosen:
        raise OptionError(f"All columns of {path} are given as context, so that none is left to be modelled.")
    first, second = (Table(table.values[:, part], tuple(table.columns[i] for i in part)) for part in (chosen, given))
    return first, second


def read_table(path: Path, columns: Sequence[str] | None = None, text: TextFormat = PLAIN) -> Table:
    """All rows of a file in their order: the numeric columns, or those that are named.

    Other columns are an error unless `columns` leaves them out. Columns of a file without names are x0, x1, ...; `text` says
    how a CSV file is written, where that cannot be told from its content.
    """
    if not path.is_file():
        raise MissingDataError(f"There is no table {path}; give a CSV, Parquet or NPY file.")
    readers = {".npy": _read_npy, ".parquet": _read_parquet, ".pq": _read_parquet}
    ending = path.suffix.lower()
    if ending in (".csv", ".tsv", ".txt"):
        table = _read_csv(path, columns, text)
    elif ending in readers:
        table = readers[ending](path, columns)
    else:
        raise OptionError(f"{path} ends in {path.suffix!r}; tables are read from .csv, .tsv, .txt, .parquet, .pq and .npy.")
    if not len(table.values) or not table.columns:
        raise DataError(f"{path} has {len(table.values)} rows of {len(table.columns)} columns, so there is nothing in it.")
    bad = np.argwhere(~np.isfinite(table.values))
    if len(bad):
        row, column = bad[0]
        value = table.values[row, column]
        what = "empty or not a number (NaN)" if np.isnan(value) else "infinite"
        raise NonFiniteError(
            f"Row {row + 1} of {path} is {what} in column {table.columns[column]!r}"
            f"{f', as are {len(bad) - 1} more cells' if len(bad) > 1 else ''}; remove such rows or fill them in."
        )
    return table


def _check_once(names: Sequence[str]) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise OptionError(f"Column {name!r} is named twice; name it once.")


def _choose(names: Sequence[str], columns: Sequence[str] | None, path: Path) -> list[int]:
    """The positions of the wanted columns."""
    if twice := sorted({n for n in names if list(names).count(n) > 1}):
        raise DataError(f"{path} has two columns named {twice[0]!r}; give each its own name.")
    _check_once(columns or ())
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
            f"remove them, or name the columns to use{hint}."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # which Python takes and no table means


def _read_csv(path: Path, columns: Sequence[str] | None, form: TextFormat) -> Table:
    """Text separated by commas, semicolons or tabs. The first line is a header if any of its cells is not a number."""
    if form.decimal not in (None, ".", ","):
        raise OptionError(f"data.decimal={form.decimal!r} is not known; use '.' or ','.")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8: {error}.") from error
    first = text.partition("\n")[0]
    separator = max(";\t" if form.decimal == "," else ",;\t", key=first.count)
    numbered = [
        (number, [c.strip() for c in row]) for number, row in _lines(text, separator, path) if any(c.strip() for c in row)
    ]
    if not numbered:
        raise DataError(f"{path} is empty.")
    if form.decimal == ",":
        numbered = [(number, [_point(cell) for cell in row]) for number, row in numbered]
    head = numbered[0][1]
    named = any(cell and not _is_number(cell) for cell in head) if form.header is None else form.header
    names = [cell or f"x{i}" for i, cell in enumerate(head)] if named else [f"x{i}" for i in range(len(head))]
    rows = numbered[1:] if named else numbered
    for number, row in rows:
        if len(row) != len(names):
            raise DataError(f"Line {number} of {path} has {len(row)} cells; the first line has {len(names)}.")
    if not named:
        _check_clear(path, [row for _, row in rows], separator, form)
    chosen = _choose(names, columns, path)
    other: dict[str, str] = {}
    values = np.full((len(rows), len(chosen)), np.nan)
    for k, column in enumerate(chosen):
        for i, (number, row) in enumerate(rows):
            if _is_number(row[column]):
                values[i, k] = float(row[column])
            elif row[column]:
                other[names[column]] = f"{row[column]!r} in line {number}"
                break
    _numeric_only(path, other)
    return Table(values, tuple(names[c] for c in chosen))


def _point(cell: str) -> str:
    """A number with a decimal comma as one with a point; anything else, such as 1.234,5 or a name, stays."""
    return cell.replace(",", ".") if re.fullmatch(r"[+-]?\d*,\d*([eE][+-]?\d+)?", cell) else cell


def _check_clear(path: Path, rows: list[list[str]], separator: str, form: TextFormat) -> None:
    """Refuse a file of numbers alone that may mean two things, unless the options say which."""
    whole, body = re.compile(r"[+-]?\d+"), rows[1:]
    pairs = all(len(row) == 2 and whole.fullmatch(row[0]) and row[1].isdecimal() for row in rows)
    if form.decimal is None and separator == "," and pairs:
        raise DataError(
            f"{','.join(rows[0])!r} in line 1 of {path} may be two numbers or one with a decimal comma, as may all lines; say "
            "which with --data.decimal '.' or --data.decimal ','."
        )
    if form.header is not None or not body or not all(map(whole.fullmatch, rows[0])) or len(set(rows[0])) < len(rows[0]):
        return
    for i, cell in enumerate(rows[0]):
        column = [float(row[i]) for row in body if _is_number(row[i])]
        if not column or all(not whole.fullmatch(row[i]) for row in body):
            continue
        low, high = min(column), max(column)
        if len(column) < 2 or max(low - float(cell), float(cell) - high) <= 3 * (high - low):
            return  # a row like the others
    shown = ", ".join(rows[0][:4]) + (", ..." if len(rows[0]) > 4 else "")
    raise DataError(
        f"Line 1 of {path} ({shown}) may be names or numbers: it has whole numbers that are unlike the lines below it; say "
        "which with --data.header true or --data.header false."
    )


def _lines(text: str, separator: str, path: Path) -> list[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    try:
        return [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise DataError(f"Line {reader.line_num} of {path} cannot be read: {error}.") from error


def _read_npy(path: Path, columns: Sequence[str] | None) -> Table:
    """A matrix, or a vector as one column."""
    array = load_array(path)
    if array.dtype.kind not in "fiub" or array.ndim not in (1, 2):
        raise DataError(f"{path} holds {array.dtype} of shape {array.shape}; a table is a matrix of numbers.")
    array = array[:, None] if array.ndim == 1 else array
    names = [f"x{i}" for i in range(array.shape[1])]
    chosen = _choose(names, columns, path)
    dtype = np.float32 if array.dtype in (np.float32, np.float16) else np.float64
    values = np.array(array[:, chosen], dtype)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        large = np.flatnonzero((np.abs(values) >= EXACT).any(0))
        _check_exact(path, [names[chosen[i]] for i in large])
    return Table(values, tuple(names[c] for c in chosen))


def _check_exact(path: Path, names: Sequence[str]) -> None:
    """Refuse whole numbers that float64 would round."""
    if names:
        raise DataError(
            f"Column {names[0]!r} of {path} has whole numbers of 2^53 and more, which float64 cannot represent; leave it out "
            "with --data.columns, or subtract an offset from it."
        )


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Table:
    """The columns of a Parquet file; what is missing becomes NaN."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise OptionError(f"Reading {path} needs pyarrow; install it with 'pip install pyarrow'.") from error
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            chosen = _choose(schema.names, columns, path)
            names = tuple(schema.names[c] for c in chosen)
            kinds = {name: schema.field(name).type for name in names}
            is_type = pyarrow.types
            checks = (is_type.is_integer, is_type.is_floating, is_type.is_boolean, is_type.is_decimal)
            _numeric_only(path, {name: str(kind) for name, kind in kinds.items() if not any(check(kind) for check in checks)})
            content = file.read(columns=list(names))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet, it is damaged or cut short: {error}") from error
    small = all(is_type.is_float32(kind) for kind in kinds.values())
    values = [_numbers(content[name], pyarrow) for name in names]
    wide = [name for name, kind in kinds.items() if is_type.is_integer(kind) and kind.bit_width == 64]
    _check_exact(path, [name for name in wide if np.nanmax(np.abs(values[names.index(name)]), initial=0.0) >= EXACT])
    return Table(np.stack(values, 1).astype(np.float32 if small else np.float64), names)


def _numbers(column: Any, pyarrow: Any) -> Array:
    if pyarrow.types.is_boolean(column.type):
        column = column.cast(pyarrow.int8())
    return np.asarray(column.cast(pyarrow.float64(), safe=False).to_numpy(), np.float64)
