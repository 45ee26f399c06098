"""Tables larger than memory: rows a second and memory of training and scoring on Parquet files.

taskset -c 0 python benchmarks/streams.py                                 # 10 million rows of 8 columns
taskset -c 0 python benchmarks/streams.py --rows 1000000 --files 10      # quicker

The rows are written to a temporary folder. Memory is the peak of a process of its own for each command. Scoring, as `idensenet
score` does it, takes turns with a loop of `log_prob` over rows that are in memory, in one process. The time is what the process
takes of its core, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from idensenet.commands.parts import Job, plan
from idensenet.data.row_groups import RowGroups
from idensenet.scoring import Scorer
from idensenet.training.evaluation import rows_at_once

COLUMNS = 8
COMMAND = "import resource, sys; from idensenet.cli import main; code = main(sys.argv[1:]); "
COMMAND += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
IDLE = "import resource, torch, numpy, pyarrow.parquet; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"


def write_rows(folder: Path, rows: int, files: int) -> None:
    """Correlated rows with a little structure, in several files."""
    folder.mkdir()
    mixing = np.random.default_rng(0).normal(size=(COLUMNS, COLUMNS))
    for number in range(files):
        random = np.random.default_rng([1, number])
        x = random.normal(size=(rows // files, COLUMNS)) @ mixing + random.integers(0, 2, (rows // files, 1)) * 3
        table = pa.table({f"x{i}": x[:, i] for i in range(COLUMNS)})
        parquet.write_table(table, folder / f"part{number:04d}.parquet", row_group_size=100_000)


def measured(*words: str) -> tuple[float, float]:
    """Seconds and peak memory, in GB, of a command in a process of its own."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", COMMAND, *words], check=True, capture_output=True, text=True)
    return time.monotonic() - began, int(done.stdout.split()[-1]) / (1 << 20)


def in_turns(run: Path, rows: Path, folder: Path, turns: int) -> dict[str, object]:
    """Rows a second of scoring parts, and of log_prob in a loop over the same rows at several batch sizes."""
    scorer = Scorer(str(run), reference=np.sort(np.random.default_rng(0).normal(size=5000)))
    job = Job(scorer, str(folder), version=version("idensenet"))
    flow, parts = scorer.flow(), plan(job, rows, {})
    usual = rows_at_once(flow)
    sizes = sorted({usual, usual // 2, usual * 2, usual * 4})
    found: dict[str, list[float]] = {"score": [], **{f"log_prob, {size} rows at a time": [] for size in sizes}}
    groups = RowGroups(rows)
    for turn in range(turns):
        part = parts[turn % len(parts)]
        own = [i for i, group in enumerate(groups.groups) if part.start <= group.start < part.start + part.rows]
        x = torch.from_numpy(np.concatenate([groups.read(i).values for i in own])).to(flow.dtype)
        began = time.process_time()
        job.write(part)
        found["score"].append(part.rows / (time.process_time() - began))
        for size in sizes:
            began = time.process_time()
            with torch.no_grad():
                for start in range(0, len(x), size):
                    flow.log_prob(x[start : start + size])
            found[f"log_prob, {size} rows at a time"].append(len(x) / (time.process_time() - began))
    medians = {name: round(statistics.median(rates)) for name, rates in found.items()}
    loops = {
        f"log_prob, {usual} rows at a time",
        max((name for name in found if name != "score"), key=lambda name: medians[name]),
    }
    return {
        "rows a second (medians)": medians,
        **{f"score / {name}": ratio(found["score"], found[name]) for name in sorted(loops)},
    }


def ratio(a: list[float], b: list[float]) -> list[float]:
    """The median of the ratios of all turns, and the standard error of their mean."""
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    return [round(statistics.median(ratios), 3), round(statistics.stdev(ratios) / len(ratios) ** 0.5, 3)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200, help="of training")
    parser.add_argument("--turns", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, idle = Path(name), subprocess.run([sys.executable, "-c", IDLE], capture_output=True, text=True, check=True)
        rows, run = folder / "rows", folder / "run"
        write_rows(rows, options.rows, options.files)
        size = sum(path.stat().st_size for path in rows.iterdir()) / 2**30
        found: dict[str, object] = {"rows": options.rows, "GB of Parquet": round(size, 2)}
        found["GB, idle"] = round(int(idle.stdout) / (1 << 20), 2)
        words = [
            "train",
            "toy-idensenet",
            "--data.table",
            str(rows),
            "--model.blocks",
            f"[{options.blocks}]",
            "--output.dir",
            str(run),
        ]
        words += ["--train.max_steps", str(options.steps), "--train.batch_size", "500", "--output.display", "quiet"]
        seconds, memory = measured(*words, "--output.report", "false", "--output.pictures", "false")
        found["train"] = {"seconds": round(seconds), "GB at its peak": round(memory, 2)}
        print(json.dumps(found), flush=True)
        seconds, memory = measured("score", str(run), "--data.table", str(rows), "--out", str(folder / "scores"))
        found["score"] = {
            "seconds": round(seconds),
            "rows a second": round(options.rows / seconds),
            "GB at its peak": round(memory, 2),
        }
        print(json.dumps(found["score"]), flush=True)
        found["in turns"] = in_turns(run, rows, folder / "scores", options.turns)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
