"""Every data set by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from idensenet.columns import Columns, Names, Pair
from idensenet.data.cifar10 import open_cifar10
from idensenet.data.csv_rows import TextFormat
from idensenet.data.digits import open_digits
from idensenet.data.folder import open_folder
from idensenet.data.imagenet32 import open_imagenet32
from idensenet.data.mnist import FASHION_MNIST, MNIST
from idensenet.data.row_groups import Report, is_streamed, unsaid
from idensenet.data.source import Source, Split
from idensenet.data.stream_source import open_stream
from idensenet.data.table_source import Reading, Roles, open_table
from idensenet.data.toy import TOY_SETS, ToySet
from idensenet.errors import OptionError, UnknownNameError, nearest

IMAGE_SETS = {
    "mnist": MNIST.open,
    "fashion-mnist": FASHION_MNIST.open,
    "cifar10": open_cifar10,
    "imagenet32": open_imagenet32,
}
SETS = (*TOY_SETS, "digits", *IMAGE_SETS)
SPLITS = ("content", "position")
NAMES = (*SETS, "folder", "table")
TOY_TRAIN, TOY_TEST = 10_000, 100_000
TOY_TRAIN_SEED, TOY_TEST_SEED = 1, 2


def open_source(
    name: str | None,
    *,
    root: Path | str = "data",
    folder: Path | str | None = None,
    table: Path | str | None = None,
    columns: Sequence[str] | None = None,
    context: Sequence[str] = (),
    weight: str | None = None,
    discrete: Names = None,
    categorical: Names = None,
    bounds: Mapping[str, Pair] | None = None,
    known: Columns | None = None,
    size: int = 32,
    channels: int = 3,
    seed: int = 0,
    test_fraction: float = 0.1,
    split: str = "content",
    split_at: float | None = None,
    text: TextFormat | None = None,
    report: Report = unsaid,
) -> Source:
    """A data set by name, or from a folder of images, or from a table: a file, or a folder or glob of Parquet files.

    `size` and `channels` shape the images of a folder. `columns` names the columns of a table to use, `context` the columns
    that are given, and `weight` the column that says how much a row counts; for `discrete`, `categorical`, `bounds` and
    `known` see `Reading`. `seed` and `test_fraction` divide both into training and test, by the content of a row or the
    name of a file unless `split` is "position", and at `split_at` if another source was divided there. Published sets are
    divided as they were published. `root` is where data is kept, and `text` says how CSV files are written. `report`
    is called during passes over a table that is streamed.

    >>> open_source("digits").shape
    (1, 8, 8)
    """
    if folder is not None and table is not None:
        raise OptionError(f"Both a folder ({folder}) and a table ({table}) are given; data comes from one place.")
    given = "folder" if folder is not None else "table" if table is not None else None
    if given is not None and name not in (None, given):
        raise OptionError(f"The data set {name!r} and the {given} {folder or table} are both given; leave one out.")
    name = given or name
    if split not in SPLITS:
        raise OptionError(f"data.split={split!r} is not known; use {' or '.join(SPLITS)}.")
    how: dict[str, Any] = {"seed": seed, "test_fraction": test_fraction, "split": split, "split_at": split_at}
    if context and name != "table":
        raise OptionError("A context is made of columns of a table; give one with --data.table FILE.")
    if name is None:
        raise OptionError(f"No data set is named; known are {', '.join(NAMES)}.")
    if name == "folder":
        if folder is None:
            raise OptionError("The data set 'folder' needs a folder of images; give one with --data.folder DIR.")
        return open_folder(Path(folder), Path(root), size=size, channels=channels, **how)
    if name == "table":
        if table is None:
            raise OptionError("The data set 'table' needs a file; give one with --data.table FILE.")
        reading = Reading(Roles(columns, context, weight), discrete, categorical, bounds, known, **how)
        if is_streamed(table):
            return open_stream(Path(table), reading, report)
        return open_table(Path(table), reading, text or TextFormat())
    if name in TOY_SETS:
        return open_toy(TOY_SETS[name])
    if name == "digits":
        return open_digits()
    if name in IMAGE_SETS:
        return IMAGE_SETS[name](Path(root))
    raise UnknownNameError(f"There is no data set {name!r}; {nearest(name, list(SETS))}")


def open_toy(toy: ToySet) -> Source:
    """A toy set: a stream to train on, a fixed sample for statistics, and fixed held-out points that decide the score."""

    def fixed(n: int, seed: int) -> Split:
        return Split(toy.sample(n, torch.Generator().manual_seed(seed), torch.float32).numpy())

    return Source(toy.name, fixed(TOY_TRAIN, TOY_TRAIN_SEED), fixed(TOY_TEST, TOY_TEST_SEED), (2,), stream=toy)
