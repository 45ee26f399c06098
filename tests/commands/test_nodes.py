"""Runs on two nodes: two torchrun launchers on the loopback address, or two tasks of SLURM, played by their variables."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from idensenet.cli import main

TRAIN = [
    "train", "toy-idensenet", "--data.name", "moons", "--model.blocks", "[1]", "--train.batch_size", "8", "--train.save_every",
    "2", "--train.eval_every", "4", "--train.eval_samples", "20", "--train.log_every", "1", "--train.compile", "off",
    "--train.accelerator", "cpu", "--train.concatenation_from", "0", "--output.pictures", "false", "--output.report", "false",
    "--output.display", "plain", "--output.dir", "run",
]  # fmt: skip
STARTED = []
LONG = ["--train.max_steps", "100000"]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


class Node:
    """A launcher with its training processes, or a training process alone, and all that they say."""

    def __init__(self, folder, name, command, variables):
        self.said = folder / f"{name}.txt"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        with self.said.open("w") as file:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
        STARTED.append(self)

    def ranks(self):
        """Process ids of what a launcher has started."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def end(self):
        code = self.process.wait(timeout=120)
        return code, self.said.read_text()


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    while STARTED:
        node = STARTED.pop()
        for pid in node.ranks() if node.process.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        node.process.kill()
        node.process.wait()


def torchrun(folder, nodes, each, *words, options=()):
    """Start `nodes` launchers of `each` processes."""
    meet = ["--nnodes", str(nodes), "--nproc-per-node", str(each), "--master-addr", "127.0.0.1", "--master-port", free_port()]
    command = [sys.executable, "-m", "torch.distributed.run", *meet, *options]
    return [
        Node(folder, f"node{rank}", [*command, "--node-rank", str(rank), "-m", "idensenet", *map(str, words)], {})
        for rank in range(nodes)
    ]


def wait_for(condition, *nodes):
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        assert all(node.process.poll() is None for node in nodes), nodes[0].said.read_text()
        time.sleep(0.02)


def checkpoints(folder):
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "run" / "checkpoints").glob("step-*"))


def losses(folder):
    lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    return {(entry["kind"], entry["step"]): entry["nats"] for entry in lines}


def unbroken(folder, steps, *words):
    """The same run in this process, in a folder of its own."""
    (folder / "whole").mkdir()
    path = str(folder / "whole" / "run")
    assert main([*TRAIN[:-1], path, "--train.max_steps", str(steps), *words]) == 0
    return losses(folder / "whole")


def killed(tmp_path, nodes, each, victim):
    """Kill a training process of a run; the others end by themselves, with a sentence. Returns its last checkpoint."""
    started = torchrun(tmp_path, nodes, each, *TRAIN, *LONG)
    wait_for(lambda: len(checkpoints(tmp_path)) >= 2, *started)
    pids = [pid for node in started for pid in node.ranks()]
    os.kill(pids[victim], signal.SIGKILL)
    ends = [node.end() for node in started]
    step = checkpoints(tmp_path)[-1]
    assert all(code != 0 for code, _ in ends)
    sentence = "has lost another process, which has ended or cannot be reached"
    if nodes > 1:  # on one node torchrun may end the others first
        said = ends[1 - victim][1]
        assert f"Rank {1 - victim} of 2 {sentence}" in said
        assert f"the checkpoint of step {step} is whole" in said
        assert "idensenet train --resume run" in said
    assert "Traceback" not in "".join(line for _, said in ends for line in said.splitlines() if "idensenet:" in line)
    return step


def test_a_node_that_dies_ends_the_run_and_one_process_goes_on_as_two_would_have(tmp_path, monkeypatch, capsys):
    step = killed(tmp_path, 2, 1, victim=1)
    assert "on 2 nodes x 1 process, results in run" in (tmp_path / "node0.txt").read_text()
    assert "results in" not in (tmp_path / "node1.txt").read_text()  # one of them speaks
    monkeypatch.chdir(tmp_path)
    resume = ["train", "--resume", "run", "--devices", "1", "--train.num_nodes", "1", "--train.max_steps", str(step + 5)]
    assert main([*resume, "--train.accumulate", "2"]) == 0
    assert "A step averages" not in capsys.readouterr().out
    together, whole = losses(tmp_path), unbroken(tmp_path, step + 5, "--train.accumulate", "2")
    assert together.keys() == whole.keys()
    np.testing.assert_allclose([together[key] for key in whole], [*whole.values()], rtol=2e-5)
    # with half the samples in a step it goes on too, and says so
    assert main([*resume[:-1], str(step + 7), "--train.accumulate", "1"]) == 0
    assert "A step averages 1 x 8 samples, where it averaged 2 x 8 before" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "each"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("victim", [0, 1])
def test_whichever_process_is_killed_the_run_resumes_exactly(tmp_path, nodes, each, victim):
    step = killed(tmp_path, nodes, each, victim)
    last = ["--train.max_steps", step + 4]
    for node in torchrun(tmp_path, nodes, each, "train", "--resume", "run", *last):
        code, said = node.end()
        assert code == 0, said
    other = tmp_path / "other"
    other.mkdir()
    words = [*TRAIN[:-1], str(other / "run"), *last]
    for node in torchrun(tmp_path, 2, 1, *words):
        code, said = node.end()
        assert code == 0, said
    assert losses(tmp_path) == losses(other)
    name = f"checkpoints/step-{step + 4:08d}"
    for file in ("weights", "average", "optimizer"):
        a, b = ((folder / "run" / name / f"{file}.safetensors").read_bytes() for folder in (tmp_path, other))
        assert a == b, file


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_after_the_same_step(tmp_path):
    nodes = torchrun(tmp_path, 2, 1, *TRAIN, *LONG)
    wait_for(lambda: checkpoints(tmp_path), *nodes)
    os.kill(nodes[1].ranks()[0], signal.SIGUSR1)
    for node in nodes:
        code, said = node.end()
        assert code == 1, said  # of torchrun; its report has the exit code of the process
        assert f"exitcode  : {128 + signal.SIGUSR1}" in said
    step = checkpoints(tmp_path)[-1]
    assert f"stopped after step {step}; continue with" in (tmp_path / "node0.txt").read_text()
    assert max(number for _, number in losses(tmp_path)) == step


