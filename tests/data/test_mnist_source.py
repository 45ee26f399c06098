import gzip

import numpy as np
import pytest
from published_fakes import fake_mnist, idx, write_mnist

from idensenet.data import mnist
from idensenet.data.download import import_from
from idensenet.data.mnist import open_mnist, read_idx
from idensenet.errors import DataError, MissingDataError


@pytest.fixture
def files(monkeypatch):
    files, digests = fake_mnist()
    monkeypatch.setattr(mnist, "MNIST_MD5", digests)
    return files


def check(source, files):
    assert (source.name, source.shape, source.levels, source.classes) == ("mnist", (1, 28, 28), 256, 10)
    assert source.train.x.shape == (6, 1, 28, 28)
    assert source.test.x.shape == (3, 1, 28, 28)
    assert source.train.x.tobytes() == files["train-images-idx3-ubyte"][16:]
    assert bytes(source.test.y.tolist()) == files["t10k-labels-idx1-ubyte"][8:]
    x, y, _ = source.train.batch(np.array([4, 0]))
    assert x.numpy().tobytes() == np.asarray(source.train.x)[[4, 0]].tobytes()
    assert y.tolist() == [int(source.train.y[4]), int(source.train.y[0])]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("place", ["MNIST/raw", "mnist", "."])
def test_the_publishers_files_are_read_where_they_are(tmp_path, files, compressed, place):
    write_mnist(tmp_path / place, files, compressed)
    check(open_mnist(tmp_path), files)


@pytest.mark.parametrize("compressed", [False, True])
def test_an_imported_copy_is_stored_and_mapped(tmp_path, files, compressed):
    write_mnist(tmp_path / "copy", files, compressed)
    import_from("mnist", tmp_path / "copy", tmp_path / "root")
    source = open_mnist(tmp_path / "root")
    assert isinstance(source.train.x, np.memmap)
    check(source, files)


def test_a_file_stands_for_its_folder_and_other_spellings_are_known(tmp_path, files):
    dotted = {name.replace("-idx", ".idx"): data for name, data in files.items()}
    write_mnist(tmp_path / "copy", dotted)
    import_from("mnist", tmp_path / "copy" / "train-images.idx3-ubyte", tmp_path)
    check(open_mnist(tmp_path), files)


def test_nothing_there_names_the_command(tmp_path):
    with pytest.raises(MissingDataError, match=f"`idensenet data mnist --root {tmp_path}`"):
        open_mnist(tmp_path)
    with pytest.raises(DataError, match="not MNIST"):
        import_from("mnist", tmp_path, tmp_path / "root")


@pytest.mark.parametrize("name", list(fake_mnist()[0]))
def test_one_flipped_bit_is_refused_and_nothing_is_left(tmp_path, files, name):
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    write_mnist(tmp_path / "copy", files)
    with pytest.raises(DataError, match=f"{name} .* damaged or altered"):
        import_from("mnist", tmp_path / "copy", tmp_path / "root")
    assert not list((tmp_path / "root").glob("**/*"))


def test_a_flipped_bit_in_the_stored_copy_is_found(tmp_path, files):
    import_from("mnist", write_mnist(tmp_path / "copy", files), tmp_path)
    stored = tmp_path / "mnist" / "train_x.npy"
    data = bytearray(stored.read_bytes())
    data[-1] ^= 1
    stored.write_bytes(data)
    with pytest.raises(DataError, match="damaged or altered"):
        open_mnist(tmp_path)


def test_cut_and_absent_files_are_refused(tmp_path, files):
    folder = write_mnist(tmp_path / "copy", files, compressed=True)
    whole = (folder / "train-images-idx3-ubyte.gz").read_bytes()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(whole[:-20])
    with pytest.raises(DataError, match="not a complete gzip file"):
        import_from("mnist", folder, tmp_path)
    (folder / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError, match="lacks train-images-idx3-ubyte"):
        import_from("mnist", folder, tmp_path)


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d + b"x", lambda d: d[:3], lambda d: b"\1" + d[1:]])
def test_a_file_that_is_not_idx_is_refused(tmp_path, damage):
    path = tmp_path / "file"
    path.write_bytes(damage(idx(np.zeros((2, 3), np.uint8))))
    with pytest.raises(DataError, match=r"idx file|cut short"):
        read_idx(path)


def test_a_gzip_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(b"hello, this is text"))
    with pytest.raises(DataError, match="does not start like"):
        read_idx(path)


def test_images_of_another_size_are_refused(tmp_path, files):
    files["t10k-images-idx3-ubyte"] = idx(np.zeros((3, 8, 8), np.uint8))
    with pytest.raises(DataError, match=r"shape \(1, 8, 8\)"):
        import_from("mnist", write_mnist(tmp_path, files), tmp_path / "root")
