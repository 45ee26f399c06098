"""Arrays on disk: written whole or not at all, read through a memory map.

A stored data set is a folder of four .npy files, train and test, x and y (y is left out where there are no labels). It is
written under another name and renamed when it is complete, so a folder that can be seen is a folder that is complete.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from idensenet.data.source import Split, release
from idensenet.errors import DataError, MissingDataError

Array = np.ndarray[Any, Any]
ROWS_AT_ONCE = 4096


def missing(name: str, root: Path) -> MissingDataError:
    """The answer to a data set that is not on disk: which folder was searched, and the command that downloads it."""
    return MissingDataError(
        f"There is no {name} in {root}; download it with `idensenet data {name} --root {root}`, "
        f"or import a copy with `idensenet data {name} --root {root} --from FILE_OR_DIR`."
    )


@contextmanager
def new_folder(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """A folder to fill. It takes the place of `target` at the end of the block, and vanishes if the block fails.

    Without `replace` it also vanishes if another process has put the same there in the meantime and may be reading it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    work = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    work.mkdir()
    try:
        yield work
        for file in work.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        if not replace and target.is_dir():
            return
        old = target.with_name(f"{work.name}.old.part")
        if target.exists():
            target.rename(old)
        try:
            work.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process has written the same in the meantime
                raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sweep(target: Path) -> None:
    """Remove what processes that were killed have left behind, if it is a day old: others may be at work right now."""
    for stale in target.parent.glob(f".{target.name}.*.part"):
        if time.time() - stale.stat().st_mtime > 86_400:
            shutil.rmtree(stale, ignore_errors=True)


class ArrayWriter:
    """A .npy file that is written chunk by chunk, whose number of rows is known only at the end."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: str = "uint8") -> None:
        self.shape, self.dtype, self.rows = shape, np.dtype(dtype), 0
        self.file = path.open("wb")
        self._header()
        self.start = self.file.tell()

    def _header(self) -> None:
        """The header leaves room for any number of rows, so it can be written again over itself."""
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, *self.shape)}
        np.lib.format.write_array_header_1_0(self.file, header)

    def append(self, rows: Array) -> None:
        if rows.shape[1:] != self.shape:
            raise DataError(f"Samples of shape {rows.shape[1:]} do not fit where {self.shape} are stored.")
        self.file.write(np.ascontiguousarray(rows, self.dtype).data)
        self.rows += len(rows)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self.file:
            if kind is None:
                self.file.seek(0)
                self._header()
                assert self.file.tell() == self.start, "the header has grown into the data"


def chunks(x: Array) -> Iterator[Array]:
    """Some thousand rows at a time, so that a memory-mapped array is never in memory as a whole."""
    for start in range(0, len(x), ROWS_AT_ONCE):
        yield x[start : start + ROWS_AT_ONCE]
        release(x)


def save_splits(folder: Path, train: Split, test: Split) -> None:
    """Store a data set, in place of what was there."""
    with new_folder(folder) as work:
        for name, split in (("train", train), ("test", test)):
            for part, array in (("x", split.x), ("y", split.y)):
                if array is not None:
                    with ArrayWriter(work / f"{name}_{part}.npy", array.shape[1:], array.dtype.str) as writer:
                        for rows in chunks(array):
                            writer.append(rows)


def load_array(path: Path) -> Array:
    """An array in a file, memory-mapped; nothing in it is ever executed."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise DataError(f"{path} cannot be read as a .npy file, it is damaged or cut short: {error}") from error


def load_splits(folder: Path) -> tuple[Split, Split]:
    """A stored data set, memory-mapped: training and test."""

    def split(name: str) -> Split:
        x, labels = load_array(folder / f"{name}_x.npy"), folder / f"{name}_y.npy"
        y = load_array(labels) if labels.exists() else None
        if y is not None and len(y) != len(x):
            raise DataError(f"{folder} has {len(x)} samples and {len(y)} labels in {name}; import the data set again.")
        return Split(x, y)

    return split("train"), split("test")
