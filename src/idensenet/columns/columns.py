"""What the columns of a table are, and the one way from a table to numbers for a flow and back.

A column is real (as it is), on a grid (whole numbers k stand for origin + k step) or nominal (the number of a category).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from idensenet.columns.categories import Categories, Counting
from idensenet.columns.distinct import Distinct
from idensenet.columns.grids import Array, Grid, grid_of, tied_grid
from idensenet.columns.nominal import Value, categories_of, codes_of, is_nominal
from idensenet.errors import DataError, OptionError

Pair = tuple[float | None, float | None]
Names = Sequence[str | int] | str | None  # of columns: some of them, "auto" or none


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        name: Its name.
        dtype: The type that its values had, for those that are given back.
        grid: Where its values lie, if it is discrete.
        categories: Its values, if it is nominal.
        ordered: Whether categories of pandas were ordered.
    """

    name: str
    dtype: str = "float64"
    grid: Grid | None = None
    categories: tuple[Value, ...] | None = None
    ordered: bool = False

    @property
    def kind(self) -> str:
        return "nominal" if self.categories is not None else "grid" if self.grid is not None else "real"


def positions(option: str, chosen: Sequence[str | int], names: Sequence[str]) -> list[int]:
    """The places of columns that are named, or counted from 0."""
    found = []
    for name in chosen:
        if isinstance(name, str) and name in names:
            found.append(list(names).index(name))
        elif isinstance(name, int | np.integer) and not isinstance(name, bool) and 0 <= name < len(names):
            found.append(int(name))
        else:
            known = ", ".join(map(repr, names))
            raise OptionError(f"{option} has {name!r}, which is no column; the columns are {known}.")
    return found


def _chosen(option: str, names: Names, known: Sequence[str]) -> list[int] | None:
    """The places of the columns that an option names; None for "auto"."""
    if names is None:
        return []
    if isinstance(names, str):
        if names != "auto":
            raise OptionError(f"{option}={names!r} is not known; use 'auto', a list of columns, or None.")
        return None
    return positions(option, names, known)


