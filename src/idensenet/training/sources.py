"""The data of a run: what its configuration asks for, and what has changed in it since."""

from __future__ import annotations

import dataclasses

from idensenet.columns import Columns
from idensenet.config import Config, DataConfig
from idensenet.data.catalog import open_source
from idensenet.data.csv_rows import TextFormat
from idensenet.data.fingerprint import OWN, UNKNOWN, changes
from idensenet.data.row_groups import Report, unsaid
from idensenet.data.source import Source
from idensenet.errors import OptionError
from idensenet.flow import Flow
from idensenet.storage import load, saved_columns
from idensenet.training.run import RunFolder


def source_of(config: Config, known: Columns | None = None, report: Report = unsaid) -> Source:
    """The data that a configuration asks for; columns of a table are taken for what is known of them."""
    d = config.data
    return open_source(
        None if d.folder or d.table else d.name,  # one's own data takes the place of the recipe's
        root=d.root,
        folder=d.folder,
        table=d.table,
        columns=d.columns or None,
        context=d.context,
        weight=d.weight,
        discrete=d.discrete,
        categorical=d.categorical,
        bounds=d.bounds,
        known=known,
        size=d.size,
        channels=d.channels,
        seed=d.split_seed,
        split=d.split,
        split_at=d.split_at,
        text=TextFormat(d.header, d.decimal),
        report=report,
    )


def by_name(given: DataConfig, trained: DataConfig) -> DataConfig:
    """Another table is read as the one that the model was trained on, unless other options are given.

    It is read by the names of the same columns, and its rows, or the files of another folder, are divided in the same way.
    """
    if (given.table and trained.table) or (given.folder and trained.folder):
        seed, at = given.split_seed or trained.split_seed, given.split_at or trained.split_at
        given = dataclasses.replace(given, split=trained.split, split_seed=seed, split_at=at)
    if given.table is None or trained.table is None:
        return given
    columns = given.columns or trained.columns or source_of(Config(data=trained)).columns
    return dataclasses.replace(
        given,
        columns=columns,
        context=given.context or trained.context,
        header=trained.header if given.header is None else given.header,
        decimal=given.decimal or trained.decimal,
    )


def data_notes(run: RunFolder, source: Source) -> tuple[str, ...]:
    """What has changed in one's own data since a run was trained, in sentences; nothing for a model that is not of a run."""
    if source.name not in OWN or not run.exists():
        return ()
    then = run.fingerprint()
    return (UNKNOWN,) if then is None else changes(then, source)


def known_columns(run: RunFolder | None) -> Columns | None:
    """What the columns of the table of a run are, if it has a checkpoint that says so."""
    if run is None or not run.checkpoints.steps():
        return None
    return saved_columns(run.checkpoints.path(run.checkpoints.find("last")) / "model")


def model_and_source(run: str, step: str, overrides: DataConfig | None = None, report: Report = unsaid) -> tuple[Flow, Source]:
    """A trained model and the data it was trained on; options given on the command line change what is read."""
    flow = load(run, step=step)
    assert flow.config is not None
    config = flow.config
    if overrides is not None and (overrides.folder or overrides.table or overrides.name):
        config = Config(data=by_name(overrides, config.data))
    elif overrides is not None and overrides.root != Config().data.root:
        config = config.replace(data={"root": overrides.root})
    source = source_of(as_trained(config, flow), flow.columns, report)
    check_shape(flow, source)
    return flow, dataclasses.replace(source, notes=(*source.notes, *data_notes(RunFolder(run), source)))


def as_trained(config: Config, flow: Flow) -> Config:
    """All columns are real for a model that says nothing about them."""
    return config if flow.columns is not None else config.replace(data={"discrete": None, "categorical": None})


def check_shape(flow: Flow, source: Source) -> None:
    if source.shape == flow.shape:
        return
    text = f"The model takes samples of shape {flow.shape}, but {source.name} has {source.shape}"
    if source.name == "folder" and len(flow.shape) == 3:
        text += f"; add --data.size {flow.shape[1]} --data.channels {flow.shape[0]}"
    raise OptionError(f"{text}.")
