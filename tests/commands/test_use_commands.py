"""evaluate, sample, score, reconstruct, certify, report, recipes, data and demo on one small trained run."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import idensenet as idn
from idensenet.cli import main
from idensenet.commands.train import parse
from idensenet.config import DataConfig
from idensenet.training.probing import exact_if_small
from idensenet.training.run import RunFolder
from idensenet.training.sources import by_name

FAST = ["--train.batch_size", "32", "--train.log_every", "5", "--train.eval_samples", "60", "--output.display", "plain"]


@pytest.fixture(scope="module")
def moons(tmp_path_factory):
    run = tmp_path_factory.mktemp("moons") / "run"
    words = ["train", "toy-idensenet", "--data.name", "moons", "--model.blocks", "[2]", "--train.max_steps", "10", *FAST]
    assert main([*words, "--output.dir", str(run), "--output.tensorboard", "true"]) == 0
    return run


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    run = tmp_path_factory.mktemp("digits") / "run"
    words = ["train", "digits-idensenet", "--model.blocks", "[1,1]", "--model.growth", "8", "--train.max_steps", "4", *FAST]
    assert main([*words, "--output.dir", str(run)]) == 0
    return run


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A run on a table of one's own, in units far from one, and the table."""
    folder = tmp_path_factory.mktemp("table")
    rows = np.random.default_rng(0).normal([100.0, -3.0, 0.0], [20.0, 0.1, 1.0], (400, 3))
    np.savetxt(folder / "mine.csv", rows, delimiter=",", header="a,b,c", comments="")
    words = ["train", "toy-idensenet", "--data.table", str(folder / "mine.csv"), "--model.blocks", "[2]", "--train.epochs", "1"]
    words += ["--train.max_steps", "30", *FAST, "--output.dir", str(folder / "run")]
    assert main(words) == 0
    return folder / "run", folder / "mine.csv", rows


def test_evaluation_repeats_to_the_last_digit_in_any_batch_and_its_terms_add_up(digits, capsys):
    assert main(["evaluate", str(digits), "--samples", "50"]) == 0
    first = json.loads((digits / "evaluation.json").read_text())
    assert main(["evaluate", str(digits), "--samples", "50"]) == 0
    assert json.loads((digits / "evaluation.json").read_text()) == first
    assert main(["evaluate", str(digits), "--samples", "50", "--batch", "7"]) == 0
    other = json.loads((digits / "evaluation.json").read_text())
    assert other["bits_per_dim"] == pytest.approx(first["bits_per_dim"], rel=1e-5)
    assert -sum(first["terms"].values()) == pytest.approx(first["nats"], rel=1e-6)
    assert first["bits_per_dim"] == pytest.approx(first["nats"] / (64 * np.log(2)))
    assert first["samples"] == 50
    assert f"{first['bits_per_dim']:.6f}" in capsys.readouterr().out


def test_a_toy_score_stands_beside_its_entropy(moons, capsys):
    assert main(["evaluate", str(moons), "--samples", "200"]) == 0
    assert "2.3939" in capsys.readouterr().out


def test_samples_are_those_of_the_seed_in_every_format(moons, digits, tmp_path):
    for ending in ("npy", "csv", "png"):
        assert main(["sample", str(moons), "-n", "20", "--seed", "3", "--out", str(tmp_path / f"s.{ending}")]) == 0
    expected = idn.load(moons).sample(20, torch.Generator().manual_seed(3)).numpy()
    np.testing.assert_array_equal(np.load(tmp_path / "s.npy"), expected)
    np.testing.assert_allclose(np.loadtxt(tmp_path / "s.csv", delimiter=","), expected, rtol=1e-6)
    assert main(["sample", str(digits), "-n", "9", "--temperature", "0.5", "--out", str(tmp_path / "d.png")]) == 0
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")


