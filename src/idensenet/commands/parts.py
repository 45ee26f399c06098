"""Scores of a table that is streamed: a folder with a file for each part of it, which a second call completes.

A part is one row group or several of one file. Its scores are a Parquet file that appears when it is whole and says, in a key,
from which model, rows and options it comes. So a command that is given again does the rest, and notices what has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from idensenet.columns import Columns
from idensenet.data.parquet import parquet_of
from idensenet.data.row_groups import Report, RowGroups, files_of, unsaid
from idensenet.data.stream_source import Reader
from idensenet.errors import DataError, OptionError
from idensenet.scoring import Scorer

ROWS = 1 << 19  # of a part, at least one row group
KEY = b"idensenet"
DAY = 86_400
CHUNK = 1 << 22


class Part(NamedTuple):
    """Some row groups of a file, by their places, and where their rows stand in the whole table."""

    number: int
    path: str
    groups: tuple[int, ...]
    start: int
    rows: int
    key: str

    @property
    def name(self) -> str:
        return f"part-{self.number:05d}.parquet"


class Written(NamedTuple):
    """What is known when a part is written: its rows, the sum of squares of their errors, and sentences about them."""

    rows: int
    squares: float
    missed: int
    surprises: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Job:
    """Scores parts, in any process that sees the same files.

    Args:
        scorer: How.
        out: The folder for the scores.
        target: Error in nats that each score was to reach.
        version: Which version of the package does it.
    """

    scorer: Scorer
    out: str
    target: float | None = None
    version: str = ""

    def reader(self, where: Path, files: list[Path]) -> tuple[Reader, Columns]:
        """The rows of some files, and what the columns of the model are."""
        flow, roles = self.scorer.flow(), self.scorer.roles
        unnamed = flow.columns is None and (roles is None or roles.columns is None)
        names = RowGroups(where, files=files[:1]).layout.names if unnamed else ()
        found, columns = self.scorer.columns(flow, names)
        return Reader(where, found, known=columns, files=files), columns

    def write(self, part: Part) -> Written:
        """Score a part. Its file appears when it is whole."""
        if self.version != version("idensenet"):
            raise OptionError(
                f"A worker has idensenet {version('idensenet')}, and this command {self.version}; install the same on all."
            )
        import pyarrow
        from pyarrow import parquet

        out = Path(self.out)
        reader, columns = self.reader(Path(part.path), [Path(part.path)])
        rows, squares, missed, writer = 0, 0.0, 0, None
        surprises: dict[str, str] = {}
        unfinished = out / f".{part.name}.{uuid.uuid4().hex}.part"
        try:
            for i in part.groups:
                contents = reader.contents(columns, i)
                scores = self.scorer.scores(contents)
                places = np.arange(part.start + rows, part.start + rows + len(contents.x))
                table = pyarrow.table({"row": places, **scores}).replace_schema_metadata({KEY: part.key.encode()})
                writer = writer or parquet.ParquetWriter(unfinished, table.schema)
                writer.write_table(table)
                error = scores["log_density_error"]
                rows, squares = rows + len(error), squares + float(np.square(error).sum())
                missed += 0 if self.target is None else int((error > self.target).sum())
                for sentence in contents.surprises:
                    surprises.setdefault(sentence.split(" has ")[0], f"{part.path}: {sentence}")
            assert writer is not None
            writer.close()
            if rows != part.rows:
                raise DataError(f"{part.path} was changed while it was being scored; start again.")
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            unfinished.replace(out / part.name)
        finally:
            unfinished.unlink(missing_ok=True)
        return Written(rows, squares, missed, tuple(surprises.values()))


def plan(job: Job, where: Path, options: dict[str, Any], report: Report = unsaid) -> list[Part]:
    """All parts of a table, each with a key of all that its scores follow from; `options` are plain values."""
    files = [path.absolute() for path in files_of(where)]
    if Path(job.out).resolve() in {path.resolve().parent for path in files}:
        raise OptionError(f"--out {job.out} is the folder of the rows that are read; choose another one.")
    reader, _ = job.reader(where, files)
    common = [job.scorer.digest, options, list(reader.names), list(reader.roles.context)]
    parts: list[Part] = []
    for i, path in enumerate(files):
        report("reading files for their fingerprints", i, len(files))
        groups = [group for group in reader.groups.groups if group.path == path]
        content = _content(path)
        for some in _chunks([group.rows for group in groups]):
            rows, start = sum(groups[i].rows for i in some), groups[some[0]].start
            told = json.dumps([*common, content, some, start], sort_keys=True)
            key = hashlib.blake2b(told.encode(), digest_size=16).hexdigest()
            parts.append(Part(len(parts), str(path), tuple(some), start, rows, key))
    return parts


def _chunks(rows: Sequence[int]) -> Iterator[list[int]]:
    """Places of row groups that make a part together."""
    some: list[int] = []
    for i, count in enumerate(rows):
        if some and sum(rows[j] for j in some) + count > ROWS:
            yield some
            some = []
        some.append(i)
    if some:
        yield some


def _content(path: Path) -> str:
    found = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


def unfinished(parts: Sequence[Part], out: Path) -> list[Part]:
    """The parts without scores.

    Raises:
        OptionError: The folder has other files, or scores by another model, from other rows or with other options.
    """
    known = {part.name: part for part in parts}
    finished = set()
    for path in sorted(out.iterdir()):
        if path.name.startswith(".part-"):
            if time.time() - path.stat().st_mtime > DAY:  # another command may be at work right now
                path.unlink(missing_ok=True)
            continue
        if path.name not in known:
            raise OptionError(f"{out} has {path.name}, which is no part of these scores; choose another folder with --out.")
        if _key(path) != known[path.name].key:
            raise OptionError(
                f"{path} has scores by another model, of other rows than {known[path.name].path} has now, or with other "
                "options; choose another folder with --out, or remove this one."
            )
        finished.add(path.name)
    return [part for part in parts if part.name not in finished]


def _key(path: Path) -> str:
    try:
        with parquet_of(path) as parquet:
            return str((parquet.read_schema(path).metadata or {}).get(KEY, b"").decode())
    except (DataError, UnicodeDecodeError):
        return ""


def here(job: Job, parts: Sequence[Part]) -> Iterator[Written]:
    """One part after the other, in this process."""
    for part in parts:
        yield job.write(part)
