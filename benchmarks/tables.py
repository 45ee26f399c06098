"""Held-out log-likelihood of tables: FlowDensity without options next to a Gaussian, mixtures, kernels and other flows.

    pip install -c constraints.txt -e '.[bench,sklearn,zuko]'
    python benchmarks/tables.py --folder DIR --out docs/tables.md     # hours; continued where it stopped
    python benchmarks/tables.py --sets iris diabetes                  # two of scikit-learn's five tables
    python benchmarks/tables.py --folder DIR --out docs/tables.md --show    # the page from the record

A cell is one model on one table (and one fold, below 2,000 rows), in a process and on a thread of its own, and has a file in
the record. `FlowDensity()` comes first: the other flows get the processor time that it took, at least `--least` seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rivals import FLOWS, MODELS
from table_data import SETS, Array, Load, folder_tables, folds_of, halves

from idensenet.files import write_atomically

OURS = "FlowDensity()"
PUBLISHED = """In the literature, with the whole training splits (test nats, MINIBOONE / BSDS300): Gaussian -37.24 / 96.67,
Real NVP -13.84 / 153.28, MAF -11.75 / 155.69 (rerun -10.92 / 156.95), Glow -10.55 / 156.95, FFJORD -10.43 / 157.40, NSF
coupling -9.67 / 157.54, autoregressive -9.22 / 157.31. MINIBOONE here is fitted to the 3,284 rows of the published validation
split alone, a tenth of what these had, so they stand for orientation only."""


def measured(load: Load, model: str, fold: int, seconds: float) -> dict[str, Any]:
    """Scores of the test rows, with the processor time of the fit and the memory that it took; runs in a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    train, test = halves(*load(), fold)
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    score, words = MODELS[model](train, seconds)
    taken = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scores = [round(float(each), 4) for each in score(test)]
    return {"shape": train.shape, "seconds": taken, "megabytes": (peak - idle) / 1024, "about": words, "scores": scores}


def cell_file(record: Path, table: str, model: str, fold: int) -> Path:
    words = f"{table}-{model}-{fold}".lower()
    return record / ("".join(letter if letter.isalnum() else "-" for letter in words) + ".json")


def alone(*words: Any) -> dict[str, Any]:
    """A cell in a process of its own, so that its memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measured, *words).result()


def filled(tables: dict[str, Load], models: list[str], record: Path, least: float) -> None:
    """Measure all cells that the record does not have."""
    for table, load in tables.items():
        rows, test = load()
        for fold in range(folds_of(rows, test)):
            for model in models:
                path, first = (cell_file(record, table, each, fold) for each in (model, OURS))
                if path.is_file():
                    continue
                seconds = max(least, json.loads(first.read_text())["seconds"]) if model in FLOWS else 0.0
                try:
                    found = alone(load, model, fold, seconds)
                except (ValueError, RuntimeError) as error:  # a rival that fails is a result, too
                    found = {"shape": rows.shape, "seconds": math.nan, "megabytes": math.nan, "about": str(error), "scores": []}
                write_atomically(path, json.dumps(found) + "\n")
                mean = np.mean(found["scores"]) if found["scores"] else math.nan
                print(f"{table}, fold {fold}, {model}: {mean:.3f} in {found['seconds']:.0f} s, {found['about']}", flush=True)


Cells = dict[tuple[str, str], dict[str, Any]]


def collected(tables: dict[str, Load], record: Path) -> Cells:
    """What is whole, by table and model: the scores of all test rows in one order, seconds and memory."""
    found: Cells = {}
    for table, load in tables.items():
        folds = folds_of(*load())
        for model in MODELS:
            files = [cell_file(record, table, model, fold) for fold in range(folds)]
            if all(file.is_file() for file in files):
                cells = [json.loads(file.read_text()) for file in files]
                if all(cell["scores"] for cell in cells):
                    found[table, model] = {
                        "scores": np.concatenate([cell["scores"] for cell in cells]),
                        "seconds": float(np.mean([cell["seconds"] for cell in cells])),
                        "megabytes": float(np.max([cell["megabytes"] for cell in cells])),
                        "shape": cells[0]["shape"],
                        "about": cells[0]["about"],
                    }
    return found


def mean_and_error(values: Array) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def grid(title: str, cells: Cells, text: Any) -> str:
    """A row for each table and a column for each model."""
    tables = list(dict.fromkeys(table for table, _ in cells))
    lines = [f"| {title} | " + " | ".join(MODELS) + " |", "|---|" + "---:|" * len(MODELS)]
    for table in tables:
        words = [text(table, model) if (table, model) in cells else "" for model in MODELS]
        lines.append(f"| {table} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def page(cells: Cells, least: float, note: str) -> str:
    """The results as Markdown."""
    tables = list(dict.fromkeys(table for table, _ in cells))
    best = {t: max((m for t2, m in cells if t2 == t), key=lambda m: float(cells[t, m]["scores"].mean())) for t in tables}

    def score(table: str, model: str) -> str:
        mean, error = mean_and_error(cells[table, model]["scores"])
        mark = "**" if model == best[table] else ""
        return f"{mark}{mean:.3f}{mark} ± {error:.3f}"

    def behind(table: str, model: str) -> str:
        if model == best[table]:
            return "best"
        mean, error = mean_and_error(cells[table, model]["scores"] - cells[table, best[table]]["scores"])
        return f"{mean:.3f} ± {error:.3f}"

    def memory(table: str, model: str) -> str:
        found = cells[table, model]["megabytes"]
        return "" if math.isnan(found) else f"{found:.0f}"

    shapes = {table: next(cell["shape"] for (t, _), cell in cells.items() if t == table) for table in tables}
    sizes = ", ".join(f"{table} {rows:,} x {columns}" for table, (rows, columns) in shapes.items())
    return f"""# Densities of tables

