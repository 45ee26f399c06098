"""How long i-DenseNets take compared with Residual Flows: forward, training, sampling; all in turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import torch

from idensenet.bench.timing import Times, in_turns
from idensenet.bench.work import stepper
from idensenet.flow import Flow
from idensenet.reproduce import images, paper
from idensenet.reproduce.experiment import Cell, Claim, Experiment, Plan, Result, Table, Work
from idensenet.reproduce.runs import Trained
from idensenet.reproduce.variants import ACTIVATION_VARIANTS
from idensenet.training.evaluation import first_rows

OPTIONS = {"train.max_steps": 20, "train.batch_size": 16, "train.warmup_steps": 5, "train.eval_samples": 16, "train.lr": 1e-3}
BATCH = {"smoke": 4, "cpu": 8, "paper": 64}
DRAWN = {"smoke": 4, "cpu": 16, "paper": 64}
REPEATS = {"smoke": 2, "cpu": 8, "paper": 10}
CLAIMS = (
    ("the forward pass of the i-DenseNet is faster", True),
    ("its training is slower", False),
    ("its sampling is faster", True),
)


def plan(recipe: str, budget: str) -> Plan:
    name = f"{recipe}-timed"
    if budget == "cpu":
        return Plan(name, recipe, OPTIONS)
    return images.plan(recipe, budget, OPTIONS if budget == "paper" else {}, name)


def _plans(budget: str) -> list[Plan]:
    return [plan(variant.small, budget) for variant in ACTIVATION_VARIANTS.values()]


def percent_faster(other: float, ours: float) -> float:
    """As the paper counts: +100 takes half the time, -100 twice the time."""
    return 100 * (other / ours - 1) if ours <= other else -100 * (ours / other - 1)


def compared(other: Times, ours: Times) -> tuple[float, float]:
    """The same of two that were timed in turns, with its standard error over the rounds."""
    logs = [math.log(a / b) for a, b in zip(other.seconds, ours.seconds, strict=True)]
    mean = statistics.fmean(logs)
    value = percent_faster(math.exp(mean), 1.0)
    return value, (100 + abs(value)) * statistics.stdev(logs) / math.sqrt(len(logs))


def verdict(text: str, wanted: bool, value: float, error: float) -> Claim:
    """Of a claim that one is faster (or, not `wanted`, slower), by two standard errors."""
    holds = None if abs(value) < 2 * error else (value > 0) == wanted
    return Claim(text, holds, f"{value:+.1f} +- {error:.1f} %")


def _synchronized(work: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return run


def _pieces(work: Work, run: Trained) -> dict[str, Callable[[], None]]:
    flow: Flow = run.flow
    x = run.source.test.batch(first_rows(run.source.test, BATCH[work.budget]))[0].to(flow.device)
    trained: Flow = run.last_flow.train()
    generator = torch.Generator(flow.device).manual_seed(0)

    @torch.no_grad()
    def forward() -> None:
        trained.log_prob(x, generator)

    def sample() -> None:
        flow.sample(DRAWN[work.budget], generator=torch.Generator(flow.device).manual_seed(1))

    return {
        name: _synchronized(each)
        for name, each in (("forward", forward), ("training", stepper(trained, x)), ("sampling", sample))
    }


def _collect(work: Work) -> Result:
    models = {key: _pieces(work, work.runs[plan(v.small, work.budget).name]) for key, v in ACTIVATION_VARIANTS.items()}
    names = ("LipSwish", "LeakyLipSwish", "CLipSwish")
    times: dict[str, dict[tuple[str, str], Times]] = {}
    for what in ("forward", "training", "sampling"):
        work.report(f"timing {what}")
        found = in_turns({" ".join(key): pieces[what] for key, pieces in models.items()}, REPEATS[work.budget])
        times[what] = {key: found[" ".join(key)] for key in models}
    percent, seconds = [], []
    for name in names:
        pair = [(times[what]["Residual Flow", name], times[what]["i-DenseNet", name]) for what in times]
        percent.append(
            (
                name,
                tuple(Cell(*compared(r, d), t) for (r, d), t in zip(pair, paper.RUNTIME[name], strict=True)),
            )
        )
    for model, name in models:
        cells = tuple(Cell(times[what][model, name].median, times[what][model, name].deviation) for what in times)
        seconds.append((f"{model}, {name}", cells))
    table = Table(
        "Percent by which the i-DenseNet is faster than the Residual Flow (negative: slower)", tuple(times), tuple(percent), 1
    )
    raw = Table("Seconds, median and standard deviation over repeats", tuple(times), tuple(seconds), 3)
    claims = tuple(
        verdict(f"{name}: {text}", wanted, cell.ours or 0.0, cell.error or 0.0)
        for name, cells in percent
        for (text, wanted), cell in zip(CLAIMS, cells, strict=True)
    )
    notes = (
        f"All models in turns, {REPEATS[work.budget]} rounds: forward (code and log-density, no gradient) and training step "
        f"with {BATCH[work.budget]} images, sampling of {DRAWN[work.budget]}.",
        "The models are 20 steps old, so that their norms are at work; the paper does not say how old its were."
        if work.budget != "smoke"
        else "The models are tiny: their times say nothing.",
    )
    return Result((table, raw), claims, notes)


def _budget(budget: str) -> str:
    return images.budget_in_words(budget) if budget == "smoke" else "in full: models of 8.7M parameters"


EXPERIMENTS = (Experiment("table-runtime", "Running times", "appendix D.2", _collect, _plans, _budget, alone=True),)
