"""Whole commands, each in a process of its own: how long they take to start, and several processes against one."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from idensenet.bench.machine import Machine
from idensenet.bench.size import Size
from idensenet.bench.timing import Row, in_turns, timed_row


def start(size: Size, machine: Machine) -> Iterator[Row]:
    """From the command to the first step, in processes of their own."""

    def run(*command: str) -> Callable[[], None]:
        def go() -> None:
            subprocess.run([sys.executable, *command], check=True, capture_output=True)

        return go

    with tempfile.TemporaryDirectory() as folder:
        places = iter(range(1000))

        def train() -> None:
            words = ["-m", "idensenet.cli", "train", "toy-idensenet", "--data.name", "moons", "--train.max_steps", "1"]
            words += ["--train.eval_samples", "1", "--output.pictures", "false", "--output.display", "quiet"]
            run(*words, "--output.dir", f"{folder}/{next(places)}")()

        times = in_turns({"import": run("-c", "import idensenet"), "train": train}, max(2, size.repeats - 2))
    yield timed_row("import idensenet", times["import"])
    yield timed_row("train: a whole run of one step, with evaluation, checkpoint and report", times["train"])


def processes(size: Size, machine: Machine) -> Iterator[Row]:
    """Two processes of one thread each against one process of two threads, on the digits model and the same global batch."""
    steps = 4 if not size.compile else 60

    def rate(devices: int) -> Callable[[], float]:
        def run() -> float:
            with tempfile.TemporaryDirectory() as folder:
                words = [
                    "-m",
                    "idensenet.cli",
                    "train",
                    "digits-idensenet",
                    "--output.dir",
                    f"{folder}/run",
                    "--devices",
                    str(devices),
                ]
                words += ["--train.batch_size", str(64 // devices), "--train.max_steps", str(steps), "--train.log_every", "2"]
                words += ["--train.eval_samples", "16", "--output.pictures", "false", "--output.display", "quiet"]
                words += [
                    "--output.report",
                    "false",
                    *(["--model.blocks", "[1]", "--model.growth", "8"] if not size.compile else []),
                ]
                threads = {"OMP_NUM_THREADS": str(2 // devices)}
                subprocess.run([sys.executable, *words], check=True, capture_output=True, env={**os.environ, **threads})
                lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
            rates = [entry["samples/s"] for entry in map(json.loads, lines) if entry["kind"] == "train"]
            return float(statistics.median(rates[len(rates) // 3 :]))

        return run

    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(1 if not size.compile else 3):
        for devices, rates in found.items():
            rates.append(rate(devices)())
    one, two = (statistics.median(found[devices]) for devices in (1, 2))
    spread = statistics.stdev(found[2]) if len(found[2]) > 1 else 0.0
    yield Row("two processes of one thread each", two, spread, "samples/s", "one process of two threads", two / one)
