"""Runs on images: what they are at each budget, how they are scored and compared, and their curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from idensenet.reproduce.experiment import Cell, Claim, Plan, Work, lower
from idensenet.reproduce.runs import Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELD_OUT = {"smoke": 60, "cpu": 1000, "paper": None}  # images that decide a score; None for all
SAMPLES = {"smoke": 8, "cpu": 48, "paper": 48}
SMOKE: dict[str, Any] = {
    "data.name": "digits",
    "data.flip": False,
    "data.crop": False,
    "model.shape": (1, 8, 8),
    "model.levels": 17,
    "model.mean": (0.3,),
    "model.std": (0.37,),
    "model.blocks": (1, 1),
    "model.growth": 8,
    "model.width": 16,
    "model.fc_blocks": 0,
    "model.head_width": 16,
    "train.max_steps": 15,
    "train.batch_size": 32,
    "train.lr": 5e-3,
    "train.eval_every": 3,
    "train.eval_samples": 60,
    "train.log_every": 3,
    "train.save_every": 15,
}


# What the `cpu` budget takes from cifar10-best-tiny for every model of a comparison, in place of the paper's settings.
SETTINGS = {
    "model": ("coeff", "lip", "beta", "mix"),
    "train": ("lr", "schedule", "warmup", "betas", "weight_decay", "clip", "average", "concatenation_from"),
}
CPU: dict[str, Any] = {"train.max_steps": 2400, "train.eval_every": 240, "train.eval_samples": 200, "train.save_every": 240}
SEEDS = {"smoke": 1, "cpu": 3, "paper": 1}  # runs of each of the two main models
PAPER: dict[str, Any] = {
    "train.eval_every": 781,  # after every epoch of CIFAR-10
    "train.eval_samples": 1000,
    "logdet.law_parameter": 2.0,  # the paper's series: two terms for certain and two more on average
}


@dataclass(frozen=True)
class Variant:
    """A model of the comparison: its recipe at the small budget, and the paper's; and options that differ from them."""

    tiny: str
    small: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def recipe(self, budget: str) -> str:
        return self.small if budget == "paper" else self.tiny

    def plan(self, budget: str, seed: int = 0) -> Plan:
        name = "-".join([self.recipe(budget), *map(str, self.options.values())])
        return plan(self.recipe(budget), budget, self.options, name, seed)


def cpu_settings() -> dict[str, Any]:
    """The options of the `cpu` budget."""
    from idensenet.config import recipe

    best = recipe("cifar10-best-tiny").config
    return {f"{group}.{name}": getattr(getattr(best, group), name) for group, names in SETTINGS.items() for name in names} | CPU


def plan(recipe: str, budget: str, options: Mapping[str, Any] | None = None, name: str = "", seed: int = 0) -> Plan:
    usual = {"smoke": SMOKE, "paper": PAPER}.get(budget) or cpu_settings()
    seeded = {"train.seed": seed} if seed else {}
    return Plan((name or recipe) + f"-{seed}" * (seed > 0), recipe, {**usual, **seeded, **(options or {})})


def variant_plans(variants: Sequence[Variant], budget: str, seeds: int = 1) -> list[Plan]:
    return [variant.plan(budget, seed) for variant in variants for seed in range(seeds)]


def runs_of(work: Work, variant: Variant, seeds: int = 1) -> list[Trained]:
    return [work.runs[each.name] for each in variant_plans([variant], work.budget, seeds)]


def run_of(work: Work, variant: Variant) -> Trained:
    return runs_of(work, variant)[0]


def bits(work: Work, run: Trained) -> Tensor:
    """Bits per dimension of each held-out image, averaged weights."""
    work.report(run.plan.name)
    nats = run.held_out(HELD_OUT[work.budget])
    return nats / (math.prod(run.config.model.shape) * math.log(2))


def seed_error(scores: Sequence[Tensor]) -> float:
    """The standard error over seeds of a mean over seeds."""
    return statistics.stdev([float(each.mean()) for each in scores]) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0


