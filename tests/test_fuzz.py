"""Random damage to every file of a run and of a model: an answer in one sentence, in little time and little memory."""

import contextlib
import io
import json
import os
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import idensenet as idn
from idensenet.cli import main
from idensenet.training.checkpoint import seal

SECONDS, MEMORY = 10.0, 1e9
STEP = "checkpoints/step-00000002"
RUN_FILES = ["config.yaml", "data.json", "metrics.jsonl", "best.json"]
RUN_FILES += [f"{STEP}/{name}" for name in ("manifest.json", "state.json", "weights.safetensors", "average.safetensors")]
RUN_FILES += [f"{STEP}/{name}" for name in ("optimizer.safetensors", "model/model.json", "model/model.safetensors")]
PACKED = "run.safetensors"
MODEL_FILES = ["model.json", "model.safetensors"]
OTHERS = [None, True, False, -1, 0, 3, 1 << 40, 1 << 70, 1.5, float("nan"), float("inf"), "", "x", "/dev/zero", [], {}]
OTHERS += [[1], {"a": 1}, [[[]]], ["x", "y"], [None, 1 << 40], "9" * 5000]
PROCESSES = ("devices", "num_nodes", "accelerator")  # more of them would start this test again
WORDS = [
    "train",
    "toy-idensenet",
    "--model.blocks",
    "[1]",
    "--model.growth",
    "4",
    "--train.max_steps",
    "2",
    "--train.batch_size",
]
WORDS += ["8", "--train.save_every", "1", "--train.eval_every", "1", "--train.eval_samples", "20", "--train.log_every", "1"]
WORDS += ["--train.compile", "off", "--output.display", "quiet", "--output.pictures", "false", "--output.report", "false"]


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    random = np.random.default_rng(0)
    pairs = enumerate(random.normal(size=(40, 2)))
    rows = [f"{x},{y},{[1, 2, 4, 2][i % 4]},{'OUBO'[i % 4]}" for i, (x, y) in pairs]
    (folder / "t.csv").write_text("\n".join(["a,b,k,city", *rows]) + "\n")
    assert main([*WORDS, "--data.table", str(folder / "t.csv"), "--output.dir", str(folder / "run")]) == 0
    idn.save(idn.load(folder / "run"), folder / "model")
    (folder / "packed").mkdir()
    assert main(["pack", str(folder / "run"), "--out", str(folder / "packed" / PACKED)]) == 0
    return folder


def commands(kind, path, work):
    if kind == "packed":
        return [["unpack", f"{path}/{PACKED}", "--out", str(work / "unpacked")]]
    table = str(work.parent / "t.csv")
    found = [["certify", path], ["evaluate", path, "--samples", "4"], ["sample", path, "-n", "3", "--out", str(work / "s.npy")]]
    found += [["score", path, "--data.table", table, "--out", str(work / "s.csv"), "--samples", "4", "--reference", "4"]]
    if kind == "run":
        found += [["train", "--resume", path, "--train.max_steps", "3"], ["pack", path, "--out", str(work / "p.safetensors")]]
        found += [["certify", path, "--step", "best"], ["report", path]]
    return found


def places(value, path=()):
    """The paths to all parts of a document."""
    yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(part, (*path, key))


def with_other(value, path, other):
    if not path:
        return other
    copy = value.copy()
    copy[path[0]] = with_other(value[path[0]], path[1:], other)
    return copy


def retyped(name, content, draw):
    """A document with one part replaced by something else; of weights, the header, and the documents in it."""
    if name.endswith(".safetensors"):
        size = int.from_bytes(content[:8], "little")
        found = json.loads(content[8 : 8 + size])
        texts = [name for name, text in found.get("__metadata__", {}).items() if text.startswith("{")]
        if texts and draw.random() < 0.8:
            name = draw.choice(texts)
            found["__metadata__"][name] = json.dumps(changed(json.loads(found["__metadata__"][name]), draw))
        else:
            found = changed(found, draw)
        header = json.dumps(found).encode()
        return len(header).to_bytes(8, "little") + header + content[8 + size :]
    if name.endswith(".jsonl"):
        lines = content.splitlines()
        place = draw.randrange(len(lines))
        lines[place] = json.dumps(changed(json.loads(lines[place]), draw)).encode()
        return b"\n".join(lines)
    if name.endswith(".yaml"):
        return yaml.safe_dump(changed(yaml.safe_load(content), draw)).encode()
    return json.dumps(changed(json.loads(content), draw)).encode()


def changed(value, draw):
    choices = [path for path in places(value) if not path or path[-1] not in PROCESSES]
    path = draw.choice(choices)
    if draw.random() < 0.1 and path:  # one part less
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        return with_other(
            value, path[:-1], {k: v for k, v in parent.items() if k != path[-1]} if isinstance(parent, dict) else []
        )
    return with_other(value, path, draw.choice(OTHERS))


def damaged(name, content, how, draw):
    start = draw.randrange(len(content) + 1)
    if how == "bytes":
        return content[:start] + draw.randbytes(draw.choice([1, 2, 8, 64])) + content[start + draw.choice([0, 1, 8, 64]) :]
    if how == "truncation":
        return content[:start]
    return retyped(name, content, draw)


def peak(reset=False):
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def check(originals, kind, name, how, sealed, seed):
    """Damage one file of a copy, perhaps with a manifest that agrees, and run a command on it."""
    draw = random.Random(seed)
    work = originals / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(originals / kind, work / kind)
    file = work / kind / name
    file.write_bytes(damaged(name, file.read_bytes(), how, draw))
    if sealed and STEP in name and "manifest" not in name:
        (work / kind / STEP / "manifest.json").unlink()
        seal(work / kind / STEP)
    words = draw.choice(commands(kind, str(work / kind), work))
    before, began, said = peak(reset=True), time.process_time(), io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said), contextlib.chdir(work):
        code = main(words)
    assert code in (0, 1, 2), words
    if code == 2:
        assert len(said.getvalue().splitlines()) == 1, said.getvalue()
        assert said.getvalue().startswith("idensenet: ")
    assert time.process_time() - began < SECONDS, words
    assert peak() - before < MEMORY, words


HOW = st.sampled_from(["bytes", "truncation", "type"])
CASE = st.one_of(
    st.tuples(st.just("run"), st.sampled_from(RUN_FILES), HOW, st.booleans(), st.integers(0, 1 << 30)),
    st.tuples(st.just("model"), st.sampled_from(MODEL_FILES), HOW, st.just(False), st.integers(0, 1 << 30)),
    st.tuples(st.just("packed"), st.just(PACKED), HOW, st.just(False), st.integers(0, 1 << 30)),
)
COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "report_multiple_bugs": False}
linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory as Linux does")


@linux
@settings(max_examples=60, derandomize=True, **COMMON)
@given(case=CASE)
def test_damage_is_answered_with_a_sentence(originals, case):
    check(originals, *case)


@linux
@pytest.mark.slow
@settings(max_examples=int(os.environ.get("IDENSENET_FUZZ_EXAMPLES", "500")), **COMMON)
@given(case=CASE)
def test_much_damage_is_answered_with_a_sentence(originals, case):
    check(originals, *case)
