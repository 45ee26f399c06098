"""All options, with their defaults and help texts. Recipes are short YAML files of overrides."""

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
    """Architecture of the model."""

    shape: tuple[int, ...] = (2,)
    """Shape of one sample: (D,) for tables, (channels, height, width) for images."""
    levels: int | None = None
    """Number of integer levels of a pixel; null for continuous data."""
    dequantization: str = "uniform"
    """Noise that is added to integer levels: uniform, or variational, which is learned; a log-density is then a bound."""
    dequantization_width: int = 32
    """Hidden width of the networks of variational dequantisation."""
    preprocess: str = "none"
    """What happens to the data first: none, logit (images), normalize (hybrid models), standardize or whiten (tables)."""
    alpha: float = 0.05
    """Margin of the logit: pixels are mapped to [alpha, 1 - alpha] before it."""
    bounds: tuple[tuple[float | None, float | None], ...] = ()
    """Lower and upper bound of each column of a table, null for none; () if no column has bounds."""
    integers: tuple[int, ...] = ()
    """Columns of a table that hold whole numbers, counted from 0; they are scored by probability. Training fills it in."""
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    """Mean of each channel, for normalize."""
    std: tuple[float, ...] = (0.2023, 0.1994, 0.2010)
    """Standard deviation of each channel, for normalize."""
    block: str = "dense"
    """Kind of block: dense, residual, extended; monotone, monotone-residual, monotone-extended; implicit; coupling, glow."""
    blocks: tuple[int, ...] = (10,)
    """Number of blocks at each scale."""
    depth: int = 3
    """Number of dense layers in a block, or of hidden layers of a residual network on vectors."""
    growth: int | tuple[int, ...] = 16
    """Number of channels that a dense layer adds: one number, or one for each scale."""
    width: int = 128
    """Hidden width of residual and coupling networks."""
    activation: str = "clipswish"
    """Activation: clipswish, cpila, sine, lipswish, leakylipswish, crelu, relu, elu, tanh, sigmoid or identity."""
    beta: float = 0.5
    """Initial beta of the swish activations; its softplus is the factor inside the sigmoid."""
    learnable_concatenation: bool = True
    """Learn the weights of the concatenation."""
    coeff: float = 0.98
    """Bound on the norm of each linear map."""
    lip: float = 0.98
    """Bound on the Lipschitz constant of each dense layer."""
    norm: float = 2.0
    """The p-norm of all Lipschitz bounds: 1, 2 or inf."""
    actnorm: bool = True
    """Put an ActNorm (a learned scale and shift) before the first block and after each block."""
    fc_blocks: int = 0
    """Number of fully connected blocks at the end of an image model."""
    fc_first: int = 64
    """Output width of the first linear map of a fully connected block."""
    fc_growth: int = 32
    """Number of features that a dense layer of a fully connected block adds."""
    fc_width: int = 128
    """Hidden width of fully connected residual and coupling blocks."""
    start: str = "random"
    """Initial weights: random, or identity, which starts each residual block near the identity."""
    mix: str = "none"
    """First layer of each scale of an image model: none, or whiten, a learned 1x1 convolution that starts by decorrelating."""
    squeezes: int = 0
    """Number of squeezes before the first scale; each halves both sides of the image."""
    factor_out: bool = False
    """Send half of the channels directly to the latent code after each scale."""
    factor_prior: str = "standard"
    """Distribution of the channels that are factored out: standard, or conditional, a Gaussian given the other half."""
    components: int = 1
    """Number of Gaussians in the base distribution of a model of tables: 1, or more for a mixture fitted to the data."""
    context: int = 0
    """Length of the context vector of a conditional model; 0 for none. Vectors only."""
    context_width: int = 64
    """Hidden width of the networks that embed the context."""
    context_features: int = 16
    """Number of context features that each block receives."""
    classes: int | None = None
    """Number of classes of a hybrid model; null for a density alone."""
    head_width: int = 256
    """Width of the classification heads of a hybrid model."""


@dataclass(frozen=True)
class LogDetConfig:
    """How log-determinants are computed, in training and in evaluation."""

    method: str = "exact"
    """Estimator in training: exact, series, roulette, adaptive or krylov."""
    terms: int = 10
    """Number of terms of a truncated series, and the most steps of krylov in training."""
    exact_terms: int = 2
    """Number of series terms that are always computed."""
    law: str = "poisson"
    """Distribution of the number of further terms: poisson or geometric."""
    law_parameter: float = 1.0
    """Mean of the Poisson distribution (the paper uses 2), or p of the geometric distribution."""
    tolerance: float = 1e-5
    """Error at which the adaptive series and krylov stop, in nats per dimension."""
    probe: str = "rademacher"
    """Distribution of the probe vectors: rademacher or gaussian."""
    probes: int = 1
    """Number of probe vectors in training."""
    eval_method: str = "exact"
    """Estimator in evaluation: exact, series, roulette, adaptive or krylov."""
    eval_terms: int = 20
    """Number of series terms that are always computed in evaluation."""
    eval_probes: int = 1
    """Number of probe vectors in evaluation."""


@dataclass(frozen=True)
class SolverConfig:
    """How the inverse is computed."""

    method: str = "anderson"
    """Fixed-point method: picard, anderson or newton."""
    tol: float | None = None
    """Residual per square root of the dimension at which the solver stops; by default 5e-7 in float32, 1e-12 in float64."""
    max_steps: int = 1000
    """Most steps of the solver; a solve that needs more is an error."""


