"""Variants of the two models on images: their activations, and the depth of the concatenation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from idensenet.reproduce import paper
from idensenet.reproduce.experiment import Cell, Experiment, Result, Table, Work
from idensenet.reproduce.images import (
    DENSE,
    LATER,
    ONE_SEED,
    RESIDUAL,
    Variant,
    bits,
    budget_in_words,
    counted,
    curves_figure,
    mean_cell,
    paired,
    run_of,
    variant_plans,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Activations

ACTIVATION_VARIANTS = {
    ("Residual Flow", "LipSwish"): RESIDUAL,
    ("Residual Flow", "LeakyLipSwish"): Variant("cifar10-resflow-tiny-leaky", "cifar10-resflow-small-leaky"),
    ("Residual Flow", "CLipSwish"): Variant("cifar10-resflow-tiny-clipswish", "cifar10-resflow-small-clipswish"),
    ("i-DenseNet", "LipSwish"): Variant("cifar10-idensenet-tiny-lipswish", "cifar10-idensenet-small-lipswish"),
    ("i-DenseNet", "LeakyLipSwish"): Variant("cifar10-idensenet-tiny-leaky", "cifar10-idensenet-small-leaky"),
    ("i-DenseNet", "CLipSwish"): DENSE,
}
LATER_VARIANTS = {  # with the widths of CLipSwish
    (model, name): Variant(same.tiny, same.small, options)
    for name, options in LATER.items()
    for (model, other), same in ACTIVATION_VARIANTS.items()
    if other == "CLipSwish"
}


def _activations(work: Work) -> Result:
    every = {**ACTIVATION_VARIANTS, **LATER_VARIANTS}
    scores = {key: bits(work, run_of(work, variant)) for key, variant in every.items()}
    names = ("LipSwish", "LeakyLipSwish", "CLipSwish", "CPila", "sine")
    published = paper.ACTIVATIONS
    rows = tuple(
        (model, tuple(mean_cell(scores[model, name], published[model].get(name)) for name in names)) for model in published
    )
    table = Table(f"Bits per dimension, {counted(scores)} held-out images", names, rows, 3)
    claims = [
        paired(f"with {name} the i-DenseNet is better", scores["i-DenseNet", name], scores["Residual Flow", name])
        for name in names
    ]
    for model in published:
        for name in names[:2]:
            claims.append(paired(f"{model}: CLipSwish is better than {name}", scores[model, "CLipSwish"], scores[model, name]))
    runs = {f"{model}, {name}": run_of(work, variant) for (model, name), variant in every.items()}
    looks = {
        f"{model}, {name}": {"color": f"C{names.index(name)}", "linestyle": "-" if model == "i-DenseNet" else "--"}
        for model, name in every
    }
    return Result((table,), tuple(claims), (ONE_SEED,), lambda: curves_figure("activations", runs, clock=False, looks=looks))


# Depth

DEPTHS = {
    depth: DENSE if depth == 3 else Variant(f"cifar10-idensenet-tiny-depth{depth}", f"cifar10-idensenet-small-depth{depth}")
    for depth in (2, 3, 4, 5)
}


def _depth(work: Work) -> Result:
    scores = {depth: bits(work, run_of(work, variant)) for depth, variant in DEPTHS.items()}
    rows = []
    for depth, variant in DEPTHS.items():
        run = run_of(work, variant)
        size = run.flow.num_parameters / 1e6
        rows.append((f"depth {depth}", (mean_cell(scores[depth], paper.DEPTH[depth]), Cell(size))))
    table = Table(f"{counted(scores)} held-out images", ("bits/dim", "million parameters"), tuple(rows), 3)
    claims = tuple(paired(f"depth 3 is better than depth {d}", scores[3], scores[d]) for d in (2, 4, 5))
    runs = {f"depth {depth}": run_of(work, variant) for depth, variant in DEPTHS.items()}
    switch = math.ceil(runs["depth 3"].config.train.concatenation_from * runs["depth 3"].step)

    def figure() -> Figure:
        page = curves_figure("concatenation depth", runs, clock=False)
        if switch:
            page.axes[0].axvline(switch, color="#888888", linestyle="--", linewidth=0.9)
            page.axes[0].text(switch, page.axes[0].get_ylim()[1], " concatenation learns", va="top", fontsize=8)
        return page

    return Result((table,), claims, (ONE_SEED, f"The concatenation learns from step {switch} on."), figure)


EXPERIMENTS = (
    Experiment(
        "table-activations",
        "Activations",
        "section 5.2",
        _activations,
        lambda budget: variant_plans((*ACTIVATION_VARIANTS.values(), *LATER_VARIANTS.values()), budget),
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
