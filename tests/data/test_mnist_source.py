import gzip

import numpy as np
import pytest
from published_fakes import fake_mnist, idx, write_mnist

from idensenet.data.catalog import open_source
from idensenet.data.download import import_from
from idensenet.data.mnist import FASHION_MNIST, MNIST, read_idx
from idensenet.errors import DataError, MissingDataError


@pytest.fixture(params=[MNIST, FASHION_MNIST], ids=lambda known: known.name)
def known(request):
    return request.param


@pytest.fixture
def files(monkeypatch, known):
    files, digests = fake_mnist()
    for name, digest in digests.items():
        monkeypatch.setitem(known.md5, name, digest)
    return files


def check(source, files, known):
    assert (source.name, source.shape, source.levels, source.classes) == (known.name, (1, 28, 28), 256, 10)
    assert source.train.x.shape == (6, 1, 28, 28)
    assert source.test.x.shape == (3, 1, 28, 28)
    assert source.train.x.tobytes() == files["train-images-idx3-ubyte"][16:]
    assert bytes(source.test.y.tolist()) == files["t10k-labels-idx1-ubyte"][8:]
    x, y, *_ = source.train.batch(np.array([4, 0]))
    assert x.numpy().tobytes() == np.asarray(source.train.x)[[4, 0]].tobytes()
    assert y.tolist() == [int(source.train.y[4]), int(source.train.y[0])]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("place", ["{folder}/raw", "{folder}", "{name}", "."])
def test_the_publishers_files_are_read_where_they_are(tmp_path, files, known, compressed, place):
    write_mnist(tmp_path / place.format(folder=known.folder, name=known.name), files, compressed)
    check(open_source(known.name, root=tmp_path), files, known)


@pytest.mark.parametrize("compressed", [False, True])
def test_an_imported_copy_is_stored_and_mapped(tmp_path, files, known, compressed):
    write_mnist(tmp_path / "copy", files, compressed)
    import_from(known.name, tmp_path / "copy", tmp_path / "root")
    source = known.open(tmp_path / "root")
    assert isinstance(source.train.x, np.memmap)
    check(source, files, known)


def test_a_file_stands_for_its_folder_and_other_spellings_are_known(tmp_path, files, known):
    dotted = {name.replace("-idx", ".idx"): data for name, data in files.items()}
    write_mnist(tmp_path / "copy", dotted)
    import_from(known.name, tmp_path / "copy" / "train-images.idx3-ubyte", tmp_path)
    check(known.open(tmp_path), files, known)


def test_nothing_there_names_the_command(tmp_path, known):
    with pytest.raises(MissingDataError, match=f"`idensenet data {known.name} --root {tmp_path}`"):
        known.open(tmp_path)
    with pytest.raises(DataError, match=f"not {known.title}"):
        import_from(known.name, tmp_path, tmp_path / "root")


@pytest.mark.parametrize("name", list(fake_mnist()[0]))
def test_one_flipped_bit_is_refused_and_nothing_is_left(tmp_path, files, known, name):
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    write_mnist(tmp_path / "copy", files)
    with pytest.raises(DataError, match=f"{name} .* damaged or altered"):
        import_from(known.name, tmp_path / "copy", tmp_path / "root")
    assert not list((tmp_path / "root").glob("**/*"))


def test_a_flipped_bit_in_the_stored_copy_is_found(tmp_path, files, known):
    import_from(known.name, write_mnist(tmp_path / "copy", files), tmp_path)
    stored = tmp_path / known.name / "train_x.npy"
    data = bytearray(stored.read_bytes())
    data[-1] ^= 1
    stored.write_bytes(data)
    with pytest.raises(DataError, match="damaged or altered"):
        known.open(tmp_path)


def test_cut_and_absent_files_are_refused(tmp_path, files, known):
    folder = write_mnist(tmp_path / "copy", files, compressed=True)
    whole = (folder / "train-images-idx3-ubyte.gz").read_bytes()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(whole[:-20])
    with pytest.raises(DataError, match="not a complete gzip file"):
        import_from(known.name, folder, tmp_path)
    (folder / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError, match="lacks train-images-idx3-ubyte"):
        import_from(known.name, folder, tmp_path)


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


def test_images_of_another_size_are_refused(tmp_path, files, known):
    files["t10k-images-idx3-ubyte"] = idx(np.zeros((3, 8, 8), np.uint8))
    with pytest.raises(DataError, match=r"shape \(1, 8, 8\)"):
        import_from(known.name, write_mnist(tmp_path, files), tmp_path / "root")


def test_in_the_root_itself_each_set_leaves_the_other_alone(tmp_path, monkeypatch):
    for known, seed in ((MNIST, 0), (FASHION_MNIST, 1)):
        for name, digest in fake_mnist(seed)[1].items():
            monkeypatch.setitem(known.md5, name, digest)
    write_mnist(tmp_path, fake_mnist(1)[0])
    assert FASHION_MNIST.open(tmp_path).name == "fashion-mnist"
    with pytest.raises(MissingDataError, match="idensenet data mnist"):
        MNIST.open(tmp_path)
