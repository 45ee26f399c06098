"""What training and evaluation read from: a name, two splits, and what is known about them."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from idensenet.data.toy import ToySet
from idensenet.errors import DataError

if TYPE_CHECKING:
    from idensenet.columns import Columns, Pair


def release(x: np.ndarray[Any, Any]) -> None:
    """Let go of the pages of a memory-mapped array that were read.

    They stay in the system's cache, which gives way when memory is short, and no longer count as this process's own.
    Without this, an epoch over a file in random order holds the whole file.
    """
    pages = getattr(x, "_mmap", None)
    if isinstance(pages, mmap.mmap) and not x.flags.writeable and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def _check_whole(x: np.ndarray[Any, Any]) -> None:
    """Reading a memory map beyond the end of its file kills the process, so a file that has become shorter is refused."""
    pages = getattr(x, "_mmap", None)
    if isinstance(pages, mmap.mmap) and pages.size() < len(pages):
        name = getattr(x, "filename", "A data file")
        raise DataError(
            f"{name} was cut from {len(pages):,} to {pages.size():,} bytes while it was being read; import the data again."
        )


class Batch(NamedTuple):
    """Some rows, and what is known of each."""

    x: Tensor
    y: Tensor | None = None
    context: Tensor | None = None
    weight: Tensor | None = None


@dataclass(frozen=True)
class Split:
    """Rows of an array, perhaps memory-mapped, with labels, contexts and weights if there are any.

    Only what a batch needs is ever read.
    """

    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any] | None = None
    context: np.ndarray[Any, Any] | None = None
    weight: np.ndarray[Any, Any] | None = None

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, index: np.ndarray[Any, Any]) -> Batch:
        """Copies of some rows, in the order asked for; a file is read from front to back."""
        for array in (self.x, self.y):
            if array is not None:
                _check_whole(array)
        order = np.argsort(index, kind="stable")
        rows = np.empty((len(index), *self.x.shape[1:]), self.x.dtype)
        rows[order] = self.x[index[order]]
        release(self.x)
        return Batch(
            torch.from_numpy(rows),
            None if self.y is None else torch.from_numpy(self.y[index].astype(np.int64)),
            None if self.context is None else torch.from_numpy(self.context[index]),
            None if self.weight is None else torch.from_numpy(self.weight[index].astype(np.float64)),
        )


@dataclass(frozen=True)
class Source:
    """A data set. `shape` is the shape of a sample, `levels` the number of integer levels of a pixel (None: real numbers).

    `stream` is set for toy sets, which are drawn without end; their `train` is then a fixed sample for statistics.
    Of a table, `table` says what its columns are, `columns` and `context` name the numbers that a flow takes, and `bounds` has
    theirs. `notes` are sentences that every report repeats, such as that a checksum was not known. `places` are the places of
    all rows in the file or folder, training first, where the split is ours, and `split_at` is the bound that divides them.
    """

    name: str
    train: Split
    test: Split
    shape: tuple[int, ...]
    levels: int | None = None
    classes: int | None = None
    stream: ToySet | None = None
    columns: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    table: Columns | None = None
    bounds: tuple[Pair, ...] = ()
    notes: tuple[str, ...] = field(default=())
    places: np.ndarray[Any, Any] | None = None
    split_at: float | None = None
