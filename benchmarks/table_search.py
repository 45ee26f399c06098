"""Which options `FlowDensity` has where none are given: a list of trials of equal processor time, judged on validation rows.

    python benchmarks/table_search.py --seconds 20                    # continued where it stopped
    python benchmarks/table_search.py --folder DIR --tables protein   # tables of a folder
    python benchmarks/table_search.py --show                          # the record as a table

The time of a trial is turned into a number of steps by what a step takes on an undisturbed core, so that other work on the
machine does not decide. Other flows have the time itself. Rows for validation are neither in the fit nor among the test rows of
`benchmarks/tables.py`: synthetic tables are drawn again with another seed; of a table in a folder, the test rows are left out.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rivals import zuko_flow
from synthetic import SYNTHETIC
from table_data import SETS, folder_tables, halves

from idensenet.sklearn import FlowDensity
from idensenet.training.fitting import Training

Array = np.ndarray[Any, Any]
ROWS, JUDGED = 20_000, 5_000
TIMED_ROWS, TIMED = 2000, 60  # rows and steps of the fit that measures how long a step takes
CLIPSWISH = {"activation": "clipswish", "beta": 10.0, "learning_rate": 2e-2, "batch_size": 128, "components": 1}
SINE = {**CLIPSWISH, "activation": "sine", "beta": 3.0}
TRIALS: dict[str, dict[str, Any]] = {
    "clipswish": CLIPSWISH,
    "sine": SINE,
    "sine, beta 6": {**SINE, "beta": 6.0},
    "sine, rate 4e-2": {**SINE, "learning_rate": 4e-2},
    "sine, rate 4e-2, batch 256": {**SINE, "learning_rate": 4e-2, "batch_size": 256},
    "sine, rate 4e-2, 12 blocks, growth 32": {**SINE, "learning_rate": 4e-2, "blocks": 12, "growth": 32},
    "sine, rate 4e-2, 12 blocks, depth 1, growth 64": {**SINE, "learning_rate": 4e-2, "blocks": 12, "depth": 1, "growth": 64},
    # for tables with more columns
    "clipswish, rate 1e-2": {**CLIPSWISH, "learning_rate": 1e-2},
    "clipswish, rate 1e-2, 4 components": {**CLIPSWISH, "learning_rate": 1e-2, "components": 4},
    "sine, rate 1e-2": {**SINE, "learning_rate": 1e-2},
    "sine, beta 1, rate 1e-2": {**SINE, "beta": 1.0, "learning_rate": 1e-2},
    "sine, rate 4e-2, exact": {**SINE, "learning_rate": 4e-2, "log_det": "exact"},
    "FlowDensity()": {"max_iter": None},  # the defaults as they are, whatever the budget
    # other flows
    "NSF, rate 2e-3": {"rival": "NSF", "rate": 2e-3},
    "NSF, rate 5e-3": {"rival": "NSF", "rate": 5e-3},
    "NSF, rate 1e-2": {"rival": "NSF", "rate": 1e-2},
    "MAF, rate 2e-3": {"rival": "MAF", "rate": 2e-3},
    "MAF, rate 5e-3": {"rival": "MAF", "rate": 5e-3},
    "MAF, rate 1e-2": {"rival": "MAF", "rate": 1e-2},
}


def rows_of(name: str, folder: Path | None, seed: int) -> tuple[Array, Array, float]:
    """Rows to fit to, rows to judge by, and the best possible score of the latter, where it is known."""
    if name in SYNTHETIC:
        rows, (judged, log_p) = SYNTHETIC[name](ROWS, 1000 + seed)[0], SYNTHETIC[name](JUDGED, 2000 + seed)
        return rows, judged, float(log_p.mean())
    known = {**SETS, **({} if folder is None else folder_tables(folder))}
    train, _ = halves(*known[name](), 0)
    order = np.random.default_rng(seed).permutation(len(train))
    cut = max(len(train) // 10, min(JUDGED, len(train) // 5))
    return train[order[cut:]], train[order[:cut]], float("nan")


def seconds_of_a_step(rows: Array, options: dict[str, Any]) -> float:
    """The processor time of a step on an undisturbed core: a low quantile of many, since other work only makes steps slower."""
    taken, step = list[float](), Training.step

    def timed(self: Training, factor: float) -> None:
        began = time.process_time()
        step(self, factor)
        taken.append(time.process_time() - began)

    Training.step = timed  # type: ignore[method-assign]
    try:
        FlowDensity(random_state=0, early_stopping=False, **{**options, "max_iter": TIMED}).fit(rows[:TIMED_ROWS])
    finally:
        Training.step = step  # type: ignore[method-assign]
    return float(np.quantile(taken, 0.2))


def rival(rows: Array, judged: Array, kind: str, rate: float, seconds: float) -> tuple[Array, dict[str, Any]]:
    """Scores by a flow of zuko's, in the units of the rows, after so many seconds of processor time."""
    mean, deviation = rows.mean(0), rows.std(0)
    began = time.process_time()
    score, words = zuko_flow(kind, rate)((rows - mean) / deviation, seconds)
    taken = time.process_time() - began
    steps = int(words.split()[-1])
    return score((judged - mean) / deviation) - np.log(deviation).sum(), {"steps": steps, "seconds": round(taken, 1)}


