"""Using a trained model: evaluate, sample, reconstruct, certify, report."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idensenet.columns import Columns
from idensenet.commands.parsing import Parser, add_groups
from idensenet.config import Config
from idensenet.data.source import Samples, Source
from idensenet.data.table import read_table
from idensenet.errors import InputError, OptionError
from idensenet.files import write_atomically
from idensenet.flow import Flow
from idensenet.storage import load
from idensenet.threads import suited_to
from idensenet.training.display import Notices
from idensenet.training.evaluation import first_rows, rows_at_once, score_rows, summary, taken
from idensenet.training.options import LARGEST, check
from idensenet.training.probing import MOST, Probing, exact_if_small
from idensenet.training.run import RunFolder
from idensenet.training.sources import model_and_source


def _output_folder(run: str) -> Path:
    """Results go into the folder of the run, or into the current folder for a model of the package."""
    return Path(run) if RunFolder(run).exists() else Path()


AT_ONCE = 100  # samples that are computed together
MODEL = "folder of a run, or a model that comes with the package (moons, ...)"


def model_parser(command: str, description: str, example: str, run: str = MODEL) -> Parser:
    parser = Parser(command, description, example)
    parser.add_argument("run", type=str, help=run)
    parser.add_argument("--step", type=str, default="last", help="which checkpoint of the run: a number, last or best")
    return parser


def evaluate(arguments: list[str]) -> int:
    parser = model_parser(
        "evaluate", "Score a model on held-out data, every term itemised.", "idensenet evaluate runs/moons --samples 1000"
    )
    parser.add_argument("--samples", type=int | None, default=None, help="Number of held-out samples; all by default.")
    parser.add_argument("--batch", type=int | None, default=None, help="Number of samples at a time; changes no result.")
    parser.add_argument(
        "--importance",
        type=int,
        default=1,
        help="Number of noise samples of each image; more of them bring the bound closer to its density.",
    )
    add_probing(parser)
    add_groups(parser, Config(), ("data",))
    values = parser.read(arguments)
    check("--batch", values.batch)
    check("--samples", values.samples)
    check("--importance", values.importance)
    check("--probes", values.probes)
    check("--error", values.error, "positive and finite")
    probing = probing_of(values)
    report = Notices("before the first score")
    flow, source = model_and_source(values.run, values.step, values.data, report)
    with exact_if_small(flow) if values.error is not None else nullcontext():
        scores = with_progress("evaluating", flow, source.test, values.samples, values.batch, probing, values.importance)
    found = {"run": values.run, "step": values.step, "data": source.name, "notes": list(source.notes), **summary(flow, scores)}
    _print_summary(found, flow, source)
    for line in said_errors(scores["error"], values.error) if "error" in scores else ():
        print(line)
    folder = _output_folder(values.run)
    write_atomically(folder / "evaluation.json", json.dumps(found, indent=1) + "\n")
    print(f"written to {folder / 'evaluation.json'}")
    return 0


def with_progress(
    what: str,
    flow: Flow,
    split: Samples,
    limit: int | None,
    batch: int | None = None,
    probing: Probing | None = None,
    importance: int = 1,
) -> dict[str, torch.Tensor]:
    from rich.progress import Progress

    rows = first_rows(split, limit)
    with Progress(transient=True) as progress, suited_to(flow, batch or rows_at_once(flow)):
        task = progress.add_task(what, total=len(rows))
        return score_rows(flow, split, rows, batch, lambda done: progress.update(task, completed=done), probing, importance)


def add_probing(parser: Parser) -> None:
    parser.add_argument(
        "--probes", type=int | None, default=None, help="Number of draws over which the log-determinant of a row is averaged."
    )
    parser.add_argument(
        "--error", type=float | None, default=None, help=f"Standard error of each row in nats, with up to {MOST} draws."
    )


def probing_of(values: Any) -> Probing | None:
    """What the options ask for; None if they ask for nothing."""
    if values.probes is not None and values.error is not None:
        raise OptionError(f"--probes {values.probes} and --error {values.error:g} are both given; leave one out.")
    return None if values.probes is None and values.error is None else Probing(values.probes or 1, values.error)


def said_errors(error: torch.Tensor, target: float | None) -> list[str]:
    """How exact single scores are, and which of them miss the error that was asked for."""
    root = float(error.double().square().mean().sqrt())
    lines = [f"standard error of a single score, from its probes: {root:.3g} nats"] if root > 0 or target else []
    missed = [] if target is None else (error > target).nonzero().flatten().tolist()
    if missed:
        shown = ", ".join(map(str, missed[:8])) + (", ..." if len(missed) > 8 else "")
        lines.append(f"{len(missed)} of {len(error)} rows did not reach --error {target:g} with {MOST} draws: {shown}")
    return lines


def _print_summary(found: dict[str, Any], flow: Flow, source: Source) -> None:
    from rich.console import Console
    from rich.table import Table

    unit = flow.dims * math.log(2) if flow.levels else None
    table = Table(title=f"{found['data']}, {found['samples']} held-out samples")
    table.add_column("term")
    table.add_column("nats", justify="right")
    if unit:
        table.add_column("bits/dim", justify="right")
    names = {
        "base": "-log N(z; 0, I)",
        "log_det": "-log-det of the flow",
        "preprocess": "-log-det of the preprocessing",
        "levels": "dequantisation: D ln levels" if flow.levels else "average over the cells of discrete columns",
        "noise": "dequantisation: log q(u | x)",
        "categories": "-log p(nominal columns)",
    }
    for name in found["terms"]:
        title = names[name]
        value = 0.0 - found["terms"][name]  # no minus zero
        table.add_row(title, f"{value:.6g}", *([f"{value / unit:.6f}"] if unit else []))
    bits = [f"{found['bits_per_dim']:.6f} +- {found['bits_per_dim_error']:.4f}"] if unit else []
    table.add_row("negative log-density", f"{found['nats']:.6f} +- {found['nats_error']:.4f}", *bits)
    if "importance" in found:
        closer = found["importance"]
        bits = [f"{closer['bits_per_dim']:.6f} +- {closer['bits_per_dim_error']:.4f}"] if unit else []
        title = f"importance-weighted, {closer['samples']} samples of the noise"
        table.add_row(title, f"{closer['nats']:.6f} +- {closer['nats_error']:.4f}", *bits)
    console = Console()
    console.print(table)
    if "accuracy" in found:
        console.print(f"accuracy {found['accuracy']:.4f}, expected calibration error {found['calibration_error']:.4f}")
    if source.stream is not None:
        console.print(f"entropy of {source.name}: {source.stream.entropy:.4f} nats; no model scores lower")
    for note in source.notes:
        console.print(note)


def sample(arguments: list[str]) -> int:
    parser = model_parser("sample", "Draw samples from a model.", "idensenet sample runs/digits -n 64 --out samples.png")
    parser.add_argument("-n", "--number", type=int, default=64, help="Number of samples.")
    parser.add_argument("--out", type=str, default="samples.png", help="Picture (.png) or numbers (.npy, .csv) to write.")
    parser.add_argument("--temperature", type=float, default=1.0, help="Scale of the latent noise; 1 is the model itself.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the latent noise.")
    parser.add_argument(
        "--context",
        type=str | None,
        default=None,
        help="Context of a conditional model: numbers as '[1, 2]', or a table with a row for each sample.",
    )
    values = parser.read(arguments)
    check("--number", values.number)
    check("--seed", values.seed, "at least 0 and below 2^63")
    out = writable(values.out, (".png", ".npy", ".csv"), [values.context])
    flow = load(values.run, step=values.step)
    size = values.number * flow.dims * flow._anchor.element_size()
    if size > LARGEST:
        most = LARGEST // (size // values.number)
        raise OptionError(
            f"--number {values.number} makes {size / 2**30:.3g} GB of samples; draw at most {most:,} at a time, each time with "
            "another --seed."
        )
    generator = torch.Generator(flow.device).manual_seed(values.seed)
    given = _given(flow, values.context, values.number)
    categories = None if flow.columns is None else flow.columns.draw(values.number, np.random.default_rng(values.seed))
    if categories is not None:
        if given is not None:
            raise OptionError("The categories of samples are drawn by the model, so that it takes no --context; leave it out.")
        given = torch.from_numpy(categories).to(flow.device, flow.dtype)
    with suited_to(flow, values.number):
        drawn = flow.sample(values.number, generator, values.temperature, given).cpu()
    table = None if flow.columns is None else flow.columns.values(drawn.numpy(), categories)
    if out.suffix == ".npy":
        if categories is not None and flow.columns is not None:
            raise OptionError(f"--out {values.out} holds numbers, but {flow.columns.in_words('nominal')} is nominal; use .csv.")
        np.save(content := io.BytesIO(), drawn.numpy() if table is None else np.stack(table, 1).astype(drawn.numpy().dtype))
        write_atomically(out, content.getvalue())
    elif out.suffix == ".csv" and table is not None and flow.columns is not None:
        write_atomically(out, table_text(flow.columns, table, 17 if drawn.dtype == torch.float64 else 9))
    elif out.suffix == ".csv":
        digits = "%.17g" if drawn.dtype == torch.float64 else "%.9g"
        np.savetxt(content := io.BytesIO(), drawn.flatten(1).numpy(), delimiter=",", fmt=digits)
        write_atomically(out, content.getvalue())
    else:
        _picture_of_samples(flow, drawn, out)
    print(f"{values.number} samples in {out}")
    return 0


def table_text(columns: Columns, values: Sequence[np.ndarray[Any, Any]], digits: int) -> str:
    """A table as CSV, with the names of its columns; numbers with so many digits, values on a grid as they were."""
    forms = {"real": f".{digits}g", "grid": ".14g", "nominal": ""}
    text = [
        [f"{value:{forms[column.kind]}}" if forms[column.kind] else str(value) for value in each.tolist()]
        for column, each in zip(columns.columns, values, strict=True)
    ]
    writer = csv.writer(content := io.StringIO(), lineterminator="\n")
    writer.writerow(columns.names)
    writer.writerows(zip(*text, strict=True))
    return content.getvalue()


def _given(flow: Flow, context: str | None, number: int) -> torch.Tensor | None:
    """The contexts of samples: numbers for all of them, or the rows of a table, one for each."""
    if context is None:
        return None
    if context.lstrip().startswith("["):
        try:
            rows = np.asarray(json.loads(context), np.float64)
        except (ValueError, TypeError) as error:
            raise OptionError(f"--context {context} is no list of numbers, such as '[1, 2.5]'.") from error
    else:
        names = flow.config.data.context if flow.config else ()
        rows = read_table(Path(context), names or None).values
        if len(rows) != number:
            raise OptionError(f"{context} has {len(rows)} rows, but {number} samples are asked for; use -n {len(rows)}.")
    return torch.from_numpy(rows).to(flow.device, flow.dtype)


def _picture_of_samples(flow: Flow, drawn: torch.Tensor, out: Path) -> None:
    from idensenet.report.pictures import image_grid, magnification, points_picture, save_image

    if flow.levels is None:
        points_picture(drawn, out)
    else:
        save_image(image_grid(drawn, flow.levels, scale=magnification(flow.shape[1])), out)


def writable(path: str, endings: tuple[str, ...], inputs: Iterable[str | None] = ()) -> Path:
    """Where to write: a file of a known kind, in a folder that is there, and not over anything that is read."""
    out = Path(path)
    if out.resolve() in [Path(each).resolve() for each in inputs if each]:
        raise OptionError(f"--out {path} would overwrite data that is read; choose another name.")
    if out.suffix not in endings:
        raise OptionError(f"--out {path} must end in {' or '.join(endings)}.")
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise OptionError(f"--out {path} cannot be written: {out.parent} is not a folder that can be written to.")
    return out


def reconstruct(arguments: list[str]) -> int:
    parser = model_parser(
        "reconstruct", "Send held-out data there and back.", "idensenet reconstruct runs/digits --out round_trip.png"
    )
    parser.add_argument("-n", "--number", type=int, default=32, help="Number of samples.")
    parser.add_argument("--out", type=str, default="round_trip.png", help="Picture to write, a PNG file.")
    add_groups(parser, Config(), ("data",))
    values = parser.read(arguments)
    check("--number", values.number)
    out = writable(values.out, (".png",))
    flow, source = model_and_source(values.run, values.step, values.data)
    x, _, c, _ = source.test.batch(np.arange(min(values.number, len(source.test))))
    x, c = taken(flow, x, c)
    with torch.no_grad(), suited_to(flow, len(x)):
        before = flow.dequantize(x)
        after, _ = flow.inverse(flow(x, context=c)[0], context=c)
    error = (after - before).abs() / (flow.levels or 1)
    from idensenet.report.pictures import reconstruction_picture

    reconstruction_picture(flow, before, after, error, out)
    unit = " (in units of the whole range of a pixel)" if flow.levels else ""
    for note in source.notes:
        print(note)
    print(f"largest error {float(error.max()):.3g}, mean {float(error.mean()):.3g}{unit}; picture: {out}")
    return 0


def certify(arguments: list[str]) -> int:
    values = model_parser("certify", "Guaranteed Lipschitz bounds of every block.", "idensenet certify runs/moons").read(
        arguments
    )
    flow = load(values.run, step=values.step)
    with suited_to(flow, AT_ONCE):
        certificate = flow.certify()
    print(certificate)
    return 0 if certificate.contractive else 1


def report(arguments: list[str]) -> int:
    parser = model_parser("report", "Write the page of a run.", "idensenet report runs/moons", "folder of a run")
    values = parser.read(arguments)
    from idensenet.report.page import write_report

    run = RunFolder(values.run)
    if not run.exists():
        raise InputError(f"{values.run} is not the folder of a run; 'idensenet train' makes one.")
    print(f"report: {write_report(run, step=values.step)}")
    return 0
