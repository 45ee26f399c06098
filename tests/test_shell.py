"""Every shell command of the documentation runs, in the order of its page, with few steps and small files for the reader's."""

import re
import shlex
import shutil

import numpy as np
import pytest
from PIL import Image

from data.published_fakes import fake_cifar10, write_cifar10
from idensenet.cli import main
from idensenet.data import cifar10
from idensenet.reproduce.catalog import EXPERIMENTS
from page_blocks import DOCS

ROOT = DOCS.parent
LINE = re.compile(r"^(?: {4}|\$ )?((?:idensenet|pip|python|make|torchrun|srun) (?:[^\n\\]|\\\n)*)", re.M)
BLOCK = re.compile(r"(?:^ {4,}\S[^\n]*\n)+|^```(?:sh|bash|console)\n.*?^```$", re.M | re.S)
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

# Commands that another test runs, because they wait for a reader, take a cluster or hours.
ELSEWHERE = {
    "pip install": "tests/test_packages.py",
    "make ": "Makefile",  # CI
    "python benchmarks/tables.py": "tests/bench/test_tables.py",
    "python benchmarks/": "benchmarks/README.md",
    "idensenet demo": "tests/commands/test_use_commands.py",
    "idensenet explore": "tests/explore/test_server.py",
    "idensenet reproduce": "tests/reproduce/test_smoke.py",
    "idensenet bench": "tests/bench/test_bench.py",
    "idensenet score runs/mnist --against digits --background": "tests/test_anomaly.py",
    "idensenet score runs/rows --data.table 'rows/*.parquet' --out scores/ --dask": "tests/commands/test_cluster.py",
}
SHORTER = {
    "--train.max_steps": "2",
    "--train.eval_every": "2",
    "--train.eval_samples": "4",
    "--train.batch_size": "4",
    "-n": "4",
    "--samples": "4",
}
QUICK = ["--train.eval_samples", "4", "--output.pictures", "false", "--output.report", "false", "--output.display", "quiet"]


def commands(page):
    """The commands of a page, in order, without comments."""
    found = [line[1] for block in BLOCK.finditer(page.read_text()) for line in LINE.finditer(block[0])]
    return [" ".join(re.split(r"\s#\s", command.replace("\\\n", " "))[0].split()) for command in found]


def elsewhere(command):
    """The file that has the command's test, or None."""
    return next((where for start, where in ELSEWHERE.items() if command.startswith(start)), None)


def shortened(command):
    """The words after `idensenet`, with few steps, samples and blocks."""
    words = shlex.split(command.split("idensenet ", 1)[1])
    for name, few in SHORTER.items():
        if name in words:
            words[words.index(name) + 1] = few
    if words[0] != "train" or "--assume" in words:
        return words
    for name in ("--devices", "--train.num_nodes"):  # processes are tested in tests/commands/test_nodes.py
        if name in words:
            del words[words.index(name) : words.index(name) + 2]
    if "--resume" in words:
        return [*words, "--train.max_steps", "3", "--output.display", "quiet"]
    if "--train.compile" in words:
        words[words.index("--train.compile") + 1] = "off"
    if words[1].startswith(("cifar10", "images64")) and "cifar10" not in words:
        words += ["--model.growth", "4", "--model.blocks", "[1, 1, 1]"]
    for name in ("--train.max_steps", "--train.batch_size"):
        if name not in words:
            words += [name, "2"]
    return words + QUICK


def reader(page, folder):
    """What a page takes for granted: tables, images, CIFAR-10 and runs, all of them small; the digests of CIFAR-10."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    header = "dose,age,response"
    for name in ("mine", "other", "new", "all", "ours", "trial"):
        np.savetxt(folder / f"{name}.csv", random.normal(size=(60, 3)), delimiter=",", header=header, comments="", fmt="%.6f")
    for name in ("bsds300-train", "bsds300-test"):
        np.save(folder / f"{name}.npy", random.normal(size=(300, 63)))
    lines = [f"{random.choice(['Oslo', 'Rome'])},{random.integers(4)},{random.random():.4f}" for _ in range(60)]
    for name in ("people", "new") if page.name == "columns.md" else ("people",):
        (folder / f"{name}.csv").write_text("\n".join(["city,children,rate", *lines]) + "\n")
    for part in ("rows", "new"):
        (folder / part).mkdir()
        for number in range(2):
            columns = {name: random.normal(size=40) for name in header.split(",")}
            pq.write_table(pa.table(columns), folder / part / f"{number}.parquet")
    (folder / "images").mkdir()
    for number in range(24):
        Image.fromarray(random.integers(0, 256, (80, 80, 3), dtype=np.uint8)).save(folder / "images" / f"{number}.png")
    shutil.copytree(folder / "images", folder / "DIR")
    batches, digests = fake_cifar10()
    (folder / "data").mkdir()
    write_cifar10(folder / "data", batches)
    if page.name == "reproduction.md":
        shutil.copytree(ROOT / "results" / "runs", folder / "results" / "runs")
    if page.name == "guide.md":
        run = ["--train.max_steps", "2", *QUICK, "--output.dir"]
        assert main(["train", "toy-idensenet", "--data.table", "mine.csv", *run, "runs/mine"]) == 0
    return digests


WITH_COMMANDS = [page for page in PAGES if any(elsewhere(command) is None for command in commands(page))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("idensenet.allocator.keep_freed_memory", lambda: True)  # it would stay so for all later tests
    monkeypatch.setattr(cifar10, "CIFAR10_SHA256", reader(page, tmp_path))
    for command in commands(page):
        if elsewhere(command) is None:
            if command.startswith("srun"):  # another way to start the same run
                shutil.rmtree("runs/eight")
            words = shortened(command)
            code = main(words)
            assert code == 0, f"{command}\n{capsys.readouterr().err}"


def test_what_is_not_run_here_is_run_by_another_test():
    for page in PAGES:
        for command in commands(page):
            if (where := elsewhere(command)) is not None:
                assert (ROOT / where).is_file(), where
            if command.startswith("idensenet reproduce ") and not (name := command.split()[2]).startswith("-"):
                assert name in EXPERIMENTS or name == "all", f"{page.name}: {command}"
    assert len(WITH_COMMANDS) > 8
