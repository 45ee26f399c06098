"""How exact single scores are: log-determinants from more probes, until their standard error is small, or without any.

A mean over a data set averages the noise of its probes away; a single score does not. Each further draw of the probes is a
function of the content of the sample and the number of the draw, so a score stays a function of the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from idensenet.errors import OptionError
from idensenet.flow import Flow
from idensenet.logdet import ExactLogDet

EXACT_DIMS = 128  # up to which the whole Jacobian costs less than the probes that a single score needs
MOST = 256  # draws for a target error
LEAST = 8  # draws from which a standard error can be estimated
PILOT = 32  # samples that show what one draw is worth
SHARE = 0.1  # of the spread of scores, for the error of a single one


@dataclass(frozen=True)
class Probing:
    """How many draws a score is the mean of: `draws`, or as many as an `error` in nats takes.

    `known` is the standard error of one draw where it is known beforehand.
    """

    draws: int = 1
    error: float | None = None
    known: float | None = None

    def __post_init__(self) -> None:
        if self.draws < 1 or (self.error is not None and not 0 < self.error < math.inf):
            raise OptionError(f"--probes {self.draws} must be at least 1, and --error {self.error} positive.")


def is_exact(flow: Flow) -> bool:
    """Whether its log-determinants have no noise."""
    return all(isinstance(stack.eval_log_det, ExactLogDet) for stack in flow.stacks())


@contextmanager
def exact_if_small(flow: Flow) -> Iterator[None]:
    """Inside, log-determinants of few dimensions are exact."""
    before = [(stack, stack.eval_log_det) for stack in flow.stacks()] if flow.dims <= EXACT_DIMS else []
    for stack, _ in before:
        stack.eval_log_det = ExactLogDet()
    try:
        yield
    finally:
        for stack, method in before:
            stack.eval_log_det = method


def averaged(flow: Flow, x: Tensor, context: Tensor | None, first: Tensor, probing: Probing) -> tuple[Tensor, Tensor]:
    """The log-determinants as means of draws, of which `first` is the first, and their standard errors; NaN if not known."""
    if is_exact(flow):
        return first, torch.zeros_like(first)
    mean = first.double()
    squares, count = torch.zeros_like(mean), torch.ones_like(mean)
    for number in range(1, probing.draws if probing.error is None else MOST):
        running = torch.arange(len(x), device=x.device) if probing.error is None else _unsure(squares, count, probing.error)
        if len(running) == 0:
            break
        given = context if context is None or len(context) != len(x) else context[running]
        value = flow.log_prob_terms(x[running], context=given, draw=number)["log_det"].double()
        count[running] += 1
        step = value - mean[running]
        mean[running] += step / count[running]
        squares[running] += step * (value - mean[running])
    error = standard_error(squares, count)
    if probing.known is not None and probing.draws < LEAST:
        error = probing.known / count.sqrt()
    return mean.to(first.dtype), error.to(first.dtype)


def standard_error(squares: Tensor, count: Tensor) -> Tensor:
    """Of a mean of `count` draws whose squared deviations add up to `squares`; NaN for one draw."""
    return (squares / (count - 1) / count).sqrt()


def _unsure(squares: Tensor, count: Tensor, target: float) -> Tensor:
    """Samples whose standard error is not below the target, its own uncertainty included."""
    error = standard_error(squares, count) * (1 + 1 / (2 * (count - 1)).sqrt())
    return ((count < LEAST) | ~(error <= target)).nonzero().flatten()


def deviation(flow: Flow, x: Tensor, context: Tensor | None) -> float:
    """The standard error of a single draw, from a few samples."""
    if is_exact(flow):
        return 0.0
    first = flow.log_prob_terms(x, context=context)["log_det"]
    _, error = averaged(flow, x, context, first, Probing(LEAST))
    return float(error.double().square().mean().mul(LEAST).sqrt())


def for_single_scores(one: float, spread: float) -> Probing:
    """As many draws as bring the error of a score to a small share of the spread of scores, if one draw has the error `one`."""
    if not math.isfinite(spread) or spread <= 0:
        return Probing(known=one)
    return Probing(min(MOST, max(1, math.ceil((one / (SHARE * spread)) ** 2))), known=one)
