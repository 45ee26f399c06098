"""A table as a data set: what its columns are, and the numbers that a flow takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from idensenet.columns import Columns, Names, Pair
from idensenet.data.csv_rows import PLAIN, TextFormat
from idensenet.data.shuffle import split_keys, split_rows
from idensenet.data.source import Source, Split
from idensenet.data.store import Array
from idensenet.data.table import Table, check_once, read_table
from idensenet.draws import content_keys
from idensenet.errors import OptionError, UnknownNameError, nearest


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are for.

    Args:
        columns: Those that are modelled; all others by default.
        context: Those that are given.
        weight: The one that says how much each row counts.
    """

    columns: Sequence[str] | None = None
    context: Sequence[str] = ()
    weight: str | None = None

    def read(self, path: Path, nominal: Names, text: TextFormat = PLAIN) -> tuple[list[str], Table]:
        """The names of the modelled columns, and a table of all that are needed."""
        others = [*self.context, *([self.weight] if self.weight else [])]
        if both := sorted(set(self.columns or ()) & set(others)):
            raise OptionError(f"Column {both[0]!r} is to be modelled and to be given; name it in one place only.")
        check_once(others)
        table = read_table(path, None if self.columns is None else [*self.columns, *others], nominal, text)
        for name in others:
            if name not in table.columns:
                raise UnknownNameError(f"{path} has no column {name!r}; {nearest(name, list(table.columns))}")
            if name in table.text:
                raise OptionError(f"Column {name!r} of {path} is not numeric; a context or a weight must be.")
        chosen = [name for name in table.columns if name not in others]
        if not chosen:
            raise OptionError(f"All columns of {path} are given as context, so that none is left to be modelled.")
        return chosen, table


@dataclass(frozen=True)
class Contents:
    """The rows of a table: all modelled columns as numbers, the contexts and the weights."""

    columns: Columns
    x: Array
    context: Array | None = None
    weight: Array | None = None
    surprises: tuple[str, ...] = ()  # sentences about values that were not there in training
    text: Mapping[str, Array] = field(default_factory=dict)  # nominal columns as they are, by name

    def keys(self, seed: int) -> Array:
        """A number for each row, from its content alone: neither its place nor other rows have a part in it."""
        named = dict(zip(self.columns.names, self.x.T, strict=True))
        parts = [_hashed(self.text[name]) if name in self.text else each for name, each in named.items()]
        parts += [] if self.context is None else list(self.context.T)
        content = torch.from_numpy(np.stack(parts, 1).astype(np.float64))
        return np.asarray(content_keys(content, seed).numpy())

    def split(self, rows: Array | slice = slice(None)) -> Split:
        """Some rows in the form that a flow takes."""
        x = self.x[rows]
        context = self.columns.one_hot(x)
        if context is None and self.context is not None:
            context = self.context[rows]
        numbers = x if self.columns.plain else self.columns.numbers(x)
        context = context if context is None else context.astype(numbers.dtype)
        return Split(numbers, context=context, weight=None if self.weight is None else self.weight[rows])


def _hashed(values: Array) -> Array:
    """A whole number below 2^53 for each value, the same wherever it stands."""
    known = {value: int(sha256(repr(value).encode()).hexdigest()[:13], 16) for value in set(values.tolist())}
    return np.array([known[value] for value in values.tolist()], np.float64)


