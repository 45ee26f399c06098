"""Residual Flows, original and with the widths and depth of the i-DenseNet, against the i-DenseNet."""

from __future__ import annotations

from idensenet.reproduce import images, paper, toy
from idensenet.reproduce.experiment import Cell, Experiment, Plan, Result, Table, Work
from idensenet.reproduce.images import Variant, bits, mean_cell, paired, run_of, variant_plans

VARIANTS = {
    "Residual Flow": images.RESIDUAL,
    "Residual Flow, extended": Variant("cifar10-resflow-tiny-extended", "cifar10-resflow-small-extended"),
    "i-DenseNet + LC": Variant("cifar10-idensenet-tiny-lipswish", "cifar10-idensenet-small-lipswish"),
}
MODELS = (toy.RESFLOW, toy.EXTENDED, toy.LEARNED)


def _plans(budget: str) -> list[Plan]:
    return toy.plans(MODELS, budget) + variant_plans(tuple(VARIANTS.values()), budget)


def _collect(work: Work) -> Result:
    points = toy.score_table(work, MODELS)
    scores = {title: bits(work, run_of(work, variant)) for title, variant in VARIANTS.items()}
    sizes = {title: run_of(work, variant).flow.num_parameters / 1e6 for title, variant in VARIANTS.items()}
    pictures = Table(
        f"Images, {images.counted(scores)} held-out images",
        ("bits/dim", "million parameters"),
        tuple((title, (mean_cell(values, paper.MATCHING[title]), Cell(sizes[title]))) for title, values in scores.items()),
        3,
    )
    dense, extended, original = scores["i-DenseNet + LC"], scores["Residual Flow, extended"], scores["Residual Flow"]
    claims = (
        *toy.compare(work, toy.LEARNED, toy.EXTENDED, "the i-DenseNet beats the extended Residual Flow"),
        *toy.compare(work, toy.EXTENDED, toy.RESFLOW, "extending the Residual Flow helps"),
        paired("images: the i-DenseNet beats the extended Residual Flow", dense, extended),
        paired("images: the extended Residual Flow is worse than the original", original, extended),
        toy.below_entropy(points),
    )
    seeds = len(toy.seeds(toy.LEARNED, toy.SETS[0], work.budget))
    runs = f"On toy data {seeds} run{'s' * (seeds > 1)} of the i-DenseNet on each set and one of each Residual Flow"
    return Result((points, pictures), claims, (f"{runs}. Images: {images.ONE_SEED}", "All with LipSwish, as in the paper."))


def _budget(budget: str) -> str:
    return f"toy: {toy.EXPERIMENTS[0].budget(budget)}; images: {images.budget_in_words(budget)}"


EXPERIMENTS = (
    Experiment("table-matching", "Residual Flow of matching width and depth", "appendix D.4", _collect, _plans, _budget),
)
