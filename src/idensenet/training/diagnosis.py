"""What went wrong where gradients are not finite any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from idensenet.draws import Draws
from idensenet.errors import NonFiniteError
from idensenet.flow import Flow
from idensenet.logdet import Estimate, LogDet, PowerSeries
from idensenet.logdet.base import Linearizable
from idensenet.precision import EXACT, Precision


class Watching(LogDet):
    """Another estimator that notes by name which blocks of a stack return NaN or infinity."""

    def __init__(self, inner: LogDet, names: Sequence[str], found: list[str]) -> None:
        self.inner, self.names, self.found = inner, iter(names), found

    def measure(self, g: Linearizable, x: Tensor, draws: Draws, f: PowerSeries, save: bool = False) -> tuple[Tensor, Tensor]:
        name = next(self.names)
        gx, values = self.inner.measure(g, x, draws, f, save)
        if not all(bool(torch.isfinite(each).all()) for each in (gx, values)):
            self.found.append(name)
        return gx, values

    def total(self, found: Tensor, f: PowerSeries) -> Estimate:
        return self.inner.total(found, f)


@contextmanager
def watched(flow: Flow) -> Iterator[list[str]]:
    """The names of the blocks whose values or log-determinants are not finite in the one pass that is made inside."""
    found: list[str] = []
    named = flow.named_blocks()
    kept = [(stack, stack.log_det, stack.eval_log_det) for stack in flow.stacks()]
    for stack, inner, evaluating in kept:
        names = [name for name, other, _ in named if other is stack]
        stack.log_det, stack.eval_log_det = Watching(inner, names, found), Watching(evaluating, names, found)
    try:
        yield found
    finally:
        for stack, inner, evaluating in kept:
            stack.log_det, stack.eval_log_det = inner, evaluating


@torch.no_grad()
def diagnosis(
    flow: Flow, x: Tensor, generator: torch.Generator, context: Tensor | None = None, precision: Precision = EXACT
) -> str:
    """The end of a sentence: which parameter is not finite, or which block is the first to produce what is not a number."""
    for name, parameter in flow.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"were skipped: the parameter {name} is not finite; resume from an earlier step."
    with watched(flow) as found:
        try:
            flow.log_prob(x, generator, context=context, prepared=flow.prepare(precision))
            place = f"block {found[0]}" if found else "the objective"
        except NonFiniteError as error:
            place = f"the data ({error})"
    return f"had a gradient that is not finite; the first to produce NaN or infinity is {place}."
