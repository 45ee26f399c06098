"""Density estimation on images, at equal steps and at equal time, with real images next to samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from idensenet.report.pictures import image_grid
from idensenet.reproduce import paper
from idensenet.reproduce.experiment import Cell, Claim, Experiment, Plan, Result, Table, Work, lower
from idensenet.reproduce.images import (
    DENSE,
    RESIDUAL,
    SAMPLES,
    SEEDS,
    bits,
    budget_in_words,
    curves_figure,
    mean_cell,
    paired,
    plan,
    run_of,
    runs_of,
    seed_error,
    seeds_in_words,
    variant_plans,
)
from idensenet.reproduce.runs import Trained
from idensenet.training.evaluation import first_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FULL_SIZE = {
    "cifar10": {"i-DenseNet": "cifar10-idensenet", "Residual Flow": "cifar10-resflow"},
    "imagenet32": {"i-DenseNet": "imagenet32-idensenet", "Residual Flow": "imagenet32-resflow"},
}


def _density_plans(budget: str) -> list[Plan]:
    full = [plan(recipe, budget) for recipes in FULL_SIZE.values() for recipe in recipes.values()] if budget == "paper" else []
    return variant_plans((RESIDUAL, DENSE), budget, SEEDS[budget]) + full


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


def _density(work: Work) -> Result:
    dense, residual = run_of(work, DENSE), run_of(work, RESIDUAL)
    every = {
        name: [bits(work, run) for run in runs_of(work, variant, SEEDS[work.budget])]
        for name, variant in (("Residual Flow", RESIDUAL), ("i-DenseNet", DENSE))
    }
    scores = {name: torch.stack(each).mean(0) for name, each in every.items()}
    spread = {name: seed_error(each) for name, each in every.items()}
    over_seeds = math.hypot(*spread.values())
    key = "cifar10-small" if work.budget != "smoke" else None
    steps = Table(
        f"Bits per dimension at the same number of steps ({dense.step:,}), {len(scores['i-DenseNet']):,} held-out images",
        ("bits/dim",),
        tuple(
            (name, (mean_cell(values, paper.DENSITY[name][key] if key else None, spread[name]),))
            for name, values in scores.items()
        ),
        3,
    )
    seconds = min(dense.seconds, residual.seconds)
    at = {"Residual Flow": residual, "i-DenseNet": dense}
    count = dense.config.train.eval_samples
    clock = Table(
        f"The same after {seconds:,.0f} s of training, {count:,} held-out images",
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
    gaps = scores["i-DenseNet"] - scores["Residual Flow"]
    claims = (
        paired(
            "at equal steps the i-DenseNet has fewer bits per dimension",
            scores["i-DenseNet"],
            scores["Residual Flow"],
            over_seeds,
        ),
        lower("so it has at equal time", faster, math.hypot(float(gaps.std()) / math.sqrt(count), over_seeds), "bits/dim"),
        Claim("the two runs differ only in g", set(differ) <= allowed, f"options that differ: {', '.join(differ)}"),
    )
    return Result(
        (
            steps,
            clock,
            Table("Full-size models; the first six rows are quoted in the paper", ("CIFAR10", "ImageNet32"), tuple(quoted)),
        ),
        claims,
        (
            seeds_in_words(work.budget),
            f"Equal time compares the first run of each model; its error is for the last step, over {count} images.",
        ),
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


EXPERIMENTS = (
    Experiment("table-density", "Density estimation on images", "section 4.2", _density, _density_plans, budget_in_words),
    Experiment("samples", "Real images and samples", "section 4.2, appendix C.1", _samples, _density_plans, budget_in_words),
)
