"""A conditional model on the command line: columns of a table that are given, from training to samples and scores."""

import csv
import json

import numpy as np
import pytest
import torch

import idensenet as idn
from idensenet.cli import main

FAST = ["--train.batch_size", "64", "--train.log_every", "50", "--train.eval_samples", "60", "--output.display", "quiet"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """y = 3 x + noise with x given."""
    folder = tmp_path_factory.mktemp("conditional")
    random = np.random.default_rng(0)
    x = random.normal(10, 5, 600)
    rows = np.column_stack([3 * x + random.normal(0, 1, 600), x, random.normal(0, 2, 600)])
    np.savetxt(folder / "mine.csv", rows, delimiter=",", header="y,x,z", comments="")
    words = ["train", "toy-idensenet", "--data.table", str(folder / "mine.csv"), "--data.context", "[x]"]
    words += ["--model.blocks", "[2]", "--model.activation", "clipswish", "--train.max_steps", "300", "--train.lr", "1e-2"]
    assert main([*words, *FAST, "--output.dir", str(folder / "run")]) == 0
    return folder / "run"


def test_the_others_are_modelled_and_these_are_given(run, capsys):
    flow = idn.load(run)
    assert (flow.shape, flow.context) == ((2,), 1)
    assert (run / "report.html").stat().st_size > 10_000
    assert list((run / "pictures").glob("*.png"))
    assert main(["evaluate", str(run)]) == 0
    found = json.loads((run / "evaluation.json").read_text())
    right = 0.5 * np.log(2 * np.pi * np.e) + 0.5 * np.log(2 * np.pi * np.e * 4)  # of y given x, and of z
    assert found["nats"] == pytest.approx(right, abs=0.5)
    assert "given x" in capsys.readouterr().out


def test_another_table_needs_no_context_again(run, tmp_path):
    rows = np.loadtxt(run.parent / "mine.csv", delimiter=",", skiprows=1)
    np.savetxt(tmp_path / "other.csv", rows[:, [2, 1, 0]], delimiter=",", header="z,x,y", comments="")
    found = []
    for table in ([], ["--data.table", str(tmp_path / "other.csv")]):
        assert main(["evaluate", str(run), *table]) == 0
        found.append(json.loads((run / "evaluation.json").read_text())["nats"])
        assert main(["reconstruct", str(run), *table, "--out", str(tmp_path / "r.png")]) == 0
    assert found[0] == found[1]


def test_samples_follow_the_context(run, tmp_path):
    for x in (0.0, 20.0):
        assert main(["sample", str(run), "-n", "500", "--context", f"[{x}]", "--out", str(tmp_path / "s.csv")]) == 0
        assert np.loadtxt(tmp_path / "s.csv", delimiter=",", skiprows=1)[:, 0].mean() == pytest.approx(3 * x, abs=2.5)
    np.savetxt(tmp_path / "c.csv", np.linspace(0, 20, 7)[:, None], header="x", comments="")
    assert main(["sample", str(run), "-n", "7", "--context", str(tmp_path / "c.csv"), "--out", str(tmp_path / "s.csv")]) == 0
    assert np.corrcoef(np.loadtxt(tmp_path / "s.csv", delimiter=",", skiprows=1)[:, 0], np.linspace(0, 20, 7))[0, 1] > 0.99


def test_scores_are_those_of_the_flow_at_the_context_of_each_row(run, tmp_path):
    np.savetxt(tmp_path / "new.csv", [[10, 30, 0], [10, 99, 0]], delimiter=",", header="x,y,z", comments="")
    assert main(["score", str(run), "--data.table", str(tmp_path / "new.csv"), "--out", str(tmp_path / "s.csv")]) == 0
    with (tmp_path / "s.csv").open() as file:
        found = [float(row["log_density"]) for row in csv.DictReader(file)]
    with torch.no_grad():
        right = idn.load(run).log_prob(torch.tensor([[30.0, 0], [99.0, 0]]), context=torch.tensor([10.0]))
    assert found == pytest.approx(right.tolist(), abs=1e-4)
    assert found[1] < found[0] - 10
    assert main(["reconstruct", str(run), "--out", str(tmp_path / "r.png")]) == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["sample", "RUN", "--out", "OUT"], "is conditional: give it a context of 1 numbers"),
        (["sample", "RUN", "--context", "[1, oops]", "--out", "OUT"], "is no list of numbers"),
        (["sample", "RUN", "--context", "[1, 2]", "--out", "OUT"], "context must have the shape"),
        (["sample", "RUN", "--context", "missing.csv", "--out", "OUT"], "There is no table missing.csv"),
        (["sample", "moons", "--context", "[1]", "--out", "OUT"], "takes no context"),
        (["train", "toy-idensenet", "--data.name", "moons", "--data.context", "[x]"], "columns of a table"),
        (["train", "toy-idensenet", "--data.table", "TABLE", "--data.context", "[w]"], "has no column 'w'"),
        (["train", "toy-idensenet", "--data.table", "TABLE", "--data.context", "[x,y,z]"], "none is left"),
        (
            ["train", "toy-idensenet", "--data.table", "TABLE", "--data.columns", "[x,y]", "--data.context", "[x]"],
            "in one place only",
        ),
    ],
)
def test_a_context_that_does_not_fit_is_one_sentence_and_exit_2(run, tmp_path, capsys, words, text):
    places = {"RUN": str(run), "OUT": str(tmp_path / "s.csv"), "TABLE": str(run.parent / "mine.csv")}
    assert main([places.get(word, word) for word in words]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "s.csv").exists()
