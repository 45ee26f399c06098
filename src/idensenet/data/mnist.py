"""MNIST and Fashion-MNIST: grey images of 28 x 28 pixels, from the idx files of their publishers, raw or compressed.

An idx file is the numbers 0, 0, a type code, the number of axes, their lengths as big-endian 32-bit integers, and the
values. What is verified is the MD5 of the uncompressed files, so it does not matter how a copy was packed.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from idensenet.data.bounded import Bounded
from idensenet.data.source import Source, Split
from idensenet.data.store import Array, chunks, load_splits, missing, save_splits
from idensenet.errors import DataError

UNSIGNED_BYTE = 8
LARGEST = 1 << 26  # bytes of a file, unpacked; the training images have 47 million


@dataclass(frozen=True)
class IdxSet:
    """A published data set of four idx files.

    Args:
        name: Its name in this package.
        title: Its name in sentences.
        folder: The folder that others keep it in.
        md5: The MD5 of each uncompressed file.
    """

    name: str
    title: str
    folder: str
    md5: dict[str, str]

    def open(self, root: Path) -> Source:
        """From the data root: as imported, or the publishers' files as they are. The content is verified each time."""
        if (root / self.name / "train_x.npy").exists():
            train, test = load_splits(root / self.name)
            self.verify(train, test, root / self.name)
        else:
            places = [root / self.folder / "raw", root / self.folder, root / self.name]
            # two data sets have files of the same names, so one that stands in the root itself says whose it is
            folder = next((f for f in (*places, root) if self._find(f) and (f != root or self._is_ours(f))), None)
            if folder is None:
                raise missing(self.name, root)
            train, test = self.read(folder)
        return Source(self.name, train, test, (1, 28, 28), levels=256, classes=10)

    def import_from(self, path: Path, root: Path) -> Path:
        """Verify a copy and store it under the data root."""
        folder = path if path.is_dir() else path.parent
        inner = next((f for f in (folder, folder / self.folder / "raw", folder / "raw") if self._find(f)), None)
        if inner is None:
            first = next(iter(self.md5))
            raise DataError(f"{path} has no {first} or {first}.gz in it, so it is not {self.title}.")
        save_splits(root / self.name, *self.read(inner))
        return root / self.name

    def read(self, folder: Path) -> tuple[Split, Split]:
        """The four idx files of a folder, verified: training and test."""
        found = self._find(folder)
        arrays = {}
        for name in self.md5:
            if name not in found:
                raise DataError(f"{folder} lacks {name} (or {name}.gz); {self.title} has four files.")
            arrays[name] = read_idx(found[name])
        train, test = (
            Split(arrays[f"{part}-images-idx3-ubyte"][:, None], arrays[f"{part}-labels-idx1-ubyte"])
            for part in ("train", "t10k")
        )
        self.verify(train, test, folder)
        return train, test

    def verify(self, train: Split, test: Split, where: Path) -> None:
        """Refuse anything but the published data set, to the bit."""
        for part, split in (("train", train), ("t10k", test)):
            if split.x.shape[1:] != (1, 28, 28) or split.y is None:
                raise DataError(
                    f"{where} holds samples of shape {split.x.shape[1:]}; {self.title} has (1, 28, 28), with labels."
                )
            for name, array in ((f"{part}-images-idx3-ubyte", split.x[:, 0]), (f"{part}-labels-idx1-ubyte", split.y)):
                digest = _md5(array)
                if digest != self.md5[name]:
                    raise DataError(
                        f"{name} in {where} is not the published file of {self.title} (its MD5 is {digest}, "
                        f"not {self.md5[name]}); this copy is damaged or altered, get another one."
                    )

    def _find(self, folder: Path) -> dict[str, Path]:
        """Where the idx files are, among the ways in which their names are written."""
        names = {
            name: (name, f"{name}.gz", name.replace("-idx", ".idx"), f"{name.replace('-idx', '.idx')}.gz") for name in self.md5
        }
        found = {name: next((folder / n for n in ways if (folder / n).is_file()), None) for name, ways in names.items()}
        return {name: path for name, path in found.items() if path is not None}

    def _is_ours(self, folder: Path) -> bool:
        """Whether the test labels in a folder do not belong to another data set with files of the same names."""
        labels = self._find(folder).get("t10k-labels-idx1-ubyte")
        others = [other for other in SETS if other is not self]
        return labels is None or _md5(read_idx(labels)) not in [other.md5["t10k-labels-idx1-ubyte"] for other in others]


def _md5(array: Array) -> str:
    """Of the idx file that this array makes."""
    header = bytes([0, 0, UNSIGNED_BYTE, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    digest = hashlib.md5(header, usedforsecurity=False)
    for rows in chunks(array):
        digest.update(np.ascontiguousarray(rows).data)
    return digest.hexdigest()


def read_idx(path: Path) -> Array:
    """The bytes of an idx file as an array of the shape its header gives."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = Bounded(file, LARGEST).read()
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


MNIST = IdxSet(
    "mnist",
    "MNIST",
    "MNIST",
    {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
)
FASHION_MNIST = IdxSet(
    "fashion-mnist",
    "Fashion-MNIST",
    "FashionMNIST",
    {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
)
SETS = (MNIST, FASHION_MNIST)