def read_contents(
    path: Path, roles: Roles, categorical: Names = None, known: Columns | None = None, text: TextFormat = PLAIN
) -> Contents:
    """The rows of a file.

    Args:
        path: The file.
        roles: What its columns are for.
        categorical: Names of nominal columns; "auto" for those that are not numeric.
        known: What the columns are, if that is known; others are then told apart by it.
        text: How a CSV file is written.
    """
    nominal = categorical
    if known is not None:
        chosen = known.names if roles.columns is None else list(roles.columns)
        if len(chosen) != len(known.names):
            raise OptionError(f"The model takes {len(known.names)} columns, but {len(chosen)} are named; name as many.")
        nominal = [chosen[i] for i in known.of("nominal")]
        roles = Roles(chosen, roles.context, roles.weight)
    names, table = roles.read(path, nominal, text)
    raw = [table.column(name) for name in names]
    columns = known
    if columns is None:
        named = nominal if nominal is None or isinstance(nominal, str) else [name for name in nominal if name in names]
        for name in [] if nominal is None or isinstance(nominal, str) else nominal:
            if name not in names:
                raise UnknownNameError(f"{path} has no column {name!r} to be modelled; {nearest(str(name), names)}")
        columns = Columns.nominal_of(raw, names, [str(each.dtype) for each in raw], named)
    coded = [columns.coded(each, i) if i in columns.of("nominal") else each for i, each in enumerate(raw)]
    context = np.stack([table.column(name) for name in roles.context], 1) if roles.context else None
    if context is not None and columns.of("nominal"):
        raise OptionError(
            f"Nominal columns ({columns.in_words('nominal')}) cannot be modelled given a context; leave one of both out."
        )
    weight = None if roles.weight is None else table.column(roles.weight)
    if weight is not None and (weight.min() < 0 or weight.max() <= 0):
        raise OptionError(f"Column {roles.weight!r} of {path} has weights that are negative, or all zero.")
    x = np.stack(coded, 1)
    surprises = () if known is None else tuple(columns.surprises(x, raw))
    return Contents(columns, x, context, weight, surprises, table.text)


def open_table(
    path: Path,
    *,
    roles: Roles | None = None,
    discrete: Names = None,
    categorical: Names = None,
    bounds: Mapping[str, Pair] | None = None,
    known: Columns | None = None,
    seed: int = 0,
    test_fraction: float = 0.1,
    split: str = "content",
    split_at: float | None = None,
    text: TextFormat = PLAIN,
) -> Source:
    """A table as a data set, its rows divided at random, and always in the same way, into training and test.

    The content of a row decides whether it is held out, so that neither order nor new rows move it; with split="position", as
    in versions before 0.2, its place in the file does.

    Args:
        path: The file.
        roles: What its columns are for; all are modelled by default.
        discrete: Names of columns on a grid; "auto" for those that look like it.
        categorical: Names of nominal columns; "auto" for those that are not numeric.
        bounds: Lower and upper bounds of columns.
        known: What the columns are, if that is known.
        seed: Decides which rows are held out.
        test_fraction: The share of these.
        split: What decides whether a row is held out: "content" or "position".
        split_at: The bound that divides the rows by content, if another source was divided there.
        text: How a CSV file is written.
    """
    roles = roles or Roles()
    contents = read_contents(path, roles, categorical, known, text)
    if split == "position":
        train, test = split_rows(len(contents.x), test_fraction, seed)
        split_at = None
    else:
        train, test, split_at = split_keys(contents.keys(seed), test_fraction, seed, split_at)
    columns = contents.columns
    if known is None:
        weight = None if contents.weight is None else contents.weight[train]
        columns = columns.discrete_of(contents.x, discrete).counted(contents.x[train], weight)
    if not columns.amounts:
        raise OptionError(
            f"All columns of {path} are nominal, so that there is nothing for a flow; FlowDensity models such tables."
        )
    contents = replace(contents, columns=columns)
    given = f", given {', '.join(roles.context)}" if roles.context else ""
    notes = [f"The table is {path}, {len(contents.x):,} rows of {len(columns.columns)} columns{given}."]
    if columns.of("grid"):
        notes.append(f"Discrete columns, scored by the probability of a value: {columns.in_words('grid')}.")
    if columns.of("nominal"):
        notes.append(f"Nominal columns: {columns.in_words('nominal')}.")
    notes += contents.surprises
    names = [columns.names[i] for i in columns.amounts]
    return Source(
        "table",
        contents.split(train),
        contents.split(test),
        (len(names),),
        columns=tuple(names),
        context=tuple(roles.context) or columns.indicator_names,
        table=columns,
        bounds=columns.bounds(contents.x, bounds or {}),
        notes=tuple(notes),
        places=np.concatenate([train, test]),
        split_at=split_at,
    )
