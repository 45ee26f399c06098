"""The density that a fit starts from: a Gaussian, or a mixture with as many components as held-out rows ask for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from idensenet.flow import Flow
from idensenet.mixture import Mixture
from idensenet.training.rows import Rows

LADDER = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # numbers of components that are tried
PATIENCE = 2  # how many of them may fail to gain before the search ends
SOME = 10_000  # rows to search with
LEAST = 8  # rows for each component

Start = tuple[int, float]  # components, and the rows that the pooled covariance counts for in each
Part = tuple[Flow, Rows, Rows]  # a flow, the rows it trains on and those held out
Encoded = tuple[Tensor, Tensor | None]


def _preprocessed(flow: Flow, x: Tensor) -> Tensor:
    """Rows as the body takes them, with noise on discrete columns, which is another one for equal rows."""
    with torch.no_grad():
        return flow.preprocess.encode(flow.dequantize(x, torch.Generator(flow.device).manual_seed(flow.seed)))


def _encoded(flow: Flow, rows: Rows) -> Encoded:
    return _preprocessed(flow, rows.x[:SOME]), None if rows.weight is None else rows.weight[:SOME]


def _fitted(train: Encoded, start: Start, seed: int) -> Mixture:
    x, weight = train
    mixture = Mixture(start[0], x.shape[1]).to(x.device, torch.float64)
    mixture.fit(x, weight, start[1], generator=torch.Generator(x.device).manual_seed(seed))
    return mixture


def _scores(mixture: Mixture | None, held_out: Encoded) -> Tensor:
    """Log-densities of held-out rows, times their weights."""
    x, weight = held_out[0].double(), held_out[1]
    with torch.no_grad():
        found = -0.5 * (x.square() + math.log(2 * math.pi)).sum(1) if mixture is None else mixture.log_prob(x)
    return found if weight is None else found * weight


def ties(columns: int, rows: int) -> Iterable[float]:
    """How far covariances are pooled: for large tables it does not matter, so only one way is tried."""
    return (float(columns),) if rows >= 100 * columns else (float(columns), 10.0 * columns)


def best_start(splits: Sequence[Part], seed: int) -> Start:
    """The start that held-out rows of all splits like best: more components must gain more than a standard error."""
    parts = [(_encoded(flow, train), _encoded(flow, held_out)) for flow, train, held_out in splits]
    rows, columns = parts[0][0][0].shape

    def scores(start: Start) -> Tensor:
        return torch.cat([_scores(_fitted(train, start, seed), held_out) for train, held_out in parts])

    start, best = (1, 0.0), torch.cat([_scores(None, held_out) for _, held_out in parts])
    for tied in ties(columns, rows):
        failed = 0
        for components in LADDER:
            if failed == PATIENCE or components * LEAST > rows:
                break
            found = scores((components, tied))
            gain = found - best
            if float(gain.mean()) > float(gain.std()) / len(gain) ** 0.5:
                best, start, failed = found, (components, tied), 0
            else:
                failed += 1
    return start


def start_from(flow: Flow, rows: Rows | None, start: Start, seed: int) -> None:
    """Give a flow, whose preprocessing is done, this base; fitted to rows if there are any."""
    assert flow.config is not None
    flow.config = flow.config.replace(components=start[0])
    flow.base = None
    if start[0] > 1:
        flow.base = Mixture(start[0], flow.dims).to(flow.device, flow.dtype)
        if rows is not None:
            flow.base.fit(
                _preprocessed(flow, rows.x), rows.weight, start[1], generator=torch.Generator(flow.device).manual_seed(seed)
            )
