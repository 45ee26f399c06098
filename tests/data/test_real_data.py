"""The published data sets themselves, where they are at hand: IDENSENET_TEST_DATA names the folder they are in."""

import gzip
import hashlib
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from idensenet.data.catalog import open_source
from idensenet.data.download import import_from
from idensenet.errors import DataError

ROOT = Path(os.environ.get("IDENSENET_TEST_DATA", ""))
pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif("IDENSENET_TEST_DATA" not in os.environ, reason="IDENSENET_TEST_DATA names no folder"),
]
CIFAR10, MNIST, FASHION = ROOT / "cifar-10-batches-py", ROOT / "MNIST" / "raw", ROOT / "FashionMNIST" / "raw"


@pytest.fixture(autouse=True)
def present(request):
    name = request.node.name
    needed = FASHION if "fashion" in name else MNIST if "mnist" in name else CIFAR10
    if not needed.is_dir():
        pytest.skip(f"{needed} is not there")


def test_cifar10_as_published():
    source = open_source("cifar10", root=ROOT)
    assert source.train.x.shape == (50_000, 3, 32, 32)
    assert source.test.x.shape == (10_000, 3, 32, 32)
    assert np.bincount(source.train.y).tolist() == [5000] * 10
    assert np.bincount(source.test.y).tolist() == [1000] * 10
    means = source.train.x.mean((0, 2, 3)) / 255
    np.testing.assert_allclose(means, (0.4914, 0.4822, 0.4465), atol=1e-4)


def test_cifar10_repacked(tmp_path):
    """Pickled again by another Python, as an archive."""
    with tarfile.open(tmp_path / "repacked.tar", "w") as archive:
        for file in sorted(CIFAR10.glob("*_batch*")):
            content = pickle.loads(file.read_bytes(), encoding="bytes")
            content = {"data": content[b"data"], "labels": np.array(content[b"labels"])}
            (tmp_path / file.name).write_bytes(pickle.dumps(content, protocol=5))
            archive.add(tmp_path / file.name, f"other/{file.name}")
            (tmp_path / file.name).unlink()
    import_from("cifar10", tmp_path / "repacked.tar", tmp_path)
    source = open_source("cifar10", root=tmp_path)
    assert isinstance(source.train.x, np.memmap)
    assert (len(source.train), len(source.test)) == (50_000, 10_000)


def test_cifar10_with_one_wrong_bit(tmp_path):
    for file in CIFAR10.glob("*_batch*"):
        data = bytearray(file.read_bytes())
        if file.name == "data_batch_3":
            data[len(data) // 2] ^= 1
        (tmp_path / file.name).write_bytes(data)
    with pytest.raises(DataError, match="damaged or altered"):
        import_from("cifar10", tmp_path, tmp_path / "root")
    assert not (tmp_path / "root").exists() or not list((tmp_path / "root").iterdir())


def test_mnist_as_published(tmp_path):
    source = open_source("mnist", root=ROOT)
    assert source.train.x.shape == (60_000, 1, 28, 28)
    assert source.test.x.shape == (10_000, 1, 28, 28)
    assert source.train.x.mean() / 255 == pytest.approx(0.1307, abs=1e-4)


def test_mnist_compressed(tmp_path):
    (tmp_path / "copy").mkdir()
    for file in MNIST.glob("*-ubyte"):
        (tmp_path / "copy" / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), 1))
    import_from("mnist", tmp_path / "copy", tmp_path)
    source = open_source("mnist", root=tmp_path)
    original = (MNIST / "train-images-idx3-ubyte").read_bytes()[16:]
    assert hashlib.sha256(source.train.x.tobytes()).digest() == hashlib.sha256(original).digest()


def test_fashion_mnist_as_published():
    source = open_source("fashion-mnist", root=ROOT)
    assert source.train.x.shape == (60_000, 1, 28, 28)
    assert np.bincount(source.test.y).tolist() == [1000] * 10
    assert source.train.x.mean() / 255 == pytest.approx(0.2860, abs=1e-4)
