import pickle

import numpy as np
import pytest
from PIL import Image

from idensenet.data import imagenet32, imagenet32_layouts, store
from idensenet.data.download import fetch, import_from
from idensenet.data.imagenet32 import Variant, open_imagenet32
from idensenet.errors import DataError, MissingDataError

RNG = np.random.default_rng(0)
PICKLED = RNG.integers(0, 256, (23, 3, 32, 32), dtype=np.uint8), RNG.integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
PLAIN = PICKLED[0][:21], PICKLED[1][:4]
LABELS = RNG.integers(1, 1001, 23), RNG.integers(1, 1001, 5)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    variants = {"downsampled": Variant("Downsampled", 23, 5), "small": Variant("Small", 21, 4)}
    monkeypatch.setattr(imagenet32, "VARIANTS", variants)
    monkeypatch.setattr(store, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(imagenet32_layouts, "ROWS_AT_ONCE", 4)


def write_pickles(folder):
    (folder / "Imagenet32_train").mkdir(parents=True)
    for i, rows in enumerate(np.array_split(np.arange(23), 10)):
        content = {"data": PICKLED[0][rows].reshape(-1, 3072), "labels": LABELS[0][rows].tolist(), "mean": np.zeros(3072)}
        (folder / "Imagenet32_train" / f"train_data_batch_{i + 1}").write_bytes(pickle.dumps(content, protocol=2))
    content = {"data": PICKLED[1].reshape(-1, 3072), "labels": LABELS[1].tolist()}
    (folder / "val_data").write_bytes(pickle.dumps(content, protocol=2))


def write_npz_batches(folder):
    for i, rows in enumerate(np.array_split(np.arange(23), 10)):
        np.savez(folder / f"train_data_batch_{i + 1}.npz", data=PICKLED[0][rows].reshape(-1, 3072), labels=LABELS[0][rows])
    np.savez(folder / "val_data.npz", data=PICKLED[1].reshape(-1, 3072), labels=LABELS[1])


def write_npy(folder, arrange=lambda x: x):
    for name, x in zip(("train", "valid"), PLAIN, strict=True):
        np.save(folder / f"{name}_32x32.npy", arrange(x))


def write_npz(folder):
    for name, x in zip(("train", "valid"), PLAIN, strict=True):
        np.savez_compressed(folder / f"{name}_32x32.npz", x)


def write_png(folder):
    for name, x in zip(("train", "valid"), PLAIN, strict=True):
        (folder / f"{name}_32x32").mkdir()
        for i, pixels in enumerate(x):
            Image.fromarray(pixels.transpose(1, 2, 0)).save(folder / f"{name}_32x32" / f"{i:04d}.png")


LAYOUTS = {
    "pickles": write_pickles,
    "npz batches": write_npz_batches,
    "npy": write_npy,
    "npy of colours last": lambda folder: write_npy(folder, lambda x: x.transpose(0, 2, 3, 1)),
    "npy of rows": lambda folder: write_npy(folder, lambda x: x.reshape(-1, 3072)),
    "npz": write_npz,
    "png": write_png,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_converted_mapped_and_named(tmp_path, layout):
    (tmp_path / "copy").mkdir()
    LAYOUTS[layout](tmp_path / "copy")
    import_from("imagenet32", tmp_path / "copy", tmp_path / "root")
    source = open_imagenet32(tmp_path / "root")
    labelled = layout in ("pickles", "npz batches")
    wanted = PICKLED if labelled else PLAIN
    for split, x in ((source.train, wanted[0]), (source.test, wanted[1])):
        assert isinstance(split.x, np.memmap)
        np.testing.assert_array_equal(split.x, x)
    assert (source.shape, source.levels, source.classes) == ((3, 32, 32), 256, 1000 if labelled else None)
    if labelled:
        np.testing.assert_array_equal(source.train.y, LABELS[0] - 1)
        np.testing.assert_array_equal(source.test.y, LABELS[1] - 1)
    else:
        assert source.train.y is None
    assert ("Downsampled: 23 + 5 images" if labelled else "Small: 21 + 4 images") in source.notes[0]
    assert "No checksum" in source.notes[1]


def test_the_published_counts(monkeypatch):
    monkeypatch.undo()
    counts = {(v.train, v.test) for v in imagenet32.VARIANTS.values()}
    assert counts == {(1_281_167, 50_000), (1_281_149, 49_999)}
    assert "1,281,149 + 49,999" in str(imagenet32.VARIANTS["small"])


def refused(tmp_path, match):
    with pytest.raises(DataError, match=match):
        import_from("imagenet32", tmp_path, tmp_path / "root")
    assert not list((tmp_path / "root").glob("**/*"))


def test_other_counts_are_refused_and_nothing_is_left(tmp_path):
    write_pickles(tmp_path)
    (tmp_path / "Imagenet32_train" / "train_data_batch_10").unlink()
    refused(tmp_path, r"21 \+ 5 images; .* 23 \+ 5 or 21 \+ 4")


@pytest.mark.parametrize("labels", [[0] * 5, [1001] * 5])
def test_labels_out_of_range_are_refused(tmp_path, labels):
    write_pickles(tmp_path)
    (tmp_path / "val_data").write_bytes(pickle.dumps({"data": PICKLED[1].reshape(-1, 3072), "labels": labels}))
    refused(tmp_path, "1 to 1000")


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("layout", "file"),
    [
        ("pickles", "val_data"),
        ("npz batches", "val_data.npz"),
        ("npy", "valid_32x32.npy"),
        ("npz", "valid_32x32.npz"),
        ("png", "valid_32x32/0002.png"),
    ],
)
def test_a_cut_file_is_refused_by_name_and_nothing_is_left(tmp_path, layout, file):
    LAYOUTS[layout](tmp_path)
    cut(tmp_path / file)
    refused(tmp_path, file)


def test_a_damaged_byte_in_an_npz_is_found_by_its_checksum(tmp_path):
    write_npz(tmp_path)
    file = tmp_path / "valid_32x32.npz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.write_bytes(data)
    refused(tmp_path, "damaged or cut short")


def test_wrong_shapes_and_types_are_refused(tmp_path):
    write_npy(tmp_path, lambda x: x[:, :, :16])
    refused(tmp_path, "shape")
    write_npy(tmp_path, lambda x: x.astype(np.float32))
    refused(tmp_path, "float32")


def test_an_image_of_another_size_is_named(tmp_path):
    write_png(tmp_path)
    Image.new("RGB", (16, 20)).save(tmp_path / "train_32x32" / "0003.png")
    refused(tmp_path, r"0003\.png has 16 x 20 pixels")


def test_an_npz_of_two_arrays_is_refused(tmp_path):
    write_npz(tmp_path)
    np.savez(tmp_path / "train_32x32.npz", a=PLAIN[0], b=PLAIN[0])
    refused(tmp_path, "2 arrays")


def test_labels_that_do_not_fit_are_refused(tmp_path):
    write_npz_batches(tmp_path)
    np.savez(tmp_path / "val_data.npz", data=PICKLED[1].reshape(-1, 3072), labels=LABELS[1][:3])
    refused(tmp_path, "one number for each")


def test_nothing_there_is_said_with_the_remedy(tmp_path):
    with pytest.raises(MissingDataError, match="`idensenet data imagenet32 --root"):
        open_imagenet32(tmp_path)
    with pytest.raises(DataError, match="holds no ImageNet32"):
        import_from("imagenet32", tmp_path, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="unpack"):
        import_from("imagenet32", tmp_path / "file", tmp_path)
    with pytest.raises(DataError, match=r"account .* --from"):
        fetch("imagenet32", tmp_path)


def test_a_stored_copy_of_other_shape_is_refused(tmp_path):
    store.save_splits(
        tmp_path / "imagenet32",
        store.Split(np.zeros((23, 3, 8, 8), np.uint8)),
        store.Split(np.zeros((5, 3, 8, 8), np.uint8)),
    )
    with pytest.raises(DataError, match=r"\(3, 8, 8\)"):
        open_imagenet32(tmp_path)
