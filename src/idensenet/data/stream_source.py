"""A table larger than memory as a data set: what must be known of all rows is found in passes over its files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from idensenet.columns import Columns, Names, Pair
from idensenet.columns.distinct import Distinct
from idensenet.data.fingerprint import Digest, key_blocks
from idensenet.data.row_groups import Report, RowGroups, unsaid
from idensenet.data.shuffle import MANY, bound_of, places, split_rows
from idensenet.data.source import Source
from idensenet.data.store import Array
from idensenet.data.streamed import Division, StreamedRows
from idensenet.data.table_source import (
    Contents,
    Reading,
    Roles,
    check_amounts,
    contents_of,
    given_words,
    keys_of,
    kinds_in_words,
    nominal_names,
)
from idensenet.errors import DataError, OptionError

CATEGORIES = 1 << 16  # of a nominal column, and different rows of all of them


class Reader:
    """Row groups as contents.

    Args:
        where: A folder or a glob of Parquet files.
        roles: What their columns are for.
        categorical: Names of nominal columns; "auto" for those that are not numeric.
        known: What the columns are, if that is known.
        files: The files, if they are known.
        report: Is called during work that takes long for many rows.
    """

    def __init__(
        self,
        where: Path,
        roles: Roles,
        categorical: Names = None,
        known: Columns | None = None,
        files: list[Path] | None = None,
        report: Report = unsaid,
    ) -> None:
        self.roles, self.nominal, self.known = roles, categorical, known
        if known is not None:
            self.roles, self.nominal = roles.of_model(known)
        self.groups = RowGroups(where, self.roles.needed, self.nominal, files, report)
        self.names = self.roles.modelled(where, self.groups.layout.names, self.groups.layout.text)

    def contents(self, columns: Columns, i: int) -> Contents:
        """The rows of a row group as numbers."""
        group, first = self.groups.groups[i], None if self.known is None else self.groups.groups[i].start
        return contents_of(group.path, self.groups.read(i), self.names, self.roles, columns, first)


class Survey:
    """What the first pass finds: the different values of each column, and the places of rows if there are not too many."""

    def __init__(self, reader: Reader, seed: int, look: bool) -> None:
        self.reader = reader
        self.distinct = [Distinct() for _ in reader.names]
        self.values: dict[str, set[object]] = {name: set() for name in reader.names if name in reader.groups.layout.text}
        found = []
        for i in reader.groups.each("finding what the columns are, pass 1 over the row groups"):
            table = reader.groups.read(i)
            raw = [table.column(name) for name in reader.names]
            if reader.groups.rows <= MANY:
                context = np.stack([table.column(name) for name in reader.roles.context], 1) if reader.roles.context else None
                found.append(places(keys_of(raw, context, seed)))
            for name, distinct, values in zip(reader.names, self.distinct, raw, strict=True) if look else ():
                self._add(name, distinct, values)
        self.places = np.concatenate(found) if found else None

    def _add(self, name: str, distinct: Distinct, values: Array) -> None:
        if name not in self.values:
            distinct.add(values)
            return
        self.values[name].update(values.tolist())
        if len(self.values[name]) > CATEGORIES:
            raise DataError(
                f"Column {name!r} of {self.reader.groups.where} has more than {CATEGORIES:,} different values, too many "
                "categories for a table that is streamed; leave it out with --data.columns."
            )

    def columns(self, discrete: Names) -> Columns:
        """What the columns are, apart from how probable their categories are."""
        names, layout = self.reader.names, self.reader.groups.layout
        raw = [np.array([*self.values[name]], object) if name in self.values else np.empty(0) for name in names]
        dtypes = ["object" if name in self.values else np.dtype(layout.dtype).name for name in names]
        nominal = nominal_names(names, self.reader.nominal, self.reader.groups.where)
        found = Columns.nominal_of(raw, names, dtypes, nominal, self.reader.groups.rows, self.values)
        return found.discrete_of(self.distinct, discrete)

    def extremes(self, columns: Columns) -> Array:
        """The least and the greatest value of each column, as rows."""
        numeric = [i for i, name in enumerate(self.reader.names) if name not in self.values]
        found = np.zeros((2, len(columns.columns)))
        for i in numeric:
            found[:, i] = self.distinct[i].low, self.distinct[i].high
        return found


class Measured:
    """What the second pass finds, over rows that are divided: counts, keys, weights, categories and surprises."""

    def __init__(self, division: Division, columns: Columns) -> None:
        self.counts = np.zeros((len(division.groups.groups), 2), np.int64)
        self.digests = Digest(), Digest()
        self.low, self.high = np.inf, -np.inf
        self.categories = columns.counting()
        self.weights = 0.0
        self.surprises: dict[str, str] = {}
        for i in division.groups.each("counting rows, pass 2 over the row groups"):
            contents = division.contents(i)
            place = division.places(contents)
            self.low, self.high = min(self.low, float(place.min())), max(self.high, float(place.max()))
            train = place >= division.below
            for k, (chosen, digest) in enumerate(zip((train, ~train), self.digests, strict=True)):
                self.counts[i, k] = chosen.sum()
                for keys in key_blocks(contents.split(np.flatnonzero(chosen))):
                    digest.add(keys)
            weight = None if contents.weight is None else contents.weight[train]
            self.weights += 0.0 if weight is None else float(weight.sum())
            if self.categories is not None:
                self.categories.add(contents.x[train][:, columns.of("nominal")].astype(np.int64), weight)
                if len(self.categories.counts) > CATEGORIES:
                    raise DataError(
                        f"The nominal columns of {division.groups.where} have more than {CATEGORIES:,} different combinations, "
                        "too many for a table that is streamed; leave some out with --data.columns."
                    )
            for sentence in contents.surprises:
                self.surprises.setdefault(sentence.split(" has ")[0], sentence)


def open_stream(where: Path, how: Reading, report: Report = unsaid) -> Source:
    """A folder or a glob of Parquet files as a data set, divided as `open_table` divides the same rows in one file.

    Args:
        where: The folder or the glob.
        how: What its columns are, and how its rows are divided, by content.
        report: Is called during work that takes long for many rows.
    """
    if how.split != "content":
        raise OptionError(f"--data.split {how.split} needs all rows in memory; a table that is streamed is divided by content.")
    seed, known, split_at = how.seed, how.known, how.split_at
    reader = Reader(where, how.roles, how.categorical, known, report=report)
    rows, columns = reader.groups.rows, known
    ends: tuple[Pair, ...] = ()
    split_rows(min(rows, 2), how.test_fraction, seed)  # for its errors
    if known is None or (split_at is None and rows <= MANY):
        survey = Survey(reader, seed, known is None)
        if known is None:
            columns = survey.columns(how.discrete)
            ends = columns.bounds(survey.extremes(columns), how.bounds or {}, whole=False)
        if split_at is None and survey.places is not None:
            split_at = bound_of(survey.places, how.test_fraction)
            if split_at is None:
                raise DataError(f"All rows of {where} are the same, so that none can be held out.")
    assert columns is not None
    check_amounts(columns, where)
    split_at = how.test_fraction if split_at is None else split_at
    # the probabilities of categories are found in the second pass, for which their number is enough
    provisional = columns if known is not None else columns.with_counts(columns.counting())
    division = Division(reader.groups, partial(reader.contents, provisional), seed, split_at)
    found = Measured(division, provisional)
    division, found = _with_both_parts(division, found, provisional)
    if known is None:
        columns = columns.with_counts(found.categories)
        division = replace(division, contents=partial(reader.contents, columns))
    weighted = None
    if reader.roles.weight is not None:
        if found.weights <= 0:
            raise OptionError(f"Column {reader.roles.weight!r} of {where} has weights that are negative, or all zero.")
        weighted = found.weights / int(found.counts[:, 0].sum())
    train = StreamedRows(division, False, found.counts[:, 0], weighted)
    test = StreamedRows(division, True, found.counts[:, 1])
    train.digest, test.digest = found.digests
    notes = [
        f"The table is {where}, {rows:,} rows of {len(columns.columns)} columns{given_words(reader.roles)} in "
        f"{len(reader.groups.files)} files, which are streamed."
    ]
    names = [columns.names[i] for i in columns.amounts]
    return Source(
        "table",
        train,
        test,
        (len(names),),
        columns=tuple(names),
        context=tuple(reader.roles.context) or columns.indicator_names,
        table=columns,
        bounds=ends,
        notes=(*notes, *kinds_in_words(columns), *found.surprises.values()),
        split_at=split_at,
    )


def _with_both_parts(division: Division, found: Measured, columns: Columns) -> tuple[Division, Measured]:
    """If no row is below the bound, the lowest one is held out; if all are, the highest one is not. As `split_keys` does."""
    for part, bound in ((1, np.nextafter(found.low, 1)), (0, found.high)):
        if not found.counts[:, part].any():
            division = replace(division, below=float(bound))
            found = Measured(division, columns)
    if not found.counts.any(0).all():
        raise DataError(f"All rows of {division.groups.where} are the same, so that none can be held out.")
    return division, found
