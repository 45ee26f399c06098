"""What columns are taken for, probabilities of categories, and the way to numbers and back."""

import itertools
import json

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris

from idensenet.columns import Column, Columns
from idensenet.columns.categories import Categories
from idensenet.columns.grids import Grid, grid_of, tied_grid
from idensenet.errors import DataError, OptionError

RANDOM = np.random.default_rng(0)


def numeric(x, discrete="auto"):
    return Columns(tuple(Column(f"c{i}") for i in range(x.shape[1]))).discrete_of(x, discrete)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        (RANDOM.poisson(3, 300), 1),
        (RANDOM.poisson(3, 300) / 10, 0.1),
        (RANDOM.integers(0, 9, 300) * 0.25 - 7, 0.25),
        (np.array([0, 2, 5] * 9), 1),  # the smallest gap is two steps
        (np.array([0, 1] * 9), 1),
        (1_700_000_000 + 60 * RANDOM.integers(0, 90, 300), 60),
        ((RANDOM.integers(0, 90, 300) - 43.21) / 17.3, 1 / 17.3),  # standardised
        ((RANDOM.integers(0, 900, 3000) / 10).astype(np.float32), 0.1),
        (np.concatenate([np.arange(5) * 0.1, np.arange(5) / 10] * 9), 0.1),  # 0.30000000000000004 is 0.3
    ],
)
def test_a_grid_is_found_with_its_step_and_gives_its_values_back(values, step):
    values = values.astype(np.float64)
    grid = tied_grid(values)
    assert grid is not None
    assert grid.step == pytest.approx(step, rel=1e-6)
    numbers = grid.numbers(values)
    assert (numbers == np.round(numbers)).all()
    assert numbers.min() == 0
    np.testing.assert_allclose(grid.values(numbers), values, rtol=1e-7, atol=1e-12)
    assert not grid.off(values).any()
    assert grid.off(values + step / 3).all()


@pytest.mark.parametrize(
    "values",
    [
        RANDOM.normal(size=300),
        RANDOM.normal(size=300).astype(np.float32),
        RANDOM.normal(size=300).round(4),  # rounded, and no two are equal
        np.repeat(RANDOM.normal(size=30), 10),  # equal, and on no grid
        np.repeat([0, 1, 2**0.5], 10),
        np.concatenate([np.zeros(200), RANDOM.normal(size=100)]),
        np.full(300, 5.0),
    ],
)
def test_other_columns_are_left_as_they_are(values):
    assert tied_grid(values.astype(np.float64)) is None


def test_the_last_digits_of_values_are_those_of_the_table():
    assert grid_of(np.array([4.3, 4.4, 5.1])).values(np.arange(20.0)).tolist() == [round(4.3 + i / 10, 1) for i in range(20)]
    assert 4.3 + 0.1 != 4.4  # the control


def test_iris_is_on_a_grid_of_a_tenth_and_breast_cancer_has_too_few_equal_values():
    assert [column.grid.step for column in numeric(load_iris().data).columns] == [0.1] * 4
    assert numeric(load_breast_cancer().data).of("grid") == []


def test_discrete_columns_are_named_by_the_user():
    x = np.column_stack([RANDOM.poisson(3, 60), RANDOM.normal(size=60), RANDOM.normal(size=60).round(3)])
    assert numeric(x).of("grid") == [0]
    assert numeric(x, ["c2"]).of("grid") == [2]
    assert numeric(x, [0, 2]).integers == (0, 2)
    assert numeric(x, None).plain
    with pytest.raises(DataError, match="Column 'c1' cannot be discrete: its 60 different values have no step in common"):
        numeric(x, ["c1"])
    with pytest.raises(OptionError, match="discrete has 'c9', which is no column"):
        numeric(x, ["c9"])
    with pytest.raises(OptionError, match="discrete='yes' is not known"):
        numeric(x, "yes")


# Categories


def codes(n=200):
    return np.stack([RANDOM.integers(0, 3, n), RANDOM.integers(0, 2, n), RANDOM.choice(4, n, p=[0.9, 0.05, 0.05, 0])], 1)


def test_probabilities_of_all_combinations_add_up_to_one_seen_or_not():
    rows = codes()
    everything = np.array(list(itertools.product(range(3), range(2), range(5))))
    table = Categories.fit(rows, [3, 2, 5])
    found = np.exp(table.log_prob(everything))
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert (found > 0).all()
    left_out = np.exp(table.log_prob(rows, left_out=1.0))
    assert (left_out < np.exp(table.log_prob(rows))).all()
    shares = np.array([(rows == each).all(1).mean() for each in everything])
    assert np.abs(found - shares).max() < 0.06
    assert shares.min() == 0  # the control: shares alone have zeros
    assert np.isneginf(table.log_prob(np.array([[0, -1, 0], [-1, 0, 0]]))).all()


def test_the_probability_of_a_row_is_the_formula():
    table = Categories.fit(np.array([[0, 0], [0, 0], [1, 1], [1, 0]]), [2, 3])
    independent = (2.5 / 5) * (3.5 / 5.5), (2.5 / 5) * (0.5 / 5.5)
    right = (2 + 3 * independent[0]) / 7, 3 * independent[1] / 7
    np.testing.assert_allclose(np.exp(table.log_prob(np.array([[0, 0], [0, 2]]))), right, rtol=1e-12)


