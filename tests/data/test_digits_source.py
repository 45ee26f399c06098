import numpy as np
import pytest

from idensenet.data.digits import open_digits
from idensenet.data.shuffle import shuffled, split_rows, stratified_rows
from idensenet.errors import DataError, OptionError


def test_shapes_levels_and_classes():
    source = open_digits()
    assert source.train.x.shape == (1437, 1, 8, 8)
    assert source.test.x.shape == (360, 1, 8, 8)
    assert source.train.x.dtype == np.uint8
    assert (source.train.x.min(), source.train.x.max()) == (0, 16)
    assert (source.shape, source.levels, source.classes) == ((1, 8, 8), 17, 10)


def test_every_image_is_in_one_part_only():
    from sklearn.datasets import load_digits

    source = open_digits()
    both = np.concatenate([source.train.x, source.test.x]).reshape(1797, 64)
    original = load_digits().data.astype(np.uint8)
    assert sorted(map(bytes, both)) == sorted(map(bytes, original))


def test_every_digit_has_its_share():
    source = open_digits()
    train, test = np.bincount(source.train.y), np.bincount(source.test.y)
    assert np.abs(test - (train + test) * 360 / 1797).max() < 1


def test_the_split_is_fixed():
    assert open_digits().test.y[:12].tolist() == open_digits().test.y[:12].tolist()
    rows = stratified_rows(np.arange(20) % 2, 4, seed=0)[1]
    assert rows.tolist() == stratified_rows(np.arange(20) % 2, 4, seed=0)[1].tolist()
    assert rows.tolist() != stratified_rows(np.arange(20) % 2, 4, seed=5)[1].tolist()


def test_the_order_does_not_depend_on_library_versions():
    assert shuffled(8, seed=3).tolist() == [5, 2, 1, 7, 3, 4, 6, 0]


def test_rows_are_divided_without_overlap():
    train, test = split_rows(101, 0.25, seed=7)
    assert len(test) == 25
    assert sorted([*train, *test]) == list(range(101))


@pytest.mark.parametrize("n", [0, 1])
def test_too_few_samples_are_refused(n):
    with pytest.raises(DataError, match="at least 2"):
        split_rows(n, 0.1, 0)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1, 2])
def test_an_impossible_fraction_is_refused(fraction):
    with pytest.raises(OptionError, match="between 0 and 1"):
        split_rows(10, fraction, 0)


def test_neither_part_is_ever_empty():
    assert [len(part) for part in split_rows(2, 0.01, 0)] == [1, 1]
    assert [len(part) for part in split_rows(2, 0.99, 0)] == [1, 1]