def test_scores_are_densities_in_the_units_of_the_table_with_quantiles_of_the_training_set(table, tmp_path):
    run, _, rows = table
    strange = np.vstack([rows[:5], [[100.0, 50.0, 0.0]]])
    np.savetxt(tmp_path / "new.csv", strange, delimiter=",", header="a,b,c", comments="")
    out = tmp_path / "scores.csv"
    assert main(["score", str(run), "--data.table", str(tmp_path / "new.csv"), "--out", str(out)]) == 0
    with out.open() as stream:
        scores = list(csv.DictReader(stream))
    assert [int(row["row"]) for row in scores] == list(range(6))
    flow = idn.load(run)
    with torch.no_grad():
        direct = flow.log_prob(torch.from_numpy(strange).float())
    np.testing.assert_allclose([float(row["log_density"]) for row in scores], direct, rtol=1e-4)
    assert float(scores[5]["quantile"]) == 0.0  # 500 deviations away
    assert float(scores[5]["typicality"]) > 10
    reference = flow.preprocess(torch.from_numpy(rows).float())[0]
    assert float(reference.mean().abs()) < 0.2  # standardised inside
    assert float((reference.std(0) - 1).abs().max()) < 0.1


def test_a_table_with_other_columns_is_refused(table, tmp_path, capsys):
    np.savetxt(tmp_path / "two.csv", np.zeros((4, 2)), delimiter=",", header="a,b", comments="")
    assert main(["score", str(table[0]), "--data.table", str(tmp_path / "two.csv"), "--out", str(tmp_path / "s.csv")]) == 2
    error = capsys.readouterr().err
    assert "two.csv" in error
    assert "column" in error
    assert not (tmp_path / "s.csv").exists()


def test_another_table_is_read_by_the_names_of_the_columns(table, tmp_path, capsys):
    run, mine, rows = table
    np.savetxt(tmp_path / "other.csv", rows[:, [2, 1, 0, 0]], delimiter=",", header="c,b,a,z", comments="")
    found = []
    for file in (mine, tmp_path / "other.csv"):
        assert main(["evaluate", str(run), "--data.table", str(file)]) == 0
        found.append(json.loads((run / "evaluation.json").read_text())["nats"])
        assert main(["reconstruct", str(run), "--data.table", str(file), "--out", str(tmp_path / "r.png")]) == 0
    assert found[0] == found[1] < 10
    assert main(["evaluate", str(run), "--data.table", str(tmp_path / "other.csv"), "--data.columns", "[z,b,c]"]) == 0
    config, _ = parse(["--resume", str(run), "--data.table", str(tmp_path / "other.csv")])
    assert config.data.columns == ("a", "b", "c")
    assert main(["evaluate", str(run), "--data.table", str(tmp_path / "other.csv"), "--data.columns", "[z,b]"]) == 2
    # a run without names of columns takes the names of its table
    described = RunFolder(run).config().replace(data={"columns": []})
    assert by_name(DataConfig(table=str(tmp_path / "other.csv")), described.data).columns == ("a", "b", "c")


def test_scores_are_not_written_over_a_table_that_is_read(table, tmp_path, capsys):
    run, mine, _ = table
    (tmp_path / "down").mkdir()
    new, same = tmp_path / "scores.csv", tmp_path / "down" / ".." / "scores.csv"
    new.write_bytes(mine.read_bytes())
    for option, out in (("--data.table", new), ("--data.table", same), ("--against", same), ("--against", mine)):
        assert main(["score", str(run), option, str(new), "--out", str(out)]) == 2
        assert "would overwrite data that is read" in capsys.readouterr().err
    assert new.read_bytes() == mine.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["down", "scores.csv"]