def test_a_row_of_weight_two_is_two_equal_rows_and_small_weights_lose_nothing():
    rows, weight = codes(40), RANDOM.integers(1, 4, 40)
    doubled, weighted = Categories.fit(np.repeat(rows, weight, 0), [3, 2, 5]), Categories.fit(rows, [3, 2, 5], weight)
    np.testing.assert_allclose(weighted.log_prob(rows), doubled.log_prob(rows), rtol=1e-12)
    assert np.abs(Categories.fit(rows, [3, 2, 5]).log_prob(rows) - doubled.log_prob(rows)).max() > 0.01  # the control
    same = Categories.fit(rows, [3, 2, 5], np.full(40, 1e-3))
    np.testing.assert_allclose(same.log_prob(rows), Categories.fit(rows, [3, 2, 5]).log_prob(rows), rtol=1e-12)


def test_samples_are_as_frequent_as_their_probability():
    table = Categories.fit(codes(50), [3, 2, 5])
    drawn = table.sample(40_000, np.random.default_rng(0))
    everything = np.array(list(itertools.product(range(3), range(2), range(5))))
    right = np.exp(table.log_prob(everything))
    share = np.array([(drawn == each).all(1).mean() for each in everything])
    error = np.sqrt(right * (1 - right) / 40_000)
    assert (np.abs(share - right) < 4 * error).all()
    independent = np.prod([p[everything[:, j]] for j, p in enumerate(table.marginals)], axis=0)
    assert (np.abs(share - independent) > 4 * error).any()  # the control


def test_one_hot_and_plain_data_go_there_and_back():
    rows = np.array([[0, 1, 3], [2, 0, -1]])
    table = Categories.fit(codes(), [3, 2, 5])
    assert table.one_hot(rows)[1].tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    np.testing.assert_array_equal(table.codes(table.one_hot(rows)), rows)
    assert Categories.from_dict(json.loads(json.dumps(table.as_dict()))) == table


# A whole table


TABLE = [
    np.array(["Oslo", "Rome", "Oslo", "Bonn"] * 10, object),
    np.array([4.3, 5.1, 4.9, 4.3] * 10),
    RANDOM.normal(size=40),
    np.array([True, False] * 20),
]
NAMES = ["city", "length", "x", "flag"]


def found(categorical="auto", discrete="auto"):
    first = Columns.nominal_of(TABLE, NAMES, ["object", "float64", "float64", "bool"], categorical)
    x = np.stack([first.coded(c, i) if i in first.of("nominal") else c.astype(float) for i, c in enumerate(TABLE)], 1)
    return first.discrete_of(x, discrete).counted(x), x


def test_a_table_goes_to_numbers_and_back():
    columns, x = found()
    assert [column.kind for column in columns.columns] == ["nominal", "grid", "real", "nominal"]
    assert columns.columns[0].categories == ("Bonn", "Oslo", "Rome")
    assert columns.integers == (0,)
    assert columns.in_words("grid") == "'length' (step 0.2)"
    numbers, given = columns.numbers(x), columns.one_hot(x)
    assert numbers[:2, 0].tolist() == [0, 4]
    for back, column in zip(columns.values(numbers, given), TABLE, strict=True):
        assert back.tolist() == column.tolist()
    assert Columns.from_dict(json.loads(json.dumps(columns.as_dict()))) == columns
    other = x.copy()
    other[3, 0], other[2, 1] = -1, 4.4
    assert columns.unknown(x) == {}
    assert columns.unknown(other) == {0: 3, 1: 2}
    assert np.isneginf(columns.log_prob(columns.one_hot(other))).tolist() == [False, False, False, True] + [False] * 36


def test_bounds_of_a_grid_are_values_and_others_lie_between():
    columns, x = found()
    assert columns.bounds(x, {}) == ()
    assert columns.bounds(x, {"length": (4.1, None), "x": (-9, 9)}) == ((-1.0, None), (-9, 9))
    assert columns.bounds(x, {1: (4.3, 5.1)}) == ((0.0, 5.0), (None, None))
    for bounds, text in (
        ({"city": (0, 1)}, "'city', which is nominal"),
        ({"length": (4.5, 9)}, "Column 'length' has 4.3 in row 0, which is not within its bounds"),
        ({"y": (0, 1)}, "bounds has 'y', which is no column"),
    ):
        with pytest.raises((OptionError, DataError), match=text):
            columns.bounds(x, bounds)


def test_nominal_columns_are_named_and_missing_or_unique_values_are_errors():
    assert Columns.nominal_of(TABLE, NAMES, ["object"] * 4, ["length", 3]).of("nominal") == [1, 3]
    assert Columns.nominal_of(TABLE, NAMES, ["object"] * 4, None).of("nominal") == []
    with pytest.raises(DataError, match="Column 'city' of X has no value in row 1"):
        Columns.nominal_of([np.array(["a", None], object)], ["city"], ["object"], "auto")
    with pytest.raises(DataError, match="Column 'name' has 40 different values in 40 rows, such as 'n0'"):
        Columns.nominal_of([np.array([f"n{i}" for i in range(40)], object)], ["name"], ["object"], "auto")
    with pytest.raises(DataError, match="Column 'day' holds dates"):
        Columns.nominal_of([np.array(["2020-01-01"], "M8[D]")], ["day"], ["M8"], "auto")
    with pytest.raises(OptionError, match="both discrete and categorical"):
        found(["city", "length", "flag"], ["length"])


def test_a_grid_is_two_numbers():
    assert Grid(0.5, 0.25).numbers(np.array([0.5, 1.0, 1.1])).tolist() == [0, 2, 2]
