"""idensenet score of a table that is streamed: scores go to a folder, part by part, here or on a Dask cluster."""

from __future__ import annotations

import math
import os
import sys
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from idensenet.commands.cluster import on_cluster
from idensenet.commands.parts import Job, here, plan, unfinished
from idensenet.commands.use import probing_of, with_progress
from idensenet.data.fingerprint import Digest
from idensenet.data.table_source import Roles
from idensenet.errors import OptionError
from idensenet.scoring import Scorer, digest_of
from idensenet.storage import load
from idensenet.training.display import Notices
from idensenet.training.evaluation import enough
from idensenet.training.probing import MOST, exact_if_small
from idensenet.training.sources import model_and_source

OUT = "scores"


def score_stream(values: Any) -> int:
    """Score every row of a folder or a glob of Parquet files.

    Args:
        values: The options of the command.
    """
    for name in ("against", "samples"):
        if getattr(values, name) is not None:
            raise OptionError(f"--{name} is for tables that fit into memory; leave it out, or give --data.table one file.")
    out = _folder(values.out or OUT)
    report = Notices("before the first score")
    flow, trained_on = model_and_source(values.run, values.step, report=report)
    background = None if values.background is None else load(values.background)
    if background is not None and (background.shape, background.levels) != (flow.shape, flow.levels):
        raise OptionError(f"The background model takes samples of shape {background.shape}, the model {flow.shape}.")
    probing = probing_of(values)
    with exact_if_small(flow) if values.probes is None else nullcontext():
        train = trained_on.train
        reference = with_progress("scoring training data", flow, train, values.reference)["log_prob"].cpu().double()
        probing = probing or enough(flow, trained_on, reference)
    trained, given = flow.config.data if flow.config else None, values.data
    scorer = Scorer(
        _absolute(values.run),
        values.step,
        probing,
        values.probes is None,
        np.sort(reference.numpy()),
        None if values.background is None else _absolute(values.background),
        Roles(
            given.columns or (trained.columns if trained else None) or None,
            given.context or (trained.context if trained else ()),
        ),
        digest_of(values.run, values.step),
    )
    job = Job(scorer, str(out.absolute()), values.error, version("idensenet"))
    options = {name: getattr(values, name) for name in ("probes", "error", "reference")}
    options["background"] = None if background is None else digest_of(values.background, "last")
    options["training rows"] = Digest.of_samples(trained_on.train).part.content  # which scores are compared with
    parts = plan(job, Path(values.data.table), options, report)
    out.mkdir(exist_ok=True)
    rest = unfinished(parts, out)
    if len(rest) < len(parts):
        print(f"{len(parts) - len(rest)} of {len(parts)} parts have been scored before.", flush=True)
    written = _run(job, rest, values.dask)
    rows = sum(part.rows for part in parts)
    print(f"{rows:,} rows in {len(parts)} files in {out}: log_density in nats, with its standard error;")
    print("typicality, the distance from the training mean in deviations;")
    print(f"quantile, the fraction of {len(reference)} training samples that are no more likely", end="")
    print("" if background is None else "; ratio, how much likelier the background model finds it in nats")
    _say(written, values.error)
    for note in trained_on.notes:
        print(note)
    return 0


def _folder(name: str) -> Path:
    """A folder for scores, which may be there already."""
    out = Path(name)
    if out.suffix or (out.exists() and not out.is_dir()):
        raise OptionError(f"--out {name} must be a folder: the scores of a table that is streamed are several Parquet files.")
    above = out if out.is_dir() else out.absolute().parent
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise OptionError(f"--out {name} cannot be written: {above} is not a folder that can be written to.")
    return out


def _absolute(model: str) -> str:
    """The folder of a model, which other processes find too; the name of one in the package stays."""
    return str(Path(model).absolute()) if Path(model).exists() else model


def _run(job: Job, parts: list[Any], address: str | None) -> list[float]:
    """Score these parts; returns their rows, the sum of squares of their errors, and how many missed the target."""
    from rich.progress import Progress

    total, said = [0.0, 0.0, 0.0], set()
    if not parts:
        return total
    with Progress(transient=True) as progress:
        task = progress.add_task("scoring", total=sum(part.rows for part in parts))
        for found in here(job, parts) if address is None else on_cluster(job, parts, address):
            total = [a + b for a, b in zip(total, (found.rows, found.squares, found.missed), strict=True)]
            progress.update(task, advance=found.rows)
            for sentence in found.surprises:
                column = sentence.partition(": ")[2].split(" has ")[0]
                if column not in said:
                    print(sentence, file=sys.stderr)
                said.add(column)
    return total


def _say(written: list[float], target: float | None) -> None:
    rows, squares, missed = written
    if rows and (squares > 0 or target):
        print(f"standard error of a single score, from its probes: {math.sqrt(squares / rows):.3g} nats")
    if missed:
        print(f"{missed:.0f} of {rows:.0f} rows did not reach --error {target:g} with {MOST} draws")
