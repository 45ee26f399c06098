"""idensenet score: how odd each row or image is, and how well a model tells another data set from its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idensenet.anomaly import auroc, oddness
from idensenet.commands.parsing import add_groups
from idensenet.commands.score_stream import score_stream
from idensenet.commands.use import (
    add_probing,
    model_parser,
    probing_of,
    said_errors,
    with_progress,
    writable,
)
from idensenet.config import Config, DataConfig
from idensenet.data.catalog import SETS, open_source
from idensenet.data.csv_rows import TextFormat
from idensenet.data.row_groups import is_streamed
from idensenet.data.source import Samples, Source, Split
from idensenet.data.table_source import Roles, read_contents
from idensenet.errors import OptionError, UnknownNameError, nearest
from idensenet.files import write_atomically
from idensenet.flow import Flow
from idensenet.scoring import quantiles
from idensenet.storage import load
from idensenet.training.evaluation import enough
from idensenet.training.options import check
from idensenet.training.probing import Probing, exact_if_small
from idensenet.training.sources import check_shape, model_and_source, source_of

FLIPPED = ":flipped"
OUT = "scores.csv"
ERROR = "log_density_error"


@dataclass(frozen=True)
class Chosen:
    """What is scored: parts that stay where they are, and the place of each sample in the order that is asked for."""

    parts: tuple[Samples, ...]
    order: np.ndarray[Any, Any] | None = None

    def scores(self, what: str, flow: Flow, limit: int | None, probing: Probing | None = None) -> dict[str, Tensor]:
        most = limit if self.order is None else None
        found = [with_progress(what, flow, part, most, probing=probing) for part in self.parts]
        joined = {name: torch.cat([each[name] for each in found]).cpu().double() for name in found[0]}
        if self.order is None:
            return joined
        return {name: value[torch.from_numpy(self.order)][:limit] for name, value in joined.items()}


def score(arguments: list[str]) -> int:
    parser = model_parser(
        "score",
        "Log-density, typicality and quantile of every row of your data; with --against, how well they tell two sets apart.",
        "idensenet score runs/mine --data.table new.csv --out scores.csv",
    )
    parser.add_argument(
        "--out",
        type=str | None,
        default=None,
        help=f"CSV file to write; {OUT}, if there is none yet; for a folder or glob of Parquet files a folder",
    )
    parser.add_argument("--reference", type=int, default=5000, help="training samples to compare with")
    parser.add_argument("--background", type=str | None, default=None, help="run of a background model, for likelihood ratios")
    parser.add_argument(
        "--against", type=str | None, default=None, help=f"another data set, folder or table; NAME{FLIPPED}: upside down"
    )
    parser.add_argument(
        "--dask", type=str | None, default=None, help="of Parquet files: address of a Dask scheduler, whose workers score them"
    )
    parser.add_argument("--samples", type=int | None, default=None, help="how many of each set at most; all by default")
    add_probing(parser)
    add_groups(parser, Config(), ("data",))
    values = parser.read(arguments)
    check("--reference", values.reference)
    check("--samples", values.samples)
    check("--probes", values.probes)
    check("--error", values.error, "positive and finite")
    probing = probing_of(values)
    if values.data.table and is_streamed(values.data.table):
        return score_stream(values)
    if values.dask is not None:
        raise OptionError(f"--dask {values.dask} scores a folder or a glob of Parquet files; give one with --data.table.")
    own_data = bool(values.data.table or values.data.folder or values.data.name)
    if not own_data and values.against is None:
        raise OptionError("What to score is missing: give --data.table FILE, --data.folder DIR or --data.name NAME.")
    flow, trained_on = model_and_source(values.run, values.step, values.data if not own_data else None)
    assert flow.config is not None
    read = (values.data.table, values.against, values.background, flow.config.data.table)
    out = _new(values.out, values.against is not None, read)
    background = None if values.background is None else load(values.background)
    if background is not None and (background.shape, background.levels) != (flow.shape, flow.levels):
        raise OptionError(f"The background model takes samples of shape {background.shape}, the model {flow.shape}.")
    own = own_rows(flow, values.data, trained_on) if own_data else Chosen((trained_on.test,))
    sets = {"own": own}
    if values.against is not None:
        sets["other"] = other_rows(values.against, flow, values.data, trained_on)
    with exact_if_small(flow) if values.probes is None else nullcontext():
        reference = with_progress("scoring training data", flow, trained_on.train, values.reference)["log_prob"].cpu().double()
        probing = probing or enough(flow, trained_on, reference)
        found = {name: _oddness(flow, background, split, values.samples, reference, probing) for name, split in sets.items()}
    write_atomically(out, _csv(found, reference, labelled=values.against is not None))
    _explain(found, reference, out)
    for line in said_errors(torch.cat([scores[ERROR] for scores in found.values()]), values.error):
        print(line)
    for note in trained_on.notes:
        print(note)
    if values.against is not None:
        _compare(found, values.against, trained_on.name if not own_data else "your data", out.with_suffix(".json"))
    return 0


def _new(path: str | None, compared: bool, read: Iterable[str | None]) -> Path:
    """Where to write. A file that is there is replaced only if it was named."""
    out = writable(path or OUT, (".csv",), read)
    for file in (out, out.with_suffix(".json")) if compared else (out,):
        if path is None and file.exists():
            raise OptionError(f"{file} exists already; name the file to write with --out, also if it is to be replaced.")
    return out


def _oddness(
    flow: Flow, background: Flow | None, rows: Chosen, limit: int | None, reference: Tensor, probing: Probing
) -> dict[str, Tensor]:
    scores = rows.scores("scoring", flow, limit, probing)
    behind = None
    if background is not None:
        with exact_if_small(background):
            behind = rows.scores("scoring, background", background, limit, probing)["log_prob"]
    return {**oddness(scores["log_prob"], reference, behind, scores.get("probabilities")), ERROR: scores["error"]}


def _csv(found: dict[str, dict[str, Tensor]], reference: Tensor, labelled: bool) -> str:
    ordered = reference.sort().values
    more = [name for name in ("ratio", "entropy") if name in found["own"]]
    lines = [",".join([*(["set"] if labelled else []), "row", "log_density", ERROR, "typicality", "quantile", *more])]
    for name, scores in found.items():
        log_prob = -scores["log_density"]
        quantile = quantiles(log_prob, ordered)
        columns = [log_prob, scores[ERROR], scores["typicality"], quantile, *[scores[name] for name in more]]
        for i, (first, *rest) in enumerate(zip(*[column.tolist() for column in columns], strict=True)):
            lines.append(",".join([*([name] if labelled else []), str(i), f"{first:.9g}", *(f"{value:.6g}" for value in rest)]))
    return "\n".join(lines) + "\n"


def _explain(found: dict[str, dict[str, Tensor]], reference: Tensor, out: Path) -> None:
    rows = sum(len(scores["log_density"]) for scores in found.values())
    print(f"{rows} rows in {out}: log_density in nats, with its standard error;")
    print("typicality, the distance from the training mean in deviations;")
    print(f"quantile, the fraction of {len(reference)} training samples that are no more likely", end="")
    more = {
        "ratio": "ratio, how much likelier the background model finds it in nats",
        "entropy": "entropy of the class probabilities in nats",
    }
    print("".join(f"; {words}" for name, words in more.items() if name in found["own"]))


def _compare(found: dict[str, dict[str, Tensor]], against: str, own: str, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"telling {against} from {own}")
    for column in ("score", "AUROC", "95 % interval"):
        table.add_column(column, justify="left" if column == "score" else "right")
    summary: dict[str, Any] = {"own": own, "against": against, "samples": {n: len(s["log_density"]) for n, s in found.items()}}
    for name in [name for name in found["own"] if name != ERROR]:
        area = auroc(found["own"][name], found["other"][name])
        table.add_row(name, f"{area.value:.4f}", f"{area.low:.4f} to {area.high:.4f}")
        summary[name] = area._asdict()
    Console().print(table)
    write_atomically(out, json.dumps(summary, indent=1) + "\n")
    print("1 separates them perfectly, 0.5 is chance; below 0.5 the other data look more typical than the model's own.")
    print(f"written to {out}")


# What is scored


def own_rows(flow: Flow, given: DataConfig, trained_on: Source) -> Chosen:
    """One's own rows or images, in the order of the file or of the file names; of a published set, its test images."""
    if given.table is not None:
        return _table(Path(given.table), flow, given)
    source = source_of(Config(data=given))
    check_shape(flow, source)
    if given.folder is None:
        return Chosen((source.test,))
    assert source.places is not None
    return Chosen((source.train, source.test), np.argsort(source.places))


