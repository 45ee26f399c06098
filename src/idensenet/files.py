"""Files that appear whole or not at all, and files of strangers, which are read with limits."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

SMALL = 1 << 24  # bytes of a file that describes something


def read_small(path: Path, limit: int = SMALL) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Raises:
        ValueError: It is something else, such as a device or a pipe, which could be without end, or it is larger.
        OSError: It cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait for a writer
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"{path.name} is not a regular file")
        if about.st_size > limit:
            raise ValueError(f"{path.name} has {about.st_size:,} bytes where at most {limit:,} are read")
        return file.read(limit)


def read_json(path: Path, limit: int = SMALL) -> Any:
    """What a small JSON file holds; a ValueError if it holds none."""
    return parse_json(read_small(path, limit))


def parse_json(text: str | bytes) -> Any:
    """What JSON text says; a ValueError if it says nothing, also where it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is a regular file in a folder or below, also when links are followed."""
    try:
        return path.resolve().is_relative_to(folder.resolve()) and path.is_file()
    except (OSError, ValueError, RuntimeError):  # a name that no file can have, a circle of links
        return False


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write under another name, flush to the disk, rename. A failure leaves what was there and no rest."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load_tensors(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """The tensors of a safetensors file; a ValueError if it is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path, device=device)
    except SafetensorError as error:
        raise ValueError(f"{path.name} is damaged: {error}") from error


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors as safetensors; what goes wrong with the file is an OSError, as everywhere."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: value.detach().contiguous() for name, value in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path.name} cannot be written: {error}") from error
