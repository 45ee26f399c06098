"""The comparison on tables: the same rows for all, equal processor time for flows, and nothing done twice."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import tables

    yield tables
    for name in ("tables", "table_data", "rivals", "synthetic"):
        sys.modules.pop(name, None)


def test_constant_columns_and_copies_go_and_grids_are_spread_by_one_step(tables):
    import table_data

    random = np.random.default_rng(0)
    x = np.stack([np.full(200, 3.0), 0.1 * random.integers(0, 7, 200), random.normal(size=200)], 1)
    x = np.column_stack([x, 2 * x[:, 2] + 5])
    found = table_data.prepared(x)
    assert found.shape == (200, 2)
    assert len(np.unique(found[:, 0])) == 200
    assert np.all((found[:, 0] - x[:, 1] >= 0) & (found[:, 0] - x[:, 1] < 0.1 + 1e-12))
    np.testing.assert_array_equal(found[:, 1], x[:, 2])


def test_a_folder_has_tables_and_pairs_of_published_splits(tables, tmp_path):
    from table_data import folder_tables, folds_of, halves

    random = np.random.default_rng(0)
    np.savetxt(tmp_path / "one.csv.gz", random.normal(size=(50, 3)), delimiter=",")
    np.save(tmp_path / "two.npy", random.normal(size=(2500, 2)))
    np.save(tmp_path / "three-validation.npy", random.normal(size=(40, 2)))
    np.save(tmp_path / "three-test.npy", random.normal(size=(30, 2)))
    (tmp_path / "README.md").write_text("nothing")
    found = folder_tables(tmp_path)
    assert list(found) == ["one", "three", "two"]
    assert [folds_of(*load()) for load in found.values()] == [5, 1, 1]
    assert [tuple(len(part) for part in halves(*load(), 0)) for load in found.values()] == [(40, 10), (40, 30), (2250, 250)]
    train, _ = halves(*found["two"](), 0)
    np.testing.assert_allclose([train.mean(), train.std()], [0, 1], atol=1e-9)
    rows = found["one"]()[0]
    tested = np.concatenate([halves(rows, None, fold)[1] for fold in range(5)])
    assert len(np.unique(tested, axis=0)) == 50


def test_a_flow_of_others_has_its_processor_time_and_the_weights_that_were_best(tables):
    import rivals

    rows = np.random.default_rng(0).normal(2, 3, size=(400, 1))
    model = torch.nn.ParameterDict({"mean": torch.zeros(1), "scale": torch.zeros(1)})

    def log_prob(x):
        return torch.distributions.Normal(model["mean"], model["scale"].exp()).log_prob(x)[:, 0]

    began = time.process_time()
    words = rivals.trained(model, log_prob, rows, 0.5, 5e-3)
    assert 0.5 <= time.process_time() - began < 5
    assert "step" in words
    assert float(model["mean"].detach()) > 0
    score, words = rivals.gaussian(rows, 0.0)
    right = -0.5 * np.log(2 * np.pi * rows.var()) - (rows[:, 0] - rows.mean()) ** 2 / 2 / rows.var()
    np.testing.assert_allclose(score(rows), right, atol=0.3)  # with a ridge
    assert "ridge" in words


def test_synthetic_tables_have_much_to_be_learned(tables):
    from synthetic import SYNTHETIC

    for draw in SYNTHETIC.values():
        rows, log_p = draw(4000, 0)
        assert rows.shape == (4000, 8)
        np.testing.assert_array_equal(rows, draw(4000, 0)[0])
        gaussian = -0.5 * np.linalg.slogdet(2 * np.pi * np.e * np.cov(rows.T))[1]
        assert log_p.mean() > gaussian + 3


def test_means_errors_and_what_is_behind_the_best(tables):
    shape = (90, 4)
    cells = {
        ("iris", "Gaussian"): {"scores": np.array([1.0, 3.0]), "seconds": 1.0, "megabytes": 5.0, "shape": shape},
        ("iris", "kernels"): {"scores": np.array([2.0, 5.0]), "seconds": 2.0, "megabytes": np.nan, "shape": shape},
    }
    found = tables.page(cells, 5.0, "A note.")
    assert "iris 90 x 4" in found
    row = "| iris |  |  |  |  |  | "
    assert f"{row}**3.500** ± 1.500 | 2.000 ± 1.000 |" in found
    assert f"{row}best | -1.500 ± 0.500 |" in found  # paired
    assert f"{row}2 | 1 |" in found
    assert f"{row} | 5 |" in found


def test_a_run_writes_its_page_and_goes_on_where_it_stopped(tables, tmp_path, monkeypatch, capsys):
    given = []

    def ours(train, seconds):
        return lambda x: np.zeros(len(x)), "made up"

    def flow(train, seconds):
        given.append(seconds)
        raise ValueError("it does not converge")

    monkeypatch.setattr(tables, "alone", tables.measured)
    monkeypatch.setitem(tables.MODELS, "FlowDensity()", ours)
    monkeypatch.setitem(tables.MODELS, "NSF (zuko)", flow)
    record, out = tmp_path / "record", tmp_path / "tables.md"
    words = ["--sets", "iris", "--models", "Gaussian", "NSF (zuko)", "FlowDensity()", "--least", "7"]
    monkeypatch.setattr(sys, "argv", ["tables.py", *words, "--record", str(record), "--out", str(out)])
    tables.main()
    assert given == [7.0] * 5  # the time of FlowDensity(), or the least
    assert len(list(record.iterdir())) == 15
    assert "| iris | **0.000** ± 0.000 |  |" in out.read_text()  # a model that fails has no score
    assert "it does not converge" in capsys.readouterr().out
    path = tables.cell_file(record, "iris", "Gaussian", 0)
    cell = json.loads(path.read_text())
    assert len(cell["scores"]) == 30
    path.write_text(json.dumps({**cell, "scores": [99.0] * 30}))
    tables.main()
    assert "fold" not in capsys.readouterr().out.split("#")[0]
    assert json.loads(path.read_text())["scores"][0] == 99.0
