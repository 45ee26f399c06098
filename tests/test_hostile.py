"""Small files of strangers cost little: sizes are bounded before anything is built, and files are files."""

import gzip
import io
import json
import os
import pickle
import shutil
import tarfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import idensenet as idn
from flows import small_toy
from idensenet.cli import main
from idensenet.columns import Columns
from idensenet.config import recipe
from idensenet.data.cifar10 import batch, read
from idensenet.data.imagenet32_layouts import _npz, _npz_batch
from idensenet.data.mnist import read_idx
from idensenet.data.unpickler import load_pickle
from idensenet.errors import CheckpointError, DataError, OptionError
from idensenet.models import build_config
from idensenet.plainyaml import parse_yaml
from idensenet.sizing import FACTOR, FREE, Limited
from idensenet.storage import pretrained
from idensenet.training.run import RunFolder


def used():
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def cheap(seconds=10.0, memory=300e6):
    """Fails if the peak of memory rises, or if it takes long; the limits are far above what is needed, and below an attack."""
    peak = Path("/proc/self/clear_refs")
    try:
        peak.write_text("5")  # a new peak begins here
    except OSError:
        pytest.skip("the peak of memory cannot be measured here")
    before, began = used(), time.process_time()
    yield
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    assert int(line.split()[1]) * 1024 - before < memory
    assert time.process_time() - began < seconds


def model(folder, change):
    """The moons model with a changed description."""
    shutil.copytree(pretrained()["moons"], folder)
    values = json.loads((folder / "model.json").read_text())
    change(values)
    (folder / "model.json").write_text(json.dumps(values))
    return folder


SIZES = {
    "blocks": [20000],
    "depth": 3000,
    "growth": 1_000_000_000,
    "width": 1 << 40,
    "squeezes": 10**12,
    "shape": [1, 100_000, 100_000],
    "context": 1 << 30,
    "classes": 1 << 30,
    "fc_blocks": 1 << 30,
}


@pytest.mark.parametrize("name", SIZES)
def test_a_description_larger_than_its_weights_is_not_built(tmp_path, name):
    folder = model(tmp_path / "m", lambda values: values["config"]["model"].update({name: SIZES[name]}))
    with cheap(), pytest.raises(CheckpointError, match=r"larger than a model with 7,014|where its weights have room for"):
        idn.load(folder)


@pytest.mark.parametrize(("group", "name"), [("logdet", "eval_terms"), ("logdet", "probes"), ("solver", "max_steps")])
def test_counts_that_never_end_are_refused(tmp_path, group, name):
    folder = model(tmp_path / "m", lambda values: values["config"][group].update({name: 1 << 40}))
    with cheap(), pytest.raises(CheckpointError, match=rf"{group}\.{name}=1099511627776 must be at most"):
        idn.load(folder)


def test_a_structure_of_huge_tensors_is_not_built(tmp_path):
    flow = idn.Flow(small_toy().body, (2,))
    idn.save(flow, tmp_path / "m")
    text = (tmp_path / "m" / "model.json").read_text()
    (tmp_path / "m" / "model.json").write_text(text.replace('"outputs": 4,', '"outputs": 2000000000,', 1))
    with cheap(), pytest.raises(CheckpointError, match="where its weights have room for"):
        idn.load(tmp_path / "m")


@pytest.mark.parametrize("name", ["toy-idensenet", "digits-idensenet", "cifar10-idensenet-tiny-depth5", "cifar10-resflow-tiny"])
def test_honest_models_stay_far_below_the_limit(name):
    with Limited(1 << 60) as made:
        flow = build_config(recipe(name).config)
    assert made.made > 0
    assert 4 * (made.made - FREE) < FACTOR * flow.num_parameters  # of a compact file, which holds no norms


def test_files_that_are_devices_or_pipes_are_not_read(tmp_path):
    folder = model(tmp_path / "m", lambda values: None)
    for name in ("model.json", "model.safetensors"):
        (folder / name).rename(folder / "aside")
        os.mkfifo(folder / name)
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            idn.load(folder)
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            idn.load(folder)
        (folder / name).unlink()
        (folder / "aside").rename(folder / name)
    assert idn.load(folder).dims == 2


@pytest.mark.parametrize("format", [99, 1, "2", None, [2], {}])
def test_another_format_is_refused(tmp_path, format):
    with pytest.raises(CheckpointError, match="has the format"):
        idn.load(model(tmp_path / "m", lambda values: values.update(format=format)))


