"""Tables with discrete, nominal, bounded and weighted columns on the command line, from training to samples and scores."""

import csv
import json

import numpy as np
import pytest
import torch

import idensenet as idn
from idensenet.cli import main
from idensenet.training.evaluation import mean_and_error

FAST = ["--train.batch_size", "64", "--train.log_every", "50", "--train.eval_samples", "60", "--output.display", "plain"]
FAST += ["--model.blocks", "[2]", "--model.activation", "clipswish", "--train.max_steps", "60", "--train.lr", "1e-2"]


def table(n=400, seed=0):
    random = np.random.default_rng(seed)
    city = random.choice(["Oslo", "New York, NY", "Bonn"], n, p=[0.5, 0.3, 0.2])
    children = random.poisson(np.where(city == "Oslo", 1, 3))
    x = random.normal(size=n) + 3 * (city == "Bonn")
    return [
        [c, str(k), repr(float(v)), f"{g / 10:.1f}", zip_code, str(w)]
        for c, k, v, g, zip_code, w in zip(
            city, children, x, random.integers(1, 9, n), random.choice(["007", "100"], n), random.integers(1, 4, n), strict=True
        )
    ]


NAMES = ["city", "children", "x", "rate", "zip", "count"]


def write(path, rows, names=NAMES):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return str(path)


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    words = ["train", "toy-idensenet", "--data.table", write(folder / "mine.csv", table()), "--data.weight", "count"]
    words += ["--data.bounds", "{children: [0, null], rate: [0.1, 0.9]}", "--data.categorical", "[city, zip]"]
    assert main([*words, *FAST, "--output.dir", str(folder / "run")]) == 0
    return folder / "run"


def test_the_model_knows_its_columns(run):
    flow = idn.load(run)
    assert flow.columns.names == NAMES[:-1]
    assert [column.kind for column in flow.columns.columns] == ["nominal", "grid", "real", "grid", "nominal"]
    assert (flow.shape, flow.context, flow.integers) == ((3,), 5, (0, 2))
    assert flow.columns.columns[4].categories == ("007", "100")
    assert [list(pair) for pair in flow.config.model.bounds] == [[0.0, None], [None, None], [0.0, 9.0]]
    text = (run / "report.html").read_text()
    assert "p(nominal columns)" in text
    assert "cells of discrete columns" in text
    assert list((run / "pictures").glob("*.png"))


def test_samples_have_the_columns_strings_grids_and_bounds_of_the_table(run, tmp_path):
    assert main(["sample", str(run), "-n", "300", "--out", str(tmp_path / "s.csv")]) == 0
    drawn = read(tmp_path / "s.csv")
    assert list(drawn[0]) == NAMES[:-1]
    assert {row["city"] for row in drawn} == {"Oslo", "New York, NY", "Bonn"}
    assert {row["zip"] for row in drawn} == {"007", "100"}
    assert min(int(row["children"]) for row in drawn) == 0
    assert {row["rate"] for row in drawn} <= {f"0.{i}" for i in range(1, 10)}
    assert len({row["x"] for row in drawn}) == 300
    mean = {city: np.mean([float(row["x"]) for row in drawn if row["city"] == city]) for city in ("Oslo", "Bonn")}
    assert mean["Bonn"] > mean["Oslo"] + 1
    assert main(["score", str(run), "--data.table", str(tmp_path / "s.csv"), "--out", str(tmp_path / "scores.csv")]) == 0
    assert np.isfinite([float(row["log_density"]) for row in read(tmp_path / "scores.csv")]).all()
    assert main(["sample", str(run), "-n", "30", "--out", str(tmp_path / "s.png")]) == 0


def test_scores_and_the_evaluation_count_categories_and_weights(run, tmp_path, capsys):
    rows = table(50, 1)
    new = write(tmp_path / "new.csv", [[row[2], *row] for row in rows], ["more", *NAMES])  # columns go by their names
    assert main(["score", str(run), "--data.table", new, "--out", str(tmp_path / "scores.csv")]) == 0
    found = np.array([float(row["log_density"]) for row in read(tmp_path / "scores.csv")])
    flow = idn.load(run)
    lowest, step = flow.columns.columns[3].grid
    numbers = [[float(k), float(x), round((float(rate) - lowest) / step)] for _, k, x, rate, *_ in rows]
    cities, codes = ["Bonn", "New York, NY", "Oslo"], ["007", "100"]
    context = np.array([[*np.eye(3)[cities.index(row[0])], *np.eye(2)[codes.index(row[4])]] for row in rows])
    with torch.no_grad():
        density = flow.log_prob(torch.tensor(numbers), context=torch.tensor(context, dtype=torch.float32)).double().numpy()
    probability = flow.columns.log_prob(context)
    np.testing.assert_allclose(found, density + probability, atol=1e-4)
    assert np.abs(found - density).min() > 0.3  # the control
    assert main(["evaluate", str(run)]) == 0
    result = json.loads((run / "evaluation.json").read_text())
    assert result["nats"] == pytest.approx(-sum(result["terms"].values()), abs=1e-4)
    assert -2.5 < result["terms"]["categories"] < -1.5
    out = " ".join(capsys.readouterr().out.split())
    assert "Discrete columns, scored by the probability of a value: 'children' (step 1), 'rate' (step 0.1)." in out
    assert "Nominal columns: 'city', 'zip'." in out
    assert main(["reconstruct", str(run), "--out", str(tmp_path / "r.png")]) == 0