def written(flow: Flow, given: DataConfig) -> TextFormat:
    """How a CSV file is written: as the options say, or like the one that the model was trained on."""
    trained = flow.config.data if flow.config is not None else DataConfig()
    return TextFormat(trained.header if given.header is None else given.header, given.decimal or trained.decimal)


def _table(path: Path, flow: Flow, given: DataConfig) -> Chosen:
    """All rows of a table, read as the model was trained."""
    trained = flow.config.data if flow.config is not None else DataConfig()
    roles = Roles(given.columns or trained.columns or None, given.context or trained.context)
    contents = read_contents(path, roles, known=flow.columns, text=written(flow, given))
    for sentence in contents.surprises:
        print(f"{path}: {sentence}", file=sys.stderr)
    split = contents.split()
    if split.x.shape[1:] != flow.shape:
        raise OptionError(f"The model takes {flow.shape[0]} columns, but {path} has {split.x.shape[1]}.")
    return Chosen((split,))


def other_rows(word: str, flow: Flow, given: DataConfig, trained_on: Source) -> Chosen:
    """Another data set in the form that the model takes: images are brought to its size, channels and levels."""
    name, flipped = word.removesuffix(FLIPPED), word.endswith(FLIPPED)
    path = Path(name)
    if flipped and flow.levels is None:
        raise OptionError(f"{word}: only images can be turned upside down, and this model takes {flow.shape[0]} columns.")
    if path.is_file():
        return _table(path, flow, DataConfig(header=given.header, decimal=given.decimal))
    if path.is_dir():
        if flow.levels is None:
            raise OptionError(f"{name} is a folder of images, but the model takes {flow.shape[0]} columns.")
        source = open_source(None, root=given.root, folder=path, size=flow.shape[1], channels=flow.shape[0])
        parts = [source.train, source.test]
    elif name in SETS:
        source = open_source(name, root=given.root)
        parts = [source.test]
    else:
        raise UnknownNameError(f"{name} is no file, no folder and no data set; {nearest(name, list(SETS))}")
    if flow.levels is None or source.levels is None:
        if source.shape != flow.shape or source.levels != flow.levels:
            raise OptionError(f"The model takes samples of shape {flow.shape}, but {name} has {source.shape}.")
        return Chosen(tuple(parts))
    if source.shape == flow.shape and source.levels == flow.levels and not flipped:
        return Chosen(tuple(parts))
    images = [part.batch(np.arange(len(part))).x for part in parts]
    fitted = [fit_images(each, source.levels, flow.shape, flow.levels) for each in images]
    return Chosen(tuple(Split((x.flip(2) if flipped else x).numpy()) for x in fitted))


def fit_images(images: Tensor, levels: int, shape: tuple[int, ...], wanted: int) -> Tensor:
    """Images of other sizes, channels and levels, as uint8 of the shape and levels wanted."""
    if tuple(images.shape[1:]) == shape and levels == wanted:
        return images
    x = images.float() / (levels - 1)
    if x.shape[1] != shape[0]:
        x = x.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    if tuple(x.shape[2:]) != shape[1:]:
        x = F.interpolate(x, size=shape[1:], mode="bilinear", align_corners=False, antialias=True)
    return (x.clamp(0, 1) * (wanted - 1)).round().to(torch.uint8)
