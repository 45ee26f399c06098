"""Images: density estimation, samples, activations and depth, all of one kind of run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from idensenet.report.pictures import image_grid
from idensenet.reproduce import paper
from idensenet.reproduce.experiment import Cell, Claim, Experiment, Plan, Result, Table, Work, lower
from idensenet.reproduce.runs import Trained
from idensenet.training.evaluation import first_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELD_OUT = {"smoke": 60, "cpu": 1000, "paper": 10_000}  # images that decide a score
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
    "train.max_steps": 30,
    "train.batch_size": 32,
    "train.lr": 5e-3,
    "train.eval_every": 6,
    "train.eval_samples": 60,
    "train.log_every": 6,
    "train.save_every": 30,
}


@dataclass(frozen=True)
class Variant:
    """A model of the comparison: its name, its recipe at the small budget, and the paper's."""

    title: str
    tiny: str
    small: str

    def recipe(self, budget: str) -> str:
        return self.small if budget == "paper" else self.tiny


def plan(recipe: str, budget: str, options: Mapping[str, Any] | None = None, name: str = "") -> Plan:
    extra = dict(options or {})
    return Plan(name or recipe, recipe, {**SMOKE, **extra} if budget == "smoke" else extra)


def variant_plans(variants: Sequence[Variant], budget: str) -> list[Plan]:
    return [plan(variant.recipe(budget), budget) for variant in variants]


def run_of(work: Work, variant: Variant) -> Trained:
    return work.runs[variant.recipe(work.budget)]


def bits(work: Work, run: Trained) -> Tensor:
    """Bits per dimension of each held-out image, averaged weights."""
    work.report(run.plan.name)
    nats = run.held_out(HELD_OUT[work.budget])
    return nats / (math.prod(run.config.model.shape) * math.log(2))


def mean_cell(values: Tensor, published: float | None = None) -> Cell:
    return Cell(float(values.mean()), float(values.std()) / math.sqrt(len(values)), published)


def paired(text: str, better: Tensor, worse: Tensor) -> Claim:
    """The claim that one model is better than another on the same images; noise that the images share drops out."""
    difference = better - worse
    return lower(text, float(difference.mean()), float(difference.std()) / math.sqrt(len(difference)), "bits/dim")


ONE_SEED = "One run of each model; errors are over held-out images, and those of differences are paired."

# Density estimation

DENSE = Variant("i-DenseNet", "cifar10-idensenet-tiny", "cifar10-idensenet-small")
RESIDUAL = Variant("Residual Flow", "cifar10-resflow-tiny", "cifar10-resflow-small")
FULL_SIZE = {
    "cifar10": {"i-DenseNet": "cifar10-idensenet", "Residual Flow": "cifar10-resflow"},
    "imagenet32": {"i-DenseNet": "imagenet32-idensenet", "Residual Flow": "imagenet32-resflow"},
}


def _density_plans(budget: str) -> list[Plan]:
    full = [plan(recipe, budget) for recipes in FULL_SIZE.values() for recipe in recipes.values()] if budget == "paper" else []
    return variant_plans((RESIDUAL, DENSE), budget) + full


def at_time(curve: Sequence[tuple[int, float, float]], seconds: float) -> float:
    """The score of a run after so many seconds of training, on the straight line between two evaluations."""
    before = [(s, v) for _, s, v in curve if s <= seconds]
    after = [(s, v) for _, s, v in curve if s > seconds]
    if not before or not after:
        return (before[-1] if before else after[0])[1]
    (s0, v0), (s1, v1) = before[-1], after[0]
    return v0 + (v1 - v0) * (seconds - s0) / (s1 - s0)


def only_g_differs(a: Trained, b: Trained) -> list[str]:
    """The options in which two runs differ: data, order, steps and all else must be the same."""
    x, y = a.config.as_dict(), b.config.as_dict()
    return sorted(f"{g}.{k}" for g in x if g != "output" for k in x[g] if x[g][k] != y[g][k])


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
    axes[0].set_ylabel("held-out bits per dimension")
    axes[0].set_title(title)
    low, high = min(every), sorted(every)[int(0.9 * (len(every) - 1))]
    for axis in axes:
        axis.grid(True)
        axis.set_ylim(low - 0.08 * (high - low), high + 0.05 * (high - low))
    axes[0].legend()
    figure.tight_layout()
    return figure


