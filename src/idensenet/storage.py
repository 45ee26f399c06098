"""Models on disk: safetensors and JSON, written whole or not at all, read without pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from torch import Tensor

from idensenet.config import Config
from idensenet.errors import CheckpointError, InputError
from idensenet.files import save_tensors
from idensenet.flow import Flow
from idensenet.models import build_config


def save(flow: Flow, path: str | Path) -> Path:
    """Write a model to a folder: weights as safetensors, configuration as JSON. Each file appears whole or not at all."""
    if flow.config is None:
        raise InputError("Only a flow that build() or load() made can be saved to a folder; use its state_dict() otherwise.")
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    config = flow.config.as_dict()
    text = json.dumps({"format": 1, "dtype": str(flow.dtype).removeprefix("torch."), "config": config}, indent=1)
    weights_part, config_part = folder / "model.safetensors.part", folder / "model.json.part"
    save_tensors(flow.state_dict(), weights_part)
    config_part.write_text(text + "\n")
    for part in (weights_part, config_part):
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(part.with_suffix(""))
    return folder


def pretrained() -> dict[str, Path]:
    """The trained models that come with the package, by name."""
    root = Path(__file__).parent / "pretrained"
    return {p.name: p for p in sorted(root.iterdir()) if (p / "model.json").is_file()} if root.is_dir() else {}


def _model_folder(path: str | Path, step: int | str) -> Path:
    """Where the files of a model are: a folder that save() wrote, a checkpoint of a run, or a model of the package."""
    from idensenet.training.checkpoint import Checkpoints

    folder = Path(path)
    if not folder.exists() and str(path) in pretrained():
        return pretrained()[str(path)]
    checkpoints = Checkpoints(folder)
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


def load(path: str | Path, device: str | torch.device = "cpu", step: int | str = "last") -> Flow:
    """A model ready for evaluation: of a run, from a folder that `save` wrote, or one that comes with the package.

    Of a run it is that of the last checkpoint, of the `step` given, or of the "best" one by held-out score.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = _model_folder(path, step)
    try:
        description = json.loads((folder / "model.json").read_text())
        state: dict[str, Tensor] = load_file(folder / "model.safetensors", device=str(device))
        flow = build_config(Config.from_dict(description["config"]))
        flow.to(device=device, dtype=getattr(torch, description["dtype"])).load_state_dict(state)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"The model in {folder} is damaged or of another version: {str(error).splitlines()[0]}"
        ) from error
    return flow.eval()