@pytest.mark.parametrize("dtype", ["float16", "load", 3, None, ["float32"]])
def test_another_number_type_is_refused(tmp_path, dtype):
    with pytest.raises(CheckpointError, match="damaged or of another version"):
        idn.load(model(tmp_path / "m", lambda values: values.update(dtype=dtype)))


COLUMNS = {
    "columns": [
        {"name": "x", "dtype": "float64", "grid": [0.5, 0.25], "categories": None, "ordered": False},
        {"name": "city", "dtype": "object", "grid": None, "categories": ["Oslo", "Ulm"], "ordered": False},
    ],
    "categories": {"sizes": [2], "rows": [[0], [1]], "counts": [3.0, 4.0]},
}
COLUMN, CITY = COLUMNS["columns"]
BAD_COLUMNS = {
    "none of them": {"columns": []},
    "one less": {"columns": [CITY]},
    "two of one name": {"columns": [COLUMN, {**CITY, "name": "x"}]},
    "a number for a name": {"columns": [{**COLUMN, "name": 3}, CITY]},
    "no grid": {"columns": [{**COLUMN, "grid": None}, CITY]},
    "a grid without steps": {"columns": [{**COLUMN, "grid": [0.5, 0.0]}, CITY]},
    "a grid without end": {"columns": [{**COLUMN, "grid": [float("nan"), 1]}, CITY]},
    "lists as categories": {"columns": [COLUMN, {**CITY, "categories": [[1], "Ulm"]}]},
    "three categories": {"columns": [COLUMN, {**CITY, "categories": ["Oslo", "Ulm", "Bonn"]}]},
    "no counts": {"categories": None},
    "counts of nothing": {"categories": {"sizes": [2], "rows": [], "counts": []}},
    "counts below zero": {"categories": {"sizes": [2], "rows": [[0], [1]], "counts": [3.0, -4.0]}},
    "counts of another category": {"categories": {"sizes": [2], "rows": [[0], [2]], "counts": [3.0, 4.0]}},
    "counts of two columns": {"categories": {"sizes": [2], "rows": [[0, 1], [1, 1]], "counts": [3.0, 4.0]}},
    "a count too many": {"categories": {"sizes": [2], "rows": [[0], [1]], "counts": [3.0, 4.0, 5.0]}},
    "other sizes": {"categories": {"sizes": [1, 1], "rows": [[0], [1]], "counts": [3.0, 4.0]}},
}


@pytest.mark.parametrize("name", [None, *BAD_COLUMNS])
def test_columns_that_are_not_those_of_the_flow_are_refused(tmp_path, name):
    flow = idn.build("toy-idensenet", shape=(1,), blocks=(1,), context=2, integers=(0,))
    flow.columns = Columns.from_dict(COLUMNS)
    idn.save(flow, tmp_path / "m")
    values = json.loads((tmp_path / "m" / "model.json").read_text())
    if name is None:
        assert idn.load(tmp_path / "m").columns == flow.columns
        return
    values["columns"] |= BAD_COLUMNS[name]
    (tmp_path / "m" / "model.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="is damaged"):
        idn.load(tmp_path / "m")


# Pickles and archives


def test_a_memo_of_many_places_is_refused_before_room_is_made():
    with cheap(), pytest.raises(DataError, match="place 134217728 of a memo"):
        load_pickle(b"\x80\x02Nr\x00\x00\x00\x08.", "a file")
    many = list(range(70_000))
    assert load_pickle(pickle.dumps([str(i) for i in many]), "a file") == [str(i) for i in many]


@pytest.mark.parametrize("wide", [list, tuple])
def test_labels_that_share_their_parts_are_refused(wide):
    labels = wide([1, 2])
    for _ in range(40):
        labels = wide([labels, labels])
    data = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": labels})
    with cheap(), pytest.raises(DataError, match="not as many whole numbers"):
        batch(data, "a batch")


def tar_of_zeros(path, size, name):
    info = tarfile.TarInfo(name)
    info.size = size
    with gzip.open(path, "wb", 1) as file:
        file.write(info.tobuf())
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
        file.write(bytes(1 << 12))


@pytest.mark.parametrize("name", ["data_batch_1", "something-else"])
def test_an_archive_that_unpacks_to_much_is_refused(tmp_path, name):
    tar_of_zeros(tmp_path / "cifar-10-python.tar.gz", 600 << 20, name)
    assert (tmp_path / "cifar-10-python.tar.gz").stat().st_size < 4e6
    with cheap(60, 450e6), pytest.raises(DataError, match="unpacks to more than 268,435,456 bytes"):
        read(tmp_path / "cifar-10-python.tar.gz")


def test_an_idx_file_that_unpacks_to_much_is_refused(tmp_path):
    with gzip.open(tmp_path / "x.gz", "wb", 1) as file:
        for _ in range(300):
            file.write(bytes(1 << 20))
    with cheap(60), pytest.raises(DataError, match="unpacks to more than 67,108,864 bytes"):
        read_idx(tmp_path / "x.gz")


def test_npz_files_with_long_rows_are_refused_before_they_are_read(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (4096, 1 << 31)})
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(100 << 20))
    with cheap(), pytest.raises(DataError, match="images are uint8"):
        list(_npz(tmp_path / "a.npz"))
    with (
        zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(zipfile.ZipInfo("data.npy"), "w", force_zip64=True) as member,
    ):
        for _ in range(1100):
            member.write(bytes(1 << 20))
    with cheap(), pytest.raises(DataError, match="more than a batch"):
        _npz_batch(tmp_path / "b.npz")


