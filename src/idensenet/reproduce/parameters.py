"""How many parameters the models have."""

from __future__ import annotations

from idensenet.models import build
from idensenet.reproduce import paper
from idensenet.reproduce.experiment import Cell, Claim, Experiment, Result, Table, Work

RECIPES = {
    "Residual Flow": ("cifar10-resflow", "cifar10-resflow-small", "imagenet32-resflow"),
    "i-DenseNet": ("cifar10-idensenet", "cifar10-idensenet-small", "imagenet32-idensenet"),
}


def _collect(work: Work) -> Result:
    counts = {model: [build(recipe).num_parameters for recipe in recipes] for model, recipes in RECIPES.items()}
    rows = tuple(
        (model, tuple(Cell(n / 1e6, None, theirs) for n, theirs in zip(counts[model], paper.PARAMETERS[model], strict=True)))
        for model in RECIPES
    )
    table = Table("Millions of trainable parameters", ("CIFAR10", "CIFAR10, small", "ImageNet32"), rows, 3)
    same = all(round(cell.ours or 0.0, 1) == cell.paper for _, cells in rows for cell in cells)
    exact = "; ".join(f"{model} {', '.join(f'{n:,}' for n in counts[model])}" for model in RECIPES)
    fewer = all(d < r for d, r in zip(counts["i-DenseNet"], counts["Residual Flow"], strict=True))
    return Result(
        (table,),
        (
            Claim("the numbers of the table, to the digit given", same, exact),
            Claim("i-DenseNets have slightly fewer parameters than the Residual Flows they are compared with", fewer, exact),
        ),
    )


EXPERIMENTS = (Experiment("table-parameters", "Parameters of the models", "section 4.2", _collect),)
