"""The forms in which ImageNet32 is handed around, each read a chunk at a time.

- pickles `train_data_batch_1` to `_10` and `val_data` (or the same with .npz at the end), with labels from 1 to 1000;
- `train_32x32` and `valid_32x32` as .npy, as .npz with one array in it, or as a folder of PNG files, without labels.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from idensenet.data.cifar10 import batch
from idensenet.data.store import ROWS_AT_ONCE, Array, chunks, load_array
from idensenet.errors import DataError

BATCH_LIMIT = 1 << 30  # bytes
Chunks = Iterator[tuple[Array, Array | None]]
Part = Callable[[], Chunks]


@dataclass(frozen=True)
class Layout:
    """How to read the two parts of a copy."""

    train: Part
    test: Part


def find_layout(path: Path) -> Layout:
    """Find the files of a layout by name, in a folder or up to two levels below it."""
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; unpack ImageNet32 and give the folder that its files are in.")
    for ending in ("", ".npz"):
        train, test = _named(path, f"train_data_batch_1{ending}"), _named(path, f"val_data{ending}")
        if train and test:
            batches = [f for i in range(1, 1000) if (f := train.with_name(f"train_data_batch_{i}{ending}")).exists()]
            return Layout(partial(_batches, batches), partial(_batches, [test]))
    for ending, reader in ((".npy", _npy), (".npz", _npz), ("", _images)):
        train, test = _named(path, f"train_32x32{ending}"), _named(path, f"valid_32x32{ending}")
        if train and test:
            return Layout(partial(reader, train), partial(reader, test))
    raise DataError(
        f"{path} holds no ImageNet32: neither train_data_batch_1, ... and val_data, "
        "nor train_32x32 and valid_32x32 as .npy, .npz or folders of PNG files."
    )


def _named(path: Path, name: str) -> Path | None:
    places = (path / name, *sorted(path.glob(f"*/{name}")), *sorted(path.glob(f"*/*/{name}")))
    return next((p for p in places if p.exists()), None)


def _batches(files: list[Path]) -> Chunks:
    """One batch is in memory at a time, some 400 MB for a tenth of the training images."""
    for file in files:
        if file.suffix == ".npz":
            yield _npz_batch(file)
        else:
            yield batch(file.read_bytes(), str(file))


def _npz_batch(file: Path) -> tuple[Array, Array]:
    try:
        with zipfile.ZipFile(file) as archive:
            large = [each for each in archive.infolist() if each.file_size > BATCH_LIMIT]
        if large:
            raise DataError(f"{file} has a member of {large[0].file_size:,} bytes, more than a batch of ImageNet32 can have.")
        with np.load(file, allow_pickle=False) as content:
            x, y = content["data"], content["labels"]
    except DataError:
        raise
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"{file} does not hold `data` and `labels`, or is damaged: {error}.") from error
    if len(x) != len(y) or y.ndim != 1:
        raise DataError(f"{file} holds {len(x)} images and labels of shape {y.shape}; there must be one number for each.")
    return _planes(x, file), y


def _planes(x: Array, file: Path) -> Array:
    """Images as [N, 3, 32, 32], from rows of three planes, or from pixels of three colours."""
    if x.dtype == np.uint8:
        if x.shape[1:] in ((3072,), (3, 32, 32)):
            return np.reshape(x, (-1, 3, 32, 32))
        if x.shape[1:] == (32, 32, 3):
            return np.transpose(x, (0, 3, 1, 2))
    raise DataError(
        f"{file} holds {x.dtype} of shape {x.shape}; images are uint8 of N x 3 x 32 x 32, N x 32 x 32 x 3 or N x 3072."
    )


def _npy(file: Path) -> Chunks:
    for rows in chunks(load_array(file)):
        yield _planes(rows, file), None


def _npz(file: Path) -> Chunks:
    """The one array of an .npz file, decompressed as it is read."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            if len(names) != 1:
                raise DataError(f"{file} holds {len(names)} arrays ({', '.join(names)}); there must be one.")
            with archive.open(names[0]) as member:
                version = np.lib.format.read_magic(member)
                read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[
                    version
                ]
                shape, fortran, dtype = read_header(member)
                if fortran or dtype.hasobject or not shape:
                    raise DataError(f"{file} does not hold rows of bytes.")
                _planes(np.empty((0, *shape[1:]), dtype), file)  # refuses rows of another length before they are read
                width = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
                for start in range(0, shape[0], ROWS_AT_ONCE):
                    rows = min(ROWS_AT_ONCE, shape[0] - start)
                    data = member.read(rows * width)
                    yield _planes(np.frombuffer(data, dtype).reshape(rows, *shape[1:]), file), None
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file} cannot be read as an .npz file, it is damaged or cut short: {error}.") from error


def _check_size(file: Path, size: tuple[int, int]) -> None:
    if size != (32, 32):
        raise DataError(f"The image {file} has {size[0]} x {size[1]} pixels; images of ImageNet32 have 32 x 32.")


def _images(folder: Path) -> Chunks:
    """The PNG files of a folder, in the order of their names."""
    from PIL import Image

    files = sorted(folder.rglob("*.png"))
    for start in range(0, len(files), ROWS_AT_ONCE):
        rows = []
        for file in files[start : start + ROWS_AT_ONCE]:
            try:
                with Image.open(file) as image:
                    _check_size(file, image.size)
                    rows.append(np.asarray(image.convert("RGB")))
            except DataError:
                raise
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                raise DataError(f"The image {file} cannot be read, it is damaged or cut short: {error}.") from error
        yield _planes(np.stack(rows), folder), None
