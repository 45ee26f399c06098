import signal

import pytest
import torch
from tiny import finite_source, image_source, losses, new_run, toy_config, toy_source

from idensenet.bijections import ResidualBlock
from idensenet.config import recipe
from idensenet.errors import NonFiniteError, OptionError
from idensenet.report.pictures import run_picture
from idensenet.storage import load
from idensenet.training import compilation, loop
from idensenet.training.batches import Batches
from idensenet.training.display import Quiet
from idensenet.training.interrupt import StopRequest
from idensenet.training.loop import Trainer
from idensenet.training.run import RunFolder


def fails(*arguments):
    raise ArithmeticError("lost")


@pytest.mark.parametrize("source", [toy_source, finite_source])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, source):
    config = toy_config(max_steps=8, eval_every=3, accumulate=2, concatenation_from=0.5)
    whole = new_run(tmp_path / "whole", config, source())
    whole.train()
    parts = new_run(tmp_path / "parts", config, source())
    parts.schedule = type(parts.schedule)(**{**vars(parts.schedule), "steps": 3})
    parts.train()
    rest = Trainer(config, source(), parts.run)
    rest.resume(3)
    rest.train()
    assert losses(whole) == losses(rest)
    assert [step for step, _ in losses(rest)] == list(range(1, 9))
    for a, b in zip(whole.flow.state_dict().values(), rest.flow.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_evaluating_more_often_changes_nothing_in_training(tmp_path):
    a = new_run(tmp_path / "a", toy_config(eval_every=1))
    b = new_run(tmp_path / "b", toy_config(eval_every=6))
    a.train()
    b.train()
    assert losses(a) == losses(b)


def test_images_train_with_roulette_and_averaging_and_stay_contractive(tmp_path):
    config = recipe("digits-idensenet").config.replace(
        blocks=(1, 1), growth=8, fc_blocks=1, train={"max_steps": 5, "batch_size": 8, "eval_every": 5, "log_every": 1},
        output={"display": "quiet"},
    )  # fmt: skip
    trainer = new_run(tmp_path / "run", config, image_source(), run_picture)
    trainer.train()
    entries = [entry["bits/dim"] for entry in trainer.run.metrics() if entry["kind"] == "train"]
    assert len(entries) == 5
    assert trainer.flow.eval().certify().contractive
    assert (trainer.run.pictures / "step-00000005.png").is_file()


def test_the_concatenation_is_frozen_until_its_step(tmp_path):
    trainer = new_run(tmp_path / "run", toy_config(max_steps=6, concatenation_from=0.5))
    weights = [p for name, p in trainer.flow.named_parameters() if name.endswith(".k")]
    for number in range(3):
        trainer.step(number, StopRequest())
        assert all(torch.equal(k, torch.ones(2, 2)) for k in weights)
        assert all(k.grad is None and k not in trainer.optimizer.state for k in weights)
    trainer.step(3, StopRequest())
    assert any(not torch.equal(k, torch.ones(2, 2)) for k in weights)


def test_a_batch_has_the_same_noise_whichever_process_computes_it(tmp_path):
    config = recipe("digits-idensenet").config.replace(
        blocks=(1,), growth=8, train={"batch_size": 4, "accumulate": 2, "max_steps": 9}, data={"crop": True}
    )
    one = new_run(tmp_path / "one", config, image_source())
    two = new_run(tmp_path / "two", config.replace(train={"accumulate": 1}), image_source())
    for trainer in (one, two):
        trainer.flow.train()
    for rank in (0, 1):
        two.rank, two.world, two.batches = rank, 2, Batches(two.source, 4, config.train.seed, rank, world=2)
        share = one.loss(3, rank, one.flow.prepare())
        assert torch.equal(2 * share, two.loss(3, 0, two.flow.prepare()))
    assert not torch.equal(one.loss(3, 0, one.flow.prepare()), one.loss(3, 1, one.flow.prepare()))


def test_accumulating_two_batches_is_the_mean_of_their_gradients(tmp_path):
    together = new_run(tmp_path / "a", toy_config(accumulate=2, batch_size=16, clip=None))
    together.step(0, StopRequest())
    flow = new_run(tmp_path / "b", toy_config(clip=None)).flow
    x = torch.cat([together.batches(0)[0], together.batches(1)[0]])
    flow.train().log_prob(x).mean().neg().backward()
    for (name, p), q in zip(together.flow.named_parameters(), flow.parameters(), strict=True):
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6, msg=name)