def test_images_of_a_folder_are_scored_in_the_order_of_their_names(digits, tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (12, 8, 8), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "own" / f"{i:02d}.png")
    words = [
        "train",
        "digits-idensenet",
        "--data.folder",
        "own",
        "--data.name",
        "null",
        "--data.size",
        "8",
        "--data.channels",
        "1",
    ]
    words += ["--model.blocks", "[1,1]", "--model.growth", "8", "--train.max_steps", "2", *FAST, "--train.batch_size", "4"]
    assert main([*words, "--output.dir", "run"]) == 0
    options = ["--data.folder", "own", "--data.size", "8", "--data.channels", "1"]
    assert main(["score", "run", *options, "--out", "scores.csv"]) == 0
    with (tmp_path / "scores.csv").open() as stream:
        found = [float(row["log_density"]) for row in csv.DictReader(stream)]
    flow = idn.load("run")
    assert flow.levels == 256
    with torch.no_grad(), exact_if_small(flow):
        direct = flow.log_prob(torch.from_numpy(pixels)[:, None])
    np.testing.assert_allclose(found, direct, rtol=1e-4)


def test_the_round_trip_is_drawn_and_its_error_small(moons, digits, tmp_path, capsys):
    for run in (moons, digits):
        assert main(["reconstruct", str(run), "-n", "16", "--out", str(tmp_path / "r.png")]) == 0
        error = float(capsys.readouterr().out.split("largest error ")[1].split(",")[0])
        assert error < 1e-4
        assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_the_certificate_is_printed(moons, capsys):
    assert main(["certify", str(moons)]) == 0
    assert "every block is contractive" in capsys.readouterr().out


def test_reports_and_tensorboard_events_are_written(moons):
    assert main(["report", str(moons)]) == 0
    assert (moons / "report.html").stat().st_size > 10_000
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(moons / "events"))
    events.Reload()
    logged = [entry["nats"] for entry in RunFolder(moons).metrics() if entry["kind"] == "train"]
    assert [event.value for event in events.Scalars("train/nats")] == pytest.approx(logged)
    assert "eval/nats" in events.Tags()["scalars"]


def test_the_resolved_configuration_is_saved_and_a_yaml_file_overrides_a_recipe(moons, tmp_path):
    saved = RunFolder(moons).config()
    assert saved.model.blocks == (2,)
    assert saved.train.batch_size == 32
    (tmp_path / "mine.yaml").write_text("model: {depth: 2}\ntrain: {max_steps: 2, lr: 0.5}\n")
    words = ["train", "toy-idensenet", "--config", str(tmp_path / "mine.yaml"), "--train.lr", "0.25", *FAST]
    assert main([*words, "--output.dir", str(tmp_path / "run")]) == 0
    config = RunFolder(tmp_path / "run").config()
    assert (config.model.depth, config.train.max_steps, config.train.lr) == (2, 2, 0.25)


def test_a_dry_run_tells_size_and_duration_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "toy-idensenet", "--train.max_steps", "1000", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "parameters: 10,230" in out
    assert "1,000 steps" in out
    assert "max_steps: 1000" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", [["--model.depth", "2"], ["--model.learnable_concatenation", "false"]])
def test_a_run_is_not_resumed_with_another_model(moons, capsys, option):
    before = (moons / "config.yaml").read_text()
    assert main(["train", "--resume", str(moons), *option, "--train.max_steps", "12"]) == 2
    assert "of another model; leave the options of the model" in capsys.readouterr().err
    assert (moons / "config.yaml").read_text() == before


def test_a_run_is_not_overwritten(moons, capsys):
    assert main(["train", "toy-idensenet", "--train.max_steps", "2", "--output.dir", str(moons)]) == 2
    assert "--resume" in capsys.readouterr().err


def test_the_demo_ends_with_a_report_and_replaces_only_itself(moons, tmp_path, capsys):
    mine = [tmp_path / "demo" / name for name in ("thesis.tex", "pictures/cat.png", "checkpoints/keep/all.txt", "events/a.ics")]
    for file in mine:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    for steps in ("14", "12"):
        assert main(["demo", "--out", str(tmp_path / "demo"), "--steps", steps]) == 0
        out = capsys.readouterr().out
        assert "certified L" in out
        assert (tmp_path / "demo" / "report.html").is_file()
    assert all(file.read_text() == "mine" for file in mine)
    assert RunFolder(tmp_path / "demo").checkpoints.steps() == [6, 12]
    assert main(["demo", "--out", str(moons), "--steps", "2"]) == 2
    assert (moons / "report.html").is_file()


