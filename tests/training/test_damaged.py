"""Damaged files of a run: a sentence in place of a traceback, and a run with whole checkpoints goes on."""

import json
import shutil

import pytest
from tiny import toy_config

import idensenet as idn
from idensenet.checkpoints import Progress
from idensenet.cli import main
from idensenet.errors import CheckpointError
from idensenet.training.checkpoint import seal
from idensenet.training.run import RunFolder

WORDS = [
    "train",
    "toy-idensenet",
    "--data.name",
    "moons",
    "--model.blocks",
    "[1]",
    "--train.max_steps",
    "4",
    "--train.batch_size",
]
WORDS += ["8", "--train.save_every", "2", "--train.eval_every", "2", "--train.eval_samples", "20", "--train.log_every", "1"]
WORDS += ["--output.display", "quiet", "--output.pictures", "false", "--output.report", "false"]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("original") / "run"
    assert main([*WORDS, "--output.dir", str(path)]) == 0
    return path


@pytest.fixture
def run(original, tmp_path):
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


def resumed(run):
    return main(["train", "--resume", str(run), "--train.max_steps", "5"])


def reseal(folder):
    """As somebody would who forges a checkpoint."""
    (folder / "manifest.json").unlink()
    seal(folder)


# Stray entries


def test_entries_that_are_no_checkpoints_are_left_alone(run):
    steps = RunFolder(run).checkpoints.steps()
    last = RunFolder(run).checkpoints.path(steps[-1])
    shutil.copytree(last, last.with_name(f"{last.name}.bak"))
    (last.parent / "step-notes.txt").write_text("mine")
    (last.parent / "step-00000099").write_text("a file")
    (last.parent / "step-7").mkdir()
    (last.parent / "step-").mkdir()
    (last.parent / "step-0000000000000000000000000000000000000000001").mkdir()
    assert RunFolder(run).checkpoints.steps() == steps
    assert idn.load(run).dims == 2
    for words in (["certify", str(run)], ["evaluate", str(run), "--samples", "10"], ["report", str(run)]):
        assert main(words) == 0
    assert resumed(run) == 0
    assert (last.parent / "step-notes.txt").read_text() == "mine"
    assert last.with_name(f"{last.name}.bak").is_dir()


# Logs

LINES = [b"\xff\xfe", b"12", b"{}", b"[1]", b"null", b'"text"', b'{"kind": "train", "step": "3"}', b'{"kind": 3, "step": 1}']
LINES += [b'{"kind": "train", "step": 1, "nats": "low"}', b'{"kind": "eval", "step": 2, "nats": 1.0}', b"[" * 100_000]
LINES += [b'{"kind": "eval", "step": 2, "nats": 1, "nats_error": 1, "samples": 1, "terms": {"base": "x"}}']
LINES += [b'{"kind": "train", "step": ' + b"9" * 400 + b"}", b'{"kind": "train", "step": 1, "lr": true}', b"9" * 5000]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_damaged_metrics_are_left_out(run, line):
    whole = RunFolder(run).metrics()
    text = (run / "metrics.jsonl").read_bytes()
    for damaged in (line + b"\n" + text, text + line):
        (run / "metrics.jsonl").write_bytes(damaged)
        assert RunFolder(run).metrics() == whole
    (run / "metrics.jsonl").write_bytes(text[:50] + line + text[50:])
    assert len(RunFolder(run).metrics()) >= len(whole) - 1


def test_damaged_metrics_stop_nothing(run):
    text = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(b"\n".join([*LINES, text, *LINES]))
    assert main(["report", str(run)]) == 0
    assert main(["pack", str(run), "--out", str(run.parent / "p.safetensors")]) == 0


def test_a_run_without_any_log_goes_on_as_if_nothing_had_happened(run, original):
    twin = shutil.copytree(run, run.parent / "twin")
    for name in ("metrics.jsonl", "best.json", "config.yaml"):
        (run / name).write_bytes(b"\x00\xffnonsense: [")
    assert resumed(run) == resumed(twin) == 0
    a, b = (idn.load(each).state_dict() for each in (run, twin))
    assert all(bool((a[name] == b[name]).all()) for name in a)
    assert RunFolder(run).config() == RunFolder(twin).config().replace(output={"dir": str(original)})
    assert RunFolder(run).metrics()[-1]["step"] == 5


