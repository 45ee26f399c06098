"""What came after the paper: monotone blocks, other activations, learned noise, at equal steps and at equal time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import product

import torch
from torch import Tensor

from idensenet.data.toy import toy_set
from idensenet.reproduce import images, toy
from idensenet.reproduce.density import at_time
from idensenet.reproduce.experiment import Cell, Claim, Experiment, Plan, Result, Table, Work, lower
from idensenet.reproduce.images import DENSE, Variant, bits, mean_cell, paired, run_of, variant_plans
from idensenet.reproduce.runs import Trained
from idensenet.training.evaluation import first_rows

BLOCKS = {"dense": "residual", "monotone": "monotone"}  # by their option: both have the dense g
ACTIVATIONS = {"clipswish": "CLipSwish", "cpila": "CPila", "sine": "sine"}
Key = tuple[str, str]  # block and activation, by their options
KEYS: tuple[Key, ...] = tuple(product(BLOCKS, ACTIVATIONS))
FIRST, LAST = ("dense", "clipswish"), ("monotone", "cpila")
SEEDS = {"smoke": 1, "cpu": 3, "paper": 3}
PUBLISHED = "Ahn et al. (2022) report both; these are claims of theirs, not of the paper."


def title(key: Key) -> str:
    return f"{BLOCKS[key[0]]}, {ACTIVATIONS[key[1]]}"


def _later(curve: Sequence[tuple[int, float, float]], seconds: float) -> Cell:
    return Cell(at_time(curve, seconds))


# Toy data


def toy_plan(key: Key, name: str, seed: int, budget: str) -> Plan:
    """The i-DenseNet with CLipSwish at the paper's settings and the exact log-determinant, but for block and activation."""
    usual = {**toy.SMOKE, "train.max_steps": 60, "train.eval_every": 30} if budget == "smoke" else toy.FULL
    options = {"data.name": name, "train.seed": seed, "model.block": key[0], "model.activation": key[1], **usual}
    return Plan(f"toy-{key[0]}-{key[1]}-{name}-{seed}", "toy-idensenet-clipswish", options)


def _sets(budget: str) -> tuple[str, ...]:
    return ("checkerboard",) if budget == "smoke" else (*toy.SETS, *toy.OTHER_SETS)


def _toy_plans(budget: str) -> list[Plan]:
    return [toy_plan(key, name, seed, budget) for key in KEYS for name in _sets(budget) for seed in range(SEEDS[budget])]


def _difference(better: Sequence[Tensor], worse: Sequence[Tensor]) -> tuple[float, float]:
    """Mean over points and seeds, and its error: what the held-out points share drops out."""
    gap = torch.stack(list(better)).mean(0) - torch.stack(list(worse)).mean(0)
    seeds = math.hypot(*(images.seed_error(each) for each in (better, worse)))
    return float(gap.mean()), math.hypot(float(gap.std()) / math.sqrt(len(gap)), seeds)


def _compared(scores: Mapping[Key, Sequence[Tensor]], where: str, unit: str) -> list[Claim]:
    pairs = [
        (f"with {ACTIVATIONS[a]} monotone blocks are better than residual ones", ("monotone", a), ("dense", a))
        for a in ACTIVATIONS
    ]
    for block, name in BLOCKS.items():
        pairs += [
            (f"in {name} blocks {ACTIVATIONS[a]} is better than CLipSwish", (block, a), (block, "clipswish"))
            for a in ("cpila", "sine")
        ]
    pairs.append(("monotone blocks with CPila are better than residual ones with CLipSwish", LAST, FIRST))
    return [lower(f"{where}: {text}", *_difference(scores[a], scores[b]), unit) for text, a, b in pairs]


def _toy(work: Work) -> Result:
    names, count = _sets(work.budget), SEEDS[work.budget]
    runs = {
        (key, name): [work.runs[toy_plan(key, name, seed, work.budget).name] for seed in range(count)]
        for key in KEYS
        for name in names
    }
    scores: dict[tuple[Key, str], list[Tensor]] = {}
    for at, trained in runs.items():
        work.report(trained[0].plan.name)
        scores[at] = [run.held_out(toy.points(work.budget), last=True) for run in trained]
    floor = ("entropy, the lowest possible", tuple(Cell(toy_set(name).entropy) for name in names))
    rows = [(title(key), tuple(toy.cell(scores[key, name]) for name in names)) for key in KEYS]
    steps = Table(f"Nats on {toy.points(work.budget):,} held-out points, last weights", names, (*rows, floor), 3)
    clock = Table(
        "The same after the training time of the fastest model of each set, at the evaluations of the first run",
        names,
        tuple((title(key), tuple(_later(_curve(runs[key, n][0]), _fastest(runs, n)) for n in names)) for key in KEYS),
        3,
    )
    cost = Table(
        "Milliseconds a step, mean over the runs",
        names,
        tuple((title(key), tuple(Cell(_milliseconds(runs[key, n])) for n in names)) for key in KEYS),
        1,
    )
    claims = [claim for n in names for claim in _compared({key: scores[key, n] for key in KEYS}, n, "nats")]
    return Result((steps, clock, cost), (*claims, toy.below_entropy(steps)), (PUBLISHED,))


