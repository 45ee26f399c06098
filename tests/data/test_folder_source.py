import os

import numpy as np
import pytest
from PIL import Image

from idensenet.data import folder as module
from idensenet.data.folder import load_image, open_folder
from idensenet.errors import DataError, MissingDataError, OptionError


def noise(width, height, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    (folder / "deeper" / "down").mkdir(parents=True)
    for i in range(10):
        noise(20 + i, 30 - i, i).save(folder / f"{i}.png")
    noise(9, 9, 10).save(folder / "deeper" / "a.JPG")
    noise(50, 9, 11).save(folder / "deeper" / "down" / "b.jpeg")
    noise(9, 50, 12).save(folder / "c.bmp")
    noise(16, 16, 13).save(folder / "d.webp")
    (folder / "notes.txt").write_text("not an image")
    (folder / "._0.png").write_text("not an image either")
    return folder


def test_all_kinds_are_found_and_divided(tmp_path, images):
    source = open_folder(images, tmp_path / "root", size=8, split="position")
    assert (source.name, source.shape, source.levels, source.classes) == ("folder", (3, 8, 8), 256, None)
    assert source.train.x.shape == (13, 3, 8, 8)
    assert source.test.x.shape == (1, 3, 8, 8)
    assert isinstance(source.train.x, np.memmap)
    assert "14 files" in source.notes[0]
    both = np.concatenate([source.train.x, source.test.x])
    files = [f for f in images.rglob("*") if f.suffix.lower() in module.ENDINGS and f.name != "._0.png"]
    assert sorted(map(bytes, both)) == sorted(load_image(f, 8, 3).tobytes() for f in files)


def test_grey_images(tmp_path, images):
    assert open_folder(images, tmp_path, size=4, channels=1, split="position").train.x.shape == (13, 1, 4, 4)


def test_the_central_square_is_kept(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = [200, 100, 50]
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    Image.fromarray(pixels.transpose(1, 0, 2)).save(tmp_path / "tall.png")
    for name in ("wide", "tall"):
        assert (load_image(tmp_path / f"{name}.png", 5, 3) == np.array([200, 100, 50])[:, None, None]).all()


def test_an_image_of_the_right_size_is_left_as_it_is(tmp_path):
    noise(8, 8, 0).save(tmp_path / "a.png")
    np.testing.assert_array_equal(load_image(tmp_path / "a.png", 8, 3), np.asarray(noise(8, 8, 0)).transpose(2, 0, 1))


def test_a_camera_held_sideways(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    assert load_image(tmp_path / "a.png", 8, 1)[0, 0].tolist() == [0, 0, 0, 0, 255, 255, 255, 255]


def test_sixteen_bits_are_scaled_and_palettes_resolved(tmp_path):
    Image.fromarray(np.full((8, 8), 128 * 256, np.uint16)).save(tmp_path / "deep.png")
    assert (load_image(tmp_path / "deep.png", 8, 1) == 128).all()
    Image.new("RGB", (8, 8), (10, 20, 30)).convert("P").save(tmp_path / "palette.png")
    Image.new("RGBA", (8, 8), (10, 20, 30, 40)).save(tmp_path / "alpha.png")
    assert load_image(tmp_path / "alpha.png", 2, 3)[:, 0, 0].tolist() == [10, 20, 30]
    assert load_image(tmp_path / "palette.png", 2, 3).shape == (3, 2, 2)


def test_images_are_converted_once(tmp_path, images, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "load_image", lambda *args: calls.append(args) or load_image(*args))
    first = open_folder(images, tmp_path, size=8)
    again = open_folder(images, tmp_path, size=8)
    assert len(calls) == 14
    np.testing.assert_array_equal(first.test.x, again.test.x)


@pytest.mark.parametrize("change", ["time", "new", "gone", "size", "channels", "seed"])
def test_a_change_converts_them_again(tmp_path, images, change):
    open_folder(images, tmp_path, size=8)
    options = {"size": 8}
    if change == "time":
        os.utime(images / "0.png", (1, 1))
    elif change == "new":
        noise(9, 9, 99).save(images / "new.png")
    elif change == "gone":
        (images / "0.png").unlink()
    else:
        options |= {"size": {"size": 6}, "channels": {"channels": 1}, "seed": {"seed": 1}}[change]
    open_folder(images, tmp_path, **options)
    assert len(list((tmp_path / "folder-cache").iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n", b"plain text"])
def test_a_broken_image_is_named_and_nothing_is_left(tmp_path, images, content):
    (images / "broken.png").write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.png cannot be read"):
        open_folder(images, tmp_path, size=8)
    assert not list((tmp_path / "folder-cache").iterdir())


@pytest.mark.parametrize("name", ["0.png", "deeper/a.JPG", "c.bmp", "d.webp"])
def test_a_cut_image_is_named(tmp_path, images, name):
    data = (images / name).read_bytes()
    (images / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=name):
        open_folder(images, tmp_path, size=8)


def test_an_image_that_would_fill_the_memory_is_named(tmp_path, images, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match="cannot be read"):
        open_folder(images, tmp_path, size=8)


def test_bad_options_and_folders(tmp_path, images):
    with pytest.raises(OptionError, match="channels is 2"):
        open_folder(images, tmp_path, channels=2)
    with pytest.raises(OptionError, match="size is 0"):
        open_folder(images, tmp_path, size=0)
    with pytest.raises(MissingDataError, match="no folder"):
        open_folder(tmp_path / "absent", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has 0 images"):
        open_folder(tmp_path / "empty", tmp_path)


def test_a_new_image_moves_no_other_from_one_part_to_the_other(tmp_path, images):
    before = open_folder(images, tmp_path, size=8)
    noise(9, 9, 20).save(images / "0000.png")
    after = open_folder(images, tmp_path, size=8, split_at=before.split_at)
    new = load_image(images / "0000.png", 8, 3).tobytes()
    for part in ("train", "test"):
        assert set(map(bytes, getattr(after, part).x)) - {new} == set(map(bytes, getattr(before, part).x))
    assert len(after.train) + len(after.test) == 15
    assert sorted(after.places.tolist()) == list(range(15))


@pytest.mark.filterwarnings("ignore:Image size")
def test_an_image_of_many_pixels_is_refused_before_it_is_decoded(tmp_path):
    (tmp_path / "images").mkdir()
    noise(8, 8, 0).save(tmp_path / "images" / "a.png")
    Image.new("1", (13_000, 13_000)).save(tmp_path / "images" / "b.png")
    with pytest.raises(DataError, match=r"b\.png has 13,000 x 13,000 pixels; at most 80 million"):
        open_folder(tmp_path / "images", tmp_path, size=8)
