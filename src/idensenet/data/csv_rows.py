"""The lines of a CSV file as cells of text, with the names of its columns."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

from idensenet.columns.nominal import is_number
from idensenet.errors import DataError, OptionError

Numbered = list[tuple[int, list[str]]]  # lines by their number, as cells


@dataclass(frozen=True)
class TextFormat:
    """How a CSV file is written: whether its first line has names (None: its content decides), and the decimal sign."""

    header: bool | None = None
    decimal: str | None = None


PLAIN = TextFormat()


def csv_rows(path: Path, form: TextFormat) -> tuple[list[str], Numbered]:
    """The names of the columns, and the lines below them.

    Cells are separated by commas, semicolons or tabs. The first line is a header if any of its cells is not a number.
    """
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
    named = any(cell and not is_number(cell) for cell in head) if form.header is None else form.header
    names = [cell or f"x{i}" for i, cell in enumerate(head)] if named else [f"x{i}" for i in range(len(head))]
    rows = numbered[1:] if named else numbered
    for number, row in rows:
        if len(row) != len(names):
            raise DataError(f"Line {number} of {path} has {len(row)} cells; the first line has {len(names)}.")
    if not named:
        _check_clear(path, [row for _, row in rows], separator, form)
    return names, rows


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
        column = [float(row[i]) for row in body if is_number(row[i])]
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