def summary(scores: Array, possible: float) -> dict[str, Any]:
    return {"score": float(scores.mean()), "error": float(scores.std() / len(scores) ** 0.5), "possible": possible}


def tried(name: str, options: dict[str, Any], folder: Path | None, seconds: float, seed: int) -> dict[str, Any]:
    rows, judged, possible = rows_of(name, folder, seed)
    if "rival" in options:
        scores, about = rival(rows, judged, options["rival"], options["rate"], seconds)
        return {**summary(scores, possible), **about}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = {"max_iter": round(seconds / seconds_of_a_step(rows, options))}
        began = time.process_time()
        model = FlowDensity(random_state=seed, **{**steps, **options}).fit(rows)
    taken = time.process_time() - began
    scores = model.score_samples(judged)
    about = {"steps": model.n_iter_, "seconds": round(taken, 1)}
    held_out = [-score for _, score in model.history_]
    return {**summary(scores, possible), **about, "start": held_out[0], "held_out": max(held_out)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the record, table-search.jsonl")
    parser.add_argument("--tables", nargs="+", default=list(SYNTHETIC))
    parser.add_argument("--trials", nargs="+", default=list(TRIALS))
    parser.add_argument("--options", type=json.loads, default={}, help="options of all trials, as JSON")
    parser.add_argument("--label", default="", help="what these options are called in the record")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--seconds", type=float, default=20.0, help="processor time of a trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print the record as a table, and do nothing else")
    values = parser.parse_args()
    record = values.out / "table-search.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.is_file() else []
    if values.show:
        print("| table | trial | seed | seconds | steps | nats | error |\n|---|---|---:|---:|---:|---:|---:|")
        for each in sorted(lines, key=lambda line: (line["table"], line["budget"], -line["score"])):
            words = [each[k] for k in ("table", "trial", "seed", "seconds", "steps")]
            print("| " + " | ".join(map(str, words)) + f" | {each['score']:.3f} | {each['error']:.3f} |")
        return
    torch.set_num_threads(1)
    values.out.mkdir(parents=True, exist_ok=True)
    done = {(each["table"], each["trial"], each["seed"], each["budget"]) for each in lines}
    for trial in values.trials:
        for table in values.tables:
            name = f"{values.label}{trial}"
            if (table, name, values.seed, values.seconds) in done:
                continue
            options = {**TRIALS[trial], **values.options}
            found = tried(table, options, values.folder, values.seconds, values.seed)
            line = {"table": table, "trial": name, "seed": values.seed, "budget": values.seconds, "options": options, **found}
            with record.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
