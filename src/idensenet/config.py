"""What can be chosen about a model. Recipes are short YAML files of overrides; the defaults are here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from idensenet.errors import OptionError, UnknownNameError, nearest


@dataclass(frozen=True)
class ModelConfig:
    """The architecture."""

    shape: tuple[int, ...] = (2,)  # of one sample: (D,) for tables, (channels, height, width) for images
    levels: int | None = None  # how many integer levels a pixel has; none for continuous data
    preprocess: str = "none"  # none, logit or normalize
    alpha: float = 0.05  # of the logit
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)  # of the normalisation, per channel
    std: tuple[float, ...] = (0.2023, 0.1994, 0.2010)
    block: str = "dense"  # dense, residual, extended, coupling or glow
    blocks: tuple[int, ...] = (10,)  # how many, per scale
    depth: int = 3  # dense layers, or hidden layers of a residual network on vectors
    growth: int = 16  # channels that a dense layer adds
    width: int = 128  # hidden channels of a residual or coupling network
    activation: str = "clipswish"
    learnable_concatenation: bool = True
    coeff: float = 0.98  # bound on the norm of every linear map
    lip: float = 0.98  # bound on the Lipschitz constant of every dense layer
    norm: float = 2.0  # in which all this is measured: 1, 2 or infinity
    actnorm: bool = True
    fc_blocks: int = 0  # fully connected blocks at the end
    fc_first: int = 64  # width of their first linear map
    fc_growth: int = 32
    fc_width: int = 128  # of residual or coupling ones
    factor_out: bool = False  # half of the channels are done after each scale
    classes: int | None = None  # a hybrid model's classes
    head_width: int = 256


@dataclass(frozen=True)
class LogDetConfig:
    """How the log-determinant of a residual block is computed, in training and in evaluation."""

    method: str = "exact"  # exact, series, roulette or adaptive
    terms: int = 10  # of a truncated series
    exact_terms: int = 2  # that the roulette takes for certain
    law: str = "poisson"  # of the others: poisson or geometric
    law_parameter: float = 2.0  # mean of the Poisson law, p of the geometric one
    tolerance: float = 1e-5  # nats per dimension at which the adaptive series stops
    probe: str = "rademacher"  # or gaussian
    probes: int = 1
    eval_method: str = "exact"
    eval_terms: int = 20  # certain terms in evaluation, truncated or roulette
    eval_probes: int = 1
    recompute: bool = False  # rebuild each block in the backward pass instead of keeping it


@dataclass(frozen=True)
class SolverConfig:
    """How the inverse is found."""

    method: str = "anderson"  # picard, anderson or newton
    tol: float | None = None  # residual per square root of a dimension; 1e-6 in float32, 1e-12 in float64
    max_steps: int = 1000


@dataclass(frozen=True)
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    logdet: LogDetConfig = field(default_factory=LogDetConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; infinity as text."""
        return {group: {k: _plain(v) for k, v in values.items()} for group, values in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        return override(cls(), values)

    def replace(self, **overrides: Any) -> Config:
        """Overrides by name: fields of the model, or `logdet={...}`, `solver={...}`, `model={...}`."""
        groups = {f.name for f in dataclasses.fields(self)}
        nested: dict[str, Any] = {"model": {k: v for k, v in overrides.items() if k not in groups}}
        for name in groups & set(overrides):
            nested.setdefault(name, {}).update(overrides[name])
        return override(self, nested)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return list(value) if isinstance(value, tuple) else value


T = TypeVar("T")


def override(config: T, values: Mapping[str, Any]) -> T:
    """A dataclass with some fields replaced, nested ones too; an unknown name is an error."""
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            raise OptionError(f"There is no option {name!r}; {nearest(name, sorted(fields))}")
        old = fields[name]
        if dataclasses.is_dataclass(old) and not isinstance(old, type):
            changed[name] = override(old, value)
        elif value is not None and (isinstance(old, tuple) or isinstance(value, list)):
            changed[name] = tuple(value)
        elif isinstance(old, float) and value is not None:
            changed[name] = float(value)  # also the text "inf"
        else:
            changed[name] = value
    return dataclasses.replace(config, **changed)  # type: ignore[type-var]


@dataclass(frozen=True)
class Recipe:
    """A named configuration."""

    name: str
    description: str
    config: Config


def recipes() -> list[str]:
    """The names of all recipes."""
    files = resources.files("idensenet") / "recipes"
    return sorted(f.name.removesuffix(".yaml") for f in files.iterdir() if f.name.endswith(".yaml"))


def _raw(name: str) -> dict[str, Any]:
    import yaml

    known = recipes()
    if name not in known:
        raise UnknownNameError(f"There is no recipe {name!r}; {nearest(name, known)}")
    text = (resources.files("idensenet") / "recipes" / f"{name}.yaml").read_text()
    values: dict[str, Any] = yaml.safe_load(text)
    base = _raw(values.pop("base")) if "base" in values else {}
    for key, value in values.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return base


@cache
def recipe(name: str) -> Recipe:
    """A recipe by name; a recipe may start from another one, its `base`."""
    values = _raw(name)
    return Recipe(name, values.pop("description"), Config.from_dict(values))
