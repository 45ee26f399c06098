import pytest
from tiny import toy_config

from idensenet.errors import CheckpointError, OptionError
from idensenet.training.run import RunFolder


def test_the_configuration_comes_back_as_it_was(tmp_path):
    run = RunFolder(tmp_path / "run")
    config = toy_config().replace(norm=float("inf"))
    run.create(config, "toy-idensenet", "idensenet train toy-idensenet")
    assert run.config() == config
    assert run.description()["recipe"] == "toy-idensenet"


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
    with pytest.raises(OptionError, match="--resume"):
        RunFolder(tmp_path / "run").create(toy_config(), None, "")
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="is a file"):
        RunFolder(tmp_path / "file").create(toy_config(), None, "")


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


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="holds no run"):
        RunFolder(tmp_path).config()
