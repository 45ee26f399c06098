"""Scoring on a Dask cluster of this machine: a scheduler and workers that are processes of their own."""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
from pyarrow import parquet

from idensenet.cli import main
from idensenet.commands import cluster as cluster_module
from streams import some, write

distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
FILES, ROWS = 12, 36_000
FAST = ["--model.blocks", "[1]", "--train.max_steps", "2", "--train.compile", "off", "--output.display", "quiet"]
FAST += ["--output.report", "false", "--output.pictures", "false", "--train.eval_samples", "50"]


def started(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    return subprocess.Popen([sys.executable, "-m", *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class Cluster(NamedTuple):
    """The address of a scheduler, a function that starts a worker, and the process of the scheduler."""

    address: str
    worker: object
    scheduler: subprocess.Popen


@pytest.fixture
def cluster(tmp_path):
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
        yield Cluster(str(json.loads(about.read_text())["address"]), worker, processes[0])
    finally:
        for process in reversed(processes):
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
    address, worker, _ = cluster
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
    address, worker, _ = cluster
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


def run_everywhere(address, function, *arguments):
    """Call a function in the worker and in the scheduler."""
    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=120)
        client.run(function, *arguments)
        client.run_on_scheduler(function, *arguments)


def impatient(words):
    """The command as a process that waits for four seconds where others wait for longer."""
    set_up = "from idensenet.commands import cluster; cluster.ANSWER = cluster.PATIENCE = 4; cluster.WATCH = 0.2"
    code = f"import sys; from idensenet.cli import main; {set_up}; sys.exit(main({words!r}))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **streams)


LOST = {
    "a scheduler that is killed": ("scheduler", signal.SIGKILL, "is lost"),
    "a scheduler that is ended": ("scheduler", signal.SIGTERM, "is lost"),
    "a scheduler that does not answer": ("scheduler", signal.SIGSTOP, "is lost"),
    "the only worker": ("worker", signal.SIGKILL, "has lost all its workers, and none has come for 4 seconds"),
}


SELDOM = "a scheduler that is ended", "a scheduler that does not answer"  # ten seconds each


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SELDOM)) for each in LOST])
def test_a_cluster_that_is_lost_leaves_its_scores_and_says_how_to_go_on(folder, tmp_path, cluster, name):
    who, what, text = LOST[name]
    worker, out = cluster.worker(), tmp_path / "scores"
    words = ["score", str(folder / "run"), "--data.table", str(folder / "rows"), "--out", str(out)]
    run_everywhere(cluster.address, importlib.import_module, "idensenet.commands.parts")  # which takes a while
    command = impatient([*words, "--dask", cluster.address])
    wait_for(lambda: list(out.glob("part-*.parquet")) or command.poll() is not None)
    (cluster.scheduler if who == "scheduler" else worker).send_signal(what)
    began = time.monotonic()
    _, error = command.communicate(timeout=120)
    assert time.monotonic() - began < 30
    worker.kill()
    worker.wait()
    finished = len(list(out.glob("part-*.parquet")))
    assert command.returncode == 2, error
    assert len(error.strip().splitlines()) == 1
    assert f"at {cluster.address} {text}" in error
    assert "the scores of finished parts are kept, and the same command does the rest." in error
    assert 0 < finished < FILES
    assert main(words) == 0
    assert scores(out) == pytest.approx(scores(folder / "scores"), rel=1e-6)


@pytest.fixture
def others():
    """The addresses of a program that takes connections and says nothing, and of one that talks of something else."""
    silent, talking = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))

    def talk():
        while True:
            try:
                with talking.accept()[0] as connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                return

    threading.Thread(target=talk, daemon=True).start()
    yield [f"tcp://127.0.0.1:{each.getsockname()[1]}" for each in (silent, talking)]
    for each in (silent, talking):
        each.close()


BAD = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:99999", "127.0.0.1", "127.0.0.1:x", "tcp://", "tcp://[::1", "nonsense://", ""]
BAD += ["http://127.0.0.1:8786", "tls://127.0.0.1:1", "inproc://x", "scheduler.json", "tcp://a b:1", "a" * 300]


def test_an_address_without_a_scheduler_is_named(folder, tmp_path, capsys, monkeypatch, others):
    monkeypatch.setattr(cluster_module, "ANSWER", 1)
    monkeypatch.setattr(distributed, "Client", None)  # which would go on trying in the background, and write logs
    words = ["score", str(folder / "run"), "--data.table", str(folder / "rows"), "--out", str(tmp_path / "s"), "--dask"]
    for address in (*BAD, *others):
        assert main([*words, address]) == 2
        error = capsys.readouterr().err
        assert f"No Dask scheduler answers at {address!r:.80} (" in error
        assert "or leave --dask out" in error
        assert len(error.strip().splitlines()) == 1
        assert len(error) < 500


def test_a_cluster_without_workers_is_named(folder, tmp_path, capsys, monkeypatch, cluster):
    monkeypatch.setattr(cluster_module, "PATIENCE", 1)
    words = ["score", str(folder / "run"), "--data.table", str(folder / "rows"), "--out", str(tmp_path / "s"), "--dask"]
    assert main([*words, cluster.address]) == 2
    error = capsys.readouterr().err
    assert f"has no workers; start some with 'dask worker {cluster.address}'" in error
    assert len(error.strip().splitlines()) == 1


def test_a_worker_is_no_scheduler(folder, tmp_path, capsys, cluster):
    cluster.worker()
    with distributed.Client(cluster.address, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=120)
        [address] = client.scheduler_info()["workers"]
    words = ["score", str(folder / "run"), "--data.table", str(folder / "rows"), "--out", str(tmp_path / "s"), "--dask"]
    assert main([*words, address]) == 2
    assert "(a Dask worker does)" in capsys.readouterr().err


def test_another_installation_is_named(folder, tmp_path, capsys, cluster):
    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == "idensenet"]:
            del sys.modules[name]
        sys.modules["idensenet"] = None  # cannot be imported from now on

    cluster.worker()
    with distributed.Client(cluster.address, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=120)
        client.run_on_scheduler(forget)
    words = ["score", str(folder / "run"), "--data.table", str(folder / "rows"), "--out", str(tmp_path / "s")]
    assert main([*words, "--dask", cluster.address]) == 2
    error = capsys.readouterr().err
    assert "install the same version of idensenet, with the same extras, where the scheduler and the workers run" in error
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
