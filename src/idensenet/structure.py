"""The structure of a flow as plain data: which classes it is assembled from, with which arguments.

A class can be described if every argument of its constructor is also an attribute of the same name. Only classes in the table
below, and those a user has registered, are ever built from a description.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from idensenet import bijections, hybrid, lipschitz, logdet, solve
from idensenet.dequantizer import Dequantizer
from idensenet.errors import InputError
from idensenet.flow import Flow
from idensenet.lipschitz import activations
from idensenet.lipschitz.conditional import ConditionalNetwork, Embedding
from idensenet.mixture import Mixture

Kind = TypeVar("Kind")
LAYERS: dict[type, tuple[str, ...]] = {  # layers of torch, with the arguments that are kept
    nn.Linear: ("in_features", "out_features", "bias"),
    nn.Conv2d: ("in_channels", "out_channels", "kernel_size", "stride", "padding", "bias"),
    nn.ReLU: (),
    nn.SiLU: (),
    nn.Tanh: (),
}


def _public(module: Any) -> list[type]:
    found = [getattr(module, name) for name in getattr(module, "__all__", vars(module))]
    return [kind for kind in found if inspect.isclass(kind) and not inspect.isabstract(kind)]


CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *[kind for module in (bijections, lipschitz, logdet, solve) for kind in _public(module)],
        *[kind for kind in vars(activations).values() if inspect.isclass(kind) and issubclass(kind, lipschitz.Activation)],
        *[
            ConditionalNetwork,
            Dequantizer,
            Embedding,
            Flow,
            Mixture,
            hybrid.HybridFlow,
            hybrid.Classifier,
            hybrid.Head,
            hybrid.VectorHead,
        ],
        *LAYERS,
    )
}


def register_class(kind: type[Kind]) -> type[Kind]:
    """Allow flows that contain objects of this class to be saved and loaded. May be used as a decorator.

    Every argument of its constructor must be an attribute of the same name; tensors among them come back from the weights.

    Args:
        kind: The class.

    Returns:
        The class itself.

    Raises:
        InputError: Another class has this name.
    """
    if CLASSES.setdefault(kind.__name__, kind) is not kind:
        raise InputError(f"There is a class {kind.__name__} already; choose another name.")
    return kind


def _arguments(value: Any) -> dict[str, Any]:
    if type(value) in LAYERS:
        return {
            name: getattr(value, name) is not None if name == "bias" else getattr(value, name) for name in LAYERS[type(value)]
        }
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    names = [p.name for p in inspect.signature(type(value)).parameters.values() if p.kind in named]
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        raise InputError(
            f"A {type(value).__name__} cannot be saved: its argument {missing[0]!r} is no attribute; store it under that name."
        )
    return {name: getattr(value, name) for name in names}


def describe(value: Any) -> Any:
    """Plain values for JSON, from which `restore` builds the same structure."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, Tensor):
        return {"tensor": list(value.shape)}
    if isinstance(value, nn.Sequential):
        return {"sequential": [describe(part) for part in value]}
    if isinstance(value, tuple | list | nn.ModuleList):
        return [describe(part) for part in value]
    if isinstance(value, Mapping | nn.ModuleDict):
        return {"map": [[describe(key), describe(part)] for key, part in value.items()]}
    name = type(value).__name__
    if CLASSES.get(name) is not type(value):
        raise InputError(f"A flow with a {name} cannot be saved: register its class with idensenet.register_class first.")
    return {"class": name, "arguments": {key: describe(part) for key, part in _arguments(value).items()}}


def restore(data: Any) -> Any:
    """The structure that `describe` was given, with new weights."""
    if isinstance(data, list):
        return tuple(restore(part) for part in data)
    if not isinstance(data, dict):
        return data
    if "float" in data:
        return float(data["float"])
    if "tensor" in data:
        return torch.ones(data["tensor"])
    if "sequential" in data:
        return nn.Sequential(*[restore(part) for part in data["sequential"]])
    if "map" in data:
        return {restore(key): restore(part) for key, part in data["map"]}
    if data.get("class") not in CLASSES:
        raise InputError(f"The model has a {data.get('class')!r}, which is not known here: register its class before loading.")
    return CLASSES[data["class"]](**{key: restore(part) for key, part in data["arguments"].items()})
