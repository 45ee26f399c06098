"""Tables that cannot be modelled, on the command line: one sentence before anything is trained or written."""

import json

import numpy as np
import pytest

from idensenet.cli import main

ROWS = np.random.default_rng(0).normal(size=(200, 2))


def train(folder, rows, names, *words):
    np.savetxt(folder / "mine.csv", rows, delimiter=",", header=names, comments="", fmt="%.17g")
    fast = ["--model.blocks", "[1]", "--train.max_steps", "2", "--output.display", "quiet", "--output.dir", str(folder / "run")]
    return main(["train", "toy-idensenet", "--data.table", str(folder / "mine.csv"), *fast, *words])


@pytest.mark.parametrize(
    ("rows", "words", "text"),
    [
        (np.column_stack([ROWS, np.full(200, 5.0)]), [], "Column 'c' is constant (5)"),
        (np.column_stack([ROWS, ROWS[:, 0]]), [], "Columns 'a', 'c' determine each other"),
        (np.column_stack([ROWS, ROWS[:, 0]]), ["--data.columns", "[a,a]"], "Column 'a' is named twice"),
        (np.column_stack([ROWS, ROWS[:, 0]]), ["--data.context", "[b,b]"], "Column 'b' is named twice"),
    ],
)
def test_a_table_without_a_density_is_not_trained_on(tmp_path, capsys, rows, words, text):
    assert train(tmp_path, rows, "a,b,c", *words) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_copy_in_float32_is_one_too(tmp_path, capsys):
    np.save(tmp_path / "t.npy", np.column_stack([ROWS, 3 * ROWS[:, 0] - ROWS[:, 1]]).astype(np.float32))
    assert main(["train", "toy-idensenet", "--data.table", str(tmp_path / "t.npy"), "--output.dir", str(tmp_path / "run")]) == 2
    assert "Columns 'x0', 'x1', 'x2' determine each other" in capsys.readouterr().err


TIMES = np.column_stack([1.7e9 + 20 + 10 * ROWS[:, 0], ROWS[:, 1]])
ENTROPY = np.log(2 * np.pi * np.e) + np.log(10)


@pytest.mark.parametrize("words", [[], ["--data.context", "[t]"]])
def test_a_column_that_rounding_would_change_is_named(tmp_path, capsys, words):
    assert train(tmp_path, TIMES, "t,a", *words) == 2
    error = capsys.readouterr().err
    assert "Column 't' (mean 1.7e+09, deviation " in error
    assert "--train.precision 64-true" in error
    assert not (tmp_path / "run").exists()


def test_its_density_and_samples_are_right_in_float64(tmp_path):
    assert train(tmp_path, TIMES, "t,a", "--train.precision", "64-true") == 0
    run = str(tmp_path / "run")
    assert main(["evaluate", run]) == 0
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["nats"] == pytest.approx(ENTROPY, abs=1)
    assert main(["sample", run, "-n", "300", "--out", str(tmp_path / "s.csv")]) == 0
    drawn = np.loadtxt(tmp_path / "s.csv", delimiter=",", skiprows=1)[:, 0] - 1.7e9
    assert drawn.std() == pytest.approx(10, rel=0.5)
    assert len(np.unique(drawn)) == 300


@pytest.mark.parametrize("display", ["plain", "quiet"])
def test_a_mixture_is_announced_before_it_is_fitted(tmp_path, capsys, display):
    assert train(tmp_path, ROWS, "a,b", "--model.components", "3", "--output.display", display) == 0
    assert ("fitting 3 Gaussians to 180 rows\n" in capsys.readouterr().out) == (display == "plain")
