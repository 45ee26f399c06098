"""Training that starts from a trained model: its weights, norms and standardisation."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from idensenet.columns import Columns
from idensenet.errors import OptionError
from idensenet.flow import Flow
from idensenet.storage import load

ALL = ("real", "grid", "nominal")  # kinds of columns


def weights_of(name: str, flow: Flow) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The state of a trained model, for a flow of the same shape, and sentences on options of the model that differ.

    Args:
        name: The folder of a run or of a saved model, or the name of a model in the package.
        flow: The flow that will take the weights.

    Raises:
        CheckpointError: There is no such model, or it is damaged.
        OptionError: The flow has other weights, or its columns stand for something else.
    """
    trained = load(name, flow.device)
    state, own = trained.state_dict(), flow.state_dict()
    other = sorted(key for key in {*own, *state} if _shape(own, key) != _shape(state, key))
    if other:
        raise OptionError(
            f"train.initial={name} has other weights than this model: {other[0]} is {_shape(state, other[0])} there and "
            f"{_shape(own, other[0])} here; give the model options of that model."
        )
    if trained.columns is not None and flow.columns is not None and _meaning(trained.columns) != _meaning(flow.columns):
        raise OptionError(
            f"train.initial={name} was trained on the columns {trained.columns.in_words(*ALL)}, and this table has "
            f"{flow.columns.in_words(*ALL)}, with other names, grids or categories; --data.columns, --data.discrete and "
            "--data.categorical can make them agree."
        )
    return state, _differences(name, trained, flow)


def _shape(state: dict[str, Tensor], key: str) -> str:
    return ("x".join(map(str, state[key].shape)) or "one number") if key in state else "absent"


def _meaning(columns: Columns) -> list[Any]:
    """What the numbers of a model stand for: names, grids and categories of columns. How a file writes them is left out."""
    return [dataclasses.replace(column, dtype="float64") for column in columns.columns]


def _differences(name: str, trained: Flow, flow: Flow) -> tuple[str, ...]:
    """Options that change what the same weights compute."""
    if trained.config is None or flow.config is None:
        return ()
    then, now = trained.config.model, flow.config.model
    names = [field.name for field in dataclasses.fields(then) if field.name not in ("start", "beta")]  # where weights begin
    other = [each for each in names if getattr(then, each) != getattr(now, each)]
    if not other:
        return ()
    options = " ".join(f"--model.{each} {getattr(then, each)}" for each in other)
    return (f"{name} has other options of the model, so its weights are another density here; it has {options}.",)