def _density(work: Work) -> Result:
    dense, residual = run_of(work, DENSE), run_of(work, RESIDUAL)
    scores = {"Residual Flow": bits(work, residual), "i-DenseNet": bits(work, dense)}
    key = "cifar10-small" if work.budget != "smoke" else None
    steps = Table(
        f"Bits per dimension at the same number of steps ({dense.step:,}), {len(scores['i-DenseNet']):,} held-out images",
        ("bits/dim",),
        tuple((name, (mean_cell(values, paper.DENSITY[name][key] if key else None),)) for name, values in scores.items()),
        3,
    )
    seconds = min(dense.seconds, residual.seconds)
    at = {"Residual Flow": residual, "i-DenseNet": dense}
    count = dense.config.train.eval_samples
    clock = Table(
        f"The same after {seconds:,.0f} s of training on one thread, {count:,} held-out images",
        ("bits/dim", "steps by then", "s a step"),
        tuple(
            (
                name,
                (
                    Cell(at_time(run.curve("bits_per_dim"), seconds)),
                    Cell(at_time([(0, s, n) for n, s, _ in run.curve("bits_per_dim")], seconds)),
                    Cell(run.seconds / run.step),
                ),
            )
            for name, run in at.items()
        ),
        3,
    )
    quoted = [(name, tuple(Cell(None, None, value) for value in values)) for name, values in paper.QUOTED.items()]
    for name in ("Residual Flow", "i-DenseNet"):
        ours: list[float | None] = [None, None]
        if work.budget == "paper":
            ours = [float(bits(work, work.runs[FULL_SIZE[d][name]]).mean()) for d in ("cifar10", "imagenet32")]
        published = paper.DENSITY[name]
        cells = (Cell(ours[0], None, published["cifar10"]), Cell(ours[1], None, published["imagenet32"]))
        quoted.append((f"{name} (full size)", cells))
    differ = only_g_differs(dense, residual)
    allowed = {"model.block", "model.growth", "model.width", "model.activation"}
    faster = at_time(dense.curve("bits_per_dim"), seconds) - at_time(residual.curve("bits_per_dim"), seconds)
    claims = (
        paired("at equal steps the i-DenseNet has fewer bits per dimension", scores["i-DenseNet"], scores["Residual Flow"]),
        Claim("so it has at equal time", faster < 0, f"difference {faster:+.4f} bits/dim on {count} images, no error known"),
        Claim("the two runs differ only in g", set(differ) <= allowed, f"options that differ: {', '.join(differ)}"),
    )
    return Result(
        (
            steps,
            clock,
            Table("Full-size models; the first six rows are quoted in the paper", ("CIFAR10", "ImageNet32"), tuple(quoted)),
        ),
        claims,
        (ONE_SEED,),
        lambda: curves_figure("density estimation", at),
    )


# Samples


def _samples(work: Work) -> Result:
    pages = []
    recipes = [DENSE.recipe(work.budget)] if work.budget != "paper" else [each["i-DenseNet"] for each in FULL_SIZE.values()]
    rows = []
    for recipe in recipes:
        run = work.runs[recipe]
        flow, n = run.flow, SAMPLES[work.budget]
        work.report(f"samples of {recipe}")
        drawn = flow.sample(n, generator=torch.Generator(flow.device).manual_seed(0))
        real = run.source.test.batch(first_rows(run.source.test, n))[0]
        assert flow.levels is not None
        pages.append((run.source.name, [image_grid(images, flow.levels, 8) for images in (real, drawn)]))
        with torch.no_grad():
            there = flow.log_prob(drawn) / (flow.dims * math.log(2))
        rows.append((recipe, (Cell(float(drawn.float().mean())), Cell(float(real.float().mean())), Cell(float(-there.mean())))))

    def figure() -> Figure:
        from matplotlib.figure import Figure

        page = Figure(figsize=(8.4, 3.6 * len(pages)))
        axes: Any = page.subplots(len(pages), 2, squeeze=False)
        for row, (name, grids) in zip(axes, pages, strict=True):
            for axis, grid, title in zip(row, grids, (f"real images, {name}", "samples"), strict=True):
                axis.imshow(grid.numpy(), interpolation="nearest")
                axis.set_axis_off()
                axis.set_title(title)
        page.tight_layout()
        return page

    table = Table("Samples", ("mean level of samples", "of real images", "bits/dim of samples"), tuple(rows))
    return Result(
        (table,), (), ("Temperature 1, averaged weights, seed 0; real images are the first of the test set.",), figure
    )


# Activations