@pytest.mark.slow
def test_torchrun_restarts_a_run_and_it_goes_on(tmp_path):
    # with --master-addr torchrun keeps the addresses of dead processes, and the new ones may try to reach those
    (node,) = torchrun(tmp_path, 1, 2, *TRAIN, "--train.max_steps", "100", options=["--standalone", "--max-restarts", "1"])
    wait_for(lambda: len(checkpoints(tmp_path)) >= 2, node)
    os.kill(node.ranks()[1], signal.SIGKILL)
    code, said = node.end()
    assert code == 0, said
    steps = [int(line.split()[3]) for line in said.splitlines() if "parameters, steps" in line]
    assert len(steps) == 2
    assert steps[1] > steps[0] == 0
    assert checkpoints(tmp_path)[-1] == 100


@pytest.mark.slow
def test_tasks_of_slurm_train_are_requeued_and_go_on(tmp_path):
    script = tmp_path / "scontrol"
    script.write_text('#!/bin/sh\necho "$@" >> asked\n')
    script.chmod(0o755)
    job = {"SLURM_NTASKS": "2", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "71"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    def srun(*words, **more):
        command = [sys.executable, "-m", "idensenet", *words]
        places = [{"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank), "SLURM_LOCALID": "0"} for rank in (0, 1)]
        return [Node(tmp_path, f"task{rank}", command, {**job, **place, **more}) for rank, place in enumerate(places)]

    tasks = srun(*TRAIN, *LONG)
    wait_for(lambda: checkpoints(tmp_path), *tasks)
    for task in tasks:  # SLURM tells all of them
        task.process.send_signal(signal.SIGUSR1)
    ends = [task.end() for task in tasks]
    assert [code for code, _ in ends] == [128 + signal.SIGUSR1] * 2, ends
    assert "job 71 is requeued and goes on from here" in ends[0][1]
    assert (tmp_path / "asked").read_text() == "requeue 71\n"
    step = checkpoints(tmp_path)[-1]
    tasks = srun(*TRAIN, *LONG, SLURM_RESTART_COUNT="1")  # the same words
    wait_for(lambda: checkpoints(tmp_path)[-1] > step, *tasks)
    tasks[1].process.send_signal(signal.SIGINT)
    ends = [task.end() for task in tasks]
    assert [code for code, _ in ends] == [128 + signal.SIGINT] * 2, ends
    assert f"steps {step} to 100000 on 2 nodes x 1 process" in ends[0][1]
    assert (tmp_path / "asked").read_text() == "requeue 71\n"  # an interrupt is of a person


@pytest.mark.slow
def test_a_node_with_other_data_or_without_data_ends_the_run(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 2))
    words = [*TRAIN, "--train.max_steps", "2", "--data.table", "rows.csv"]
    words.remove("--data.name")
    words.remove("moons")
    for number, there in enumerate([rows, rows[::-1], None]):
        nodes = []
        port = free_port()
        for rank, table in enumerate([rows, there]):
            (folder := tmp_path / f"{number}-{rank}").mkdir()
            if table is not None:
                np.savetxt(folder / "rows.csv", table, delimiter=",", header="a,b", comments="")
            meet = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "0", "RANK": str(rank)}
            meet |= {"GROUP_RANK": str(rank), "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            nodes.append(Node(folder, "said", [sys.executable, "-m", "idensenet", *words], meet))
        ends = [node.end() for node in nodes]
        if number == 0:
            assert [code for code, _ in ends] == [0, 0], ends
        elif number == 1:
            assert [code for code, _ in ends] == [2, 2], ends
            assert all("Rank 1 has the rows of rank 0 in another order" in said for _, said in ends)
        else:
            assert [code for code, _ in ends] == [1, 2], ends
            assert "Rank 0 of 2 has lost another process" in ends[0][1]
            assert "rows.csv" in ends[1][1]
        assert not (tmp_path / f"{number}-1" / "run").exists()  # rank 0 writes


def test_a_command_that_a_launcher_starts_again_continues_its_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [*TRAIN, "--train.max_steps", "4"]
    assert main([*words, "--stop-after", "2"]) == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert main(words) == 2  # other words began the run that is there
    assert "already holds a run" in capsys.readouterr().err
    assert main([*words, "--stop-after", "3"]) == 2
    (tmp_path / "run").rename(tmp_path / "old")
    assert main(words) == 0  # there was nothing yet
    before = losses(tmp_path)
    assert main(words) == 0
    assert "steps 4 to 4" in capsys.readouterr().out
    assert losses(tmp_path) == before
    monkeypatch.delenv("SLURM_RESTART_COUNT")
    assert main(words) == 2


def test_python_runs_the_package_as_a_program():
    done = subprocess.run([sys.executable, "-m", "idensenet", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0.")
