"""Fitting a flow to the rows of a table: from a Gaussian on, with Adam, averaged weights and held-out rows.

The learning rate falls as half a cosine. Where held-out rows stop gaining, the fit goes back to the best weights and jumps
ahead on that schedule. So a fit of a small table, which a flow soon knows by heart, ends early and still at a low rate.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from idensenet.config import Config
from idensenet.errors import NonFiniteError
from idensenet.flow import Flow, Prepared
from idensenet.models import build_config
from idensenet.training.averaging import Average
from idensenet.training.clock import Clock
from idensenet.training.rows import Rows, batches
from idensenet.training.step import skipped, training_step

_building = threading.Lock()  # weights come from torch's own generator, which all threads share


def new_flow(config: Config, seed: int, dtype: torch.dtype, device: torch.device) -> Flow:
    """An untrained flow, which draws nothing from anybody's generator."""
    with _building, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_config(config).to(device, dtype)


Loss = Callable[[Flow, Rows, torch.Generator | None, Prepared], Tensor]
"""The loss of each row, [rows]; noise comes from the generator, or from the rows themselves where there is none."""


@dataclass(frozen=True)
class Options:
    """How a fit goes on.

    Args:
        learning_rate: The highest learning rate of the schedule.
        weight_decay: Of AdamW.
        max_iter: Most steps.
        batch_size: Rows in a step.
        patience: Evaluations without progress after which the schedule jumps ahead.
        tol: Least progress of the held-out loss.
        seed: Order of the rows and noise.
        max_time: Most seconds, or None.
        report: Called with the step and the held-out loss after each evaluation.
    """

    learning_rate: float
    weight_decay: float
    max_iter: int
    batch_size: int
    patience: int
    tol: float
    seed: int
    max_time: float | None = None
    report: Callable[[int, float], None] = field(default=lambda step, score: None)


def losses(flow: Flow, loss: Loss, rows: Rows, size: int = 1000) -> Tensor:
    """The loss of each row."""
    with torch.no_grad(), evaluation(flow):
        prepared, places = flow.prepare(), torch.arange(len(rows), device=rows.x.device)
        return torch.cat([loss(flow, rows.take(index), None, prepared) for index in torch.split(places, size)])


def mean_loss(flow: Flow, loss: Loss, rows: Rows) -> float:
    """The mean loss of rows."""
    return rows.mean(losses(flow, loss, rows))


@contextmanager
def evaluation(flow: Flow) -> Iterator[None]:
    was = flow.training
    flow.eval()
    try:
        yield
    finally:
        flow.train(was)


class Training:
    """One flow on its way: the optimiser, the averaged weights and the order of its rows."""

    def __init__(self, flow: Flow, loss: Loss, train: Rows, options: Options) -> None:
        self.flow, self.loss, self.train = flow, loss, train
        self.optimizer = torch.optim.AdamW(
            flow.parameters(), options.learning_rate, weight_decay=options.weight_decay, fused=True
        )
        self.rate = options.learning_rate
        self.scale = 1.0 if train.weight is None else 1 / float(train.weight.mean())
        self.average = Average(flow, 0.99)
        self.order = batches(len(train), options.batch_size, torch.Generator().manual_seed(options.seed))
        self.noise = torch.Generator(flow.device).manual_seed(options.seed + 1)
        self.done = 0
        self.bad = torch.zeros((), device=flow.device)  # steps whose gradient was not finite

    def mean_loss(self, rows: Rows, prepared: Prepared) -> Tensor:
        """The loss of a training step."""
        return self.scale * rows.weighted(self.loss(self.flow, rows, self.noise, prepared)).mean()

    def step(self, factor: float) -> None:
        """One step of the optimiser, at a share of the highest learning rate."""
        if not self.flow.training:
            self.flow.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * factor
        rows = self.train.take(next(self.order).to(self.train.x.device))
        self.done += 1
        norm = training_step(
            self.flow,
            [partial(self.mean_loss, rows)],
            self.optimizer,
            limit=10.0,
            average=self.average,
            number=self.done,
        )
        self.bad += skipped(norm)

    def restart(self, state: Mapping[str, Tensor] | None = None) -> None:
        """Go on from these weights, or from the averaged ones."""
        self.flow.load_state_dict(self.state() if state is None else state)
        self.average.restart(self.flow)

    def follow(self, path: Sequence[float | None]) -> None:
        """Steps at these shares of the learning rate; None stands for a restart from the averaged weights."""
        for factor in path:
            self.restart() if factor is None else self.step(factor)

    def score(self, rows: Rows) -> float:
        """The mean loss of the averaged weights."""
        with self.average.swapped_in(self.flow):
            score = mean_loss(self.flow, self.loss, rows)
        if score != score or bool(self.bad):
            raise NonFiniteError("The loss became NaN; use a smaller learning_rate.")
        return score

    def state(self) -> dict[str, Tensor]:
        with self.average.swapped_in(self.flow):
            return copy.deepcopy(self.flow.state_dict())


