import pytest
from tiny import toy_config

from idensenet.errors import CheckpointError, OptionError
from idensenet.provenance import commit
from idensenet.training.run import RunFolder


def test_the_configuration_comes_back_as_it_was(tmp_path):
    run = RunFolder(tmp_path / "run")
    config = toy_config().replace(norm=float("inf"))
    run.create(config, "toy-idensenet", "idensenet train toy-idensenet")
    assert run.config() == config
    assert run.description()["recipe"] == "toy-idensenet"
    assert run.description()["commit"] == commit()


def test_options_given_on_resuming_are_kept_and_told(tmp_path):
    run, config = RunFolder(tmp_path / "run"), toy_config()
    run.create(config, None, "idensenet train first")
    run.change(config, "idensenet train same")
    assert "resumed" not in run.description()
    longer = config.replace(train={"max_steps": 77})
    run.change(longer, "idensenet train --resume run --train.max_steps 77")
    assert run.config() == longer
    assert run.description()["command"] == "idensenet train first"
    assert run.description()["resumed"] == ["idensenet train --resume run --train.max_steps 77"]


def test_a_folder_that_holds_a_run_is_not_written_to(tmp_path):
    RunFolder(tmp_path / "run").create(toy_config(), None, "")
    (tmp_path / "run" / "best.json").write_text('{"step": 3}')  # even without the checkpoint
    with pytest.raises(OptionError, match="--resume"):
        RunFolder(tmp_path / "run").create(toy_config(), None, "")
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(OptionError, match="is a file or lies in one"), RunFolder(path).locked():
            pass


def test_a_run_in_use_is_refused_and_free_again_after(tmp_path):
    run = RunFolder(tmp_path / "run")
    with run.locked(), pytest.raises(OptionError, match="is in use by process"), RunFolder(tmp_path / "run").locked():
        pass
    with run.locked():
        pass


def test_metrics_survive_a_torn_last_line_and_forget_what_is_done_again(tmp_path):
    run = RunFolder(tmp_path)
    for step in (1, 2, 3):
        run.log({"kind": "train", "step": step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tr')
    assert [entry["step"] for entry in run.metrics()] == [1, 2, 3]
    run.forget_after(2)
    assert [entry["step"] for entry in run.metrics()] == [1, 2]


@pytest.mark.parametrize("text", [b"", b"config: [", b"model: {depth: 2}", b"config:\ncommand: x", b"\xff"])
def test_a_configuration_that_cannot_be_used_is_named(tmp_path, text):
    (tmp_path / "config.yaml").write_bytes(text)
    for use in (RunFolder(tmp_path).config, lambda: RunFolder(tmp_path).create(toy_config(), None, "")):
        with pytest.raises(CheckpointError, match=r"config\.yaml is damaged or not of a run"):
            use()
    assert (tmp_path / "config.yaml").read_bytes() == text


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="holds no run"):
        RunFolder(tmp_path).config()
