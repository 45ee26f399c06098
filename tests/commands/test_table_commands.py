"""Tables that cannot be modelled, on the command line: one sentence before anything is trained or written."""

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
