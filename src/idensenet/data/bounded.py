"""Compressed files of strangers: a few bytes can stand for any number of them, so that reading needs a limit."""

from __future__ import annotations

from typing import Any

from idensenet.errors import DataError


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