# YAML


def bomb(levels=30):
    lines = ["a0: &a0 [1, 1]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


ENDLESS = [bomb(), "a: &a [*a]", "a: &a 1\nb: *a", "[" * 5000, "{" * 5000, "? [1]\n: 2", "\x00", "a: [", "\t"]


@pytest.mark.parametrize("text", ENDLESS, ids=range(len(ENDLESS)))
def test_yaml_with_references_or_without_end_is_a_value_error(text):
    with cheap(), pytest.raises(ValueError, match=r"."):
        parse_yaml(text)


def test_a_configuration_that_grows_is_refused(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text(f"command: x\nrecipe: null\n{bomb()}config:\n  data: {{name: *a29}}\n")
    with cheap(), pytest.raises(CheckpointError, match="references"):
        RunFolder(tmp_path).config()
    with cheap():
        assert main(["train", "--resume", str(tmp_path)]) == 2
    assert "references" in capsys.readouterr().err


# Options


def test_samples_without_end_are_refused(tmp_path, capsys):
    with cheap():
        assert main(["sample", "moons", "-n", "1000000000000", "--out", str(tmp_path / "s.npy")]) == 2
    assert "draw at most 268,435,456 at a time" in capsys.readouterr().err


def test_samples_are_decoded_in_parts_and_do_not_depend_on_them(monkeypatch):
    flow = idn.load("moons")
    whole = flow.sample(700, torch.Generator().manual_seed(0))
    monkeypatch.setattr("idensenet.flow_samples.NUMBERS", 2)
    parts = flow.sample(700, torch.Generator().manual_seed(0))
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)
    given = idn.build("toy-idensenet", context=1, blocks=(1,)).eval()
    contexts = torch.randn(600, 1)
    both = [given.sample(600, torch.Generator().manual_seed(0), context=contexts)]
    monkeypatch.setattr("idensenet.flow_samples.NUMBERS", 1 << 18)
    both.append(given.sample(600, torch.Generator().manual_seed(0), context=contexts))
    torch.testing.assert_close(*both, atol=1e-5, rtol=1e-5)
    assert given.sample(600, context=contexts[:1]).shape == (600, 2)


@pytest.mark.parametrize(
    "values",
    [
        {"data": {"name": ["a"]}},
        {"data": {"columns": "abc"}},
        {"data": {"columns": [1, 2]}},
        {"data": {"header": "yes"}},
        {"model": {"blocks": [[1]]}},
        {"model": {"depth": "3"}},
        {"model": {"depth": True}},
        {"model": {"depth": 1 << 70}},
        {"model": {"bounds": [[0, 1, 2]]}},
        {"train": {"betas": [0.9]}},
        {"train": {"lr": [1]}},
        {"model": 3},
        [],
        None,
    ],
)
def test_options_of_another_type_are_a_sentence(values):
    from idensenet.config import Config

    with pytest.raises(OptionError, match=r"cannot be used|give a dictionary"):
        Config.saved(values)
