"""The comparison on tables: the same rows for all, a choice by held-out rows, and nothing done twice."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tables.py"


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_constant_columns_go_and_grids_are_spread_by_one_step(tables):
    random = np.random.default_rng(0)
    x = np.stack([np.full(200, 3.0), 0.1 * random.integers(0, 7, 200), random.normal(size=200)], 1)
    found = tables.prepared(x)
    assert found.shape == (200, 2)
    assert len(np.unique(found[:, 0])) == 200
    assert np.all((found[:, 0] - x[:, 1] >= 0) & (found[:, 0] - x[:, 1] < 0.1 + 1e-12))
    np.testing.assert_array_equal(found[:, 1], x[:, 2])


def test_held_out_rows_choose_and_test_rows_do_not(tables, monkeypatch):
    """A model whose configuration is its score: the one that held-out rows prefer is taken, though test rows like another."""
    seen = []

    def fit(train, held_out, config, steps):
        seen.append((len(train), held_out if held_out is None else len(held_out)))
        likes = (lambda x: x is held_out) if config == "held out" else (lambda x: len(x) == 7)
        return lambda x: np.full(len(x), float(likes(x)))

    monkeypatch.setitem(tables.MODELS, "made up", (fit, ["test", "held out"]))
    x = np.random.default_rng(0).normal(size=(47, 2))
    found = tables.measured("made up", x[:40], x[40:], 1)
    assert found["config"] == "held out"
    assert found["score"] == 0.0
    assert seen == [(34, 6)] * 2
    monkeypatch.setattr(tables, "AGAIN", (fit,))
    tables.measured("made up", x[:40], x[40:], 1)
    assert seen[2:] == [(34, 6), (34, 6), (40, None)]  # the one that was chosen, on all training rows


def test_means_errors_and_what_is_above_the_gaussian(tables):
    scores = {"Gaussian": (1.0, 3.0), "kernel density": (2.0, 5.0), "FlowDensity": (0.5,)}
    results = {f"iris/{model}/{i}": {"score": score} for model, each in scores.items() for i, score in enumerate(each)}
    found = tables.markdown(results, 2)
    assert "| Gaussian | 2.00 ± 1.00 |" in found
    assert "| kernel density | **3.50** ± 1.50 |" in found
    assert "| kernel density | **1.50** ± 0.50 |" in found  # paired
    assert "| FlowDensity |  |" in found  # not whole
    assert "wine" not in found


def test_a_run_writes_its_table_and_goes_on_where_it_stopped(tables, tmp_path, monkeypatch, capsys):
    cache, out = tmp_path / "cache.json", tmp_path / "tables.md"
    words = ["--sets", "iris", "--models", "Gaussian", "kernel density", "--folds", "2"]
    monkeypatch.setattr(sys, "argv", ["tables.py", *words, "--cache", str(cache), "--out", str(out)])
    tables.main()
    first = json.loads(cache.read_text())
    assert set(first) == {f"iris/{model}/{i}" for model in ("Gaussian", "kernel density") for i in (0, 1)}
    assert "| Gaussian | -" in out.read_text()
    assert "in " in capsys.readouterr().out
    first["iris/Gaussian/0"]["score"] = 123.0
    cache.write_text(json.dumps(first))
    tables.main()
    assert json.loads(cache.read_text()) == first
    assert "iris/" not in capsys.readouterr().out.split("|")[0]
