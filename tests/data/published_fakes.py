"""Small made-up data in the layouts of the publishers."""

import gzip
import hashlib
import pickle
import struct
import tarfile

import numpy as np

from idensenet.data import cifar10
from idensenet.data.mnist import MNIST


def fake_cifar10(seed=0, per_batch=4):
    """Batches by name, and the digests they have: a stand-in for the published data set."""
    rng = np.random.default_rng(seed)
    batches = {
        name: {
            b"batch_label": b"made up",
            b"data": rng.integers(0, 256, (per_batch, 3072), dtype=np.uint8),
            b"labels": rng.integers(0, 10, per_batch).tolist(),
            b"filenames": [b"a.png"] * per_batch,
        }
        for name in cifar10.TRAIN_BATCHES + cifar10.TEST_BATCHES
    }
    digests = {}
    for part, names in (("train", cifar10.TRAIN_BATCHES), ("test", cifar10.TEST_BATCHES)):
        digests[part] = hashlib.sha256(b"".join(batches[n][b"data"].tobytes() for n in names)).hexdigest()
        digests[f"{part}_labels"] = hashlib.sha256(b"".join(bytes(batches[n][b"labels"]) for n in names)).hexdigest()
    return batches, digests


def write_cifar10(folder, batches, protocol=2, text=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch in batches.items():
        content = {k.decode(): v for k, v in batch.items()} if text else batch
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))
    return folder


def pack_cifar10(path, folder):
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, f"cifar-10-batches-py/{file.name}")
    return path


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def fake_mnist(seed=0):
    """The contents of the four idx files by name, and their digests."""
    rng = np.random.default_rng(seed)
    files = {}
    for name in MNIST.md5:
        n = 6 if name.startswith("train") else 3
        shape = (n, 28, 28) if "images" in name else (n,)
        files[name] = idx(rng.integers(0, 256 if "images" in name else 10, shape, dtype=np.uint8))
    return files, {name: hashlib.md5(data).hexdigest() for name, data in files.items()}


def write_mnist(folder, files, compressed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / (f"{name}.gz" if compressed else name)).write_bytes(gzip.compress(data) if compressed else data)
    return folder