def test_the_run_goes_on_is_packed_and_unpacked(run, tmp_path):
    before = idn.load(run).columns
    assert main(["train", "--resume", str(run), "--train.max_steps", "65"]) == 0
    assert idn.load(run).columns == before
    assert main(["pack", str(run), "--out", str(tmp_path / "run.safetensors")]) == 0
    assert main(["unpack", str(tmp_path / "run.safetensors"), "--out", str(tmp_path / "again")]) == 0
    assert idn.load(tmp_path / "again").columns == before


def test_an_unknown_category_has_no_probability(run, tmp_path, capsys):
    rows = table(3, 1)
    rows[1][0], rows[2][3] = "Paris", "0.33"
    words = ["score", str(run), "--data.table", write(tmp_path / "n.csv", rows), "--out", str(tmp_path / "s.csv")]
    assert main(words) == 0
    error = capsys.readouterr().err
    assert "Column 'city' has 'Paris' in row 1, a category that is not known" in error
    assert "Column 'rate' has 0.33 in row 2, off its grid (step 0.1): such values are rounded." in error
    assert [float(row["log_density"]) == -np.inf for row in read(tmp_path / "s.csv")] == [False, True, False]


def test_weights_are_those_of_repeated_rows():
    values, counts = torch.randn(50), torch.randint(1, 4, (50,))
    mean, _ = mean_and_error(values, counts)
    assert mean == pytest.approx(float(values.double().repeat_interleave(counts).mean()))
    assert mean_and_error(values, torch.full((50,), 3.0))[1] == pytest.approx(mean_and_error(values)[1], rel=0.02)
    assert mean != pytest.approx(float(values.mean()), abs=1e-6)  # the control


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--data.categorical", "null"], "has columns that are not numeric: 'city' ('"),
        (["--data.categorical", "[city, town]"], "has no column 'town' to be modelled"),
        (["--data.discrete", "[x]"], "Column 'x' cannot be discrete"),
        (["--data.discrete", "some"], "discrete='some' is not known"),
        (["--data.bounds", "{rate: [0.2, 1]}"], "Column 'rate' has 0.1 in row"),
        (["--data.bounds", "{city: [0, 1]}"], "bounds has 'city', which is nominal"),
        (["--data.weight", "city"], "Column 'city' of "),
        (["--data.context", "[x]"], "cannot be modelled given a context"),
        (["--data.columns", "[city]"], "are nominal, so that there is nothing for a flow"),
    ],
)
def test_columns_that_cannot_be_are_one_sentence_and_exit_2(tmp_path, capsys, words, text):
    mine = write(tmp_path / "mine.csv", table(100))
    assert main(["train", "toy-idensenet", "--data.table", mine, *FAST, "--output.dir", str(tmp_path / "run"), *words]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_real_columns_only_if_that_is_asked_for(tmp_path):
    mine = write(tmp_path / "mine.csv", [row[1:4] for row in table(100)], NAMES[1:4])
    words = ["--data.discrete", "null", "--output.report", "false", "--output.pictures", "false"]
    assert main(["train", "toy-idensenet", "--data.table", mine, *FAST, *words, "--output.dir", str(tmp_path / "run")]) == 0
    flow = idn.load(tmp_path / "run")
    assert flow.integers == ()
    assert flow.columns.plain
    assert main(["sample", str(tmp_path / "run"), "-n", "9", "--out", str(tmp_path / "s.csv")]) == 0
    assert list(read(tmp_path / "s.csv")[0]) == NAMES[1:4]


TEXT = ["12", "7", "12", "007"]
PARQUET = {  # a column next to two of numbers, the option, and the categories that the model finds, or an error
    "digits": (lambda pa: pa.array(TEXT * 20), "auto", ("007", "12", "7")),
    "large": (lambda pa: pa.array(TEXT * 20, pa.large_string()), "auto", ("007", "12", "7")),
    "encoded": (lambda pa: pa.array(TEXT * 20).dictionary_encode(), "auto", ("007", "12", "7")),
    "mixed": (lambda pa: pa.array(["12", "Ulm"] * 40), "auto", ("12", "Ulm")),
    "nan as text": (lambda pa: pa.array(["nan", "1"] * 40), "auto", ("1", "nan")),
    "named": (lambda pa: pa.array(TEXT * 20), "[c]", ("007", "12", "7")),
    "whole numbers": (lambda pa: pa.array([3, 1 << 60] * 40), "[c]", (3, 1 << 60)),
    "infinity": (lambda pa: pa.array([1.0, np.inf] * 40), "[c]", (1.0, np.inf)),
    "booleans": (lambda pa: pa.array([True, False] * 40), "auto", (False, True)),
    "decimals": (lambda pa: pa.array([1.5, -2.25] * 40).cast(pa.decimal128(9, 2)), "auto", None),
    "null": (lambda pa: pa.array(["12", None] * 40), "auto", "Row 2 of {} is empty in column 'c'"),
    "encoded null": (lambda pa: pa.array(["12", None] * 40).dictionary_encode(), "auto", "Row 2 of {} is empty in column 'c'"),
    "null alone": (lambda pa: pa.nulls(80), "auto", "'c' (null)"),
    "no boolean": (lambda pa: pa.array([True, None] * 40), "auto", "Row 2 of {} is empty in column 'c'"),
    "dates": (lambda pa: pa.array([1, 2] * 40, pa.date32()), "auto", "'c' (date32[day])"),
    "named dates": (lambda pa: pa.array([1, 2] * 40, pa.date32()), "[c]", "'c' of {} is date32[day], which cannot be nominal"),
    "named times": (lambda pa: pa.array([1, 2] * 40, pa.timestamp("us")), "[c]", "is timestamp[us], which cannot be nominal"),
    "named decimals": (lambda pa: pa.array([1, 2] * 40).cast(pa.decimal128(19)), "[c]", "is decimal128(19, 0), which cannot"),
    "named lists": (lambda pa: pa.array([[1], [2]] * 40), "[c]", "is list<element: int64>, which cannot be nominal"),
    "named records": (lambda pa: pa.array([{"a": 1}] * 80), "[c]", "is struct<a: int64>, which cannot be nominal"),
    "named bytes": (lambda pa: pa.array([b"a", b"b"] * 40), "[c]", "is binary, which cannot be nominal; write it as text"),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", PARQUET)
def test_the_type_of_a_column_of_parquet_says_what_it_is(tmp_path, capsys, name, streamed):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    make, option, expected = PARQUET[name]
    random = np.random.default_rng(0)
    whole = pa.table({"x": random.normal(size=80), "y": random.normal(size=80), "c": make(pa)})
    path = first = tmp_path / "t.parquet"
    if streamed:
        path, first = tmp_path / "rows", tmp_path / "rows" / "part0.parquet"
        path.mkdir()
    for i in range(2 if streamed else 1):
        part = whole.slice(40 * i, 40) if streamed else whole
        parquet.write_table(part, path / f"part{i}.parquet" if streamed else path, row_group_size=20)
    short = [*FAST, "--train.max_steps", "2", "--model.blocks", "[1]", "--output.report", "false", "--output.pictures", "false"]
    words = ["train", "toy-idensenet", "--data.table", str(path), "--data.categorical", option, *short]
    code = main([*words, "--output.dir", str(tmp_path / "run")])
    error = capsys.readouterr().err
    if isinstance(expected, str):
        assert (code, len(error.strip().splitlines())) == (2, 1)
        assert expected.format(first) in error
        return
    assert code == 0, error
    assert idn.load(tmp_path / "run").columns.columns[2].categories == expected
    out = tmp_path / ("scores" if streamed else "scores.csv")
    assert main(["score", str(tmp_path / "run"), "--data.table", str(path), "--out", str(out)]) == 0
    found = parquet.read_table(out)["log_density"] if streamed else [row["log_density"] for row in read(out)]
    assert np.isfinite(np.array(found, np.float64)).all()
    assert main(["sample", str(tmp_path / "run"), "-n", "20", "--out", str(tmp_path / "s.csv")]) == 0
    if expected is not None:
        assert {row["c"] for row in read(tmp_path / "s.csv")} <= set(map(str, expected))


def test_columns_of_parquet_keep_their_kinds(tmp_path):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    random = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "flag": random.random(200) < 0.3,
            "x": random.normal(size=200),
            "kind": pandas.Categorical(random.choice(["a", "b"], 200)),
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    words = ["--data.table", str(tmp_path / "t.parquet"), "--output.report", "false", "--output.pictures", "false"]
    assert main(["train", "toy-idensenet", *words, *FAST, "--output.dir", str(tmp_path / "run")]) == 0
    assert [column.categories for column in idn.load(tmp_path / "run").columns.columns] == [(False, True), None, ("a", "b")]
    assert main(["sample", str(tmp_path / "run"), "-n", "99", "--out", str(tmp_path / "s.csv")]) == 0
    assert {row["flag"] for row in read(tmp_path / "s.csv")} == {"True", "False"}
    words = ["score", str(tmp_path / "run"), "--data.table", str(tmp_path / "s.csv"), "--out", str(tmp_path / "o.csv")]
    assert main(words) == 0
    assert np.isfinite([float(row["log_density"]) for row in read(tmp_path / "o.csv")]).all()