ACTIVATION_VARIANTS = {
    ("Residual Flow", "LipSwish"): RESIDUAL,
    ("Residual Flow", "LeakyLipSwish"): Variant("", "cifar10-resflow-tiny-leaky", "cifar10-resflow-small-leaky"),
    ("Residual Flow", "CLipSwish"): Variant("", "cifar10-resflow-tiny-clipswish", "cifar10-resflow-small-clipswish"),
    ("i-DenseNet", "LipSwish"): Variant("", "cifar10-idensenet-tiny-lipswish", "cifar10-idensenet-small-lipswish"),
    ("i-DenseNet", "LeakyLipSwish"): Variant("", "cifar10-idensenet-tiny-leaky", "cifar10-idensenet-small-leaky"),
    ("i-DenseNet", "CLipSwish"): DENSE,
}


def _activations(work: Work) -> Result:
    scores = {key: bits(work, run_of(work, variant)) for key, variant in ACTIVATION_VARIANTS.items()}
    names = ("LipSwish", "LeakyLipSwish", "CLipSwish")
    published = paper.ACTIVATIONS
    rows = tuple(
        (model, tuple(mean_cell(scores[model, name], published[model][name]) for name in names)) for model in published
    )
    table = Table(f"Bits per dimension, {HELD_OUT[work.budget]:,} held-out images", names, rows, 3)
    claims = [
        paired(f"with {name} the i-DenseNet is better", scores["i-DenseNet", name], scores["Residual Flow", name])
        for name in names
    ]
    for model in published:
        for name in names[:2]:
            claims.append(paired(f"{model}: CLipSwish is better than {name}", scores[model, "CLipSwish"], scores[model, name]))
    runs = {f"{model}, {name}": run_of(work, variant) for (model, name), variant in ACTIVATION_VARIANTS.items()}
    looks = {
        f"{model}, {name}": {"color": f"C{names.index(name)}", "linestyle": "-" if model == "i-DenseNet" else "--"}
        for model, name in ACTIVATION_VARIANTS
    }
    return Result((table,), tuple(claims), (ONE_SEED,), lambda: curves_figure("activations", runs, clock=False, looks=looks))


# Depth

DEPTHS = {
    depth: DENSE if depth == 3 else Variant("", f"cifar10-idensenet-tiny-depth{depth}", f"cifar10-idensenet-small-depth{depth}")
    for depth in (2, 3, 4, 5)
}


def _depth(work: Work) -> Result:
    scores = {depth: bits(work, run_of(work, variant)) for depth, variant in DEPTHS.items()}
    rows = []
    for depth, variant in DEPTHS.items():
        run = run_of(work, variant)
        size = run.flow.num_parameters / 1e6
        rows.append((f"depth {depth}", (mean_cell(scores[depth], paper.DEPTH[depth]), Cell(size))))
    table = Table(f"{HELD_OUT[work.budget]:,} held-out images", ("bits/dim", "million parameters"), tuple(rows), 3)
    claims = tuple(paired(f"depth 3 is better than depth {d}", scores[3], scores[d]) for d in (2, 4, 5))
    runs = {f"depth {depth}": run_of(work, variant) for depth, variant in DEPTHS.items()}
    switch = math.ceil(runs["depth 3"].config.train.concatenation_from * runs["depth 3"].step)

    def figure() -> Figure:
        page = curves_figure("concatenation depth", runs, clock=False)
        page.axes[0].axvline(switch, color="#888888", linestyle="--", linewidth=0.9)
        page.axes[0].text(switch, page.axes[0].get_ylim()[1], " concatenation learns", va="top", fontsize=8)
        return page

    return Result((table,), claims, (ONE_SEED, f"The concatenation learns from step {switch} on."), figure)


def budget_in_words(budget: str) -> str:
    if budget == "smoke":
        return "two small blocks on the 8 x 8 digits of scikit-learn, 30 steps; not CIFAR-10"
    if budget == "cpu":
        from idensenet.config import recipe

        t = recipe("cifar10-idensenet-tiny").config.train
        return (
            f"models of 0.30M parameters (2-2-2 blocks, none fully connected), {t.max_steps} steps of {t.batch_size} images "
            "of the full CIFAR-10; the paper's are 8.7M for 200 epochs of batch 64, and 25M for 1000 epochs"
        )
    return "as published"


EXPERIMENTS = (
    Experiment("table-density", "Density estimation on images", "section 4.2", _density, _density_plans, budget_in_words),
    Experiment("samples", "Real images and samples", "section 4.2, appendix D.1", _samples, _density_plans, budget_in_words),
    Experiment(
        "table-activations",
        "Activations",
        "section 5.2",
        _activations,
        lambda budget: variant_plans(tuple(ACTIVATION_VARIANTS.values()), budget),
        budget_in_words,
    ),
    Experiment(
        "figure-depth",
        "Depth of the concatenation",
        "section 5.3",
        _depth,
        lambda budget: variant_plans(tuple(DEPTHS.values()), budget),
        budget_in_words,
    ),
)
