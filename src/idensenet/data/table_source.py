"""A table as a data set: what its columns are, and the numbers that a flow takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from idensenet.data.table import read_table
from idensenet.data.tabular import Table, check_once
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

    @property
    def others(self) -> list[str]:
        """The columns that are not modelled."""
        return [*self.context, *([self.weight] if self.weight else [])]

    @property
    def needed(self) -> list[str] | None:
        """All columns that are read, each named once; None for all there are."""
        if both := sorted(set(self.columns or ()) & set(self.others)):
            raise OptionError(f"Column {both[0]!r} is to be modelled and to be given; name it in one place only.")
        check_once(self.others)
        return None if self.columns is None else [*self.columns, *self.others]

    def modelled(self, where: Path, columns: Sequence[str], text: Collection[str]) -> list[str]:
        """The names of the modelled columns among all that were read; `text` names those that are not numeric."""
        for name in self.others:
            if name not in columns:
                raise UnknownNameError(f"{where} has no column {name!r}; {nearest(name, list(columns))}")
            if name in text:
                raise OptionError(f"Column {name!r} of {where} is not numeric; a context or a weight must be.")
        chosen = [name for name in columns if name not in self.others]
        if not chosen:
            raise OptionError(f"All columns of {where} are given as context, so that none is left to be modelled.")
        return chosen

    def of_model(self, known: Columns) -> tuple[Roles, list[str]]:
        """The same with the columns of a model, and which of them are nominal."""
        chosen = known.names if self.columns is None else list(self.columns)
        if len(chosen) != len(known.names):
            raise OptionError(f"The model takes {len(known.names)} columns, but {len(chosen)} are named; name as many.")
        return replace(self, columns=chosen), [chosen[i] for i in known.of("nominal")]


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
        return keys_of([self.text.get(name, each) for name, each in named.items()], self.context, seed)

    def split(self, rows: Array | slice = slice(None)) -> Split:
        """Some rows in the form that a flow takes."""
        x = self.x[rows]
        context = self.columns.one_hot(x)
        if context is None and self.context is not None:
            context = self.context[rows]
        numbers = x if self.columns.plain else self.columns.numbers(x)
        context = context if context is None else context.astype(numbers.dtype)
        return Split(numbers, context=context, weight=None if self.weight is None else self.weight[rows])


def keys_of(columns: Sequence[Array], context: Array | None, seed: int) -> Array:
    """A number for each row, from its modelled columns, numbers or text, and its context."""
    parts = [_hashed(each) if each.dtype == object else each for each in columns]
    parts += [] if context is None else list(context.T)
    content = torch.from_numpy(np.stack(parts, 1).astype(np.float64))
    return np.asarray(content_keys(content, seed).numpy())


def _hashed(values: Array) -> Array:
    """A whole number below 2^53 for each value, the same wherever it stands."""
    known = {value: int(sha256(repr(value).encode()).hexdigest()[:13], 16) for value in set(values.tolist())}
    return np.array([known[value] for value in values.tolist()], np.float64)


def contents_of(
    where: Path | str, table: Table, names: Sequence[str], roles: Roles, columns: Columns, first: int | None = None
) -> Contents:
    """The rows of a table as numbers.

    Args:
        where: The file, for errors.
        table: The rows.
        names: The modelled columns.
        roles: What the others are for.
        columns: What the modelled ones are.
        first: The number of the first row, if the columns are a model's, so that values may be there that it has not seen.
    """
    raw = [table.column(name) for name in names]
    coded = [columns.coded(each, i) if i in columns.of("nominal") else each for i, each in enumerate(raw)]
    context = np.stack([table.column(name) for name in roles.context], 1) if roles.context else None
    if context is not None and columns.of("nominal"):
        raise OptionError(
            f"Nominal columns ({columns.in_words('nominal')}) cannot be modelled given a context; leave one of both out."
        )
    weight = None if roles.weight is None else table.column(roles.weight)
    if weight is not None and weight.min() < 0:
        raise OptionError(f"Column {roles.weight!r} of {where} has weights that are negative, or all zero.")
    x = np.stack(coded, 1)
    text = {name: table.text[name] for name in names if name in table.text}
    return Contents(columns, x, context, weight, () if first is None else tuple(columns.surprises(x, raw, first)), text)


def nominal_names(names: Sequence[str], nominal: Names, where: Path) -> Names:
    """Which of the modelled columns an option names as nominal; each must be one of them."""
    if nominal is None or isinstance(nominal, str):
        return nominal
    for name in nominal:
        if name not in names:
            raise UnknownNameError(f"{where} has no column {name!r} to be modelled; {nearest(str(name), list(names))}")
    return list(nominal)


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
        roles, nominal = roles.of_model(known)
    table = read_table(path, roles.needed, nominal, text)
    names = roles.modelled(path, table.columns, table.text)
    columns = known
    if columns is None:
        raw = [table.column(name) for name in names]
        kinds = [str(each.dtype) for each in raw]
        columns = Columns.nominal_of(raw, names, kinds, nominal_names(names, nominal, path), text=table.text)
    contents = contents_of(path, table, names, roles, columns, None if known is None else 0)
    if contents.weight is not None and contents.weight.max() <= 0:
        raise OptionError(f"Column {roles.weight!r} of {path} has weights that are negative, or all zero.")
    return contents


@dataclass(frozen=True)
class Reading:
    """What the columns of a table are taken for, and how its rows are divided into training and test.

    The content of a row decides whether it is held out, so that neither order nor new rows move it; with split="position", as
    in versions before 0.2, its place in the file does.

    Args:
        roles: What its columns are for; all are modelled by default.
        discrete: Names of columns on a grid; "auto" for those that look like it.
        categorical: Names of nominal columns; "auto" for those that are not numeric.
        bounds: Lower and upper bounds of columns.
        known: What the columns are, if that is known.
        seed: Decides which rows are held out.
        test_fraction: The share of these.
        split: What decides whether a row is held out: "content" or "position".
        split_at: The bound that divides the rows by content, if another source was divided there.
    """

    roles: Roles = field(default_factory=Roles)
    discrete: Names = None
    categorical: Names = None
    bounds: Mapping[str, Pair] | None = None
    known: Columns | None = None
    seed: int = 0
    test_fraction: float = 0.1
    split: str = "content"
    split_at: float | None = None


def open_table(path: Path, how: Reading | None = None, text: TextFormat = PLAIN) -> Source:
    """A table as a data set, its rows divided at random, and always in the same way, into training and test.

    Args:
        path: The file.
        how: What its columns are, and how its rows are divided.
        text: How a CSV file is written.
    """
    how = how or Reading()
    roles, known, split_at = how.roles, how.known, how.split_at
    contents = read_contents(path, roles, how.categorical, known, text)
    if how.split == "position":
        train, test = split_rows(len(contents.x), how.test_fraction, how.seed)
        split_at = None
    else:
        train, test, split_at = split_keys(contents.keys(how.seed), how.test_fraction, how.seed, split_at)
    columns = contents.columns
    if known is None:
        weight = None if contents.weight is None else contents.weight[train]
        columns = columns.discrete_of(contents.x, how.discrete).counted(contents.x[train], weight)
    check_amounts(columns, path)
    contents = replace(contents, columns=columns)
    notes = [f"The table is {path}, {len(contents.x):,} rows of {len(columns.columns)} columns{given_words(roles)}."]
    notes += [*kinds_in_words(columns), *contents.surprises]
    names = [columns.names[i] for i in columns.amounts]
    return Source(
        "table",
        contents.split(train),
        contents.split(test),
        (len(names),),
        columns=tuple(names),
        context=tuple(roles.context) or columns.indicator_names,
        table=columns,
        bounds=columns.bounds(contents.x, how.bounds or {}),
        notes=tuple(notes),
        places=np.concatenate([train, test]),
        split_at=split_at,
    )


def given_words(roles: Roles) -> str:
    """The contexts, for a sentence."""
    return f", given {', '.join(roles.context)}" if roles.context else ""


def kinds_in_words(columns: Columns) -> list[str]:
    """Sentences about the columns that are not real."""
    notes = []
    if columns.of("grid"):
        notes.append(f"Discrete columns, scored by the probability of a value: {columns.in_words('grid')}.")
    if columns.of("nominal"):
        notes.append(f"Nominal columns: {columns.in_words('nominal')}.")
    return notes


def check_amounts(columns: Columns, where: Path) -> None:
    """Refuse a table without a number."""
    if not columns.amounts:
        raise OptionError(
            f"All columns of {where} are nominal, so that there is nothing for a flow; FlowDensity models such tables."
        )
