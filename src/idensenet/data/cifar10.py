"""CIFAR-10: colour photographs of 32 x 32 pixels in ten classes, from the Python batches of its publishers.

What is verified is the SHA-256 of the arrays (images as rows of 3072 bytes, labels as bytes), not of the files, so a copy
that was unpacked, or pickled again by another version of Python, is accepted, and one with a single wrong bit is not.
"""

from __future__ import annotations

import hashlib
import lzma
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from idensenet.data.bounded import Bounded, unpacking
from idensenet.data.source import Source, Split
from idensenet.data.store import Array, chunks, load_splits, missing, save_splits
from idensenet.data.unpickler import load_pickle
from idensenet.errors import DataError

NAME = "cifar10"
FOLDER, ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST_BATCHES = ("test_batch",)
ARCHIVE_LIMIT = 1 << 28  # bytes of the unpacked archive, which has 186 million
CIFAR10_SHA256 = {
    "train": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
    "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}


def open_cifar10(root: Path) -> Source:
    """CIFAR-10 from the data root: as imported, or the publishers' folder or archive. The content is verified each time."""
    if (root / NAME / "train_x.npy").exists():
        train, test = load_splits(root / NAME)
        verify(train, test, root / NAME)
    else:
        found = _locate(root)
        if found is None:
            raise missing(NAME, root)
        train, test = read(found)
    return Source(NAME, train, test, (3, 32, 32), levels=256, classes=10)


def import_cifar10(path: Path, root: Path) -> Path:
    """Verify a copy and store it under the data root."""
    found = _locate(path)
    if found is None:
        raise DataError(f"{path} has neither the batches of CIFAR-10 ({TRAIN_BATCHES[0]}, ...) nor {ARCHIVE} in it.")
    save_splits(root / NAME, *read(found))
    return root / NAME


def _locate(path: Path) -> Path | None:
    """The folder with the batches, or the archive, at a path or directly under it."""
    if path.is_file():
        return path.parent if path.name in TRAIN_BATCHES + TEST_BATCHES else path
    for folder in (path, path / FOLDER):
        if any((folder / name).is_file() for name in TRAIN_BATCHES + TEST_BATCHES):
            return folder
    return next((path / n for n in (ARCHIVE, ARCHIVE.removesuffix(".gz")) if (path / n).is_file()), None)


def read(path: Path) -> tuple[Split, Split]:
    """The batches of a folder or of an archive, verified: training and test. An archive is read without unpacking it."""
    if path.is_dir():
        train, test = _splits(lambda name: (path / name).read_bytes() if (path / name).is_file() else None, path)
    else:
        contents = _archived(path)
        train, test = _splits(contents.get, path)
    verify(train, test, path)
    return train, test


def _archived(path: Path) -> dict[str, bytes]:
    contents = {}
    try:
        with (
            unpacking(path) as file,
            tarfile.open(fileobj=Bounded(file, ARCHIVE_LIMIT), mode="r|") as archive,  # type: ignore[call-overload]
        ):
            for member in archive:
                name = Path(member.name).name
                if member.isfile() and name in TRAIN_BATCHES + TEST_BATCHES:
                    part = archive.extractfile(member)
                    contents[name] = part.read() if part is not None else b""
    except DataError:
        raise
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError) as error:
        raise DataError(f"{path} is not a complete archive, it is damaged or cut short: {error}.") from error
    return contents


def _splits(content: Callable[[str], bytes | None], where: Path) -> tuple[Split, Split]:
    def split(names: tuple[str, ...]) -> Split:
        batches = []
        for name in names:
            data = content(name)
            if data is None:
                raise DataError(f"{where} lacks {name}; CIFAR-10 has six batches.")
            batches.append(batch(data, f"{where}/{name}"))
        x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        return Split(x, y)

    return split(TRAIN_BATCHES), split(TEST_BATCHES)


def batch(data: bytes, where: str) -> tuple[Array, Array]:
    """Images and labels of one pickled batch: a dict with `data`, uint8 [N, 3072], and `labels`."""
    content: Any = load_pickle(data, where)
    entries = (
        {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in content.items()} if isinstance(content, dict) else {}
    )
    x, labels = entries.get("data"), entries.get("labels")
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072 or labels is None:
        raise DataError(f"{where} does not hold a batch of images: `data` of N x 3072 bytes and `labels`.")
    if not isinstance(labels, np.ndarray) and not (
        isinstance(labels, list | tuple) and len(labels) == len(x) and all(type(label) is int for label in labels)
    ):  # nested lists may share their parts, and be endless as an array
        raise DataError(f"{where} holds {len(x)} images and labels that are not as many whole numbers.")
    y = np.asarray(labels)
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise DataError(f"{where} holds {len(x)} images and labels of shape {y.shape}; there must be one number for each.")
    return x.reshape(-1, 3, 32, 32), y.astype(np.int64)


def verify(train: Split, test: Split, where: Path) -> None:
    """Refuse anything but the published data set, to the bit."""
    for name, split in (("train", train), ("test", test)):
        if split.x.shape[1:] != (3, 32, 32) or split.y is None or split.y.min() < 0 or split.y.max() > 9:
            raise DataError(f"{where} holds samples of shape {split.x.shape[1:]}; CIFAR-10 has (3, 32, 32), labelled 0 to 9.")
        for key, array in ((name, split.x), (f"{name}_labels", split.y.astype(np.uint8))):
            digest = hashlib.sha256()
            for rows in chunks(array):
                digest.update(np.ascontiguousarray(rows).data)
            if digest.hexdigest() != CIFAR10_SHA256[key]:
                raise DataError(
                    f"The {key.replace('_', ' ')} of CIFAR-10 in {where} are not the published ones (SHA-256 "
                    f"{digest.hexdigest()}, not {CIFAR10_SHA256[key]}); this copy is damaged or altered, get another one."
                )