@dataclass(frozen=True)
class DataConfig:
    """Training and held-out data."""

    name: str | None = None
    """A toy set (moons, checkerboard, ...), digits, mnist, fashion-mnist, cifar10 or imagenet32."""
    root: str = "data"
    """Folder of downloaded data sets."""
    folder: str | None = None
    """A folder of images of your own."""
    table: str | None = None
    """A table of your own: a CSV, Parquet or NPY file, or a folder or glob of Parquet files, which are streamed."""
    columns: tuple[str, ...] = ()
    """Columns of the table to use; all of them by default."""
    context: tuple[str, ...] = ()
    """Columns of the table to condition on: the model is the density of the other columns given these."""
    discrete: tuple[str, ...] | str | None = "auto"
    """Columns on a grid, scored by the probability of a value: a list, null for none, or auto, which finds and names them."""
    categorical: tuple[str, ...] | str | None = "auto"
    """Nominal columns: a list, null for none, or auto for those that are not numeric."""
    bounds: dict[str, tuple[float | None, float | None]] = field(default_factory=dict, hash=False)
    """Lower and upper bounds of columns by name, null for none: '{rate: [0, 1], price: [0, null]}'."""
    weight: str | None = None
    """Column of the table that says how much each row counts."""
    size: int = 32
    """Side length to which images of a folder are cropped and resized."""
    channels: int = 3
    """Number of channels of images of a folder: 3, or 1 for grey."""
    split: str = "content"
    """What decides whether a row is held out: content (for images, the file name), or position, as before version 0.2."""
    split_at: float | None = None
    """Rows whose hash, between 0 and 1, is below this are held out; by default a tenth of the rows. Runs keep it."""
    split_seed: int = 0
    """Seed of the split into training and held-out rows, where the data set has no split of its own."""
    header: bool | None = None
    """Whether the first line of a CSV file has names; by default its content decides."""
    decimal: str | None = None
    """Decimal sign of a CSV file: a point by default, or ','."""
    flip: bool = False
    """Flip training images horizontally at random."""
    crop: bool = False
    """Shift training images by up to 4 pixels at random, with reflect padding."""


@dataclass(frozen=True)
class TrainConfig:
    """Training."""

    initial: str | None = None
    """Start from the weights of a trained model: the folder of a run, or a model of the package."""
    objective: str = "density"
    """What is minimised: density, classification or hybrid."""
    weight: str = "1"
    """Weight lambda of the density in the hybrid objective: 0, 1/D, 1 or any number."""
    epochs: float = 1000.0
    """Length of the run in epochs."""
    max_steps: int | None = None
    """Length of the run in optimiser steps; it replaces epochs, and toy sets, which never end, need it."""
    batch_size: int = 64
    """Samples in a batch of one process."""
    accumulate: int = 1
    """Number of batches whose gradients are averaged for one step."""
    lr: float = 1e-3
    """Highest learning rate."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay rates of Adam's two moments."""
    weight_decay: float = 0.0
    """Weight decay of Adam."""
    warmup: float = 0.0
    """Fraction of the run over which the learning rate rises from zero."""
    warmup_steps: int | None = None
    """Length of the warm-up in steps; it replaces the fraction."""
    schedule: str = "constant"
    """Learning rate after the warm-up: constant, or cosine, which ends at zero."""
    clip: float | None = 1.0
    """Bound on the norm of the gradient; null for none."""
    average: float = 0.999
    """Decay of the averaged weights that evaluation uses; 0 for no averaging."""
    concatenation_from: float = 0.0
    """Fraction of the run after which the concatenation learns."""
    seed: int = 0
    """Seed of weights, data order and noise."""
    devices: int = 1
    """Devices of a node, each with its own process; torchrun and srun decide it themselves."""
    num_nodes: int = 1
    """Number of machines; torchrun and srun decide it themselves."""
    timeout: float = 10.0
    """Minutes that processes wait for each other before the run ends; checkpoints and reports must take less."""
    requeue: bool = True
    """Put a SLURM job back into the queue after SIGTERM or a warning signal (SIGUSR1, SIGUSR2), once a checkpoint is saved."""
    accelerator: str = "auto"
    """Kind of device: auto, cpu or cuda."""
    compile: str = "auto"
    """Compile the blocks: on, off, or auto, which decides from the time of a step and the length of the run."""
    memory: str = "keep"
    """Activations of a training step: keep stores them, save recomputes each block in the backward pass."""
    precision: str = "32-true"
    """32-true, 64-true, or bf16-mixed: products of training in bfloat16."""
    tf32: bool = False
    """Allow TF32 in the products of training on CUDA."""
    threads: int | None = None
    """Number of threads of a process; by default it follows the size of the model."""
    log_every: int = 10
    """Number of steps between two lines of metrics."""
    eval_every: int | None = None
    """Number of steps between two evaluations; by default a tenth of the run, at least 100."""
    eval_samples: int = 1000
    """Number of held-out samples in such an evaluation."""
    save_every: int | None = None
    """Number of steps between two checkpoints; by default one at each evaluation, and at least every 1000 steps."""

    @property
    def batches_per_step(self) -> int:
        """Batches of all processes whose gradients are averaged for one step."""
        return self.accumulate * self.devices * self.num_nodes


@dataclass(frozen=True)
class OutputConfig:
    """Files and display."""

    dir: str | None = None
    """Folder of the run; by default runs/RECIPE."""
    display: str = "auto"
    """Display: auto (rich on a terminal, else plain), rich, plain or quiet."""
    tensorboard: bool = False
    """Write TensorBoard events as well."""
    pictures: bool = True
    """Draw samples or densities at each evaluation."""
    report: bool = True
    """Write the report page of the run when it ends; 'idensenet report' does so later."""


@dataclass(frozen=True)
class Config:
    """All options of a run."""

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
        """The configuration of a run or model on disk. Versions before 0.2 divided rows by their position."""
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
    """Returns the names of all recipes."""
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