@dataclass(frozen=True)
class Columns:
    """The columns of a table, in order, and the probabilities of the nominal ones."""

    columns: tuple[Column, ...]
    categories: Categories | None = None

    # What they are

    @classmethod
    def nominal_of(
        cls,
        table: Sequence[Any],
        names: Sequence[str],
        dtypes: Sequence[str],
        categorical: Names,
        rows: int | None = None,
        text: Collection[str] = (),
    ) -> Columns:
        """Find the nominal columns of a table.

        Args:
            table: The columns, as arrays or as columns of a data frame.
            names: Their names.
            dtypes: Their types.
            categorical: Names or numbers of nominal columns; "auto" for those that are by their type.
            rows: How many rows there are, if `table` has only the different values of each column.
            text: Names of columns that are nominal by their type in a file, also if all their values look like numbers.
        """
        chosen = _chosen("categorical", categorical, names)
        found = []
        for i, (values, name, dtype) in enumerate(zip(table, names, dtypes, strict=True)):
            column = Column(name, dtype)
            if i in chosen if chosen is not None else name in text or is_nominal(values, name):
                levels = categories_of(values, name, chosen is not None, rows)
                ordered = bool(getattr(getattr(values, "dtype", None), "ordered", False))
                column = dataclasses.replace(column, categories=levels, ordered=ordered)
            found.append(column)
        return cls(tuple(found))

    def discrete_of(self, x: Array | Sequence[Distinct], discrete: Names) -> Columns:
        """Find which of the other columns are on a grid.

        Args:
            x: All columns as numbers, or the different values of each.
            discrete: Names or numbers of discrete columns; "auto" for those on a grid with two rows for each value or more.
        """
        names = [column.name for column in self.columns]
        chosen = _chosen("discrete", discrete, names)
        found = list(self.columns)
        for i in range(len(names)) if chosen is None else chosen:
            if found[i].categories is None:
                seen = Distinct.of(x[:, i]) if isinstance(x, np.ndarray) else x[i]
                grid = None
                if seen.values is not None:
                    grid = tied_grid(seen.values, seen.rows) if chosen is None else grid_of(seen.values)
                found[i] = dataclasses.replace(found[i], grid=grid)
                if grid is None and chosen is not None and seen.low < seen.high:
                    different = "" if seen.values is None else f"{len(seen.values)} "
                    raise DataError(
                        f"Column {names[i]!r} cannot be discrete: its {different}different values have no step in common, "
                        "or too many steps between them; leave it out of discrete, or round it."
                    )
            elif chosen is not None:
                raise OptionError(f"Column {names[i]!r} is both discrete and categorical; name it once.")
        return Columns(tuple(found))

    def counted(self, x: Array, weight: Array | None = None) -> Columns:
        """Count how probable categories are."""
        seen = self.counting()
        if seen is not None:
            seen.add(x[:, self.of("nominal")].astype(np.int64), weight)
        return self.with_counts(seen)

    def counting(self) -> Counting | None:
        """A count of categories without a row, or None if there are no nominal columns."""
        sizes = [len(column.categories) for column in self.columns if column.categories is not None]
        return Counting(sizes) if sizes else None

    def with_counts(self, seen: Counting | None) -> Columns:
        """These columns, with categories as probable as they were counted."""
        return Columns(self.columns, None if seen is None else seen.categories())

    def of(self, *kinds: str) -> list[int]:
        """The places of the columns of these kinds."""
        return [i for i, column in enumerate(self.columns) if column.kind in kinds]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def amounts(self) -> list[int]:
        """The places of the columns that a flow models."""
        return self.of("real", "grid")

    @property
    def integers(self) -> tuple[int, ...]:
        """Which of the numbers that a flow models are whole."""
        return tuple(i for i, place in enumerate(self.amounts) if self.columns[place].grid is not None)

    @property
    def indicators(self) -> int:
        """How many numbers stand for the categories of a row."""
        return 0 if self.categories is None else sum(self.categories.sizes)

    @property
    def indicator_names(self) -> tuple[str, ...]:
        """What each of them stands for, such as city=Oslo."""
        nominal = [self.columns[i] for i in self.of("nominal")]
        return tuple(f"{column.name}={value}" for column in nominal for value in column.categories or ())

    @property
    def plain(self) -> bool:
        """Whether all columns are real."""
        return len(self.of("real")) == len(self.columns)

    def in_words(self, *kinds: str) -> str:
        """The columns of these kinds, for a sentence."""
        grids = {i: f" (step {column.grid.step:g})" for i, column in enumerate(self.columns) if column.grid is not None}
        return ", ".join(f"{self.columns[i].name!r}{grids.get(i, '')}" for i in self.of(*kinds))

    def bounds(self, x: Array, bounds: Mapping[Any, Pair], whole: bool = True) -> tuple[Pair, ...]:
        """A pair of bounds for each number that a flow models, checked against the rows; empty if no column has bounds.

        The bounds of a column on a grid are possible values themselves; others lie strictly between theirs.

        Args:
            x: All columns as numbers, in the units of the table.
            bounds: Lower and upper bounds by the name or the number of a column.
            whole: Whether x is all rows; otherwise it has the least and the greatest value of each column.
        """
        found: dict[int, Pair] = {}
        for i, (name, pair) in zip(positions("bounds", list(bounds), self.names), bounds.items(), strict=True):
            column, values = self.columns[i], x[:, i]
            if column.categories is not None:
                raise OptionError(f"bounds has {name!r}, which is nominal; only numbers have bounds.")
            low, high = (end if given is None else given for end, given in zip((-np.inf, np.inf), pair, strict=True))
            outside = (values < low) | (values > high) if column.grid is not None else (values <= low) | (values >= high)
            if bad := np.flatnonzero(outside).tolist():
                how = "within" if column.grid is not None else "strictly between"
                row = f" in row {bad[0]}" if whole else ""
                raise DataError(
                    f"Column {name!r} has {values[bad[0]]:.6g}{row}, which is not {how} its bounds {pair}; widen "
                    "the bounds a little, or drop such rows."
                )
            found[i] = pair[0], pair[1]
            if column.grid is not None:
                first, last = ((end - column.grid.origin) / column.grid.step for end in (low, high))
                found[i] = (
                    None if pair[0] is None else float(np.ceil(first - 0.01)) + 0.0,  # no minus zero
                    None if pair[1] is None else float(np.floor(last + 0.01) + 1),
                )
        return tuple(found.get(i, (None, None)) for i in self.amounts) if found else ()

    # From a table to numbers

    def coded(self, values: Any, place: int) -> Array:
        """The numbers of the categories of a nominal column; -1 for an unknown one."""
        column = self.columns[place]
        assert column.categories is not None
        return codes_of(values, column.categories, column.name)

    def numbers(self, x: Array) -> Array:
        """What a flow models, [rows, amounts]: whole numbers for columns on a grid, values off it rounded."""
        parts = [x[:, i] if (grid := self.columns[i].grid) is None else grid.numbers(x[:, i]) for i in self.amounts]
        return np.stack(parts, 1) if parts else np.empty((len(x), 0))

    def one_hot(self, x: Array) -> Array | None:
        """The categories of each row as the context of a flow, or None if there are no nominal columns."""
        if self.categories is None:
            return None
        return self.categories.one_hot(x[:, self.of("nominal")].astype(np.int64))

    def unknown(self, x: Array) -> dict[int, int]:
        """Columns with values that are off their grid or of no known category, by their places, and the first such row."""
        found = {}
        for i, column in enumerate(self.columns):
            bad = (
                x[:, i] < 0 if column.categories is not None else column.grid.off(x[:, i]) if column.grid is not None else None
            )
            if bad is not None and bad.any():
                found[i] = int(np.flatnonzero(bad)[0])
        return found

    def surprises(self, x: Array, table: Sequence[Any], first: int = 0) -> list[str]:
        """Sentences about values that the table that these columns were found in cannot have.

        Args:
            x: All columns as numbers.
            table: The columns as they are.
            first: The number of the first row.
        """
        found = []
        for place, row in self.unknown(x).items():
            column, values = self.columns[place], table[place]
            value = values.iloc[row] if hasattr(values, "iloc") else values[row]
            value = value.item() if isinstance(value, np.generic) else value
            if column.grid is None:
                why = "a category that is not known: the log-probability of such rows is minus infinity"
            else:
                why = f"off its grid (step {column.grid.step:g}): such values are rounded"
            found.append(f"Column {column.name!r} has {value!r} in row {first + row}, {why}.")
        return found

    def log_prob(self, one_hot: Array, left_out: float = 0.0) -> Array:
        """log p(c) of rows of `one_hot`; minus infinity for unknown categories."""
        assert self.categories is not None
        return self.categories.log_prob(self.categories.codes(one_hot), left_out)

    # And back

    def draw(self, n: int, random: np.random.Generator) -> Array | None:
        """Categories drawn from p(c), as the context of a flow; None if there are no nominal columns."""
        return None if self.categories is None else self.categories.one_hot(self.categories.sample(n, random))

    def in_units(self, numbers: Array) -> list[Array]:
        """The columns that a flow models, in the units of the table."""
        grids = [self.columns[place].grid for place in self.amounts]
        return [each if grid is None else grid.values(each) for each, grid in zip(numbers.T, grids, strict=True)]

    def values(self, numbers: Array, one_hot: Array | None) -> list[Array]:
        """The columns of a table, from what a flow models and the categories of each row."""
        found: list[Array] = [np.empty(0)] * len(self.columns)
        for column, place in zip(self.in_units(numbers), self.amounts, strict=True):
            found[place] = column
        if self.categories is not None:
            assert one_hot is not None
            for codes, place in zip(self.categories.codes(one_hot).T, self.of("nominal"), strict=True):
                names = np.empty(len(self.columns[place].categories or ()), object)
                names[:] = self.columns[place].categories
                found[place] = names[codes]
        return found

    # As plain data

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "columns": [dataclasses.asdict(column) for column in self.columns],
            "categories": None if self.categories is None else self.categories.as_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Columns:
        columns = []
        for each in values["columns"]:
            grid, levels = each["grid"], each["categories"]
            columns.append(
                Column(
                    each["name"],
                    each["dtype"],
                    None if grid is None else Grid(*grid),
                    None if levels is None else tuple(levels),
                    each["ordered"],
                )
            )
        seen = values["categories"]
        return cls(tuple(columns), None if seen is None else Categories.from_dict(seen))
