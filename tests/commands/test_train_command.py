"""Whole commands, as a person types them, in processes of their own."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from idensenet.cli import main
from idensenet.commands.parsing import recipe_in_file
from idensenet.commands.train import parse
from idensenet.config import Config
from idensenet.errors import OptionError
from idensenet.training.loop import Trainer
from idensenet.training.options import accelerator_of
from idensenet.training.run import RunFolder
from idensenet.training.sources import source_of

TINY = [
    "toy-idensenet", "--data.name", "moons", "--model.blocks", "[1]", "--train.max_steps", "6", "--train.batch_size", "16",
    "--train.eval_every", "3", "--train.eval_samples", "50", "--train.log_every", "1", "--output.display", "plain",
    "--output.pictures", "false",
]  # fmt: skip


TOY = ["train", "toy-idensenet", "--data.name", "moons", "--train.max_steps", "2"]


def idensenet(*words, cwd, wait=True):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COVERAGE_PROCESS_START": ""}
    command = [sys.executable, "-m", "idensenet.cli", *map(str, words)]
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not wait:
        return process
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def fails(*arguments):
    raise RuntimeError


def losses(run):
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(entry["step"], entry["nats"]) for entry in entries if entry["kind"] == "train"]


def test_two_processes_train_resume_exactly_and_differ_from_one(tmp_path):
    two = [*TINY, "--train.devices", "2", "--train.accelerator", "cpu", "--train.concatenation_from", "0"]
    whole = idensenet("train", *two, "--output.dir", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    two += ["--output.report", "false"]
    first = idensenet("train", *two, "--output.dir", "parts", "--train.max_steps", "3", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    rest = idensenet("train", "--resume", "parts", "--train.max_steps", "6", cwd=tmp_path)
    assert rest.returncode == 0, rest.stderr
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    assert main(["train", *TINY, "--output.report", "false", "--output.dir", str(tmp_path / "one")]) == 0
    assert losses(tmp_path / "one")[0] != losses(tmp_path / "whole")[0]


def test_killing_a_run_loses_nothing_that_was_saved(tmp_path):
    process = idensenet(
        "train",
        *TINY,
        "--train.max_steps",
        "100000",
        "--train.compile",
        "off",
        "--train.save_every",
        "1",
        "--output.dir",
        "run",
        cwd=tmp_path,
        wait=False,
    )
    checkpoints = tmp_path / "run" / "checkpoints"
    deadline = time.monotonic() + 120
    while len(list(checkpoints.glob("step-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    last = sorted(checkpoints.glob("step-*"))[-1]
    step = int(last.name.removeprefix("step-"))
    more = ["--train.max_steps", step + 2, "--train.save_every", "1", "--output.report", "false"]
    rest = idensenet("train", "--resume", "run", *more, cwd=tmp_path)
    assert rest.returncode == 0, rest.stderr
    assert f"steps {step} to {step + 2}" in rest.stdout
    assert [s for s, _ in losses(tmp_path / "run")][-1] == step + 2
    assert f"max_steps: {step + 2}" in (tmp_path / "run" / "config.yaml").read_text()


def test_an_interrupt_saves_says_how_to_resume_and_exits_with_130(tmp_path):
    words = ["--train.max_steps", "100000", "--train.compile", "off", "--output.dir", "run"]
    process = idensenet("train", *TINY, *words, cwd=tmp_path, wait=False)
    for line in process.stdout:
        if line.startswith("step 5/"):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "idensenet train --resume run" in out
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "toy-idensnet"], "did you mean 'toy-idensenet'"),
        (["train", "toy-idensenet", "--train.lrr", "1"], "did you mean '--train.lr'"),
        (["train", "toy-idensenet", "--train.lr", "fast"], "train.lr"),
        (["train"], "What to train is missing"),
        (["train", "toy-idensenet", "--data.name", "moon"], "did you mean 'moons'"),
        (["train", "digits-idensenet", "--data.name", "moons"], "choose another recipe"),
        (["train", "--resume", "nowhere"], "holds no run"),
        (["train", "--train.lr", "1", "toy-idensnet"], "did you mean 'toy-idensenet'"),
        (["train", "--resume", "nowhere", "toy-idensenet"], "are both given"),
        ([*TOY, "--train.accumulate", "0"], "train.accumulate=0 must be at least 1."),
        ([*TOY, "--train.log_every", "0"], "train.log_every=0 must be at least 1."),
        ([*TOY, "--train.eval_samples", "0"], "train.eval_samples=0 must be at least 1."),
        ([*TOY, "--train.devices", "0"], "train.devices=0 must be at least 1."),
        ([*TOY, "--train.seed", "-1"], "train.seed=-1 must be at least 0 and below 2^63."),
        ([*TOY, "--train.lr", "-1"], "train.lr=-1.0 must be positive and finite."),
        ([*TOY, "--train.lr", ".nan"], "train.lr=nan must be positive and finite."),
        ([*TOY, "--train.betas", "[0.5,2.0]"], "train.betas=(0.5, 2.0) must be at least 0 and below 1."),
        ([*TOY, "--train.warmup", "2"], "train.warmup=2.0 must be between 0 and 1."),
        ([*TOY, "--train.accelerator", "abacus"], "train.accelerator='abacus' is not known; use auto, cpu or cuda."),
        ([*TOY, "--data.flip", "true"], "are for images"),
        ([*TOY, "--model.classes", "2", "--train.objective", "hybrid"], "needs labels, and moons has none"),
        (["train", "digits-idensenet", "--model.classes", "5"], "model.classes=5 is too few: digits has 10 classes."),
        (["evaluate", "moons", "--batch", "0"], "--batch=0 must be at least 1."),
        (["evaluate", "moons", "--samples", "-1"], "--samples=-1 must be at least 1."),
        (["sample", "moons", "-n", "0", "--out", "s.png"], "--number=0 must be at least 1."),
        (["sample", "moons", "--seed", "99999999999999999999"], "must be at least 0 and below 2^63."),
        (["reconstruct", "moons", "-n", "0"], "--number=0 must be at least 1."),
        (["score", "moons", "--data.name", "moons", "--reference", "0"], "--reference=0 must be at least 1."),
        (["trian"], "did you mean 'train'"),
        (["evaluate", "nowhere"], "holds no model"),
        (["sample", "nowhere", "--out", "picture.gif"], "must end in .png"),
        (["score", "nowhere"], "What to score is missing"),
        (["data", "cifar"], "cifar10"),
        (["demo", "--steps", "0"], "0 steps"),
        (["report", "."], "is not the folder of a run"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, words, says, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error
    assert error.startswith("idensenet: ")
    assert len(error.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_every_command_has_help_with_an_example(capsys):
    from idensenet.cli import COMMANDS

    assert main(["--help"]) == 0
    usage = capsys.readouterr().out
    assert all(f"\n  {name} " in usage for name in COMMANDS)
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stop:
            main([name, "--help"])
        assert stop.value.code == 0
        assert f"example: idensenet {name}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_that_ended_before_its_first_checkpoint_starts_again(tmp_path, monkeypatch, resumed):
    words = ["train", *TINY, "--output.report", "false", "--output.display", "quiet", "--output.dir"]
    assert main([*words, str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", fails)
        with pytest.raises(RuntimeError):
            main([*words, str(tmp_path / "run")])
    assert len(losses(tmp_path / "run")) == 3
    (tmp_path / "run" / "mine.txt").write_text("mine")
    assert main(["train", "--resume", str(tmp_path / "run")] if resumed else [*words, str(tmp_path / "run")]) == 0
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert RunFolder(tmp_path / "run").description()["recipe"] == "toy-idensenet"
    assert (tmp_path / "run" / "mine.txt").read_text() == "mine"


def test_a_file_that_only_has_the_name_of_a_configuration_is_not_touched(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("train: {max_steps: 2}\n")
    assert main(["train", *TINY, "--config", str(tmp_path / "config.yaml"), "--output.dir", str(tmp_path)]) == 2
    assert "config.yaml" in capsys.readouterr().err
    assert (tmp_path / "config.yaml").read_text() == "train: {max_steps: 2}\n"


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/run"):
        assert main(["train", *TINY, "--output.dir", str(tmp_path / place)]) == 2
        assert "is a file or lies in one" in capsys.readouterr().err


def test_a_recipe_counts_wherever_it_stands(tmp_path):
    (tmp_path / "c.yaml").write_text("train: {max_steps: 7}\n")
    words = ["--config", str(tmp_path / "c.yaml"), "--train.lr", "0.5"]
    first, last = (parse(given)[0] for given in (["toy-resflow", *words], [*words, "toy-resflow"]))
    assert first == last
    assert (first.model.block, first.train.max_steps, first.train.lr) == ("residual", 7, 0.5)


@pytest.mark.parametrize(("memory", "times"), [("keep", 0), ("save", 1)])
def test_training_that_saves_memory_gives_freed_memory_back(tmp_path, monkeypatch, memory, times):
    told = []
    monkeypatch.setattr("idensenet.commands.train.give_back_freed_memory", lambda: told.append(memory))
    words = ["--train.max_steps", "1", "--train.memory", memory, "--output.dir", str(tmp_path / "run")]
    assert main(["train", *TINY, *words]) == 0
    assert told == [memory] * times


@pytest.mark.parametrize("words", [["--model.norm", "inf"], ["--model.norm=infinity"], ["--model.norm", ".inf"]])
def test_infinity_is_written_as_people_write_it(words):
    config, _ = parse(["toy-idensenet", *words])
    assert config.model.norm == math.inf


# Files of options


def test_a_file_of_options_may_name_its_recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("recipe: toy-resflow\ndata: {name: moons}\ntrain: {max_steps: 7}\nmodel: {norm: .inf}\n")
    for words in (["--config", str(file)], [f"--config={file}"]):
        config, values = parse(recipe_in_file([*words, "--train.seed", "3"]))
        assert values.recipe == "toy-resflow"
        assert (config.model.block, config.model.width, config.model.coeff) == ("residual", 128, 0.9)
        assert (config.data.name, config.train.max_steps, config.train.seed, config.model.norm) == ("moons", 7, 3, math.inf)
    file.write_text("data: {name: moons}\n")
    assert recipe_in_file(["--config", str(file)]) == ["--config", str(file)]


def test_the_record_of_a_run_is_a_file_of_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY, "--train.lr", "0.002", "--output.dir", "first"]) == 0
    assert main(["train", "--config", "first/config.yaml", "--output.dir", "second"]) == 0
    first, second = (RunFolder(tmp_path / name) for name in ("first", "second"))
    assert first.config().replace(output={"dir": "second"}) == second.config()
    assert losses(first.path) == losses(second.path)
    with pytest.raises(FileNotFoundError):  # nothing was written anywhere else
        (tmp_path / "runs").stat()


def test_printed_options_are_those_of_the_recipe(capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "toy-resflow", "--train.seed", "5", "--print_config"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "width: 128" in text
    assert "seed: 5" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--train.max_steps", "abc"], "--train.max_steps abc cannot be used: it must be a whole number. See"),
        (["--train.lr", "fast"], "--train.lr fast cannot be used: it must be a number. See"),
        (["--data.columns", "a"], "--data.columns a cannot be used: it must be a list such as '[a, b]'. See"),
        (["--train.precision", "bf16"], "train.precision='bf16' is not known; use 32-true, 64-true or bf16-mixed."),
        (["--train.compile", "foo"], "train.compile='foo' is not known; use auto, on or off."),
        (["--train.memory", "less"], "train.memory='less' is not known; use keep or save."),
        (["--train.threads", "0"], "train.threads=0 must be at least 1."),
        (["--logdet.recompute", "true"], "logdet.recompute is gone; use train.memory: keep or save."),
        (["--logdet.bfloat16=true"], "logdet.bfloat16 is gone; use train.precision: bf16-mixed."),
        (["--output.display", "foo"], "output.display='foo' is not known"),
        (["--stop-after", "0"], "--stop-after=0 must be at least 1."),
        (["--data.table", "mine.csv"], "data comes from one place"),
        (["--model.shape", "[3,32,32]"], "The model is for samples of shape (3, 32, 32)"),
    ],
)
def test_bad_options_are_told_before_anything_is_written(words, text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*TOY, *words]) == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_images_without_room_for_their_jacobians_are_refused(tmp_path, capsys, monkeypatch):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    for i in range(20):
        Image.new("RGB", (32, 32), (10 * i, 0, 0)).save(tmp_path / "images" / f"{i}.png")
    assert main(["train", "toy-idensenet", "--data.folder", "images", "--train.max_steps", "1"]) == 2
    assert "logdet.eval_method=exact takes the whole Jacobian of every sample, 3.5 GB" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_run_cannot_stop_where_it_has_been(tmp_path, capsys):
    assert main(["train", *TINY, "--output.dir", str(tmp_path / "run"), "--stop-after", "4"]) == 0
    assert main(["train", "--resume", str(tmp_path / "run"), "--stop-after", "4"]) == 2
    assert "--stop-after 4 must be later than step 4" in capsys.readouterr().err


def test_a_score_that_is_no_number_is_not_the_best(tmp_path):
    config, _ = parse([*TINY, "--output.dir", str(tmp_path / "run")])
    run = RunFolder(tmp_path / "run")
    trainer = Trainer(config, source_of(config), run)
    run.create(config, None, "")
    trainer.start()
    for step, score in ((1, math.nan), (2, 3.0), (3, math.nan), (4, 2.0)):
        trainer.progress.step = step
        trainer.save(score)
    assert (trainer.progress.best, trainer.progress.best_step) == (2.0, 4)


def test_somebody_who_has_read_enough_ends_it_quietly(tmp_path):
    process = idensenet("certify", "moons", cwd=tmp_path, wait=False)
    process.stdout.close()
    process.wait(timeout=240)
    assert "Errno" not in process.stderr.read()


@pytest.mark.parametrize(("apple", "cuda", "chosen"), [(True, False, "cpu"), (False, False, "auto"), (True, True, "auto")])
def test_gpus_without_float64_are_not_chosen(monkeypatch, apple, cuda, chosen):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: apple)
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    assert accelerator_of("auto") == chosen
    assert accelerator_of("cpu") == "cpu"


@pytest.mark.parametrize("option", ["recompute", "bfloat16"])
def test_options_that_are_gone_name_what_took_their_place(option, tmp_path, capsys):
    file = tmp_path / "old.yaml"
    file.write_text(f"logdet: {{{option}: false}}\n")
    assert main([*TOY, "--config", str(file), "--output.dir", str(tmp_path / "run")]) == 2
    assert f"logdet.{option} is gone; use train." in capsys.readouterr().err
    with pytest.raises(OptionError, match=f"logdet.{option} is gone; use train."):
        Config().replace(logdet={option: True})
