"""The command itself: names, errors, resuming, and what is handed on to the runs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import numpy as np
import pytest

from idensenet.cli import main
from idensenet.commands import train as train_command
from idensenet.commands.train import parse
from idensenet.config import Config, recipe
from idensenet.data.source import Source, Split
from idensenet.errors import OptionError
from idensenet.provenance import commit
from idensenet.reproduce import images
from idensenet.reproduce.catalog import EXPERIMENTS
from idensenet.reproduce.experiment import Cell, Experiment, Plan, Table, lower
from idensenet.reproduce.runs import Pool, Trained
from idensenet.reproduce.variants import ACTIVATION_VARIANTS
from idensenet.reproduce.writing import captioned, comparison_figure, header, in_words, lines, published
from idensenet.training.packing import pack

FAST = {
    "data.name": "moons",
    "model.blocks": (2,),
    "train.batch_size": 50,
    "train.log_every": 2,
    "train.eval_samples": 100,
    "train.max_steps": 6,
}


def fast(name="run", **options):
    return Plan(name, "toy-idensenet", {**FAST, **options})


def test_without_a_name_it_lists_them(capsys):
    assert main(["reproduce"]) == 0
    out = capsys.readouterr().out
    assert "table-toy" in out
    assert "figure-eta" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["table-toys"], "did you mean 'table-toy'"),
        (["table-toy", "--budget", "large"], "There is no budget 'large'"),
        (["table-toy", "--workers", "0"], "--workers and --first-steps must be at least 1"),
        (["table-toy", "--bugdet", "cpu"], "There is no option '--bugdet'"),
        (["table-toy", "--", "--train.bogus", "3"], "There is no option '--train.bogus'"),
        (["figure-concatenation", "--", "--train.lr", "3"], "Nothing is trained here"),
        (["table-toy", "--out", __file__], "is a file or lies in one"),
        (["table-toy", "--out", f"{__file__}/below"], "is a file or lies in one"),
    ],
)
def test_bad_input_is_one_sentence(words, text, capsys):
    assert main(["reproduce", *words]) == 2
    assert text in capsys.readouterr().err


def test_missing_data_is_named(tmp_path, capsys):
    words = ["reproduce", "samples", "--out", str(tmp_path / "out"), "--data", str(tmp_path), "--workers", "1"]
    assert main([*words, "--first-steps", "1"]) == 2
    error = capsys.readouterr().err
    assert "cifar10" in error
    assert "Traceback" not in error


def test_a_finished_run_is_not_trained_again(tmp_path):
    pool = Pool(tmp_path, 0, "data")
    first = pool.train([fast()])["run"]
    before = (first.run.path / "metrics.jsonl").stat().st_mtime_ns
    assert pool.train([fast()])["run"].step == 6
    assert (first.run.path / "metrics.jsonl").stat().st_mtime_ns == before


def test_a_finished_run_whose_length_is_in_epochs_is_not_trained_again(tmp_path, monkeypatch):
    options = {name: value for name, value in images.SMOKE.items() if name != "train.max_steps"}
    plan = Plan("run", "cifar10-resflow-small", {**options, "train.epochs": 0.1})
    pool = Pool(tmp_path, 0, "data")
    assert not pool.done(plan)
    part = Pool(tmp_path, 0, "data", stop_after=2).train([plan])["run"]
    assert part.step == 2
    assert not pool.done(plan)
    run = pool.train([plan])["run"]
    assert run.step == round(0.1 * (len(run.source.train) // 32)) == 4
    assert pool.done(plan)


def test_a_run_with_other_options_is_refused(tmp_path):
    Pool(tmp_path, 0, "data").train([fast()])
    with pytest.raises(OptionError, match="other options"):
        Pool(tmp_path, 0, "data").train([fast(**{"train.seed": 1})])
    Pool(tmp_path, 0, "elsewhere").train([fast()])  # where the data lies decides no number


def test_a_packed_run_is_unpacked_and_not_trained_again(tmp_path, monkeypatch):
    trained = Pool(tmp_path / "a", 0, "data").train([fast()])["run"]
    (tmp_path / "b").mkdir()
    pack(trained.run, tmp_path / "b" / "run.safetensors")
    monkeypatch.setattr("idensenet.commands.train.train", None)  # nobody calls it
    found = Pool(tmp_path / "b", 0, "data").train([fast()])["run"]
    assert found.metrics == trained.metrics
    with pytest.raises(OptionError, match="other options"):
        Pool(tmp_path / "b", 0, "data").train([fast(**{"train.seed": 1})])


def test_first_steps_are_continued_to_the_same_end(tmp_path):
    """Stopped after two steps and continued, a run ends where an uninterrupted one does."""
    part = Pool(tmp_path / "a", 0, "data", stop_after=2).train([fast()])["run"]
    assert part.step == 2
    assert part.seconds > 0
    whole = Pool(tmp_path / "a", 0, "data").train([fast()])["run"]
    straight = Pool(tmp_path / "b", 0, "data").train([fast()])["run"]
    assert whole.step == straight.step == 6
    for (name, a), (_, b) in zip(whole.last_flow.state_dict().items(), straight.last_flow.state_dict().items(), strict=True):
        assert a.equal(b), name
    assert whole.seconds > part.seconds


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(tmp_path):
    pool = Pool(tmp_path, 0, "data")
    run = pool.train([fast()])["run"].run
    want = run.metrics()[-1]["nats"]
    Trained(fast(), run.path).held_out(50)
    shutil.rmtree(run.checkpoints.folder)
    (run.path / "best.json").unlink()
    with run.locked(), pytest.raises(OptionError, match="in use"):
        pool.train([fast()])
    assert run.exists()
    again = pool.train([fast()])["run"]
    assert len(again.metrics) == len({(entry["kind"], entry["step"]) for entry in again.metrics})
    assert again.metrics[-1]["nats"] == want
    assert not list(run.path.glob("held-out-*"))  # scores of the weights that are gone


def test_processes_side_by_side(tmp_path):
    plans = [fast(f"run-{seed}", **{"train.seed": seed}) for seed in range(3)]
    found = Pool(tmp_path, 2, "data").train(plans)
    assert [found[plan.name].config.train.seed for plan in plans] == [0, 1, 2]
    assert all(isinstance(run, Trained) and run.step == 6 for run in found.values())
    assert "idensenet train toy-idensenet" in (tmp_path / "run-1.log").read_text()


def test_idle_workers_begin_with_what_comes_after(tmp_path):
    long = fast("long", **{"train.max_steps": 100_000, "train.compile": "off"})
    with Pool(tmp_path, 2, "data") as pool:
        pool.train([fast()], [fast(), long])
        assert [child.plan.name for child in pool.running] == ["long"]
        pool.train([fast("next")], [long])
        assert [child.plan.name for child in pool.running] == ["long"]  # still, and only once
        for _ in range(600):
            if (tmp_path / "long" / "metrics.jsonl").is_file():
                break
            time.sleep(0.1)
    assert not pool.running
    assert not pool.done(long)
    assert list((tmp_path / "long" / "checkpoints").glob("step-*"))  # ended with the context, and saved


def test_nothing_is_trained_beside_an_experiment_that_measures_times(tmp_path, monkeypatch):
    seen = {}

    def train(self, plans, ahead=()):
        seen[plans[0].name] = [plan.name for plan in ahead]
        return {}

    made = {
        n: Experiment(n, "", "", None, lambda budget, n=n: [fast(n)], alone=n == "timed") for n in ("a", "b", "timed", "c", "d")
    }
    monkeypatch.setattr(Pool, "train", train)
    monkeypatch.setattr("idensenet.reproduce.catalog.experiment", made.__getitem__)
    assert main(["reproduce", *made, "--out", str(tmp_path), "--first-steps", "1"]) == 0
    assert seen == {"a": ["b"], "b": [], "timed": [], "c": ["d"], "d": []}
    assert [each.name for each in EXPERIMENTS.values() if each.alone] == ["table-runtime"]


def test_what_follows_two_dashes_reaches_the_runs(tmp_path):
    out = tmp_path / "out"
    words = ["reproduce", "figure-densities", "--budget", "smoke", "--out", str(out), "--", "--train.max_steps", "4"]
    assert main(words) == 0
    found = json.loads((out / "figure-densities.json").read_text())
    assert [run["steps"] for run in found["runs"]] == [4, 4, 4]
    assert found["made"]["command"].endswith("-- --train.max_steps 4")
    assert found["what"].endswith("; with --train.max_steps 4")
    assert found["runs"][0]["commit"] == commit()


# What is in the folder already


def test_a_result_is_replaced_by_one_of_its_own_or_a_larger_budget_only(tmp_path, capsys):
    words = ["reproduce", "figure-concatenation", "--out", str(tmp_path), "--budget"]
    assert [main([*words, budget]) for budget in ("smoke", "cpu", "cpu", "smoke")] == [0, 0, 0, 2]
    assert "is of the cpu budget and would be replaced by one of smoke" in capsys.readouterr().err
    assert json.loads((tmp_path / "figure-concatenation.json").read_text())["budget"] == "cpu"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"budget": "cpu"}', '{"budget": []}'])
def test_a_damaged_result_is_left_out_of_the_index_and_can_be_made_again(tmp_path, text):
    for name in ("figure-concatenation", "figure-clipswish"):
        (tmp_path / f"{name}.json").write_text(text)
    assert main(["reproduce", "figure-concatenation", "--out", str(tmp_path)]) == 0
    assert "figure-clipswish" not in (tmp_path / "README.md").read_text()
    assert (tmp_path / "figure-clipswish.json").read_text() == text
    page = (tmp_path / "figure-concatenation.md").read_text()
    assert r"| holds | \|eta1^2 + eta2^2 - 1\| is at most" in page


def test_a_picture_has_its_budget_below_it_and_keeps_its_size():
    tables = [Table(t, ("a", "b"), (("x", (Cell(1.0, 0.1, 2.0), Cell(2.0))),)) for t in ("first", "second")]
    plain, said = comparison_figure(tables), captioned(comparison_figure(tables), "Budget cpu: " + 40 * "word ")
    assert len(plain.axes) == 4  # both tables have numbers of the paper
    text = said.texts[-1].get_text()
    assert text.startswith("Budget cpu")
    assert text.count("word") == 40
    said.draw_without_rendering()
    for a, b in zip(plain.axes, said.axes, strict=True):
        before, after = (axis.get_position().bounds * np.tile(axis.figure.get_size_inches(), 2) for axis in (a, b))
        assert after[2:] == pytest.approx(before[2:])
    floor = said.texts[-1].get_window_extent().ymax
    assert floor < min(axis.get_tightbbox().ymin for axis in said.axes)
    assert floor < said.legends[0].get_window_extent().ymin
    assert said.texts[-1].get_window_extent().xmax < said.bbox.xmax


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_saves_its_runs_and_says_so(tmp_path, sign):
    words = ["reproduce", "figure-densities", "--out", str(tmp_path / "out"), "--workers", "2"]
    words += ["--", "--train.compile", "off", "--train.log_every", "1", "--model.blocks", "[2]"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "idensenet.cli", *words],
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which shells ignore in the background
    )
    runs = tmp_path / "out" / "runs" / "cpu"
    metrics = [runs / f"{name}-circles-0" / "metrics.jsonl" for name in ("toy-resflow",)]
    for _ in range(600):
        if all(file.is_file() and file.read_text().count("\n") >= 2 for file in metrics):
            break
        time.sleep(0.1)
    process.send_signal(sign)
    error = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert "the same command continues it" in error
    assert list(runs.glob("toy-resflow-circles-0/checkpoints/step-*"))


# Words


def test_cells_in_words():
    assert in_words(Cell(3.66012, 0.0031), 3) == "3.660 ± 0.003"
    assert in_words(Cell(3.66012, 0.0003), 3) == "3.660 ± 0.0003"
    assert in_words(Cell(3.66012, 0.0000042), 2) == "3.66 ± 0.000004"
    assert in_words(Cell(1.0, 0.0), 2) == "1.00 ± 0.00"
    assert in_words(Cell(None, None, 3.0), 3) == "–"
    table = Table("t", ("a", "b"), (("x", (Cell(1.0), Cell(2.0, None, 2.5))), ("y", (Cell(1.0), Cell()))), 1)
    assert header(table) == ["a", "b", "b, paper"]
    assert lines(table) == [["x", "1.0", "2.0", "2.50"], ["y", "1.0", "–", ""]]


def test_a_difference_within_its_error_shows_nothing():
    assert lower("", -0.1, 0.01, "nats").verdict == "holds"
    assert lower("", 0.1, 0.01, "nats").verdict == "does not hold"
    assert lower("", -0.01, 0.01, "nats").verdict == "does not show"


# The published length


PAPER = {plan.name: plan for each in EXPERIMENTS.values() for plan in each.plans("paper")}


def test_the_paper_budget_is_the_published_one():
    lengths, parsed = {}, {}
    for plan in PAPER.values():
        # seed and toy set change nothing that is asked here, and reading the options of 257 plans takes 20 seconds
        kind = (plan.recipe, *sorted((k, str(v)) for k, v in plan.options.items() if k not in ("train.seed", "data.name")))
        if kind not in parsed:
            parsed[kind], _ = parse(plan.arguments())
        config = parsed[kind]
        lengths[plan.name] = config.train.max_steps or config.train.epochs
        if plan.name.startswith("toy"):
            best = plan.recipe == "toy-best"  # which is no model of the paper's
            assert (config.train.max_steps, config.train.batch_size) == (20_000 if best else 50_000, 500)
        else:
            assert (config.logdet.method, config.logdet.law, config.logdet.law_parameter) == ("roulette", "poisson", 2.0)
            assert config.logdet.exact_terms == 2
        if not plan.name.startswith("toy") and not plan.name.endswith("-timed"):
            assert (config.train.max_steps, config.train.batch_size) == (None, 64)
            assert (config.train.lr, config.train.clip, config.train.average) == (1e-3, 1.0, 0.999)
    shorter, _ = parse(EXPERIMENTS["figure-eta"].plans("cpu")[0].arguments())
    assert shorter.logdet.law_parameter == Config().logdet.law_parameter == 1.0
    assert (lengths["cifar10-idensenet"], lengths["cifar10-resflow"]) == (1000, 1000)
    assert (lengths["imagenet32-idensenet"], lengths["imagenet32-resflow"]) == (20, 20)
    assert {epochs for name, epochs in lengths.items() if "-hybrid" in name} == {400}
    assert {epochs for name, epochs in lengths.items() if "-small" in name and not name.endswith("-timed")} == {200}


def test_the_cpu_budget_trains_every_image_model_with_the_settings_of_the_best_recipe():
    every = {plan.name: plan for each in EXPERIMENTS.values() for plan in each.plans("cpu")}
    compared = {name: plan for name, plan in every.items() if name.startswith("cifar10") and not name.endswith("-timed")}
    best = recipe("cifar10-best-tiny").config
    assert best.model.mix == "whiten"  # the control: not what the recipes compared have
    for plan in compared.values():
        for group, names in images.SETTINGS.items():
            expected = {name: getattr(getattr(best, group), name) for name in names}
            if group == "model" and plan.options.get("model.activation") == "sine":
                expected["beta"] = 3.0
            assert {name: plan.options[f"{group}.{name}"] for name in names} == expected
        assert plan.options["train.max_steps"] == 2 * recipe("cifar10-idensenet-tiny").config.train.max_steps
    for name in ("cifar10-idensenet-tiny", "cifar10-resflow-tiny"):
        assert [compared[name + end].options.get("train.seed", 0) for end in ("", "-1", "-2")] == [0, 1, 2]
    dense, residual = (parse(compared[f"cifar10-{name}-tiny-1"].arguments())[0] for name in ("idensenet", "resflow"))
    assert (dense.train.seed, dense.train.lr, dense.model.mix, dense.model.beta) == (1, 1e-2, "whiten", best.model.beta)
    assert dense.train == residual.train
    changed = [name for name, value in asdict(dense.model).items() if value != asdict(residual.model)[name]]
    assert changed == ["block", "width", "activation"]
    assert {plan.recipe for name, plan in every.items() if name.endswith("-timed")} == {
        variant.small for variant in ACTIVATION_VARIANTS.values()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PAPER if not name.startswith("toy")])
def test_the_paper_budget_takes_its_first_step(name, tmp_path, monkeypatch):
    """With made-up images and two of them in a batch; the models, the objective and the optimiser are as in the paper."""
    rng = np.random.default_rng(0)
    part = Split(rng.integers(0, 256, (8, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 8))
    monkeypatch.setattr(
        train_command, "source_of", lambda config, known=None: Source(config.data.name, part, part, (3, 32, 32), 256)
    )
    extra = ["--train.batch_size", "2", "--train.memory", "save"]
    run = Pool(tmp_path, 0, "data", extra, stop_after=1).train([PAPER[name]])[name]
    assert run.step == 1
    assert all(bool(value.isfinite().all()) for value in run.last_flow.state_dict().values() if value.is_floating_point())


def test_large_numbers_and_the_papers_have_the_digits_they_need():
    assert in_words(Cell(1200.0), 3) == "1,200"
    assert [published(Cell(paper=value)) for value in (3.4, 1.004, 92.0, None)] == ["3.40", "1.004", "92.00", ""]