def test_recipes_are_listed_with_size_and_the_papers_figure(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert "24,894,586" in out
    assert "3.25 bits/dim" in out
    assert all(name in out for name in idn.recipes())


def test_recipes_are_listed_without_torch_and_fit_a_terminal():
    """Waiting for torch is most of a second or more, and the list needs none of it."""
    code = "import sys; from idensenet.cli import main; main(['recipes']); sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert main(["recipes", "--nonsense"]) == 2


def test_scores_replace_no_file_that_was_not_named(table, tmp_path, monkeypatch, capsys):
    run, mine, _ = table
    monkeypatch.chdir(tmp_path)
    words = ["score", str(run), "--data.table", str(mine), "--samples", "3", "--reference", "5"]
    assert main(words) == 0
    before = (tmp_path / "scores.csv").read_bytes()
    for more in ([], ["--against", str(mine)]):
        assert main([*words, *more]) == 2
        assert "scores.csv exists already; name the file to write with --out" in capsys.readouterr().err
    assert (tmp_path / "scores.csv").read_bytes() == before
    assert main([*words, "--against", str(mine), "--out", "scores.csv"]) == 0
    assert (tmp_path / "scores.csv").read_bytes() != before


def test_version_usage_and_failures_have_their_exit_codes(capsys, monkeypatch):
    assert main(["--version"]) == 0
    assert main([]) == 2
    for error, code in ((OSError("disk"), 1), (ArithmeticError("lost"), 1), (KeyboardInterrupt(), 130)):

        def fails(arguments, error=error):
            raise error

        monkeypatch.setattr("idensenet.commands.data.recipes", fails)
        assert main(["recipes"]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_every_command_takes_a_checkpoint_by_its_step(tmp_path, capsys):
    run = tmp_path / "run"
    words = ["train", "toy-idensenet", "--data.name", "moons", "--model.blocks", "[1]", "--train.max_steps", "20", *FAST]
    assert main([*words, "--train.eval_every", "10", "--output.dir", str(run), "--devices=1"]) == 0
    outputs = {}
    for step in ("10", "20", "last"):
        assert main(["evaluate", str(run), "--samples", "100", "--step", step]) == 0
        outputs[step] = json.loads((run / "evaluation.json").read_text())
        assert outputs[step].pop("step") == step
        out = str(tmp_path / f"{step}.npy")
        assert main(["sample", str(run), "-n", "5", "--out", out, "--step", step]) == 0
        outputs[step]["samples drawn"] = np.load(out).tolist()
        assert main(["report", str(run), "--step", step]) == 0
        assert f"trained until step {step.replace('last', '20')}" in (run / "report.html").read_text()
    assert outputs["last"] == outputs["20"] != outputs["10"]
    capsys.readouterr()
    assert main(["certify", str(run), "--step", "15"]) == 2
    assert "no checkpoint of step '15'; it has 10, 20" in capsys.readouterr().err


def test_a_table_smaller_than_the_batch_of_a_recipe_is_one_batch(tmp_path):
    np.savetxt(tmp_path / "few.csv", np.random.default_rng(0).normal(size=(40, 2)), delimiter=",", header="a,b", comments="")
    words = ["train", "toy-idensenet", "--data.table", str(tmp_path / "few.csv"), "--model.blocks", "[1]"]
    assert main([*words, "--train.max_steps", "2", "--output.dir", str(tmp_path / "run"), "--output.display", "quiet"]) == 0
    assert RunFolder(tmp_path / "run").config().train.batch_size == 36
