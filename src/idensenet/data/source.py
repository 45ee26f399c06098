"""What training and evaluation read from: a name, two splits, and what is known about them."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from idensenet.data.toy import ToySet
from idensenet.errors import DataError

if TYPE_CHECKING:
    from idensenet.columns import Columns, Pair
    from idensenet.data.fingerprint import Digest


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


class Order(Protocol):
    """Numbers of rows in some order, of which a part is taken at a time."""

    def __getitem__(self, part: slice, /) -> np.ndarray[Any, Any]: ...


class Samples(ABC):
    """Rows that training and evaluation read, wherever they are: in memory, or a part at a time from files."""

    digest: Digest | None = None  # what a fingerprint holds of them, if it is known already

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, index: np.ndarray[Any, Any]) -> Batch:
        """Copies of some rows, in the order asked for."""

    @abstractmethod
    def order(self, seed: Sequence[int]) -> Order:
        """All rows once, in an order that is a function of the seed alone, in which `batch` reads them fast."""

    @abstractmethod
    def blocks(self) -> Iterator[Split]:
        """All rows once, in their order, as many at a time as there is room for."""

    @property
    def labelled(self) -> bool:
        """Whether the rows have labels."""
        return False

    @property
    def mean_weight(self) -> float | None:
        """How much a row counts on average, if rows count differently."""
        return None


@dataclass(frozen=True)
class Split(Samples):
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
        """Copies of some rows; a file is read from front to back."""
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

    def order(self, seed: Sequence[int]) -> np.ndarray[Any, Any]:
        return np.random.default_rng(seed).permutation(len(self))

    def blocks(self) -> Iterator[Split]:
        yield self

    @property
    def labelled(self) -> bool:
        return self.y is not None

    @property
    def mean_weight(self) -> float | None:
        return None if self.weight is None else float(self.weight.mean())


@dataclass(frozen=True)
class Source:
    """A data set. `shape` is the shape of a sample, `levels` the number of integer levels of a pixel (None: real numbers).

    `stream` is set for toy sets, which are drawn without end; their `train` is then a fixed sample for statistics.
    Of a table, `table` says what its columns are, `columns` and `context` name the numbers that a flow takes, and `bounds` has
    theirs. `notes` are sentences that every report repeats, such as that a checksum was not known. `places` are the places of
    all rows in the file or folder, training first, where the split is ours, and `split_at` is the bound that divides them.
    """

    name: str
    train: Samples
    test: Samples
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
