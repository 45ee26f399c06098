"""What can be chosen. Recipes are short YAML files of overrides; the defaults are here, and so is the help text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from idensenet.errors import UnknownNameError, nearest
from idensenet.overriding import override


@dataclass(frozen=True)
class ModelConfig:
    """The architecture."""

    shape: tuple[int, ...] = (2,)
    """Of one sample: (D,) for tables, (channels, height, width) for images."""
    levels: int | None = None
    """How many integer levels a pixel has; none for continuous data."""
    preprocess: str = "none"
    """None, logit (images), normalize (hybrid models), standardize or whiten (tables)."""
    alpha: float = 0.05
    """Of the logit."""
    bounds: tuple[tuple[float | None, float | None], ...] = ()
    """For tables, a lower and an upper bound of each column, null for none; () if no column has any."""
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    """Of the normalisation, per channel."""
    std: tuple[float, ...] = (0.2023, 0.1994, 0.2010)
    """Deviation of the normalisation, per channel."""
    block: str = "dense"
    """Dense, residual, extended, coupling or glow."""
    blocks: tuple[int, ...] = (10,)
    """How many, per scale."""
    depth: int = 3
    """Dense layers, or hidden layers of a residual network on vectors."""
    growth: int | tuple[int, ...] = 16
    """Channels that a dense layer adds: one number, or one per scale."""
    width: int = 128
    """Hidden channels of a residual or coupling network."""
    activation: str = "clipswish"
    """Clipswish, lipswish, leakylipswish, crelu, relu, elu, tanh, sigmoid or identity."""
    beta: float = 0.5
    """Where the beta of the swish activations starts: its softplus is the factor inside the sigmoid."""
    learnable_concatenation: bool = True
    """Whether the weights of the concatenation are learned."""
    coeff: float = 0.98
    """Bound on the norm of every linear map."""
    lip: float = 0.98
    """Bound on the Lipschitz constant of every dense layer."""
    norm: float = 2.0
    """In which all this is measured: 1, 2 or infinity."""
    actnorm: bool = True
    """A scale and shift before the first block and after every block."""
    fc_blocks: int = 0
    """Fully connected blocks at the end."""
    fc_first: int = 64
    """Width of their first linear map."""
    fc_growth: int = 32
    """Numbers that a dense layer of a fully connected block adds."""
    fc_width: int = 128
    """Of residual or coupling ones."""
    start: str = "random"
    """Initial weights: random, or identity, which starts every residual block near the identity."""
    mix: str = "none"
    """In front of each scale of an image model: none, or whiten, a learned 1x1 convolution that starts by decorrelating."""
    squeezes: int = 0
    """Squeezes in front of the first scale, each of which halves both sides of the image."""
    factor_out: bool = False
    """Half of the channels are done after each scale."""
    context: int = 0
    """Numbers that a conditional model is given with each sample; vectors only."""
    context_width: int = 64
    """Hidden units of the networks that read the context."""
    context_features: int = 16
    """Numbers they hand to each block."""
    classes: int | None = None
    """A hybrid model's classes."""
    head_width: int = 256
    """Channels of a hybrid model's heads."""


@dataclass(frozen=True)
class LogDetConfig:
    """How the log-determinant of a residual block is computed, in training and in evaluation."""

    method: str = "exact"
    """Exact, series, roulette, adaptive or krylov."""
    terms: int = 10
    """Of a truncated series; the most steps of krylov in training."""
    exact_terms: int = 2
    """That the roulette takes for certain."""
    law: str = "poisson"
    """Of the others: poisson or geometric."""
    law_parameter: float = 1.0
    """Mean of the Poisson distribution (the paper uses 2), or p of the geometric one."""
    tolerance: float = 1e-5
    """Nats per dimension at which the adaptive series and krylov stop."""
    probe: str = "rademacher"
    """Or gaussian."""
    probes: int = 1
    """How many probes a value is averaged over."""
    eval_method: str = "exact"
    """The same in evaluation."""
    eval_terms: int = 20
    """Certain terms in evaluation, truncated or roulette."""
    eval_probes: int = 1
    """Probes in evaluation."""


@dataclass(frozen=True)
class SolverConfig:
    """How the inverse is found."""

    method: str = "anderson"
    """Picard, anderson or newton."""
    tol: float | None = None
    """Residual per square root of a dimension; 5e-7 in float32, 1e-12 in float64."""
    max_steps: int = 1000


@dataclass(frozen=True)
class DataConfig:
    """What is read."""

    name: str | None = None
    """A toy set (circles, moons, checkerboard, ...), digits, mnist, fashion-mnist, cifar10 or imagenet32."""
    root: str = "data"
    """Folder of downloaded data."""
    folder: str | None = None
    """A folder of images of your own."""
    table: str | None = None
    """A table of your own: CSV, Parquet or NPY."""
    columns: tuple[str, ...] = ()
    """Columns of the table to use; all of them by default."""
    context: tuple[str, ...] = ()
    """Columns of the table that are given and not modelled: the model is of the others, conditional on these."""
    size: int = 32
    """Side to which images of a folder are cropped and resized."""
    channels: int = 3
    """Channels of images of a folder: 3, or 1 for grey."""
    split: str = "content"
    """What holds a row out: its content (for images, the name of the file), or its position, as in versions before 0.2."""
    split_at: float | None = None
    """Rows whose hash, between 0 and 1, is below this are held out; by default a tenth of the rows, and kept with the run."""
    split_seed: int = 0
    """Decides which rows are held out, where the publisher does not."""
    header: bool | None = None
    """Whether the first line of a CSV file has names; found from its content by default."""
    decimal: str | None = None
    """Decimal sign of a CSV file: a point by default, or ','."""
    flip: bool = False
    """Mirror training images at random."""
    crop: bool = False
    """Shift training images by up to 4 pixels at random, with reflection at the border."""