def counted(scores: Mapping[Any, Tensor]) -> str:
    """How many images decided the scores."""
    return f"{len(next(iter(scores.values()))):,}"


def mean_cell(values: Tensor, published: float | None = None, seeds: float = 0.0) -> Cell:
    """A mean over images; `seeds` is its error over seeds."""
    return Cell(float(values.mean()), math.hypot(float(values.std()) / math.sqrt(len(values)), seeds), published)


def paired(text: str, better: Tensor, worse: Tensor, seeds: float = 0.0) -> Claim:
    """The claim that one model is better than another on the same images; noise that the images share drops out."""
    difference = better - worse
    error = math.hypot(float(difference.std()) / math.sqrt(len(difference)), seeds)
    return lower(text, float(difference.mean()), error, "bits/dim")


ONE_SEED = "One run of each model; errors are over held-out images, and paired for differences."


def seeds_in_words(budget: str) -> str:
    count = SEEDS[budget]
    if count == 1:
        return ONE_SEED
    return f"Each model was trained {count} times. Errors cover held-out images and runs; differences are paired by image."


# The two models, as they are compared everywhere

DENSE = Variant("cifar10-idensenet-tiny", "cifar10-idensenet-small")
RESIDUAL = Variant("cifar10-resflow-tiny", "cifar10-resflow-small")

# Activations that came after the paper. A sine starts at the beta that suits it; CPila has none.
LATER: dict[str, dict[str, Any]] = {
    "CPila": {"model.activation": "cpila"},
    "sine": {"model.activation": "sine", "model.beta": 3.0},
}


def curves_figure(
    title: str, runs: Mapping[str, Trained], clock: bool = True, looks: Mapping[str, Mapping[str, Any]] | None = None
) -> Figure:
    """Held-out bits per dimension over steps, and over minutes of training."""
    from matplotlib.figure import Figure

    looks = looks or {}

    figure = Figure(figsize=(9, 3.4) if clock else (6, 3.6))
    axes: Any = figure.subplots(1, 2 if clock else 1, squeeze=False, sharey=True)[0]
    every = [value for run in runs.values() for *_, value in run.curve("bits_per_dim")]
    for label, run in runs.items():
        curve = run.curve("bits_per_dim")
        look = looks.get(label, {})
        axes[0].plot([step for step, _, _ in curve], [value for *_, value in curve], label=label, **look)
        if clock:
            axes[1].plot([seconds / 60 for _, seconds, _ in curve], [value for *_, value in curve], label=label, **look)
    axes[0].set_xlabel("step")
    if clock:
        axes[1].set_xlabel("minutes of training")
    counts = sorted({run.config.train.eval_samples for run in runs.values()})
    axes[0].set_ylabel(f"bits per dimension, {' or '.join(f'{n:,}' for n in counts)} held-out images")
    axes[0].set_title(title)
    low, high = min(every), sorted(every)[int(0.9 * (len(every) - 1))]
    for axis in axes:
        axis.grid(True)
        axis.set_ylim(low - 0.08 * (high - low), high + 0.05 * (high - low))
    axes[0].legend()
    figure.tight_layout()
    return figure


def budget_in_words(budget: str, blocks: str = "2-2-2 blocks, none fully connected") -> str:
    if budget == "smoke":
        return "two small blocks on the 8 x 8 digits of scikit-learn, 15 steps; not CIFAR-10"
    if budget == "cpu":
        from idensenet.config import recipe

        t = recipe("cifar10-idensenet-tiny").config.train
        return (
            f"models of 0.30M parameters ({blocks}), {CPU['train.max_steps']:,} steps of "
            f"{t.batch_size} images of the full CIFAR-10, every model with the settings of cifar10-best-tiny; the paper's are "
            "8.7M for 200 epochs of batch 64, and 25M for 1000 epochs"
        )
    return "as published"
