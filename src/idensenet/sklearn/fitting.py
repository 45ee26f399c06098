"""Fitting a flow to the rows of a table: from a Gaussian on, with Adam, averaged weights and early stopping."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from idensenet.config import Config
from idensenet.errors import NonFiniteError
from idensenet.flow import Flow
from idensenet.lipschitz import LipschitzMap
from idensenet.lipschitz.conditional import ConditionalNetwork
from idensenet.models import build_config
from idensenet.training.averaging import Average
from idensenet.training.clipping import clip

START = 0.05  # of the closing weights of every block: the flow starts near the identity
_building = threading.Lock()  # weights come from torch's own generator, which all threads share


def new_flow(config: Config, seed: int, dtype: torch.dtype, device: torch.device) -> Flow:
    """A flow near the identity."""
    with _building, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        flow = build_config(config)
    with torch.no_grad():
        for _, block in flow.named_blocks():
            g = block.g.inner if isinstance(block.g, ConditionalNetwork) else block.g
            closing = g.layers[-1]
            assert isinstance(closing, LipschitzMap)
            closing.weight.mul_(START)
            closing.bias.zero_()
    return flow.to(device, dtype)


@dataclass(frozen=True)
class Rows:
    """Samples, and what belongs to them."""

    x: Tensor
    context: Tensor | None = None
    y: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> Rows:
        return Rows(*[None if part is None else part[index] for part in (self.x, self.context, self.y)])  # type: ignore[arg-type]


Loss = Callable[[Flow, Rows, torch.Generator | None], Tensor]
"""The loss of each row, [rows]; noise comes from the generator, or from the rows themselves where there is none."""


@dataclass(frozen=True)
class Options:
    learning_rate: float
    weight_decay: float
    max_iter: int
    batch_size: int
    patience: int  # evaluations without progress
    tol: float
    seed: int
    report: Callable[[int, float], None] = field(default=lambda step, score: None)


def batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Every epoch a fresh permutation, without an end; a last batch of less than half the size is left out."""
    size = min(size, n)
    while True:
        order = torch.randperm(n, generator=generator)
        for part in torch.split(order, size):
            if 2 * len(part) > size:
                yield part


def mean_loss(flow: Flow, loss: Loss, rows: Rows, size: int = 1000) -> float:
    with torch.no_grad(), evaluation(flow):
        parts = [
            loss(flow, rows.take(index), None) for index in torch.split(torch.arange(len(rows), device=rows.x.device), size)
        ]
        return float(torch.cat(parts).mean())


@contextmanager
def evaluation(flow: Flow) -> Iterator[None]:
    was = flow.training
    flow.eval()
    try:
        yield
    finally:
        flow.train(was)


def fit(flow: Flow, loss: Loss, train: Rows, held_out: Rows | None, options: Options) -> list[tuple[int, float]]:
    """Train the flow and leave it with its best averaged weights, by the loss on held-out rows (on its own, if there are none).

    Returns (step, loss) of every evaluation; the first is that of the flow as it came.
    """
    parameters = list(flow.parameters())
    optimizer = torch.optim.AdamW(parameters, options.learning_rate, weight_decay=options.weight_decay)
    average = Average(flow, 0.99)
    generator = torch.Generator().manual_seed(options.seed)
    order = batches(len(train), options.batch_size, generator)
    every = min(max(10, -(-len(train) // options.batch_size)), max(1, options.max_iter))
    judged = held_out or train
    best, best_step = mean_loss(flow, loss, judged), 0
    best_state, history = copy.deepcopy(flow.state_dict()), [(0, best)]
    noise = torch.Generator(flow.device).manual_seed(options.seed + 1)
    for step in range(1, options.max_iter + 1):
        flow.train()
        optimizer.zero_grad()
        value = loss(flow, train.take(next(order).to(train.x.device)), noise).mean()
        value.backward()  # type: ignore[no-untyped-call]
        clip(parameters, 10.0)
        optimizer.step()
        average.update(parameters, step)
        if step % every and step != options.max_iter:
            continue
        with average.swapped_in(flow):
            score = mean_loss(flow, loss, judged)
            if score < best - options.tol:
                best, best_step, best_state = score, step, copy.deepcopy(flow.state_dict())
        if score != score:
            raise NonFiniteError("The loss became NaN; use a smaller learning_rate.")
        history.append((step, score))
        options.report(step, score)
        if step - best_step >= options.patience * every:
            break
    flow.load_state_dict(best_state)
    flow.eval()
    return history
