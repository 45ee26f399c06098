"""Discrete and nominal columns of the estimators: sum rules, each with a control, and tables that come back as they were."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone

import idensenet as idn
from idensenet.errors import DataError, OptionError
from idensenet.sklearn import FlowClassifier, FlowDensity, FlowOutlierDetector

pandas = pytest.importorskip("pandas")
pytestmark = pytest.mark.filterwarnings("ignore:Discrete columns were found", "ignore::sklearn.exceptions.ConvergenceWarning")
SHORT = {"max_iter": 20, "blocks": 2, "growth": 8, "folds": 1, "random_state": 0}


def frame(n=300, seed=0):
    random = np.random.default_rng(seed)
    city = random.choice(["Oslo", "Rome", "Bonn"], n, p=[0.5, 0.3, 0.2])
    return pandas.DataFrame(
        {
            "city": city,
            "children": random.poisson(np.where(city == "Oslo", 1, 3)),
            "x": (random.normal(size=n) + 3 * (city == "Rome")).astype(np.float32),
            "member": random.random(n) < 0.3,
            "size": pandas.Categorical(random.choice(list("SM"), n), categories=list("SMX"), ordered=True),
        }
    )


@pytest.fixture(scope="module")
def mixed():
    return FlowDensity(**SHORT, bounds={"children": (0, None)}).fit(frame())


# Sum rules


def test_probabilities_of_a_discrete_column_add_up_to_one():
    X = np.random.default_rng(0).poisson(3, (300, 1)) / 2
    everything = np.arange(-10, 20, 0.5)[:, None]
    with pytest.warns(UserWarning, match=r"Discrete columns were found.*'0' \(step 0.5\).*discrete=None"):
        model = FlowDensity(**SHORT).fit(X)
    assert np.exp(model.score_samples(everything)).sum() == pytest.approx(1, abs=2e-3)
    density = FlowDensity(**SHORT, discrete=None).fit(X)  # the control: densities at the same places
    assert np.exp(density.score_samples(everything)).sum() > 1.5


def test_two_discrete_columns_add_up_to_one_and_follow_the_data():
    random = np.random.default_rng(0)
    first = random.poisson(2, 400)
    X = np.column_stack([first, first + random.integers(0, 2, 400)])
    model = FlowDensity(**{**SHORT, "max_iter": 60}, bounds={0: (0, None)}).fit(X)
    cells = np.stack(np.meshgrid(np.arange(0, 16), np.arange(-6, 20), indexing="ij"), -1).reshape(-1, 2)
    mass = np.exp(model.score_samples(cells))
    assert mass.sum() == pytest.approx(1, abs=0.01)
    assert mass[(cells[:, 1] - cells[:, 0] == 0) | (cells[:, 1] - cells[:, 0] == 1)].sum() > 0.6
    assert np.isneginf(model.score_samples([[-1, 0]]))


def test_categories_times_the_density_given_them_is_the_score(mixed):
    table = frame(40, 1)
    x = torch.tensor(np.column_stack([table["children"] - frame()["children"].min(), table["x"]]), dtype=torch.float64)
    names = [["Bonn", "Oslo", "Rome"], [False, True], ["S", "M", "X"]]
    codes = np.stack([[each.index(v) for v in table[c]] for c, each in zip(["city", "member", "size"], names, strict=True)], 1)
    context = np.concatenate([np.eye(len(each))[codes[:, j]] for j, each in enumerate(names)], 1)
    with torch.no_grad():
        density = mixed.flow_.log_prob(x, context=torch.from_numpy(context)).numpy()
    training = frame()
    seen = np.stack(
        [[each.index(v) for v in training[c]] for c, each in zip(["city", "member", "size"], names, strict=True)], 1
    )
    different = len({tuple(row) for row in seen})
    independent = np.prod(
        [[((seen[:, j] == k).sum() + 0.5) / (300 + len(each) / 2) for k in codes[:, j]] for j, each in enumerate(names)], axis=0
    )
    counts = np.array([(seen == row).all(1).sum() for row in codes])
    probability = np.log((counts + different * independent) / (300 + different))
    np.testing.assert_allclose(mixed.score_samples(table), probability + density, rtol=0, atol=1e-9)
    assert np.abs(mixed.score_samples(table) - density).min() > 0.5  # the control


def test_a_mixed_table_adds_up_to_one(mixed):
    side = np.linspace(-6, 9, 31)
    levels = [["Bonn", "Oslo", "Rome"], [False, True], ["S", "M", "X"]]
    table = pandas.MultiIndex.from_product([levels[0], np.arange(0, 13), side, levels[1], levels[2]]).to_frame(index=False)
    table.columns = ["city", "children", "x", "member", "size"]
    mixed.flow_.points = 4
    total = np.exp(mixed.score_samples(table)).sum() * (side[1] - side[0])
    mixed.flow_.points = type(mixed.flow_).points
    assert total == pytest.approx(1, abs=0.01)


def test_a_row_of_weight_two_is_two_equal_rows():
    table, weight = frame()[["city", "member"]], np.random.default_rng(0).integers(1, 4, 300)
    doubled = FlowDensity().fit(table.loc[table.index.repeat(weight)])
    weighted = FlowDensity().fit(table, sample_weight=weight)
    np.testing.assert_allclose(weighted.score_samples(table), doubled.score_samples(table), rtol=1e-12)
    assert np.abs(FlowDensity().fit(table).score_samples(table) - doubled.score_samples(table)).max() > 1e-3


# Tables that come back as they were


def test_samples_have_the_columns_types_strings_grid_and_bounds_of_the_table(mixed):
    table, drawn = frame(), mixed.sample(500, random_state=0)
    assert list(drawn.columns) == list(table.columns)
    assert drawn.dtypes.equals(table.dtypes)
    assert drawn["size"].cat.ordered
    assert set(drawn["city"]) == {"Oslo", "Rome", "Bonn"}
    assert drawn["children"].min() == 0
    assert np.isfinite(mixed.score_samples(drawn)).all()
    for value in ("Oslo", "Rome", "Bonn"):
        share = (table["city"] == value).mean()
        assert (drawn["city"] == value).mean() == pytest.approx(share, abs=4 * (share * (1 - share) / 500) ** 0.5 + 0.02)
    assert drawn["x"][drawn["city"] == "Rome"].mean() > drawn["x"][drawn["city"] == "Oslo"].mean() + 1
    pandas.testing.assert_frame_equal(mixed.sample(5, random_state=1), mixed.sample(5, random_state=1))
    with pytest.warns(UserWarning, match="'children'"):
        free = FlowDensity(**SHORT).fit(table)
    assert free.sample(500, random_state=0)["children"].min() < 0  # the control: nobody said that there is a bound


def test_arrays_come_back_as_arrays_with_values_on_their_grid():
    random = np.random.default_rng(0)
    X = np.column_stack([random.integers(0, 30, 300) / 10, random.normal(size=300)])
    drawn = FlowDensity(**SHORT).fit(X).sample(200, random_state=0)
    assert drawn.dtype == np.float64
    assert (drawn[:, 0] == np.round(drawn[:, 0], 1)).all()
    assert len(np.unique(drawn[:, 1])) == 200
    plain = FlowDensity(**SHORT, discrete=None).fit(X).sample(200, random_state=0)
    assert len(np.unique(plain[:, 0])) == 200
    strings = np.column_stack([X.astype(object), random.choice(["a", "b"], 300)])
    model = FlowDensity(**SHORT, categorical=[2], discrete=None).fit(strings)
    assert set(model.sample(50, random_state=0)[:, 2]) == {"a", "b"}
    assert np.isfinite(model.score_samples(strings[:3])).all()
    with pytest.raises(DataError, match=r"Column '2' of X has 'b' in row 0, .* name the column in categorical"):
        FlowDensity(**SHORT).fit(strings[strings[:, 2] == "b"])


def test_a_table_of_nominal_columns_needs_no_flow():
    table = frame()[["city", "member"]]
    model = FlowDensity().fit(table)
    everything = pandas.DataFrame([(city, member) for city in ("Oslo", "Rome", "Bonn") for member in (True, False)])
    everything.columns = table.columns
    assert np.exp(model.score_samples(everything)).sum() == pytest.approx(1, abs=1e-12)
    assert model.sample(20).dtypes.equals(table.dtypes)
    assert model.flow_ is None
    detector = FlowOutlierDetector(contamination=0.2).fit(table)
    assert 0.05 < (detector.predict(table) == -1).mean() < 0.35
    with pytest.raises(DataError, match="a classifier reads numbers"):
        FlowClassifier().fit(table, table["city"])


def test_it_is_pickled_cloned_and_saved(mixed, tmp_path):
    table = frame(20, 1)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(mixed)).score_samples(table), mixed.score_samples(table))
    again = clone(mixed).fit(frame())
    np.testing.assert_array_equal(again.score_samples(table), mixed.score_samples(table))
    assert not hasattr(clone(mixed), "flow_")
    idn.save(mixed.flow_, tmp_path / "model")
    assert idn.load(tmp_path / "model").columns == mixed.columns_


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "columns.md").read_text()
    names = {}
    exec(text.split("```python")[1].split("```")[0].replace("max_iter=100", "max_iter=10"), names)
    assert names["density"].columns_.in_words("grid") == "'children' (step 1), 'height' (step 1)"
    assert names["density"].columns_.in_words("nominal") == "'city'"


# What cannot be


def test_values_that_fit_did_not_see_are_named(mixed):
    table = frame(5, 1)
    with pytest.warns(UserWarning, match="Column 'city' has 'Paris' in row 2, a category that is not known"):
        scores = mixed.score_samples(table.assign(city=["Oslo", "Rome", "Paris", "Oslo", "Bonn"]))
    assert np.isneginf(scores).tolist() == [False, False, True, False, False]
    with pytest.warns(
        UserWarning, match=r"Column 'children' has 1.5 in row 1, off its grid \(step 1\): such values are rounded"
    ):
        found = mixed.score_samples(table.assign(children=[0, 1.5, 2, 3, 4]))
    np.testing.assert_array_equal(found, mixed.score_samples(table.assign(children=[0, 2, 2, 3, 4])))


def test_errors_name_the_column():
    table = frame()
    broken = table.assign(x=[*table["x"][:-1], np.nan])
    for bad, options, text in (
        (table, {"categorical": None}, "Column 'city' of X has 'Rome' in row 0, .* name the column in categorical"),
        (broken, {}, "Column 'x' of X has NaN in row 299"),
        (table.assign(city=[None, *table["city"][1:]]), {}, "Column 'city' of X has no value in row 0"),
        (table, {"discrete": ["x"]}, "Column 'x' cannot be discrete"),
        (table, {"discrete": ["city"]}, "Column 'city' is both discrete and categorical"),
        (table, {"categorical": "all"}, "categorical='all' is not known"),
        (table[["x"]].to_numpy(), {"categorical": "all"}, "categorical='all' is not known"),
        (table, {"bounds": {"children": (1, None)}}, "Column 'children' has 0 in row .*, which is not within its bounds"),
        (table.assign(same=1.0), {}, "Column 'same' is constant"),
        (table.assign(same=1.0), {"discrete": ["same"]}, "Column 'same' is constant"),
        (table.assign(day=pandas.Timestamp("2020-01-01")), {}, "Column 'day' holds dates or times"),
    ):
        with pytest.raises((DataError, OptionError), match=text):
            FlowDensity(**SHORT, **options).fit(bad)
    with pytest.raises(OptionError, match="Nominal columns \\('city', 'member', 'size'\\) cannot be modelled given a context"):
        FlowDensity(**SHORT).fit(table, context=table[["x"]])


def test_a_warm_start_keeps_the_columns_of_the_first_fit():
    table = frame()[["city", "children", "x"]]
    model = FlowDensity(**SHORT, warm_start=True, early_stopping=False).fit(table)
    before = model.columns_
    model.fit(table[table["children"] > 0])
    assert [column.grid for column in model.columns_.columns] == [column.grid for column in before.columns]
    with pytest.raises(OptionError, match="columns must stay the same"):
        model.fit(table.assign(city="Paris"))


# Outliers and classes


def test_the_threshold_of_outliers_counts_categories_too():
    table = frame(600)
    model = FlowOutlierDetector(**SHORT, contamination=0.1).fit(table)
    assert (model.predict(frame(2000, 1)) == -1).mean() == pytest.approx(0.1, abs=4 * (0.09 / 90) ** 0.5)
    blind = model.offset_ + 2.0  # the control: what log p(c) takes away
    assert (model.score_samples(frame(2000, 1)) < blind).mean() > 0.3


def test_a_classifier_reads_categories():
    table = frame(400)[["city", "x", "children"]]
    y = np.where(table["city"] == "Oslo", "north", "south")
    model = FlowClassifier(**{**SHORT, "max_iter": 100}).fit(table[:300], y[:300])
    assert (model.predict(table[300:]) == y[300:]).mean() > 0.95
    np.testing.assert_allclose(model.predict_proba(table[300:]).sum(1), 1, atol=1e-9)
    blind = FlowClassifier(**{**SHORT, "max_iter": 100}).fit(table[:300][["x", "children"]], y[:300])
    assert (blind.predict(table[300:][["x", "children"]]) == y[300:]).mean() < 0.95  # the control
    assert np.isfinite(model.score_samples(table)).all()
