"""Scores of one part of a table: a plain function that Dask, Ray or Spark call on many machines."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idensenet.anomaly import oddness
from idensenet.columns import Column, Columns
from idensenet.data.source import Split
from idensenet.data.store import Array
from idensenet.data.table_source import Contents, Roles, contents_of
from idensenet.data.tabular import EXACT, Table, check_cells, check_exact
from idensenet.errors import CheckpointError, DataError, OptionError, UnknownNameError, nearest
from idensenet.flow import Flow
from idensenet.logdet import ExactLogDet
from idensenet.storage import load, model_folder
from idensenet.threads import suited_to
from idensenet.training.evaluation import first_rows, rows_at_once, score_rows
from idensenet.training.probing import EXACT_DIMS, Probing

WHERE = "the frame"  # in errors


def score_partition(
    model: str | Path | Flow,
    frame: Any,
    *,
    probes: int | None = None,
    error: float | None = None,
    reference: Sequence[float] | None = None,
) -> Any:
    """Scores every row of a part of a table. The same row gets the same score in every part, on every machine.

    It is a plain function that can be pickled, for `dask.dataframe.map_partitions`, for `map_batches` of Ray and for
    `mapInPandas` of Spark. A process reads the model once.

    Args:
        model: The folder of a run or of `idn.save`, the name of a model in the package, or a flow.
        frame: A data frame of pandas, a table of pyarrow, or arrays by the names of their columns. Columns are found by name;
            others are left out.
        probes: Number of draws that a log-determinant is the mean of. By default it is exact up to 128 dimensions.
        error: Standard error of each score in nats, which takes up to 256 draws; instead of `probes`.
        reference: Log-densities of training rows, to compare with.

    Returns:
        What `frame` was, with the columns `log_density` in nats and `log_density_error`, its standard error; with a `reference`
        also `typicality` and `quantile`. A data frame keeps its index.

    Raises:
        DataError: A column is missing, or is not numeric.
        NonFiniteError: A cell is empty or not finite.
        OptionError: The frame or the model is not for tables, or `probes` and `error` are both given.
        CheckpointError: There is no model, or it is damaged.

    >>> found = score_partition("moons", {"x": np.array([0.5, 9.0]), "y": np.array([0.2, 9.0])})
    >>> [name for name in found], bool(found["log_density"][0] > found["log_density"][1])
    (['log_density', 'log_density_error'], True)
    """
    if probes is not None and error is not None:
        raise OptionError(f"probes={probes} and error={error:g} are both given; leave one out.")
    probing = None if probes is None and error is None else Probing(probes or 1, error)
    known = None if reference is None else np.sort(np.asarray(reference, np.float64))
    scorer = Scorer(model, probing=probing, exact=probes is None, reference=known)
    return _like(frame, scorer.scores(scorer.contents_of(frame)))


@dataclass(frozen=True, eq=False)
class Scorer:
    """How rows are scored. It can be pickled, and a process that gets it reads the model once.

    Args:
        model: The folder of a run or of a saved model, the name of one in the package, or a flow.
        step: Which checkpoint of a run.
        probing: How many draws a log-determinant is the mean of; one by default.
        exact: Whether log-determinants of few dimensions are exact.
        reference: Rising log-densities of training rows.
        background: A model for likelihood ratios.
        roles: What columns are for, if they have other names than in training.
        digest: What the model must be.
    """

    model: str | Path | Flow
    step: str = "last"
    probing: Probing | None = None
    exact: bool = True
    reference: Array | None = None
    background: str | None = None
    roles: Roles | None = None
    digest: str | None = None

    def flow(self, background: bool = False) -> Flow:
        """The model, or the background model, ready for use."""
        if background:
            assert self.background is not None
            return _loaded(self.background, "last", digest_of(self.background, "last"), True)
        if isinstance(self.model, Flow):
            return _ready(copy.deepcopy(self.model), self.exact)
        found = digest_of(self.model, self.step)
        if self.digest not in (None, found):
            raise CheckpointError(f"The model in {self.model} has changed since scoring began; start again.")
        return _loaded(self.model, self.step, found, self.exact)

    def columns(self, flow: Flow, names: Sequence[str]) -> tuple[Roles, Columns]:
        """What the columns are for, and what they are; of a model that says neither, all that there are."""
        trained = None if flow.config is None else flow.config.data
        if len(flow.shape) != 1:
            raise OptionError(f"The model takes images of shape {flow.shape}, and no rows of a table.")
        given = self.roles or Roles(trained.columns or None if trained else None, trained.context if trained else ())
        if flow.columns is not None:
            return given.of_model(flow.columns)[0], flow.columns
        chosen = given.columns or [name for name in names if name not in given.others]
        if len(chosen) != flow.shape[0]:
            raise OptionError(f"The model takes {flow.shape[0]} columns, but {len(chosen)} are given.")
        return Roles(chosen, given.context), Columns(tuple(Column(name) for name in chosen))

    def contents_of(self, frame: Any) -> Contents:
        """The rows of a frame as numbers."""
        names = [str(name) for name in (frame if isinstance(frame, Mapping) else _names(frame))]
        roles, columns = self.columns(self.flow(), names)
        assert roles.columns is not None
        nominal = {roles.columns[i] for i in columns.of("nominal")}
        text, numbers = {}, []
        for name in (*roles.columns, *roles.context):
            if name not in names:
                raise UnknownNameError(f"The frame has no column {name!r}; {nearest(name, names)}")
            if name in nominal:
                text[name] = np.array(_listed(frame[name]), object)
            numbers.append(np.full(len(text[name]), np.nan) if name in nominal else _numbers(frame[name], name))
        single = all(each.dtype == np.float32 for each in numbers)
        values = np.stack(numbers, 1).astype(np.float32 if single else np.float64)
        table = Table(values, (*roles.columns, *roles.context), text)
        check_cells(table, WHERE)
        return contents_of(WHERE, table, list(roles.columns), roles, columns, 0)

    def scores(self, contents: Contents) -> dict[str, Array]:
        """The scores of some rows, by name."""
        flow, split = self.flow(), contents.split()
        found = _scored(flow, split, self.probing or Probing())
        log_prob = found["log_prob"].double()
        scores = {"log_density": log_prob, "log_density_error": found["error"].double()}
        if self.reference is not None:
            reference = torch.from_numpy(self.reference)
            behind = None
            if self.background is not None:
                behind = _scored(self.flow(background=True), split, Probing())["log_prob"].double()
            more = oddness(log_prob, reference, behind, found.get("probabilities"))
            del more["log_density"]
            scores |= {"typicality": more.pop("typicality"), "quantile": quantiles(log_prob, reference), **more}
        return {name: value.numpy() for name, value in scores.items()}


def quantiles(log_prob: Tensor, ordered: Tensor) -> Tensor:
    """The fraction of rising log-densities of training rows that are no larger."""
    return torch.searchsorted(ordered, log_prob.contiguous(), right=True).double() / len(ordered)


def digest_of(model: str | Path, step: str) -> str:
    """A hash of the files of a model."""
    folder = model_folder(model, step)
    found = hashlib.blake2b(digest_size=16)
    for name in ("model.json", "model.safetensors"):
        found.update((folder / name).read_bytes())
    return found.hexdigest()


@lru_cache(maxsize=4)
def _loaded(model: str | Path, step: str, digest: str, exact: bool) -> Flow:
    return _ready(load(model, step=step), exact)


def _ready(flow: Flow, exact: bool) -> Flow:
    """In evaluation mode, with exact log-determinants in few dimensions. Threads that share it change nothing in it."""
    if exact and flow.dims <= EXACT_DIMS:
        for stack in flow.stacks():
            stack.eval_log_det = ExactLogDet()
    return flow.eval()


def _scored(flow: Flow, split: Split, probing: Probing) -> dict[str, Tensor]:
    if len(split) == 0:
        return {"log_prob": torch.zeros(0), "error": torch.zeros(0)}
    with suited_to(flow, rows_at_once(flow)):
        found = score_rows(flow, split, first_rows(split), probing=probing)
    return {name: value.cpu() for name, value in found.items()}


def _names(frame: Any) -> Iterable[Any]:
    for attribute in ("column_names", "columns"):  # of pyarrow, of pandas
        if hasattr(frame, attribute):
            return getattr(frame, attribute)  # type: ignore[no-any-return]
    raise OptionError(
        f"{type(frame).__name__} cannot be scored; give a data frame, a table of pyarrow, or arrays by their names."
    )


def _listed(column: Any) -> list[Any]:
    """The values of a column, missing ones as None."""
    values = column.to_pylist() if hasattr(column, "to_pylist") else np.asarray(column, object).tolist()
    return [None if value is None or value != value else value for value in values]


def _numbers(column: Any, name: str) -> Array:
    values = np.asarray(column)
    try:
        if values.dtype.kind in "mM":
            raise TypeError
        numbers = values.astype(np.float32 if values.dtype in (np.float32, np.float16) else np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"Column {name!r} of {WHERE} is not numeric ({values.dtype}); convert it, or leave out such rows."
        ) from None
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        check_exact(WHERE, [name] if np.abs(numbers).max(initial=0) >= EXACT else [])
    return numbers


def _like(frame: Any, scores: dict[str, Array]) -> Any:
    """Scores in the form that rows came in."""
    if hasattr(frame, "column_names"):
        return type(frame).from_pydict(scores)
    return type(frame)(scores, index=frame.index) if hasattr(frame, "index") else scores