@pytest.mark.parametrize("text", ["", "[]", "12", '"step"', "{}", '{"step": "x"}', '{"step": 99}', '{"step": null}', "\xff"])
def test_a_damaged_best_is_found_again(run, text):
    best = RunFolder(run).checkpoints.best()
    assert best is not None
    (run / "best.json").write_bytes(text.encode("latin1"))
    assert RunFolder(run).checkpoints.best() == best
    assert idn.load(run, step="best").dims == 2


# Checkpoints


@pytest.mark.parametrize("text", ["[]", '"text"', "{}", "null", "12", "\xff", '{"state.json": 1}', '{"/dev/zero": "00"}'])
def test_a_damaged_manifest_is_a_sentence_that_names_the_checkpoint_before(run, text, capsys):
    (run / "checkpoints" / "step-00000004" / "manifest.json").write_bytes(text.encode("latin1"))
    for words in (["certify", str(run)], ["train", "--resume", str(run)]):
        assert main(words) == 2
        assert "The checkpoint of step 4" in (said := capsys.readouterr().err)
        assert "add --step 2" in said
    assert RunFolder(run).checkpoints.check(2).is_dir()


@pytest.mark.parametrize(
    "name", ["/dev/zero", "../../../config.yaml", "model/../../step-00000002/state.json", "\x00", "a" * 5000]
)
def test_a_manifest_names_files_of_its_checkpoint_only(run, name, capsys):
    folder = run / "checkpoints" / "step-00000004"
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, name: "0" * 64}))
    assert main(["certify", str(run)]) == 2
    assert "step 4" in capsys.readouterr().err


def test_a_file_that_the_manifest_does_not_list_is_not_read(run, capsys):
    folder = run / "checkpoints" / "step-00000004"
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in list(manifest):
        rest = {key: value for key, value in manifest.items() if key != name}
        (folder / "manifest.json").write_text(json.dumps(rest))
        assert main(["certify", str(run)]) == 2
        assert "damaged (manifest.json)" in capsys.readouterr().err


def test_a_link_out_of_the_checkpoint_is_refused(run, capsys):
    folder = run / "checkpoints" / "step-00000004"
    shutil.move(folder / "weights.safetensors", run / "elsewhere")
    (folder / "weights.safetensors").symlink_to(run / "elsewhere")
    assert main(["train", "--resume", str(run)]) == 2
    assert "weights.safetensors" in capsys.readouterr().err


STATES = [[], {}, 3, None, {"step": "4"}, {"step": 4, "best": "low"}, {"step": 4, "seconds": -1}, {"step": 4, "other": 1}]
STATES += [{"step": 2}, {"step": 4, "skipped": None}, {"step": 4, "compiled": 1}, {"step": 4, "steps": 1 << 70}, {"step": True}]


@pytest.mark.parametrize("values", STATES, ids=str)
def test_a_forged_state_is_a_sentence(run, values, capsys):
    folder = run / "checkpoints" / "step-00000004"
    (folder / "state.json").write_text(json.dumps(values))
    reseal(folder)
    assert resumed(run) == 2
    assert "damaged (state.json); the one before it is step 2" in capsys.readouterr().err


def test_a_state_is_what_was_written():
    progress = Progress(step=3, best=1.5, best_step=2, seconds=0.5, steps=9, compiled=False)
    assert Progress.from_dict(vars(progress)) == progress
    assert Progress.from_dict({"step": 3}) == Progress(step=3)


# The configuration


CONFIGS = ["", "[]", "12", "config: 3", "command: x\nconfig: []", "\xff", "a: b: c", "command: x\nconfig: {data: {name: [a]}}"]
CONFIGS += ["command: x\nconfig: {model: {depth: x}}", "command: [x]\nconfig: {}", "command: x\nrecipe: [1]\nconfig: {}"]


@pytest.mark.parametrize("text", CONFIGS)
def test_a_damaged_configuration_is_a_sentence_and_the_checkpoint_knows_the_options(run, text):
    before = RunFolder(run).config()
    (run / "config.yaml").write_bytes(text.encode("latin1"))
    with pytest.raises(CheckpointError, match=r"config\.yaml is damaged"):
        RunFolder(run).config()
    config, note = RunFolder(run).options()
    assert config == before
    assert "taken from the checkpoint of step 4" in note


def test_a_configuration_of_the_right_form_is_read(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create(toy_config(), None, "idensenet train")
    assert run.options() == (toy_config(), "")