def _curve(run: Trained) -> list[tuple[int, float, float]]:
    return run.curve("nats")


def _fastest(runs: Mapping[tuple[Key, str], Sequence[Trained]], name: str) -> float:
    return min(runs[key, name][0].seconds for key in KEYS)


def _milliseconds(runs: Sequence[Trained]) -> float:
    return statistics.fmean(1000 * run.seconds / run.step for run in runs)


# Images


def variant(key: Key) -> Variant:
    """Options that differ from the i-DenseNet of the comparison, so that its runs are shared with table-activations."""
    block = {} if key[0] == FIRST[0] else {"model.block": key[0]}
    return Variant(DENSE.tiny, DENSE.small, {**block, **images.LATER.get(ACTIVATIONS[key[1]], {})})


LEARNED = Variant(DENSE.tiny, DENSE.small, {"model.dequantization": "variational"})
IMPORTANCE = {"smoke": 4, "cpu": 16, "paper": 16}


def _image_plans(budget: str) -> list[Plan]:
    return variant_plans([*map(variant, KEYS), LEARNED], budget)


def _images(work: Work) -> Result:
    runs = {title(key): run_of(work, variant(key)) for key in KEYS} | {
        "residual, CLipSwish, learned noise": run_of(work, LEARNED)
    }
    scores = {name: bits(work, run) for name, run in runs.items()}
    seconds = min(run.seconds for run in runs.values())
    table = Table(
        f"Bits per dimension, {images.counted(scores)} held-out images; after {seconds:,.0f} s of training on fewer",
        ("bits/dim", "at equal time", "s a step", "million parameters"),
        tuple(
            (
                name,
                (
                    mean_cell(scores[name]),
                    _later(run.curve("bits_per_dim"), seconds),
                    Cell(run.seconds / run.step),
                    Cell(run.flow.num_parameters / 1e6),
                ),
            )
            for name, run in runs.items()
        ),
        3,
    )
    uniform, learned = runs[title(FIRST)], runs["residual, CLipSwish, learned noise"]
    k = IMPORTANCE[work.budget]
    closer = {name: _weighted(work, run, k) for name, run in (("uniform", uniform), ("learned", learned))}
    bounds = Table(
        f"The bound, and the importance-weighted estimate with {k} samples of the noise, {len(closer['uniform']):,} images",
        ("bound", "importance-weighted"),
        tuple(
            (f"{name} noise", (mean_cell(scores[row][: len(closer[name])]), mean_cell(closer[name])))
            for name, row in (("uniform", title(FIRST)), ("learned", "residual, CLipSwish, learned noise"))
        ),
        3,
    )
    claims = [
        *_compared({key: [scores[title(key)]] for key in KEYS}, "images", "bits/dim"),
        paired(
            "learned noise is better than uniform noise", scores["residual, CLipSwish, learned noise"], scores[title(FIRST)]
        ),
    ]
    return Result(
        (table, bounds), tuple(claims), (images.ONE_SEED, PUBLISHED), lambda: images.curves_figure("beyond the paper", runs)
    )


@torch.no_grad()
def _weighted(work: Work, run: Trained, samples: int) -> Tensor:
    """Bits per dimension of the first held-out images, importance-weighted."""
    work.report(f"{run.plan.name}, importance-weighted")
    flow, n = run.flow, 20 if work.budget == "smoke" else 200
    x = run.source.test.batch(first_rows(run.source.test, n))[0].to(flow.device)
    found = [flow.log_prob(part, importance=samples).double().cpu() for part in torch.split(x, 50)]
    return -torch.cat(found) / (flow.dims * math.log(2))


def _budget(budget: str) -> str:
    if budget == "smoke":
        return "checkerboard only, 3 blocks, 60 steps of 200 points, one seed, 2,000 held-out points"
    return "in full: 10 blocks, 50,000 steps of 500 points, exact log-determinants"


EXPERIMENTS = (
    Experiment("beyond-toy", "Monotone blocks and other activations on toy data", "later work", _toy, _toy_plans, _budget),
    Experiment(
        "beyond-images", "The same on images, and learned noise", "later work", _images, _image_plans, images.budget_in_words
    ),
)
