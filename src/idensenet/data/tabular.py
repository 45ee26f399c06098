"""A table in memory, and what every file that holds one is checked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from idensenet.columns import Names
from idensenet.data.store import Array
from idensenet.errors import DataError, NonFiniteError, OptionError, UnknownNameError, nearest

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


def check_once(names: Sequence[str]) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise OptionError(f"Column {name!r} is named twice; name it once.")


def choose(names: Sequence[str], columns: Sequence[str] | None, path: Path) -> list[int]:
    """The positions of the wanted columns."""
    if twice := sorted({n for n in names if list(names).count(n) > 1}):
        raise DataError(f"{path} has two columns named {twice[0]!r}; give each its own name.")
    check_once(columns or ())
    for name in columns or ():
        if name not in names:
            raise UnknownNameError(f"{path} has no column {name!r}; {nearest(name, list(names))}")
    return list(range(len(names))) if columns is None else [list(names).index(n) for n in columns]


def numeric_only(path: Path, other: dict[str, str]) -> None:
    """Refuse columns that are not numeric; `other` maps their names to an example."""
    if other:
        commas = any(re.search(r"\d,\d|;|\\t", why.partition(" in line")[0]) for why in other.values())
        hint = "; decimal commas are read with --data.decimal ','" if commas else ""
        raise DataError(
            f"{path} has columns that are not numeric: {', '.join(f'{n!r} ({why})' for n, why in other.items())}; "
            f"remove them, name the columns to use, or name these as nominal{hint}."
        )


def is_text(name: str, nominal: Names) -> bool:
    """Whether a column was named as nominal."""
    return nominal is not None and not isinstance(nominal, str) and name in nominal


def check_exact(path: Path | str, names: Sequence[str]) -> None:
    """Refuse whole numbers that float64 would round."""
    if names:
        raise DataError(
            f"Column {names[0]!r} of {path} has whole numbers of 2^53 and more, which float64 cannot represent; leave it out "
            "with --data.columns, or subtract an offset from it."
        )


def check_cells(table: Table, where: Path | str, before: int = 0) -> None:
    """Refuse what is empty or not finite; `before` is the number of rows of the file that come before this table."""
    for name, values in table.text.items():
        if missing := [row for row, value in enumerate(values) if value is None or value == ""]:
            raise NonFiniteError(
                f"Row {before + missing[0] + 1} of {where} is empty in column {name!r}; remove such rows or fill them in."
            )
    bad = np.argwhere(~np.isfinite(table.values) & [name not in table.text for name in table.columns])
    if len(bad):
        row, column = bad[0]
        value = table.values[row, column]
        what = "empty or not a number (NaN)" if np.isnan(value) else "infinite"
        raise NonFiniteError(
            f"Row {before + row + 1} of {where} is {what} in column {table.columns[column]!r}"
            f"{f', as are {len(bad) - 1} more cells' if len(bad) > 1 else ''}; remove such rows or fill them in."
        )
