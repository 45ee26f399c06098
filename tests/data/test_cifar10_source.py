import pickle

import numpy as np
import pytest
from published_fakes import fake_cifar10, pack_cifar10, write_cifar10

from idensenet.data import cifar10
from idensenet.data.cifar10 import open_cifar10
from idensenet.data.download import import_from
from idensenet.errors import DataError, MissingDataError


@pytest.fixture
def batches(monkeypatch):
    batches, digests = fake_cifar10()
    monkeypatch.setattr(cifar10, "CIFAR10_SHA256", digests)
    return batches


def check(source, batches):
    assert (source.name, source.shape, source.levels, source.classes) == ("cifar10", (3, 32, 32), 256, 10)
    train = np.concatenate([batches[f"data_batch_{i}"][b"data"] for i in range(1, 6)])
    np.testing.assert_array_equal(source.train.x, train.reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(source.test.y, batches["test_batch"][b"labels"])


@pytest.mark.parametrize("place", ["cifar-10-batches-py", "."])
def test_the_publishers_folder_is_read_where_it_is(tmp_path, batches, place):
    write_cifar10(tmp_path / place, batches)
    check(open_cifar10(tmp_path), batches)


def test_the_publishers_archive_is_read_where_it_is(tmp_path, batches):
    pack_cifar10(tmp_path / "cifar-10-python.tar.gz", write_cifar10(tmp_path / "unpacked", batches))
    check(open_cifar10(tmp_path), batches)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_repacked_copy_is_imported(tmp_path, batches, protocol, text):
    write_cifar10(tmp_path / "copy", batches, protocol, text)
    assert import_from("cifar10", tmp_path / "copy", tmp_path / "root") == tmp_path / "root" / "cifar10"
    source = open_cifar10(tmp_path / "root")
    assert isinstance(source.train.x, np.memmap)
    check(source, batches)
    check(open_cifar10(tmp_path / "root"), batches)


def test_archive_batch_and_parent_folder_are_all_taken(tmp_path, batches):
    folder = write_cifar10(tmp_path / "copy" / "cifar-10-batches-py", batches)
    archive = pack_cifar10(tmp_path / "any-name.tgz", folder)
    for i, path in enumerate((archive, folder / "test_batch", tmp_path / "copy")):
        import_from("cifar10", path, tmp_path / f"root{i}")
        check(open_cifar10(tmp_path / f"root{i}"), batches)


def test_importing_again_replaces_the_copy(tmp_path, batches):
    folder = write_cifar10(tmp_path / "copy", batches)
    for _ in range(2):
        import_from("cifar10", folder, tmp_path / "root")
    check(open_cifar10(tmp_path / "root"), batches)
    assert [f.name for f in (tmp_path / "root").iterdir()] == ["cifar10"]


def test_nothing_there_names_the_command(tmp_path):
    with pytest.raises(MissingDataError, match=f"`idensenet data cifar10 --root {tmp_path}`"):
        open_cifar10(tmp_path)
    with pytest.raises(DataError, match="neither the batches"):
        import_from("cifar10", tmp_path, tmp_path)


@pytest.mark.parametrize("part", ["data", "labels"])
def test_one_wrong_value_is_refused_and_nothing_is_left(tmp_path, batches, part):
    batch = batches["data_batch_3"]
    if part == "data":
        batch[b"data"][2, 100] ^= 1
    else:
        batch[b"labels"][0] = (batch[b"labels"][0] + 1) % 10
    with pytest.raises(DataError, match="damaged or altered"):
        import_from("cifar10", write_cifar10(tmp_path / "copy", batches), tmp_path / "root")
    assert not list((tmp_path / "root").glob("**/*"))


def test_a_failed_import_keeps_the_copy_that_was_there(tmp_path, batches):
    folder = write_cifar10(tmp_path / "copy", batches)
    import_from("cifar10", folder, tmp_path / "root")
    (folder / "test_batch").write_bytes((folder / "test_batch").read_bytes()[:-100])
    with pytest.raises(DataError, match="cut short"):
        import_from("cifar10", folder, tmp_path / "root")
    check(open_cifar10(tmp_path / "root"), batches)


def test_an_absent_batch_is_named(tmp_path, batches):
    folder = write_cifar10(tmp_path / "copy", batches)
    (folder / "data_batch_4").unlink()
    with pytest.raises(DataError, match="lacks data_batch_4"):
        import_from("cifar10", folder, tmp_path)


@pytest.mark.parametrize("kept", [0, 10, 500, 40_000])
def test_a_cut_archive_is_refused(tmp_path, batches, kept):
    archive = pack_cifar10(tmp_path / "a.tar.gz", write_cifar10(tmp_path / "copy", batches))
    archive.write_bytes(archive.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"not a complete archive|lacks"):
        import_from("cifar10", archive, tmp_path / "root")


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"data": np.zeros((2, 3072), np.float32), "labels": [0, 1]},
        {"data": np.zeros((2, 3000), np.uint8), "labels": [0, 1]},
        {"data": np.zeros((2, 3072), np.uint8)},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": ["a", "b"]},
    ],
)
def test_a_batch_that_is_none_is_refused(content):
    with pytest.raises(DataError, match="made up"):
        cifar10.batch(pickle.dumps(content), "made up")


def test_labels_that_would_wrap_around_are_refused(tmp_path, batches):
    batches["test_batch"][b"labels"][0] += 256
    with pytest.raises(DataError, match="labelled 0 to 9"):
        import_from("cifar10", write_cifar10(tmp_path / "copy", batches), tmp_path / "root")