def poison(trainer, steps):
    """Make the batches of some steps NaN."""
    draw = trainer.batches.__call__

    def batches(number):
        x, *rest = draw(number)
        return (x * float("nan") if number in steps else x), *rest

    batches.among_all, batches.per_epoch = trainer.batches.among_all, trainer.batches.per_epoch
    trainer.batches = batches


def test_a_step_whose_gradient_is_not_finite_is_skipped_and_counted(tmp_path):
    trainer = new_run(tmp_path / "run", toy_config(max_steps=4, eval_every=4))
    poison(trainer, {1})
    before = None
    for number in range(3):
        if number == 1:
            before = [p.detach().clone() for p in trainer.flow.parameters()]
        trainer.step(number, StopRequest())
        if number == 1:
            assert all(torch.equal(p, q) for p, q in zip(trainer.flow.parameters(), before, strict=True))
    assert int(trainer.bad) == 1
    assert all(bool(torch.isfinite(p).all()) for p in trainer.flow.parameters())


def test_ten_bad_steps_in_a_row_stop_the_run_and_the_block_is_named(tmp_path):
    trainer = new_run(tmp_path / "run", toy_config(max_steps=30, eval_every=30))
    poison(trainer, set(range(2, 30)))
    with pytest.raises(NonFiniteError, match=r"10 steps in a row .* block 1\.1"):
        trainer.train()
    assert trainer.progress.step == 12


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_being_asked_to_stop_finishes_the_step_saves_and_can_be_resumed(tmp_path, number, code, capsys):
    config = toy_config(max_steps=6)
    whole = new_run(tmp_path / "whole", config)
    whole.train()
    trainer = new_run(tmp_path / "run", config.replace(output={"display": "plain"}))
    step = trainer.step

    def interrupted(count, stop):
        if count == 3:
            signal.raise_signal(number)
        return step(count, stop)

    trainer.step = interrupted
    assert trainer.train() == code
    assert trainer.run.checkpoints.steps()[-1] == 4
    assert f"idensenet train --resume {trainer.run.path}" in capsys.readouterr().out
    rest = Trainer(config, toy_source(), trainer.run)
    rest.resume(4)
    assert rest.train() == 0
    assert losses(rest) == losses(whole)


def test_being_asked_twice_stops_at_once(tmp_path):
    trainer = new_run(tmp_path / "run", toy_config())
    step = trainer.step

    def interrupted(count, stop):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return step(count, stop)

    trainer.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.train()


def test_a_failing_evaluation_loses_nothing_that_was_learned(tmp_path, monkeypatch):
    config = toy_config(max_steps=6, eval_every=3)
    whole = new_run(tmp_path / "whole", config)
    whole.train()
    trainer = new_run(tmp_path / "run", config)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "held_out", fails)
        with pytest.raises(ArithmeticError, match="lost"):
            trainer.train()
    assert trainer.run.checkpoints.steps() == [3]
    assert trainer.run.checkpoints.best() is None
    rest = Trainer(config, toy_source(), trainer.run)
    rest.resume(3)
    assert rest.train() == 0
    assert losses(rest) == losses(whole)
    assert rest.run.checkpoints.best() == 6


def test_a_picture_that_cannot_be_made_is_told_and_no_end(tmp_path, capsys):
    config = toy_config().replace(output={"display": "plain", "pictures": True})
    trainer = new_run(tmp_path / "run", config, draw=fails)
    assert trainer.train() == 0
    assert "step 6: no picture can be made: lost" in capsys.readouterr().out
    assert trainer.run.checkpoints.steps() == [3, 6]


class Notes(Quiet):
    def __init__(self):
        super().__init__(1, 0)
        self.said = []

    def say(self, text):
        self.said.append(text)


@pytest.fixture
def switched(monkeypatch):
    """Collects the calls that switch compilation; nothing is compiled."""
    told = []
    monkeypatch.setattr(ResidualBlock, "compile_blocks", lambda block, on=True: told.append(on))
    return told


def test_long_runs_are_compiled_short_ones_are_not_and_it_is_said(tmp_path, monkeypatch, switched):
    short, notes = new_run(tmp_path / "short", toy_config()), Notes()
    short.choose(notes)
    assert not switched
    assert short.progress.compiled is False
    assert len(notes.said) == 1
    assert "6 steps of" in notes.said[0]
    assert "not compiled" in notes.said[0]
    long = new_run(tmp_path / "long", toy_config(max_steps=10_000_000))
    long.choose(notes)
    assert switched == [True]
    assert long.progress.compiled is True
    assert "so blocks are compiled" in notes.said[1]
    assert "compiled in" in notes.said[-1]
    off = new_run(tmp_path / "off", toy_config(max_steps=10_000_000, compile="off"))
    off.choose(notes)
    assert switched == [True]
    assert off.progress.compiled is None
    with pytest.raises(OptionError, match="auto, on or off"):
        new_run(tmp_path / "odd", toy_config(compile="maybe")).choose(notes)


