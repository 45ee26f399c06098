"""Models on disk: safetensors and JSON, written whole or not at all, read without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from idensenet.checkpoints import CheckpointFolder
from idensenet.columns import Columns
from idensenet.columns.checks import check_of_flow, check_saved
from idensenet.config import Config
from idensenet.errors import CheckpointError, DeviceError, OptionError
from idensenet.files import read_json, save_tensors
from idensenet.flow import Flow
from idensenet.lipschitz.linear import without_norms
from idensenet.models import build_config
from idensenet.sizing import FACTOR, FREE, Limited, check_config, numbers_in
from idensenet.structure import describe, restore

FORMAT = 2
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def save(flow: Flow, path: str | Path, compact: bool = False) -> Path:
    """Write a model to a folder: weights as safetensors, its configuration or structure as JSON.

    Each file appears whole or not at all. A flow that was assembled by hand is saved by its structure; classes of one's own
    must be registered with `register_class`.

    Args:
        flow: The model.
        path: The folder.
        compact: Write weights in half precision and no norms. The file of an image model is several times smaller, its first
            use computes the norms again, and densities change by the rounding of the weights.

    Returns:
        The folder.

    Raises:
        OptionError: A weight is too large for half precision.
    """
    folder = Path(path)
    config = None if flow.config is None else flow.config.as_dict()
    description = {
        "format": FORMAT,
        "dtype": str(flow.dtype).removeprefix("torch."),
        "config": config,
        "structure": describe(flow) if config is None else None,
        "columns": None if flow.columns is None else flow.columns.as_dict(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    weights_part, config_part = folder / "model.safetensors.part", folder / "model.json.part"
    save_tensors(compacted(flow, flow.state_dict()) if compact else flow.state_dict(), weights_part)
    config_part.write_text(json.dumps(description, indent=1) + "\n")
    for part in (weights_part, config_part):
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(part.with_suffix(""))
    return folder


def compacted(flow: Flow, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state in half precision, without norms."""
    halves = {name: value.half() if value.is_floating_point() else value for name, value in without_norms(flow, state).items()}
    if not all(bool(torch.isfinite(value).all()) for value in halves.values()):
        raise OptionError("A weight is too large for half precision; save this model without compact=True.")
    return halves


def pretrained() -> dict[str, Path]:
    """The trained models that come with the package, by name."""
    root = Path(__file__).parent / "pretrained"
    return {p.name: p for p in sorted(root.iterdir()) if (p / "model.json").is_file()} if root.is_dir() else {}


def model_folder(path: str | Path, step: int | str) -> Path:
    """Where the files of a model are: a folder that save() wrote, a checkpoint of a run, or a model of the package."""
    folder = Path(path)
    if not folder.exists() and str(path) in pretrained():
        return pretrained()[str(path)]
    if folder.is_file():
        raise CheckpointError(f"{folder} is a file; a run that was packed into one is used after 'idensenet unpack {folder}'.")
    checkpoints = CheckpointFolder(folder)
    if (folder / "config.yaml").is_file() and not checkpoints.steps():
        raise CheckpointError(f"The run in {folder} has no checkpoint yet; let it train until the first one.")
    if checkpoints.steps():
        return checkpoints.check(checkpoints.find(step)) / "model"
    missing = [name for name in ("model.json", "model.safetensors") if not (folder / name).is_file()]
    if missing:
        known = f", or one of {', '.join(pretrained())}" if pretrained() else ""
        raise CheckpointError(
            f"{folder} holds no model ({missing[0]} is missing); give the folder of a run or of save(){known}."
        )
    return folder


def _check_device(device: str | torch.device) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise DeviceError(
            f"The device {str(device)!r} cannot be used here ({str(error).splitlines()[0]:.120}); leave it out, or use 'cpu'."
        ) from error


def saved_columns(folder: Path) -> Columns | None:
    """What the columns of the table were that the model in a folder was trained on, if it says so."""
    try:
        columns = read_json(folder / "model.json").get("columns")
        return None if columns is None else check_saved(Columns.from_dict(columns))
    except OSError:
        raise
    except Exception as error:  # a damaged description fails in every way there is
        lines = str(error).splitlines() or [type(error).__name__]
        raise CheckpointError(f"The model in {folder} is damaged: {lines[0]:.400}") from error


def load(path: str | Path, device: str | torch.device = "cpu", step: int | str = "last") -> Flow:
    """A model ready for evaluation: of a run, from a folder that `save` wrote, or one that comes with the package.

    Args:
        path: The folder of a run, a folder that `save` wrote, or the name of a model in the package.
        device: Where its weights go.
        step: For a run, which checkpoint: a number, "last", or "best" by held-out score.

    Returns:
        The flow, in evaluation mode.

    Raises:
        CheckpointError: There is no model, or it is damaged or of another version.
    """
    _check_device(device)
    folder = model_folder(path, step)
    try:
        return _read(folder, device)
    except (OSError, CheckpointError):
        raise
    except Exception as error:  # a damaged description fails in every way there is
        lines = str(error).splitlines() or [type(error).__name__]
        raise CheckpointError(f"The model in {folder} is damaged or of another version: {lines[0]:.400}") from error


def _read(folder: Path, device: str | torch.device) -> Flow:
    """The model in a folder. Its weights say how large it can be, before anything is built."""
    from safetensors.torch import load_file

    description = read_json(folder / "model.json")
    if description["format"] != FORMAT:
        raise CheckpointError(
            f"The model in {folder} has the format {description['format']!r:.80}, which this version cannot read; "
            "load it with the version of idensenet that wrote it, or train it again."
        )
    if description["dtype"] not in DTYPES:
        raise ValueError(f"its number type is {description['dtype']!r:.80}; it must be {' or '.join(DTYPES)}.")
    numbers = numbers_in(folder / "model.safetensors")
    with Limited(FREE + FACTOR * numbers):
        if description["config"] is None:
            flow: Flow = restore(description["structure"])
        else:
            config = Config.saved(description["config"])
            check_config(config, numbers)
            flow = build_config(config)
    state: dict[str, Tensor] = load_file(folder / "model.safetensors", device=str(device))
    flow.to(device=device, dtype=DTYPES[description["dtype"]]).load_state_dict(state)
    flow.columns = saved_columns(folder)
    if flow.columns is not None:
        check_of_flow(flow.columns, flow.shape, flow.context, flow.integers)
    return flow.eval()