Held-out log-likelihood in nats a row, columns standardised; higher is better. Written by

    python benchmarks/tables.py --folder DIR --out docs/tables.md

{note}

Everybody gets the same rows: constant columns and linear combinations dropped, columns on a grid spread by uniform noise of one
step of it, then each column by the mean and deviation of the training rows. Tables of fewer than 2,000 rows have five folds; of
the others a tenth are test rows, unless the publisher has parted them. `FlowDensity()` has no options. The other flows get the
processor time that it took (one thread, at least {least:g} s), a rate that falls over this time, and the weights that were best
on held-out rows. NSF and MAF have a rate of 5e-3, the best of three on a synthetic table ([settings.md](settings.md)).
The Gaussian chooses its ridge, the mixture its components (up to 200), kind of covariance and ridge, the
kernels their bandwidth by 15 % of the training rows. Training rows: {sizes}. Empty cells have not been measured, or
the model has failed.

{grid("nats a row", cells, score)}

The error is the standard error over test rows. Rows that are hard for one model are hard for all, so the differences to the
best model of a table, row by row, are known better:

{grid("nats behind the best", cells, behind)}

{grid("processor seconds of a fit", cells, lambda t, m: f"{cells[t, m]['seconds']:.0f}")}

{grid("megabytes that a fit adds", cells, memory)}

{PUBLISHED}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="tables: CSV without a header, plain or gzip, and NPY")
    parser.add_argument("--sets", nargs="+", default=None, help="tables to measure; all by default")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--least", type=float, default=5.0, help="seconds that the other flows have at least")
    parser.add_argument("--record", type=Path, default=Path("runs/tables"), help="folder of what is done")
    parser.add_argument("--out", type=Path, default=None, help="Markdown file to write the page to")
    parser.add_argument("--note", default="All in one run.", help="a paragraph for the page")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    values = parser.parse_args()
    known = {**SETS, **({} if values.folder is None else folder_tables(values.folder))}
    if values.sets and not set(values.sets) <= set(known):
        parser.error(f"--sets has a table that is not known; choose from {', '.join(known)}")
    tables = {name: load for name, load in known.items() if not values.sets or name in values.sets}
    if not values.show:
        values.record.mkdir(parents=True, exist_ok=True)
        filled(tables, [model for model in MODELS if model in values.models], values.record, values.least)
    text = page(collected(known, values.record), values.least, values.note)
    print(text)
    if values.out is not None:
        write_atomically(values.out, text)


if __name__ == "__main__":
    main()
