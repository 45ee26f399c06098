"""Training that starts from a trained model."""

import shutil

import numpy as np
import pytest
import torch
from tiny import losses, new_run, toy_config, toy_source

import idensenet as idn
from idensenet.cli import main
from idensenet.errors import CheckpointError, OptionError
from idensenet.training.initial import weights_of
from idensenet.training.loop import Trainer

QUIET = ["--output.display", "quiet", "--output.report", "false", "--output.pictures", "false"]
SHORT = ["--train.max_steps", "2", "--train.batch_size", "16", "--train.eval_samples", "20", *QUIET]
CRESCENTS = ["toy-idensenet-clipswish", "--data.name", "moons", "--train.initial", "moons", *SHORT]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    trainer = new_run(tmp_path_factory.mktemp("first") / "run", toy_config(seed=3))
    assert trainer.train() == 0
    return trainer.run.path


def test_a_run_starts_with_exactly_these_weights_and_norms(tmp_path, trained):
    trainer = new_run(tmp_path / "run", toy_config(initial=str(trained)))
    first, state = idn.load(trained), trainer.flow.state_dict()
    assert any("sigma" in name for name in state)
    for name, value in first.state_dict().items():
        assert torch.equal(state[name], value), name
    assert all(torch.equal(trainer.average.weights[name], value) for name, value in first.named_parameters())
    x = torch.randn(50, 2)
    assert torch.equal(trainer.flow.eval().log_prob(x), first.log_prob(x))
    other = new_run(tmp_path / "other", toy_config())  # the control: other first weights
    assert not torch.equal(other.flow.eval().log_prob(x), first.log_prob(x))


def test_it_resumes_exactly_without_the_other_model(tmp_path, trained):
    copy = shutil.copytree(trained, tmp_path / "copy")
    config = toy_config(initial=str(copy), max_steps=6, eval_every=3)
    whole = new_run(tmp_path / "whole", config)
    whole.train()
    parts = new_run(tmp_path / "parts", config)
    parts.train(stop_after=3)
    shutil.rmtree(copy)
    rest = Trainer(config, toy_source(), parts.run)
    rest.resume(3)
    rest.train()
    assert [step for step, _ in losses(rest)] == list(range(1, 7))
    assert losses(whole) == losses(rest)
    with pytest.raises(CheckpointError, match="copy"):  # before its first step, a run needs it
        Trainer(config, toy_source(), parts.run).resume(0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model.blocks", "[3]"], "moons has other weights than this model"),
        (["--model.actnorm", "true"], "there and absent here"),
        (["--train.initial", "nowhere"], "nowhere holds no model"),
    ],
)
def test_a_model_that_does_not_fit_is_one_sentence_before_anything_is_written(tmp_path, words, says, capsys):
    run = tmp_path / "run"
    assert main(["train", *CRESCENTS, *words, "--output.dir", str(run)]) == 2
    assert not run.exists()
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1


def test_other_options_of_the_model_are_named(tmp_path, capsys):
    assert main(["train", *CRESCENTS, "--output.dir", str(tmp_path / "run")]) == 0
    assert "it has --model.coeff 0.99 --model.lip 0.999." in capsys.readouterr().out
    same = ["--model.coeff", "0.99", "--model.lip", "0.999", "--output.dir", str(tmp_path / "same")]
    assert main(["train", *CRESCENTS, *same]) == 0
    assert capsys.readouterr().out == ""


def test_columns_must_stand_for_the_same(tmp_path, capsys):
    rows = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    for name, columns in (("ab", "a,b"), ("cd", "c,d")):
        np.savetxt(tmp_path / f"{name}.csv", rows, delimiter=",", header=columns, comments="")
    words = ["toy-idensenet", "--model.blocks", "[1]", *SHORT]
    first, again = str(tmp_path / "first"), ["--train.initial", str(tmp_path / "first")]
    assert main(["train", *words, "--data.table", str(tmp_path / "ab.csv"), "--output.dir", first]) == 0
    own = tmp_path / "own"
    assert main(["train", *words, *again, "--data.table", str(tmp_path / "cd.csv"), "--output.dir", str(own)]) == 2
    assert "was trained on the columns 'a', 'b', and this table has 'c', 'd'" in capsys.readouterr().err
    assert not own.exists()
    assert main(["train", *words, *again, "--data.table", str(tmp_path / "ab.csv"), "--output.dir", str(own)]) == 0


def test_the_error_names_the_shapes():
    flow = idn.build("toy-idensenet-clipswish", blocks=(3,))
    with pytest.raises(OptionError, match=r"activation.beta is 10 there and 3 here; give the model options of that model"):
        weights_of("moons", flow)
