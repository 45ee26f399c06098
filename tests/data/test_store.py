import os
import subprocess
import sys
import time

import numpy as np
import pytest

from idensenet.data import store
from idensenet.data.source import Split
from idensenet.data.store import ArrayWriter, load_array, load_splits, new_folder, save_splits
from idensenet.errors import DataError


def test_what_is_saved_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "ROWS_AT_ONCE", 3)
    x, y = np.arange(40, dtype=np.uint8).reshape(10, 2, 2), np.arange(10, dtype=np.int16)
    save_splits(tmp_path / "set", Split(x, y), Split(x[:4]))
    train, test = load_splits(tmp_path / "set")
    np.testing.assert_array_equal(train.x, x)
    np.testing.assert_array_equal(train.y, y)
    np.testing.assert_array_equal(test.x, x[:4])
    assert test.y is None


@pytest.mark.parametrize("rows", [1, 9, 10, 1234])
def test_a_file_written_in_pieces_is_a_plain_npy_file(tmp_path, rows):
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    with ArrayWriter(tmp_path / "x.npy", (3,), "float32") as writer:
        for piece in np.array_split(x, 7):
            writer.append(piece)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x)


def test_samples_of_another_shape_are_refused(tmp_path):
    with pytest.raises(DataError, match="do not fit"), ArrayWriter(tmp_path / "x.npy", (3,)) as writer:
        writer.append(np.zeros((2, 4), np.uint8))


def test_a_failure_leaves_what_was_there(tmp_path):
    target = tmp_path / "set"
    with new_folder(target) as work:
        (work / "a").write_text("old")

    def fail():
        with new_folder(target) as work:
            (work / "a").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (target / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["set"]


def test_a_killed_process_leaves_nothing_that_looks_complete(tmp_path):
    code = "import os, sys, pathlib; from idensenet.data.store import new_folder\n"
    code += "with new_folder(pathlib.Path(sys.argv[1])) as work:\n    (work / 'a').write_text('half'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, tmp_path / "set"], check=False)
    assert not (tmp_path / "set").exists()
    [left] = tmp_path.iterdir()
    yesterday = time.time() - 100_000
    os.utime(left, (yesterday, yesterday))
    with new_folder(tmp_path / "set") as work:
        (work / "a").write_text("whole")
    assert [f.name for f in tmp_path.iterdir()] == ["set"]


def test_two_processes_that_write_the_same_do_not_disturb_each_other(tmp_path):
    with new_folder(tmp_path / "set") as first:
        (first / "a").write_text("1")
        with new_folder(tmp_path / "set") as second:
            (second / "a").write_text("2")
    assert (tmp_path / "set" / "a").read_text() == "1"
    assert os.listdir(tmp_path) == ["set"]


def test_what_another_process_has_written_in_the_meantime_is_kept(tmp_path):
    with new_folder(tmp_path / "set", replace=False) as first:
        (first / "a").write_text("1")
        with new_folder(tmp_path / "set", replace=False) as second:
            (second / "a").write_text("2")
    assert (tmp_path / "set" / "a").read_text() == "2"
    assert os.listdir(tmp_path) == ["set"]


@pytest.mark.parametrize("end", [0, 3, 50, 128, 150])
def test_a_cut_file_is_refused_by_name(tmp_path, end):
    np.save(tmp_path / "x.npy", np.zeros((10, 10), np.uint8))
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:end])
    with pytest.raises(DataError, match=r"x\.npy .* cut short"):
        load_array(tmp_path / "x.npy")


def test_a_pickled_array_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(DataError, match=r"x\.npy"):
        load_array(tmp_path / "x.npy")


def test_labels_that_do_not_match_are_refused(tmp_path):
    save_splits(tmp_path / "set", Split(np.zeros((4, 1)), np.zeros(3)), Split(np.zeros((4, 1))))
    with pytest.raises(DataError, match="4 samples and 3 labels"):
        load_splits(tmp_path / "set")