@dataclass(frozen=True)
class TrainConfig:
    """How it is trained."""

    objective: str = "density"
    """Density, classification or hybrid."""
    weight: str = "1"
    """Lambda of the hybrid objective: 0, 1/D, 1 or any number."""
    epochs: float = 1000.0
    """Length of the whole run, for finite data."""
    max_steps: int | None = None
    """Length in optimiser steps instead; for toy sets, which never end, it must be given."""
    batch_size: int = 64
    """Samples per optimiser step and process, before accumulation."""
    accumulate: int = 1
    """Batches whose gradients are added up for one step."""
    lr: float = 1e-3
    """Learning rate."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Of Adam."""
    weight_decay: float = 0.0
    """Of Adam."""
    warmup: float = 0.0
    """Fraction of the run over which the learning rate rises."""
    warmup_steps: int | None = None
    """The same in steps; overrides the fraction."""
    schedule: str = "constant"
    """What the learning rate does after that: constant or cosine."""
    clip: float | None = 1.0
    """Bound on the norm of the gradient."""
    average: float = 0.999
    """Decay of the averaged weights that evaluation uses; 0 for none."""
    concatenation_from: float = 0.0
    """Fraction of the run after which the concatenation learns."""
    seed: int = 0
    """Of weights, data order, noise and probes."""
    devices: int = 1
    """Processes, one per device."""
    accelerator: str = "auto"
    """Auto, cpu or cuda."""
    compile: str = "auto"
    """Compile blocks: on, off, or auto, which decides from the time of a step and the length of the run."""
    memory: str = "keep"
    """Activations of a training step: keep them, or save memory and rebuild each block in the backward pass."""
    precision: str = "32-true"
    """Number type: 32-true, 64-true, or bf16-mixed, which rounds the products of training to bfloat16."""
    tf32: bool = False
    """Allow TF32 in the products of training on CUDA."""
    threads: int | None = None
    """Threads of a process; by default as many as the size of the model repays."""
    log_every: int = 10
    """Steps between two lines of metrics."""
    eval_every: int | None = None
    """Steps between two evaluations; ten in a run by default, at least 100 steps apart."""
    eval_samples: int = 1000
    """Held-out samples in such an evaluation."""
    save_every: int | None = None
    """Steps between two checkpoints; by default at every evaluation and at least every 1000 steps."""


@dataclass(frozen=True)
class OutputConfig:
    """What is written and shown."""

    dir: str | None = None
    """Folder of the run; runs/RECIPE by default."""
    display: str = "auto"
    """Rich, plain or quiet; rich on a terminal by default."""
    tensorboard: bool = False
    """Write TensorBoard events too."""
    pictures: bool = True
    """Draw samples (or densities) at every evaluation."""
    report: bool = True
    """Write the page of the run at its end; 'idensenet report' does it later."""


@dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    logdet: LogDetConfig = field(default_factory=LogDetConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; infinity as text."""
        return {group: {k: _plain(v) for k, v in values.items()} for group, values in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        return override(cls(), values)

    @classmethod
    def saved(cls, values: Mapping[str, Any]) -> Config:
        """The configuration of a run or model on disk. One of a version before 0.2 divided rows by their position."""
        data = values.get("data") if isinstance(values, Mapping) else None
        if isinstance(data, Mapping) and "split" not in data and (data.get("table") or data.get("folder")):
            values = {**values, "data": {**data, "split": "position"}}
        return cls.from_dict(values)

    def replace(self, **overrides: Any) -> Config:
        """Overrides by name: fields of the model, or of another group as `logdet={...}`, `solver={...}`, `train={...}`."""
        groups = {f.name for f in dataclasses.fields(self)}
        nested: dict[str, Any] = {"model": {k: v for k, v in overrides.items() if k not in groups}}
        for name in groups & set(overrides):
            values = overrides[name]
            nested[name] = {**nested.get(name, {}), **values} if isinstance(values, Mapping) else values
        return override(self, nested)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Recipe:
    """A named configuration."""

    name: str
    description: str
    paper: str | None  # what the paper reports for it
    parameters: int | None  # that are trained, known without building the model
    config: Config


def recipes() -> list[str]:
    """The names of all recipes."""
    files = resources.files("idensenet") / "recipes"
    return sorted(f.name.removesuffix(".yaml") for f in files.iterdir() if f.name.endswith(".yaml"))


@cache
def _text(name: str) -> dict[str, Any]:
    import yaml

    known = recipes()
    if name not in known:
        raise UnknownNameError(f"There is no recipe {name!r}; {nearest(name, known)}")
    text = (resources.files("idensenet") / "recipes" / f"{name}.yaml").read_text()
    values: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return values


def _raw(name: str) -> dict[str, Any]:
    values = dict(_text(name))
    base = _raw(values.pop("base")) if "base" in values else {}
    base.pop("parameters", None)
    for key, value in values.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return base


@cache
def recipe(name: str) -> Recipe:
    """A recipe by name; a recipe may start from another one, its `base`."""
    values = _raw(name)
    description, paper, parameters = (values.pop(key, None) for key in ("description", "paper", "parameters"))
    return Recipe(name, description, paper, parameters, Config.from_dict(values))
