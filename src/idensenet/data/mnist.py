"""MNIST: handwritten digits of 28 x 28 pixels, from the idx files of its publishers, raw or compressed.

An idx file is the numbers 0, 0, a type code, the number of axes, their lengths as big-endian 32-bit integers, and the
values. What is verified is the MD5 of the uncompressed files, so it does not matter how a copy was packed.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np

from idensenet.data.source import Source, Split
from idensenet.data.store import Array, chunks, load_splits, missing, save_splits
from idensenet.errors import DataError

NAME = "mnist"
MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
UNSIGNED_BYTE = 8


def open_mnist(root: Path) -> Source:
    """MNIST from the data root: as imported, or the publishers' files as they are. The content is verified each time."""
    if (root / NAME / "train_x.npy").exists():
        train, test = load_splits(root / NAME)
        verify(train, test, root / NAME)
    else:
        folder = next((f for f in (root / "MNIST" / "raw", root / "MNIST", root / NAME, root) if _find(f)), None)
        if folder is None:
            raise missing(NAME, root)
        train, test = read(folder)
    return Source(NAME, train, test, (1, 28, 28), levels=256, classes=10)


def import_mnist(path: Path, root: Path) -> Path:
    """Verify a copy and store it under the data root."""
    folder = path if path.is_dir() else path.parent
    inner = next((f for f in (folder, folder / "MNIST" / "raw", folder / "raw") if _find(f)), None)
    if inner is None:
        raise DataError(f"{path} has no {next(iter(MNIST_MD5))} or {next(iter(MNIST_MD5))}.gz in it, so it is not MNIST.")
    save_splits(root / NAME, *read(inner))
    return root / NAME


def read(folder: Path) -> tuple[Split, Split]:
    """The four idx files of a folder, verified: training and test."""
    found = _find(folder)
    arrays = {}
    for name in MNIST_MD5:
        if name not in found:
            raise DataError(f"{folder} lacks {name} (or {name}.gz); MNIST has four files.")
        arrays[name] = read_idx(found[name])
    splits = tuple(
        Split(arrays[f"{part}-images-idx3-ubyte"][:, None], arrays[f"{part}-labels-idx1-ubyte"]) for part in ("train", "t10k")
    )
    verify(splits[0], splits[1], folder)
    return splits[0], splits[1]


def _find(folder: Path) -> dict[str, Path]:
    """Where the idx files are, among the ways in which their names are written."""
    names = {
        name: (name, f"{name}.gz", name.replace("-idx", ".idx"), f"{name.replace('-idx', '.idx')}.gz") for name in MNIST_MD5
    }
    found = {name: next((folder / n for n in ways if (folder / n).is_file()), None) for name, ways in names.items()}
    return {name: path for name, path in found.items() if path is not None}


def read_idx(path: Path) -> Array:
    """The bytes of an idx file as an array of the shape its header gives."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a complete gzip file, it is damaged or cut short: {error}.") from error
    if len(data) < 4 or data[:3] != bytes([0, 0, UNSIGNED_BYTE]) or len(data) < 4 + 4 * data[3]:
        raise DataError(f"{path} does not start like an idx file of bytes.")
    shape = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    wanted = int(np.prod(shape, dtype=np.int64))
    if len(values) != wanted:
        raise DataError(
            f"{path} has {len(values)} bytes of data where its header announces {wanted}; it is damaged or cut short."
        )
    return values.reshape(shape)


def verify(train: Split, test: Split, where: Path) -> None:
    """Refuse anything but the published data set, to the bit."""
    for part, split in (("train", train), ("t10k", test)):
        if split.x.shape[1:] != (1, 28, 28) or split.y is None:
            raise DataError(f"{where} holds samples of shape {split.x.shape[1:]}; those of MNIST are (1, 28, 28), with labels.")
        for name, array in ((f"{part}-images-idx3-ubyte", split.x[:, 0]), (f"{part}-labels-idx1-ubyte", split.y)):
            header = bytes([0, 0, UNSIGNED_BYTE, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            digest = hashlib.md5(header, usedforsecurity=False)
            for rows in chunks(array):
                digest.update(np.ascontiguousarray(rows).data)
            if digest.hexdigest() != MNIST_MD5[name]:
                raise DataError(
                    f"{name} in {where} is not the published file (its MD5 is {digest.hexdigest()}, "
                    f"not {MNIST_MD5[name]}); this copy is damaged or altered, get another one."
                )
