"""Parquet files that are one table, read a row group at a time."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idensenet.columns import Names
from idensenet.data.parquet import Layout, parquet_of
from idensenet.data.tabular import Table, check_cells
from idensenet.errors import DataError, MissingDataError

ENDINGS = (".parquet", ".pq")
LARGEST = 1 << 29  # bytes of a row group as numbers
OPEN = 4  # files that are open at once
Report = Callable[[str, int, int], None]  # of long work: what is done, how much of it, and how much there is


def unsaid(what: str, done: int, total: int) -> None:
    """A report to nobody."""


def is_streamed(where: str | Path) -> bool:
    """Whether a table is a folder or a glob, whose files are streamed."""
    return not Path(where).is_file() and (Path(where).is_dir() or glob.has_magic(str(where)))


def files_of(where: Path) -> list[Path]:
    """The Parquet files of a folder, or all files of a glob, by their names.

    Raises:
        MissingDataError: There is none.
        DataError: A glob has another file.
    """
    if where.is_dir():
        hidden = (".", "_")  # what Spark and others write next to their rows
        found = [each for each in where.iterdir() if each.suffix.lower() in ENDINGS and not each.name.startswith(hidden)]
        hint = "; give a folder with files *.parquet in it, or a glob such as 'rows/**/*.parquet'"
        words = f"There is no Parquet file in {where}{hint}."
    else:
        found = [Path(each) for each in glob.glob(str(where), recursive=True)]
        words = f"No file matches {where}; give a folder or a glob of Parquet files, in quotes."
    files = sorted(each for each in found if each.is_file())
    if not files:
        raise MissingDataError(words)
    for path in files:
        with path.open("rb") as file:
            if path.suffix.lower() not in ENDINGS and file.read(4) != b"PAR1":
                raise DataError(f"{path} matches {where} and is no Parquet file; give a glob without it, such as '*.parquet'.")
    return files


@dataclass(frozen=True)
class RowGroup:
    """One row group of a file.

    Args:
        path: The file.
        number: Its number in the file.
        rows: How many rows it has.
        before: How many rows of the file come before it.
        start: How many rows of the whole table come before it.
    """

    path: Path
    number: int
    rows: int
    before: int
    start: int


class RowGroups:
    """All row groups of some files with the same columns, in order.

    Args:
        where: A folder or a glob of Parquet files.
        columns: Names of the columns that are read; all by default.
        nominal: Names of columns that are read as they are; "auto" for those that are not numeric.
        files: The files, if they are known.
        report: Is called during work that takes long for many rows.

    Raises:
        MissingDataError: There is no file.
        DataError: A file cannot be read, is empty, has other columns, or a row group that is too large.
    """

    def __init__(
        self,
        where: Path,
        columns: Sequence[str] | None = None,
        nominal: Names = None,
        files: Sequence[Path] | None = None,
        report: Report = unsaid,
    ) -> None:
        self.where, self.files, self.report = where, list(files or files_of(where)), report
        self.groups: list[RowGroup] = []
        self._open: dict[Path, Any] = {}
        self._stamps: dict[Path, tuple[int, int]] = {}
        start = 0
        for i, path in enumerate(self.files):
            report("reading the metadata of the files", i, len(self.files))
            self._stamps[path] = _stamp(path)
            with parquet_of(path) as parquet, parquet.ParquetFile(path) as file:
                about, schema = file.metadata, file.schema_arrow
            layout = Layout.of(schema, path, columns, nominal)
            if i == 0:
                self.layout = layout
            self._check_same(path, layout)
            if about.num_rows == 0:
                raise DataError(f"{path} has no rows; remove it, or give a glob without it.")
            before = 0
            for number in range(about.num_row_groups):
                rows = about.row_group(number).num_rows
                size = rows * len(layout.names) * 8
                if size > LARGEST:
                    raise DataError(
                        f"{path} has a row group of {rows:,} rows, {size / 2**30:.1f} GB of numbers, too many to stream; "
                        "write it with smaller ones, such as row_group_size=100_000 of pyarrow."
                    )
                if rows:
                    self.groups.append(RowGroup(path, number, rows, before, start + before))
                before += rows
            start += about.num_rows
        self.rows = start

    def _check_same(self, path: Path, layout: Layout) -> None:
        """The same names and types as in the first file, in any order."""
        first, known, kinds = self.files[0], self.layout.kinds, layout.kinds
        for name in [*known, *kinds]:
            if name not in known or name not in kinds:
                a, b = (path, first) if name in kinds else (first, path)
                raise DataError(f"{a} has a column {name!r} and {b} has none; name the columns to use with --data.columns.")
            if known[name] != kinds[name]:
                raise DataError(
                    f"Column {name!r} is {known[name]} in {first} and {kinds[name]} in {path}; write all files with one type."
                )

    @property
    def widest(self) -> int:
        """Rows of the largest row group."""
        return max(group.rows for group in self.groups)

    def each(self, what: str) -> Iterator[int]:
        """The numbers of all row groups, for a pass over all rows, which is reported."""
        for i in range(len(self.groups)):
            self.report(what, i, len(self.groups))
            yield i

    def read(self, i: int) -> Table:
        """The rows of a row group, checked cell by cell."""
        group = self.groups[i]
        with parquet_of(group.path) as parquet:
            if group.path not in self._open:
                if _stamp(group.path) != self._stamps[group.path]:
                    raise DataError(f"{group.path} was changed while it was being read; start again.")
                while len(self._open) >= OPEN:
                    self._open.pop(next(iter(self._open))).close()
                self._open[group.path] = parquet.ParquetFile(group.path)
            content = self._open[group.path].read_row_group(group.number, columns=list(self.layout.names))
        table = self.layout.table(content, group.path)
        check_cells(table, group.path, group.before)
        return table


def _stamp(path: Path) -> tuple[int, int]:
    about = os.stat(path)
    return about.st_size, about.st_mtime_ns
