"""Which options `FlowDensity` has where none are given: a list of trials of equal processor time, judged on validation rows.

    python benchmarks/table_search.py --out runs/table-search --seconds 20                    # continued where it stopped
    python benchmarks/table_search.py --out runs/table-search --folder DIR --tables protein   # tables of a folder
    python benchmarks/table_search.py --out runs/table-search --show                          # the record as a table

Each trial changes one thing of the start. Rows for validation are neither in the fit nor among the test rows of
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
from synthetic import SYNTHETIC
from table_data import folder_tables, halves

from idensenet.sklearn import FlowDensity
from idensenet.training import clock

Array = np.ndarray[Any, Any]
ROWS, JUDGED = 20_000, 5_000
TRIALS: dict[str, dict[str, Any]] = {
    "start": {},
    "chosen mixture": {"components": None},
    "4 components": {"components": 4},
    "estimate, batch 500": {"log_det": "estimate", "batch_size": 500},
    "estimate, batch 1000": {"log_det": "estimate", "batch_size": 1000},
    "rate 1e-2": {"learning_rate": 1e-2},
    "rate 4e-2": {"learning_rate": 4e-2},
    "batch 128": {"batch_size": 128},
    "batch 500": {"batch_size": 500},
    "4 blocks, growth 96": {"blocks": 4, "growth": 96},
    "5 blocks": {"blocks": 5},
    "12 blocks": {"blocks": 12},
    "depth 1": {"depth": 1, "growth": 96},
    "depth 3": {"depth": 3, "growth": 32},
    "growth 32": {"growth": 32},
    "growth 96": {"growth": 96},
    "beta 3": {"beta": 3.0},
    "beta 30": {"beta": 30.0},
    "lipschitz 0.97": {"lipschitz": 0.97},
    "lipschitz 0.999": {"lipschitz": 0.999},
    "weight decay 0": {"weight_decay": 0.0},
    "weight decay 0.1": {"weight_decay": 0.1},
    # a second list, from what the first one gave
    "12 blocks, rate 4e-2": {"blocks": 12, "learning_rate": 4e-2},
    "12 blocks, growth 32, rate 4e-2": {"blocks": 12, "growth": 32, "learning_rate": 4e-2},
    "16 blocks, growth 32, rate 4e-2": {"blocks": 16, "growth": 32, "learning_rate": 4e-2},
    "16 blocks, rate 3e-2": {"blocks": 16, "learning_rate": 3e-2},
    "12 blocks, rate 4e-2, batch 256": {"blocks": 12, "learning_rate": 4e-2, "batch_size": 256},
    "12 blocks, rate 4e-2, batch 80": {"blocks": 12, "learning_rate": 4e-2, "batch_size": 80},
    "12 blocks, rate 4e-2, 4 components": {"blocks": 12, "learning_rate": 4e-2, "components": 4},
    "12 blocks, rate 4e-2, depth 1": {"blocks": 12, "learning_rate": 4e-2, "depth": 1, "growth": 96},
    # a third list, from what the second one gave
    "8 blocks, rate 4e-2, batch 256": {"learning_rate": 4e-2, "batch_size": 256},
    "12 blocks, rate 8e-2, batch 256": {"blocks": 12, "learning_rate": 8e-2, "batch_size": 256},
    "12 blocks, rate 6e-2, batch 500": {"blocks": 12, "learning_rate": 6e-2, "batch_size": 500},
    "12 blocks, rate 4e-2, batch 256, lipschitz 0.999": {
        "blocks": 12,
        "learning_rate": 4e-2,
        "batch_size": 256,
        "lipschitz": 0.999,
    },
    "12 blocks, rate 4e-2, batch 256, beta 20": {"blocks": 12, "learning_rate": 4e-2, "batch_size": 256, "beta": 20.0},
    "10 blocks, rate 5e-2, batch 256": {"blocks": 10, "learning_rate": 5e-2, "batch_size": 256},
    # for tables with more columns
    "12 blocks, rate 1e-2, batch 256": {"blocks": 12, "learning_rate": 1e-2, "batch_size": 256},
    "12 blocks, rate 2e-2, batch 256": {"blocks": 12, "learning_rate": 2e-2, "batch_size": 256},
    "exact": {"log_det": "exact"},
}


def rows_of(name: str, folder: Path | None, seed: int) -> tuple[Array, Array, float]:
    """Rows to fit to, rows to judge by, and the best possible score of the latter, where it is known."""
    if name in SYNTHETIC:
        rows, (judged, log_p) = SYNTHETIC[name](ROWS, 1000 + seed)[0], SYNTHETIC[name](JUDGED, 2000 + seed)
        return rows, judged, float(log_p.mean())
    assert folder is not None
    train, _ = halves(*folder_tables(folder)[name](), 0)
    order = np.random.default_rng(seed).permutation(len(train))
    cut = max(len(train) // 10, min(JUDGED, len(train) // 5))
    return train[order[cut:]], train[order[:cut]], float("nan")


def tried(name: str, options: dict[str, Any], folder: Path | None, seconds: float, seed: int) -> dict[str, Any]:
    rows, judged, possible = rows_of(name, folder, seed)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FlowDensity(max_iter=1_000_000, max_time=seconds, random_state=seed, **options).fit(rows)
    taken = time.process_time() - began
    scores = model.score_samples(judged)
    found = {"score": float(scores.mean()), "error": float(scores.std() / len(scores) ** 0.5), "possible": possible}
    about = {"steps": model.n_iter_, "seconds": round(taken, 1), "components": model.settings_.components}
    return {**found, **about, "start": -model.history_[0][1], "held_out": -min(score for _, score in model.history_)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the record")
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
        print("| table | trial | seed | seconds | steps | components | nats | error |\n|---|---|---:|---:|---:|---:|---:|---:|")
        for each in sorted(lines, key=lambda line: (line["table"], line["budget"], -line["score"])):
            words = [each[k] for k in ("table", "trial", "seed", "seconds", "steps", "components")]
            print("| " + " | ".join(map(str, words)) + f" | {each['score']:.3f} | {each['error']:.3f} |")
        return
    torch.set_num_threads(1)
    clock.now = time.process_time
    values.out.mkdir(parents=True, exist_ok=True)
    done = {(each["table"], each["trial"], each["seed"], each["budget"]) for each in lines}
    for trial in values.trials:
        for table in values.tables:
            name = f"{values.label}{trial}"
            if (table, name, values.seed, values.seconds) in done:
                continue
            options = {"components": 1, **values.options, **TRIALS[trial]}
            found = tried(table, options, values.folder, values.seconds, values.seed)
            line = {"table": table, "trial": name, "seed": values.seed, "budget": values.seconds, "options": options, **found}
            with record.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
