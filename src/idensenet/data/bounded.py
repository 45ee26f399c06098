"""Compressed files of strangers: a few bytes can stand for any number of them, so that reading needs a limit."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

from idensenet.errors import DataError

PACKERS: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}


def unpacking(path: Path) -> Any:
    """A file that is unpacked as it is read, if its first bytes say that it is packed."""
    with path.open("rb") as file:
        start = file.read(6)
    return next((opener(path) for magic, opener in PACKERS.items() if start.startswith(magic)), None) or path.open("rb")


class Bounded:
    """A stream that ends in an error after `limit` bytes."""

    def __init__(self, file: Any, limit: int) -> None:
        self.file, self.limit, self.count = file, limit, 0

    def read(self, size: int = -1) -> bytes:
        room = self.limit - self.count + 1
        data: bytes = self.file.read(room if size < 0 else min(size, room))
        self.count += len(data)
        if self.count > self.limit:
            raise DataError(
                f"{getattr(self.file, 'name', 'A file')} unpacks to more than {self.limit:,} bytes; it is not the data."
            )
        return data
