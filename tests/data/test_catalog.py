import numpy as np
import pytest
from PIL import Image

from idensenet.data.catalog import NAMES, open_source
from idensenet.data.toy import TOY_SETS
from idensenet.errors import InputError, MissingDataError, OptionError, UnknownNameError


def test_the_names():
    assert (*TOY_SETS, "digits", "mnist", "fashion-mnist", "cifar10", "imagenet32", "folder", "table") == NAMES


@pytest.mark.parametrize("name", TOY_SETS)
def test_toy_sets_stream_and_have_fixed_points(name):
    source = open_source(name)
    assert source.stream is TOY_SETS[name]
    assert (source.name, source.shape, source.levels, source.classes) == (name, (2,), None, None)
    assert source.train.x.shape == (10_000, 2)
    assert source.test.x.shape == (100_000, 2)
    assert source.train.x.dtype == source.test.x.dtype == np.float32
    again = open_source(name, seed=5)
    np.testing.assert_array_equal(source.test.x, again.test.x)
    assert not np.isin(source.train.x[:, 0], source.test.x[:, 0]).all()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "imagenet32"])
def test_what_is_not_on_disk_names_the_command(tmp_path, name):
    with pytest.raises(MissingDataError, match=f"`idensenet data {name} --root {tmp_path}`") as caught:
        open_source(name, root=tmp_path)
    assert isinstance(caught.value, InputError)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="'cifar'; did you mean 'cifar10'"):
        open_source("cifar")


def test_folder_and_table_are_recognised_by_their_option(tmp_path):
    for i in range(3):
        Image.new("L", (9, 9), i).save(tmp_path / f"{i}.png")
    for name in (None, "folder"):
        source = open_source(name, root=tmp_path / "root", folder=str(tmp_path), size=4, channels=1, test_fraction=0.5)
        assert (source.name, source.shape) == ("folder", (1, 4, 4))
    (tmp_path / "t.csv").write_text("a,b,c\n1,2,x\n3,4,y\n")
    for name in (None, "table"):
        source = open_source(name, table=str(tmp_path / "t.csv"), columns=["b", "a"])
        assert (source.name, source.shape, source.columns) == ("table", (2,), ("b", "a"))


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        (None, {}, "No data set"),
        ("folder", {}, "--data.folder"),
        ("table", {}, "--data.table"),
        (None, {"folder": "a", "table": "b"}, "one place"),
        ("moons", {"folder": "a"}, "leave one out"),
        ("folder", {"table": "b"}, "leave one out"),
    ],
)
def test_contradictions_are_refused(name, options, match):
    with pytest.raises(OptionError, match=match):
        open_source(name, **options)
