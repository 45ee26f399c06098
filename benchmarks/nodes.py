"""Two nodes of one process against two processes of one node, on one machine: training steps in equal time.

taskset -c 0,1 python benchmarks/nodes.py --turns 10

Both runs have the same global batch and one thread for each process. They live at the same time and take turns of a few seconds
(SIGSTOP, SIGCONT), so that a noisy machine is noisy for both. One torchrun launcher starts the two processes of one node;
two launchers, which meet on the loopback address, are two nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Run:
    """A run whose training processes can be halted."""

    def __init__(self, folder: Path, words: list[str], nodes: int) -> None:
        folder.mkdir()
        self.log = folder / "run" / "metrics.jsonl"
        meet = ["--nnodes", str(nodes), "--nproc-per-node", str(2 // nodes), "--master-addr", "127.0.0.1"]
        meet += ["--master-port", str(free_port())]
        torchrun = ["-m", "torch.distributed.run", *meet]
        commands = [[*torchrun, "--node-rank", str(node), "-m", "idensenet", *words] for node in range(nodes)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        output = (folder / "said.txt").open("w")
        self.started = [
            subprocess.Popen([sys.executable, *each], cwd=folder, env=environment, stdout=output, stderr=output)
            for each in commands
        ]

    def processes(self) -> list[int]:
        """Those that train, not those that launch."""
        paths = [Path(f"/proc/{each.pid}/task/{each.pid}/children") for each in self.started]
        return [int(pid) for path in paths for pid in path.read_text().split()]

    def steps(self) -> int:
        return self.log.read_bytes().count(b"\n") if self.log.is_file() else 0

    def send(self, number: signal.Signals) -> None:
        for pid in self.processes():
            os.kill(pid, number)

    def end(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        for each in self.started:
            each.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="digits-idensenet")
    parser.add_argument("--batch", type=int, default=8, help="samples of one process")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a turn")
    parser.add_argument("--turns", type=int, default=10)
    options = parser.parse_args()
    words = ["train", options.recipe, "--train.max_steps", "1000000", "--train.batch_size", str(options.batch)]
    words += ["--train.log_every", "1", "--train.compile", "off", "--train.accelerator", "cpu", "--train.eval_every", "1000000"]
    words += ["--train.save_every", "1000000", "--output.display", "quiet", "--output.dir", "run"]
    counts: list[list[int]] = []
    with tempfile.TemporaryDirectory() as folder:
        runs = [Run(Path(folder) / str(nodes), words, nodes) for nodes in (1, 2)]
        try:
            while not all(run.steps() >= 3 for run in runs):
                if any(each.poll() is not None for run in runs for each in run.started):
                    raise SystemExit("a run failed")
                time.sleep(0.1)
            for run in runs:
                run.send(signal.SIGSTOP)
            for turn in range(options.turns):
                counts.append([0, 0])
                for place in (0, 1) if turn % 2 == 0 else (1, 0):
                    before = runs[place].steps()
                    runs[place].send(signal.SIGCONT)
                    time.sleep(options.seconds)
                    runs[place].send(signal.SIGSTOP)
                    counts[-1][place] = runs[place].steps() - before
        finally:
            for run in runs:
                run.end()
    one, two = (sum(each[place] for each in counts) for place in (0, 1))
    ratios = [b / a for a, b in counts if a]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    found = {"two processes": one, "two nodes": two, "ratio": round(two / one, 3), "standard error": round(error, 3)}
    print(json.dumps({"recipe": options.recipe, "steps by turns": counts, **found}))


if __name__ == "__main__":
    main()
