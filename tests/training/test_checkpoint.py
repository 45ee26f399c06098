import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny import losses, new_run, toy_config, toy_source

import idensenet as idn
from idensenet.errors import CheckpointError
from idensenet.training import checkpoint, schedule
from idensenet.training.loop import Trainer


@pytest.fixture
def trained(tmp_path):
    trainer = new_run(tmp_path / "run", toy_config())
    assert trainer.train() == 0
    return trainer


def test_a_checkpoint_holds_no_pickle_and_every_file_has_a_hash(trained):
    folder = trained.run.checkpoints.path(6)
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert all(name.endswith((".safetensors", ".json")) for name in files)
    assert files - {"manifest.json"} == set(json.loads((folder / "manifest.json").read_text()))


def test_reading_gives_back_everything_bit_for_bit(trained):
    other = Trainer(trained.config, toy_source(), trained.run)
    other.resume(6)
    for (name, a), b in zip(trained.flow.state_dict().items(), other.flow.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for name, value in trained.average.weights.items():
        assert torch.equal(value, other.average.weights[name])
    a, b = (checkpoint.optimizer_tensors(t.optimizer) for t in (trained, other))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert other.progress == trained.progress


def test_the_last_two_and_the_best_are_kept(tmp_path):
    trainer = new_run(tmp_path / "run", toy_config(max_steps=5, eval_every=5, save_every=1))
    trainer.train()
    assert trainer.run.checkpoints.steps() == [4, 5]
    trainer.progress.step, trainer.progress.best = 9, -100.0
    trainer.save(None)
    assert trainer.run.checkpoints.steps() == [5, 9]  # 5 was the best
    trainer.progress.step = 10
    trainer.save(None)
    assert trainer.run.checkpoints.steps() == [5, 9, 10]
    assert trainer.run.checkpoints.best() == 5


def test_evaluated_steps_are_saved_also_between_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "MOST_LOST", 2)
    trainer = new_run(tmp_path / "run", toy_config(max_steps=7, eval_every=3))
    written = []
    monkeypatch.setattr(trainer, "save", lambda score: written.append((trainer.progress.step, score is not None)))
    trainer.train()
    assert written == [(2, False), (3, True), (4, False), (6, True), (7, True)]


def test_a_checkpoint_knows_how_long_the_run_is(trained):
    assert trained.run.checkpoints.progress(3).steps == trained.run.checkpoints.progress(6).steps == 6


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "manifest"])
@pytest.mark.parametrize("name", ["weights.safetensors", "model/model.safetensors"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_offered(trained, damage, name):
    file = trained.run.checkpoints.path(6) / name
    content = file.read_bytes()
    if damage == "truncate":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        file.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    elif damage == "delete":
        file.unlink()
    else:
        (trained.run.checkpoints.path(6) / "manifest.json").write_text("{")
    for attempt in (lambda: Trainer(trained.config, toy_source(), trained.run).resume(6), lambda: idn.load(trained.run.path)):
        with pytest.raises(CheckpointError, match=r"step 6 .* is damaged .* --step 3"):
            attempt()
    other = Trainer(trained.config, toy_source(), trained.run)
    before = losses(trained)
    other.resume(3)
    assert other.train() == 0
    assert losses(other) == before


@pytest.mark.parametrize("name", checkpoint.FOR_TRAINING)
def test_a_run_passed_on_without_what_training_needs_can_be_used_and_not_continued(trained, name):
    x = torch.zeros(3, 2)
    before = idn.load(trained.run.path).log_prob(x)
    (trained.run.checkpoints.path(6) / name).unlink()
    assert torch.equal(idn.load(trained.run.path).log_prob(x), before)
    with pytest.raises(CheckpointError, match=rf"can be used but not continued: .* {name}"):
        Trainer(trained.config, toy_source(), trained.run).resume(6)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_what_was_there_and_no_rest(trained, monkeypatch, failure):
    def broken(*args, **kwargs):
        raise failure

    monkeypatch.setattr(checkpoint, "save", broken)
    trained.progress.step = 7
    with pytest.raises(type(failure)):
        trained.save(None)
    assert trained.run.checkpoints.steps() == [3, 6]
    assert not list(trained.run.checkpoints.folder.glob(".part-*"))
    assert trained.run.checkpoints.check(6).is_dir()


def test_the_rest_of_a_killed_write_is_ignored_and_cleared(trained):
    rest = trained.run.checkpoints.folder / ".part-dead"
    shutil.copytree(trained.run.checkpoints.path(6), rest)
    assert trained.run.checkpoints.steps() == [3, 6]
    trained.progress.step = 7
    trained.save(None)
    assert not rest.exists()


def test_a_run_without_checkpoints_cannot_be_loaded_and_says_so(tmp_path):
    trainer = new_run(tmp_path / "run", toy_config())
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        idn.load(trainer.run.path)
    with pytest.raises(CheckpointError, match="holds no model"):
        idn.load(Path(tmp_path) / "elsewhere")


def test_any_checkpoint_can_be_loaded_by_its_step_or_as_the_best(trained):
    checkpoints = trained.run.checkpoints
    checkpoints._note_best(checkpoint.Progress(6, 1.0, 3))
    x = torch.randn(5, 2)
    values = {step: idn.load(trained.run.path, step=step).log_prob(x) for step in (3, 6, "best", "last")}
    assert not torch.equal(values[3], values[6])
    assert torch.equal(values["best"], values[3])
    assert torch.equal(values["last"], values[6])
    with pytest.raises(CheckpointError, match="no checkpoint of step 5; it has 3, 6"):
        idn.load(trained.run.path, step=5)
    (trained.run.path / "best.json").unlink()
    with pytest.raises(CheckpointError, match="not been evaluated"):
        idn.load(trained.run.path, step="best")


def test_continuing_from_an_earlier_step_sets_aside_what_lay_ahead_and_keeps_what_it_writes(trained):
    ahead = checkpoint.digest(trained.run.checkpoints.path(6) / "manifest.json")
    other = Trainer(trained.config.replace(train={"save_every": 1}), toy_source(), trained.run)
    other.resume(3)
    assert trained.run.checkpoints.steps() == [3]
    aside = trained.run.checkpoints.folder / "aside-1-step-00000006"
    assert checkpoint.digest(aside / "manifest.json") == ahead
    assert trained.run.checkpoints.best() == 3  # not the best one of the path that was left
    other.progress.step = 4
    other.save(None)
    assert trained.run.checkpoints.steps() == [3, 4]
    assert trained.run.checkpoints.find("last") == 4


def test_a_best_checkpoint_that_is_gone_is_no_longer_the_one_to_beat(trained):
    trained.progress.best, trained.progress.best_step = -1e9, 1
    trained.run.checkpoints.set_aside_after(6, trained.progress)
    assert (trained.progress.best, trained.progress.best_step) == (None, None)
    assert trained.run.checkpoints.best() is None