@dataclass(frozen=True)
class Fitted:
    """The result of a fit: the held-out loss over steps, starting before the first one, and how the fit ended."""

    history: list[tuple[int, float]]
    best: int  # the step whose weights were taken
    interrupted: bool = False
    converged: bool = True  # held-out rows had stopped gaining
    held_out: Tensor | None = None  # the loss of each row that was held out, by a flow that was not trained on it


def fit(flow: Flow, loss: Loss, rows: Rows, splits: Sequence[tuple[Flow, Rows, Rows]], options: Options) -> Fitted:
    """Train the flow on the rows for as many steps as (copy of it, training, held-out rows) gain from on held-out rows.

    With one split, the copy that was best is taken as it is. With several, the flow is trained on all rows along the path that
    led to the best. Without any, all steps are taken. The copies are left as they were where it was best. An interrupt ends
    the training; what was best so far is taken, if it is better than the start.
    """
    if not splits:
        return _fit_all(flow, loss, rows, options)
    runs = [(Training(copied, loss, train, options), held_out) for copied, train, held_out in splits]
    total = sum(len(held_out) for _, held_out in runs)

    def score() -> float:
        return sum(run.score(held_out) * len(held_out) for run, held_out in runs) / total

    share = 1.0 if len(runs) == 1 else len(runs) / (len(runs) + 1)  # of the time; then the flow is trained on all rows
    clock = Clock(options.max_iter, None if options.max_time is None else share * options.max_time)
    every = min(max(10, min(-(-len(rows) // options.batch_size), options.max_iter // 10)), options.max_iter)
    history = [(0, score())]
    best_step, best, states = 0, history[0][1], [run.state() for run, _ in runs]
    path, best_path = list[float | None](), 0  # what led to the weights as they are; how much of it led to the best
    step = 0
    try:
        while not clock.over:
            for _ in range(every):
                path.append(clock.tick())
                for run, _ in runs:
                    run.step(path[-1] or 0.0)
                step += 1
                if clock.over:
                    break
            history.append((step, score()))
            options.report(*history[-1])
            if history[-1][1] < best - options.tol:
                best_step, best, states, best_path = step, history[-1][1], [run.state() for run, _ in runs], len(path)
                waited = 0
            else:
                waited = sum(1 for s, _ in history if s > best_step)
            if waited and waited % options.patience == 0 and not clock.over:
                clock.jump()
                path = [*path[:best_path], None]
                for (run, _), state in zip(runs, states, strict=True):
                    run.restart(state)
        interrupted = False
    except KeyboardInterrupt:
        interrupted = True
        if best_step == 0 or len(runs) > 1:
            raise  # nothing was gained yet, or the flow itself would still have to be trained
    finally:
        for (run, _), state in zip(runs, states, strict=True):
            run.flow.load_state_dict(state)
    for run, _ in runs:
        run.flow.points = flow.points
    found = torch.cat([losses(run.flow, loss, held_out) for run, held_out in runs])
    if len(runs) == 1:
        flow.load_state_dict(states[0])
    else:
        training = Training(flow, loss, rows, options)
        training.follow(path[:best_path])
        flow.load_state_dict(training.state())
    flow.eval()
    return Fitted(history, best_step, interrupted, clock.jumped or settled(history, best), found)


def settled(history: Sequence[tuple[int, float]], best: float) -> bool:
    """Whether the last third of the steps brought little: less than a twentieth of all that was gained, or 0.01 nats."""
    first, last = history[0][1], history[-1][0]
    before = min(score for step, score in history if step <= 2 * last / 3)
    return before - best <= max(0.01, 0.05 * (first - best))


def _fit_all(flow: Flow, loss: Loss, rows: Rows, options: Options) -> Fitted:
    """All steps, on all rows."""
    training, clock = Training(flow, loss, rows, options), Clock(options.max_iter, options.max_time)
    history = [(0, mean_loss(flow, loss, rows))]
    interrupted = False
    try:
        while options.max_iter and not clock.over:
            training.step(clock.tick())
    except KeyboardInterrupt:
        if training.done == 0:
            raise
        interrupted = True
    if training.done:
        history.append((training.done, training.score(rows)))
    flow.load_state_dict(training.state())
    flow.eval()
    return Fitted(history, training.done, interrupted)