def test_a_failing_compilation_is_no_end_unless_it_is_asked_for(tmp_path, monkeypatch):
    told = []

    def broken(block, on=True):
        told.append(on)
        if on:
            raise RuntimeError("no compiler")

    monkeypatch.setattr(ResidualBlock, "compile_blocks", broken)
    trainer, notes = new_run(tmp_path / "again", toy_config(max_steps=10_000_000)), Notes()
    trainer.choose(notes)
    assert told == [True, False]
    assert trainer.progress.compiled is False
    assert "goes on without it" in notes.said[-1]
    wanted = new_run(tmp_path / "wanted", toy_config(compile="on"))
    with pytest.raises(OptionError, match="no compiler"):
        wanted.choose(notes)


def test_choosing_changes_nothing_in_training(tmp_path, monkeypatch, switched):
    monkeypatch.setattr(compilation, "SECONDS", 1e-9)  # so that several steps are timed
    config = toy_config(concatenation_from=0.5)
    with_choice, without = new_run(tmp_path / "a", config), new_run(tmp_path / "b", config.replace(train={"compile": "off"}))
    with_choice.train()
    without.train()
    assert switched == [True]
    assert losses(with_choice) == losses(without)


def test_a_resumed_run_keeps_its_choice_whatever_the_time_of_a_step_is_now(tmp_path, monkeypatch, switched):
    config = toy_config()
    with monkeypatch.context() as patch:
        patch.setattr(compilation, "SECONDS", 1e-9)
        new_run(tmp_path / "run", config).train(stop_after=1)
    assert switched == [True]
    rest = Trainer(config, toy_source(), RunFolder(tmp_path / "run"))
    rest.resume(1)
    assert rest.train() == 0
    assert switched == [True, True]
    assert rest.run.checkpoints.progress(6).compiled is True


def test_compilation_repays_over_many_long_steps_alone():
    assert compilation.repays(0.02, 20_000, compilation.EXACT)
    assert not compilation.repays(0.02, 5_000, compilation.EXACT)
    assert not compilation.repays(1.5, 1_200, compilation.OTHER)
    assert compilation.repays(3.0, 156_000, compilation.OTHER)
    count = []
    assert compilation.step_time(lambda: count.append(1), 10, 0.5) < 1
    assert len(count) == 1
    compilation.step_time(lambda: count.append(1), 10**12, 0.5)
    assert len(count) == 2 + compilation.WATCHED


@pytest.mark.parametrize("options", [{"memory": "save"}, {"precision": "bf16-mixed"}, {"precision": "64-true"}])
def test_images_train_with_every_kind_of_memory_and_precision(tmp_path, options):
    config = recipe("digits-idensenet").config.replace(
        blocks=(1, 1), growth=8, fc_blocks=1, train={"max_steps": 2, "batch_size": 8, "log_every": 1, "eval_samples": 4},
        output={"display": "quiet", "pictures": False},
    )  # fmt: skip
    plain = new_run(tmp_path / "plain", config, image_source())
    other = new_run(tmp_path / "other", config.replace(train=options), image_source())
    assert [stack.save for stack in other.flow.stacks()] == [options.get("memory") == "save"] * 3
    assert other.flow.dtype == (torch.float64 if options.get("precision") == "64-true" else torch.float32)
    plain.step(0, StopRequest())
    other.step(0, StopRequest())
    tolerance = {"memory": 1e-5, "precision": 0.02}[next(iter(options))]
    torch.testing.assert_close(other.recent["bits/dim"][0].float(), plain.recent["bits/dim"][0], rtol=tolerance, atol=0)
    rounded = not torch.equal(other.recent["bits/dim"][0].float(), plain.recent["bits/dim"][0])
    assert rounded or "memory" in options
    assert other.train() == 0


def test_evaluation_is_never_rounded(tmp_path):
    trainer = new_run(tmp_path / "run", toy_config(precision="bf16-mixed", max_steps=2, eval_every=2))
    trainer.train()
    found = [entry["nats"] for entry in trainer.run.metrics() if entry["kind"] == "eval"]
    flow = load(trainer.run.path)
    x = torch.from_numpy(trainer.source.test.x[:50])
    with torch.no_grad():
        assert found[-1] == pytest.approx(-float(flow.log_prob(x).double().mean()), rel=1e-6)
