"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor


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


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors as safetensors; what goes wrong with the file is an OSError, as everywhere."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: value.detach().contiguous() for name, value in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path.name} cannot be written: {error}") from error
