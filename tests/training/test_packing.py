import json
import zlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import new_run, toy_config

import idensenet as idn
from idensenet.cli import main
from idensenet.config import recipe
from idensenet.data.catalog import open_source
from idensenet.errors import CheckpointError, OptionError
from idensenet.training.packing import FORMAT, pack, unpack


@pytest.fixture
def run(tmp_path):
    trainer = new_run(tmp_path / "run", toy_config())
    assert trainer.train() == 0
    return trainer.run


@pytest.fixture
def packed(run, tmp_path):
    return pack(run, tmp_path / "packed.safetensors")


def test_a_packed_run_comes_back_bit_for_bit(run, packed, tmp_path):
    back = unpack(packed, tmp_path / "back")
    assert back.description() == run.description()
    assert back.metrics() == run.metrics()
    step = run.checkpoints.find("last")
    assert back.checkpoints.steps() == [step]
    assert back.checkpoints.progress(step) == run.checkpoints.progress(step)
    for name in ("weights.safetensors", "model/model.safetensors"):
        mine, its = (load_file(r.checkpoints.check(step) / name) for r in (run, back))
        assert mine.keys() == its.keys()
        assert all(torch.equal(mine[key], its[key]) for key in mine)
    x = torch.randn(5, 2)
    with torch.no_grad():
        assert torch.equal(idn.load(back.path).log_prob(x), idn.load(run.path).log_prob(x))


def test_compact_it_is_the_averaged_model_in_half_precision_and_its_norms_are_computed_again(tmp_path):
    config = recipe("digits-idensenet").config.replace(
        train={"max_steps": 2, "batch_size": 16, "eval_samples": 20, "threads": 1}
    )
    run = new_run(tmp_path / "run", config.replace(blocks=[1, 1, 1], growth=16), open_source("digits"))
    assert run.train() == 0
    file = pack(run.run, tmp_path / "packed.safetensors", compact=True)
    assert file.stat().st_size < 0.3 * pack(run.run, tmp_path / "whole.safetensors").stat().st_size
    back, mine = idn.load(unpack(file, tmp_path / "back").path), idn.load(run.run.path)
    assert back.dtype == torch.float32
    its = dict(back.named_parameters())
    assert all(torch.equal(its[name], value.half().float()) for name, value in mine.named_parameters())
    x, *_ = run.source.test.batch(np.arange(20))
    with torch.no_grad():
        right, found = mine.log_prob(x), back.log_prob(x)
        torch.testing.assert_close(found, right, rtol=0, atol=0.3)  # of 150 nats
        torch.testing.assert_close(back.inverse(back(x)[0])[0], back.dequantize(x), rtol=0, atol=1e-3)
    assert back.certify().contractive


def test_an_earlier_checkpoint_takes_its_own_metrics_along(run, tmp_path):
    first = run.checkpoints.steps()[0]
    back = unpack(pack(run, tmp_path / "first.safetensors", first), tmp_path / "back")
    assert back.checkpoints.steps() == [first]
    assert max(entry["step"] for entry in back.metrics()) <= first < max(entry["step"] for entry in run.metrics())


def test_it_cannot_be_continued_and_says_so(packed, tmp_path, capsys):
    unpack(packed, tmp_path / "back")
    assert main(["train", "--resume", str(tmp_path / "back")]) == 2
    assert "can be used but not continued" in capsys.readouterr().err


def test_a_file_is_no_model_and_the_error_names_the_command(packed):
    with pytest.raises(CheckpointError, match="idensenet unpack"):
        idn.load(packed)


def test_commands(run, tmp_path, capsys):
    assert main(["pack", str(run.path), "--out", str(tmp_path / "a.safetensors")]) == 0
    assert main(["unpack", str(tmp_path / "a.safetensors")]) == 0
    assert (tmp_path / "a" / "config.yaml").is_file()
    assert "step 6" in capsys.readouterr().out
    assert main(["unpack", str(tmp_path / "a.safetensors")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["pack", str(tmp_path / "nothing")]) == 2
    assert main(["unpack", str(tmp_path / "nothing")]) == 2


def changed(packed, **about):
    """The file with other entries in its header."""
    from safetensors import safe_open

    with safe_open(packed, "pt") as opened:
        known = opened.metadata()
    save_file(load_file(packed), packed, {**known, **about})


def bomb():
    return torch.from_numpy(np.frombuffer(zlib.compress(bytes(1 << 29), 9), np.uint8).copy())


DAMAGE = {
    "cut": lambda f: f.write_bytes(f.read_bytes()[:-100]),
    "empty": lambda f: f.write_bytes(b""),
    "text": lambda f: f.write_text("hello"),
    "other safetensors": lambda f: save_file({"a": torch.zeros(2)}, f),
    "another format": lambda f: changed(f, format="idensenet run 99"),
    "no progress": lambda f: changed(f, progress="[]"),
    "progress of another kind": lambda f: changed(f, progress='{"steps": 3, "colour": 1}'),
    "no description": lambda f: changed(f, run="{}"),
    "a model of another kind": lambda f: changed(f, model="[1]"),
    "weights missing": lambda f: save_file(
        {"metrics": load_file(f)["metrics"]}, f, {"format": FORMAT, "run": "{}", "progress": "{}", "model": "{}"}
    ),
    "no metrics": lambda f: save_file(
        {k: v for k, v in load_file(f).items() if k != "metrics"},
        f,
        {"format": FORMAT, "run": "{}", "progress": json.dumps({"step": 6}), "model": "{}"},
    ),
    "too many metrics": lambda f: _with_metrics(f, bomb()),
    "metrics that are no archive": lambda f: _with_metrics(f, torch.zeros(50, dtype=torch.uint8)),
}


def _with_metrics(packed, metrics):
    from safetensors import safe_open

    with safe_open(packed, "pt") as opened:
        known = opened.metadata()
    save_file({**load_file(packed), "metrics": metrics}, packed, known)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_refused_in_one_sentence_and_nothing_is_left(packed, tmp_path, damage):
    damage(packed)
    before = {p.name for p in tmp_path.iterdir()}
    with pytest.raises(CheckpointError) as found:
        unpack(packed, tmp_path / "back")
    assert "\n" not in str(found.value)
    assert {p.name for p in tmp_path.iterdir()} == before


def test_nothing_is_overwritten(packed, tmp_path):
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "mine").write_text("mine")
    with pytest.raises(OptionError, match="exists already"):
        unpack(packed, tmp_path / "back")
    assert (tmp_path / "back" / "mine").read_text() == "mine"
