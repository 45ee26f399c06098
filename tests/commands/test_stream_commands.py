"""Training on Parquet files and scoring them, on the command line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file

from idensenet.cli import main
from idensenet.storage import load
from idensenet.training.display import Notices
from streams import columns, write

FAST = ["--model.blocks", "[1]", "--train.batch_size", "25", "--train.log_every", "1", "--train.compile", "off"]
FAST += ["--train.eval_samples", "50", "--output.display", "quiet", "--output.report", "false", "--output.pictures", "false"]


def train(rows, run, *words, steps=60):
    """60 steps of 25 rows are more than an epoch."""
    length = ["--train.max_steps", str(steps), "--output.dir", str(run)]
    return main(["train", "toy-idensenet", "--data.table", str(rows), *FAST, *length, *words])


def result(run, step=60):
    """All losses, and the weights, moments and averages of a run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if k not in ("seconds", "samples/s", "memory")} for line in lines]
    folder = run / "checkpoints" / f"step-{step:08d}"
    files = {path.relative_to(folder): load_file(path) for path in sorted(folder.rglob("*.safetensors"))}
    assert len(files) > 1
    return kept, files


def same(a, b):
    assert a[0] == b[0]
    assert a[1].keys() == b[1].keys()
    for name, tensors in a[1].items():
        assert tensors.keys() == b[1][name].keys()
        for key, value in tensors.items():
            assert torch.equal(value, b[1][name][key]), (name, key)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows in four files and in one, and a model that was trained on the four for more than an epoch."""
    found = tmp_path_factory.mktemp("stream")
    write(found, columns())
    words = ["--data.columns", "[x,y,k,city]", "--data.weight", "counts"]
    assert train(found / "rows", found / "run", *words) == 0
    return found


def test_a_killed_run_resumes_bit_for_bit(folder, tmp_path):
    run = tmp_path / "run"
    words = ["--data.columns", "[x,y,k,city]", "--data.weight", "counts", "--train.max_steps", "60", "--train.save_every", "7"]
    command = [sys.executable, "-m", "idensenet", "train", "toy-idensenet", "--data.table", str(folder / "rows"), *FAST, *words]
    process = subprocess.Popen([*command, "--output.dir", str(run)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(run.glob("checkpoints/step-*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (run / "checkpoints" / "step-00000060").exists()
    assert main(["train", "--resume", str(run)]) == 0
    same(result(run), result(folder / "run"))


def test_stopping_in_the_second_epoch_changes_nothing(folder, tmp_path):
    words = ["--data.columns", "[x,y,k,city]", "--data.weight", "counts"]
    assert train(folder / "rows", tmp_path / "run", *words, "--stop-after", "51") == 0
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    same(result(tmp_path / "run"), result(folder / "run"))


STARTS = {
    "standardize": [],
    "whiten": ["--model.preprocess", "whiten"],
    "whiten, weighted": ["--model.preprocess", "whiten", "--data.weight", "counts"],
    "standardize, weighted": ["--data.weight", "counts"],
    "bounds": ["--data.bounds", "{x: [0, 1000]}"],
    "mixture": ["--model.components", "2"],
    "discrete": ["--data.discrete", "[k]", "--data.columns", "[x,k]"],
}


@pytest.mark.parametrize("name", STARTS)
def test_a_model_starts_from_all_rows_as_it_does_in_memory(folder, tmp_path, name):
    words = ["--data.columns", "[x,y]", "--data.context", "[given]", "--train.precision", "64-true", *STARTS[name]]
    for place, rows in (("stream", folder / "rows"), ("memory", folder / "whole.parquet")):
        assert train(rows, tmp_path / place, *words, steps=1) == 0
    stream, memory = (load(tmp_path / place) for place in ("stream", "memory"))
    found, expected = (flow.state_dict() for flow in (stream, memory))
    taken = [key for key in found if key.startswith(("preprocess", "context_scale"))]
    assert len(taken) == 4
    far = 0.02 if name == "discrete" else 0  # the noise of whole numbers is drawn block by block
    for key in taken:
        assert torch.allclose(found[key], expected[key], rtol=1e-9, atol=far), key
    assert stream.columns == memory.columns
    if name == "mixture":
        x = torch.tensor([[100.0, -3.0], [101.0, -5.0]], dtype=torch.float64)
        given = torch.zeros(2, 1, dtype=torch.float64)
        assert torch.allclose(stream.log_prob(x, context=given), memory.log_prob(x, context=given), atol=0.3)


def test_evaluation_compares_rows_and_scores_those_of_memory(folder, tmp_path, capsys):
    shutil.copytree(folder / "run", tmp_path / "run")
    scores = []
    for table in (folder / "rows", folder / "whole.parquet"):
        assert main(["evaluate", str(tmp_path / "run"), "--data.table", str(table)]) == 0
        scores.append(json.loads((tmp_path / "run" / "evaluation.json").read_text()))
        assert not any("then" in note or "order" in note for note in scores[-1]["notes"])
    assert scores[0]["samples"] == scores[1]["samples"] == 125
    assert scores[0]["nats"] == pytest.approx(scores[1]["nats"], rel=1e-6)
    shutil.copytree(folder / "rows", tmp_path / "rows")
    (tmp_path / "rows" / "part0.parquet").rename(tmp_path / "rows" / "z.parquet")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--data.table", str(tmp_path / "rows")]) == 0
    assert "another order" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "rows" / "z.parquet").unlink()
    assert main(["evaluate", str(tmp_path / "run"), "--data.table", str(tmp_path / "rows")]) == 0
    assert "The data is not what the run was trained on" in " ".join(capsys.readouterr().out.split())


def read_scores(path):
    table = parquet.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def test_scores_of_a_stream_are_scores_of_the_table(folder, tmp_path, capsys):
    run, out = str(folder / "run"), tmp_path / "scores"
    assert main(["score", run, "--data.table", str(folder / "rows"), "--out", str(out)]) == 0
    assert "1,250 rows in 4 files" in " ".join(capsys.readouterr().out.split())
    assert main(["score", run, "--data.table", str(folder / "whole.parquet"), "--out", str(tmp_path / "s.csv")]) == 0
    found, expected = read_scores(out), np.genfromtxt(tmp_path / "s.csv", delimiter=",", names=True)
    assert tuple(found) == expected.dtype.names
    assert found["row"].tolist() == list(range(1250))
    assert found["log_density"] == pytest.approx(expected["log_density"], rel=1e-5)
    assert found["typicality"] == pytest.approx(expected["typicality"], abs=1e-4)
    assert found["quantile"] == pytest.approx(expected["quantile"], abs=2e-3)
    assert parquet.ParquetFile(next(out.glob("*.parquet"))).num_row_groups == 4  # as they were read


def test_scoring_does_only_what_is_not_done(folder, tmp_path, capsys, monkeypatch):
    command = ["score", str(folder / "run"), "--data.table", str(folder / "rows" / "*.parquet"), "--out", str(tmp_path / "s")]
    assert main(command) == 0
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "s").iterdir()}
    assert list(before) == [] or sorted(before) == [f"part-0000{i}.parquet" for i in range(4)]
    (tmp_path / "s" / "part-00002.parquet").unlink()
    (tmp_path / "s" / ".part-00002.parquet.abc.part").write_bytes(b"half")  # of a process that was killed
    capsys.readouterr()
    assert main(command) == 0
    assert "3 of 4 parts have been scored before" in capsys.readouterr().out
    for name, (written, content) in before.items():
        path = tmp_path / "s" / name
        assert path.read_bytes() == content
        assert (path.stat().st_mtime_ns == written) == (name != "part-00002.parquet")


def damage(path):
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def changed_row(folder, out):
    table = parquet.read_table(folder / "rows" / "part1.parquet")
    values = table["x"].to_numpy().copy()
    values[7] += 1e-9
    new = table.set_column(table.column_names.index("x"), "x", pa.array(values))
    parquet.write_table(new, folder / "rows" / "part1.parquet", row_group_size=100)


def another_model(folder, out):
    shutil.rmtree(folder / "run")
    words = ["--data.columns", "[x,y,k,city]", "--train.seed", "1"]
    assert train(folder / "rows", folder / "run", *words, steps=2) == 0


CHANGES = {
    "a row": (changed_row, [], "part-00001.parquet has scores by another model, of other rows than"),
    "the model": (another_model, [], "part-00000.parquet has scores by another model"),
    "options": (lambda folder, out: None, ["--reference", "100"], "or with other options"),
    "fewer files": (
        lambda folder, out: (folder / "rows" / "part3.parquet").unlink(),
        [],
        "has part-00003.parquet, which is no",
    ),
    "another file": (
        lambda folder, out: (out / "notes.txt").write_text("mine"),
        [],
        "has notes.txt, which is no part of these",
    ),
    "a damaged part": (lambda folder, out: damage(out / "part-00001.parquet"), [], "part-00001.parquet has scores by another"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_has_changed_since_is_noticed_and_nothing_is_written_over(folder, tmp_path, capsys, what):
    mine, out = tmp_path / "mine", tmp_path / "scores"
    shutil.copytree(folder, mine)
    command = ["score", str(mine / "run"), "--data.table", str(mine / "rows"), "--out", str(out)]
    assert main(command) == 0
    change, words, text = CHANGES[what]
    change(mine, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    capsys.readouterr()
    assert main([*command, *words]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.strip().splitlines()) == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_new_files_are_scored_when_they_are_there(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "mine")
    rows, out = tmp_path / "mine" / "rows", tmp_path / "scores"
    command = ["score", str(tmp_path / "mine" / "run"), "--data.table", str(rows), "--out", str(out)]
    (rows / "part3.parquet").rename(tmp_path / "part3.parquet")
    assert main(command) == 0
    (tmp_path / "part3.parquet").rename(rows / "part3.parquet")
    assert main(command) == 0
    assert "3 of 4 parts have been scored before" in capsys.readouterr().out
    assert read_scores(out)["row"].tolist() == list(range(1250))


def test_values_that_training_has_not_seen_are_said_once(folder, tmp_path, capsys):
    table = columns(400, seed=4)
    table["city"] = np.where(np.arange(400) % 100 == 7, "Rome", table["city"])
    rows, _ = write(tmp_path, table)
    assert main(["score", str(folder / "run"), "--data.table", str(rows), "--out", str(tmp_path / "s")]) == 0
    error = capsys.readouterr().err
    assert error.count("has 'Rome' in row 7, a category that is not known") == 1
    found = read_scores(tmp_path / "s")["log_density"]
    assert np.flatnonzero(np.isneginf(found)).tolist() == [7, 107, 207, 307]


BAD = [
    (["--out", "{rows}"], "is the folder of the rows that are read"),
    (["--out", "scores.csv"], "must be a folder"),
    (["--out", "nowhere/scores"], "cannot be written"),
    (["--against", "moons"], "--against is for tables that fit into memory"),
    (["--samples", "5"], "--samples is for tables that fit into memory"),
    (["--data.table", "{rows}/none*"], "No file matches"),
    (["--data.columns", "[x,y]"], "The model takes 4 columns, but 2 are named"),
    (["--data.columns", "[x,y,k,town]"], "has no column 'town'"),
]


@pytest.mark.parametrize(("words", "text"), BAD)
def test_bad_options_are_one_sentence(folder, tmp_path, capsys, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    words = [word.format(rows=folder / "rows") for word in words]
    start = [] if "--data.table" in words else ["--data.table", str(folder / "rows")]
    assert main(["score", str(folder / "run"), *start, *words]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_dask_is_for_parquet_files(folder, tmp_path, capsys):
    words = ["--data.table", str(folder / "whole.parquet"), "--out", str(tmp_path / "s.csv"), "--dask", "tcp://127.0.0.1:1"]
    assert main(["score", str(folder / "run"), *words]) == 2
    assert "scores a folder or a glob of Parquet files" in capsys.readouterr().err


def test_without_pyarrow_the_extra_is_named(folder, tmp_path, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert train(folder / "rows", tmp_path / "run") == 2
    assert "pip install 'idensenet[parquet]'" in capsys.readouterr().err


def test_a_run_of_two_processes_divides_the_rows(folder, tmp_path):
    """Two processes of 10 rows take the steps of one that accumulates two batches of 10."""
    words = ["--data.columns", "[x,y]", "--train.batch_size", "10", "--train.accelerator", "cpu"]
    assert train(folder / "rows", tmp_path / "one", *words, "--train.accumulate", "2", steps=20) == 0
    command = [sys.executable, "-m", "idensenet", "train", "toy-idensenet", "--data.table", str(folder / "rows"), *FAST, *words]
    command += ["--train.devices", "2", "--train.max_steps", "20", "--output.dir", str(tmp_path / "two")]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()] for name in ("one", "two")
    )
    losses = [[line["nats"] for line in lines if line["kind"] == "train"] for lines in (one, two)]
    assert losses[0][1:] == pytest.approx(losses[1][1:], rel=1e-4)


def test_long_passes_over_many_files_are_said_before_the_first_step_and_the_first_score(tmp_path, capsys, monkeypatch):
    rows, _ = write(tmp_path, columns(), files=50, group=10)
    words = ["--data.columns", "[x,y]", "--model.preprocess", "whiten", "--output.display", "plain"]
    assert train(rows, tmp_path / "run", *words, steps=1) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "before the first step: reading the metadata of the files, 0 of 50"
    assert len([line for line in said if line.startswith("before")]) < 5  # one, and then one every few seconds
    monkeypatch.setattr(Notices, "every", 0.0)
    assert main(["train", "--resume", str(tmp_path / "run"), "--train.max_steps", "2"]) == 0
    again = capsys.readouterr().out.splitlines()
    assert train(rows, tmp_path / "other", *words, steps=1) == 0
    said = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(said) if line.startswith("step 1/1:"))
    passes = ["finding what the columns are, pass 1", "counting rows, pass 2", "reading all rows, one more pass"]
    found = [sum(name in line for line in said[:first]) for name in passes]
    assert found == [150, 150, 600]  # whether a density exists, deviations, how they whiten, and what rounding does
    assert not any(line.startswith("before") for line in said[first:])
    assert sum(passes[1] in line for line in again) == 150
    for command in (["score", "--data.table", str(rows), "--out", str(tmp_path / "scores")], ["evaluate"]):
        assert main([command[0], str(tmp_path / "run"), *command[1:]]) == 0
        said = capsys.readouterr().out
        assert "before the first score: counting rows, pass 2 over the row groups, 149 of 150" in said
        assert ("reading files for their fingerprints, 49 of 50" in said) == (command[0] == "score")
    assert train(rows, tmp_path / "quiet", "--data.columns", "[x,y]", steps=1) == 0
    assert "before" not in capsys.readouterr().out
