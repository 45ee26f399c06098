"""Scoring on a Dask cluster of this machine: a scheduler and workers that are processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from pyarrow import parquet

from idensenet.cli import main
from idensenet.commands import parts
from streams import some, write

distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
FILES, ROWS = 12, 36_000
FAST = ["--model.blocks", "[1]", "--train.max_steps", "2", "--train.compile", "off", "--output.display", "quiet"]
FAST += ["--output.report", "false", "--output.pictures", "false", "--train.eval_samples", "50"]


def started(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    return subprocess.Popen([sys.executable, "-m", *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.fixture
def cluster(tmp_path):
    """The address of a scheduler, and a function that starts a worker."""
    about, processes = tmp_path / "scheduler.json", []

    def worker():
        command = [
            "distributed.cli.dask_worker",
            "--scheduler-file",
            str(about),
            "--no-nanny",
            "--no-dashboard",
            "--nthreads",
            "1",
        ]
        processes.append(started(*command, "--local-directory", str(tmp_path / "scratch"), "--memory-limit", "0"))
        return processes[-1]

    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(about)]
    processes.append(started("distributed.cli.dask_scheduler", *options))
    try:
        wait_for(lambda: about.is_file() and about.read_text().rstrip().endswith("}"))  # it is written in two steps
        yield str(json.loads(about.read_text())["address"]), worker
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("cluster")
    write(found, some("x", "y", n=ROWS), files=FILES, group=1000)
    command = ["train", "toy-idensenet", "--data.table", str(found / "rows"), *FAST, "--output.dir", str(found / "run")]
    assert main(command) == 0
    assert main(["score", str(found / "run"), "--data.table", str(found / "rows"), "--out", str(found / "scores")]) == 0
    return found


def scores(path):
    table = parquet.read_table(path)
    return np.stack([table[name].to_numpy() for name in table.column_names], 1)


def test_two_workers_score_a_table_though_one_is_killed(folder, tmp_path, cluster):
    address, worker = cluster
    workers, out = [worker(), worker()], tmp_path / "scores"
    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)
    words = ["score", str(folder / "run"), "--data.table", str(folder / "rows" / "*.parquet"), "--out", str(out)]
    command = started("idensenet", *words, "--dask", address)
    wait_for(lambda: list(out.glob("part-*.parquet")) or command.poll() is not None)
    workers[0].send_signal(signal.SIGKILL)
    at_kill = len(list(out.glob("part-*.parquet")))
    said, _ = command.communicate(timeout=240)
    assert command.returncode == 0, said.decode()
    assert at_kill < FILES
    assert b"36,000 rows in 12 files" in said
    assert len(list(out.glob("part-*.parquet"))) == FILES
    assert scores(out) == pytest.approx(scores(folder / "scores"), rel=1e-6)
    assert main([*words, "--dask", "tcp://127.0.0.1:1"]) == 0  # nothing is left to do, so nobody is asked


def test_what_a_worker_finds_is_one_sentence_and_the_rest_can_be_done_later(folder, tmp_path, cluster, capsys):
    address, worker = cluster
    worker()
    out = tmp_path / "scores"
    broken, _ = write(tmp_path, some("x", "y", n=400))
    words = ["score", str(folder / "run"), "--data.table", str(broken), "--out", str(out), "--dask", address]
    table = parquet.read_table(broken / "part2.parquet")
    values = table["y"].to_numpy().copy()
    values[55] = np.inf
    parquet.write_table(table.set_column(1, "y", [values]), broken / "part2.parquet")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "part2.parquet is infinite in column 'y'" in error
    assert len(error.strip().splitlines()) == 1
    parquet.write_table(table, broken / "part2.parquet")
    assert main(words) == 0
    assert len(scores(out)) == 400


def test_a_cluster_that_is_not_there_is_named(folder, tmp_path, capsys, monkeypatch, cluster):
    monkeypatch.setattr(parts, "PATIENCE", 1)
    words = ["score", str(folder / "run"), "--data.table", str(folder / "rows"), "--out", str(tmp_path / "s"), "--dask"]
    for address, text in (
        ("tcp://127.0.0.1:1", "No Dask scheduler answers at tcp://127.0.0.1:1"),
        ("nonsense://", "No Dask scheduler answers at nonsense://"),
        (cluster[0], "has no workers; start some"),
    ):
        assert main([*words, address]) == 2
        error = capsys.readouterr().err
        assert text in error
        assert len(error.strip().splitlines()) == 1


def test_without_dask_the_extra_is_named(folder, tmp_path, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "distributed"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "distributed", None)
    words = ["score", str(folder / "run"), "--data.table", str(folder / "rows"), "--out", str(tmp_path / "s"), "--dask", "x"]
    assert main(words) == 2
    assert "Scoring with --dask needs distributed, which is not installed; type: pip install 'idensenet[dask]'" in (
        capsys.readouterr().err
    )
