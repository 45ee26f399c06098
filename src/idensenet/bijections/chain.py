"""Bijections one after the other, and a bijection backwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from idensenet.bijections.base import Bijection, Call, no_log_det
from idensenet.lipschitz.certificate import OperatorNorms
from idensenet.precision import Precision


class Chain(Bijection):
    """The parts in order; their log-determinants add up.

    Args:
        parts: Bijections.
    """

    def __init__(self, parts: Sequence[Bijection]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def __iter__(self) -> Iterator[Bijection]:
        return iter(self.parts)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.parts)

    def prepared(self, precision: Precision) -> Any:
        return [part.prepared(precision) for part in self]

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        total = no_log_det(x)
        for i, part in enumerate(self):
            x, log_det = part.push(x, call.part(i))
            total = total + log_det
        return x, total

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        total = no_log_det(y)
        for i, part in reversed(list(enumerate(self))):
            y, log_det = part.pull(y, call.part(i))
            total = total + log_det
        return y, total

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        lower = upper = 1.0
        for part in self:
            a, b = part.bi_lipschitz(norms)
            lower, upper = lower * a, upper * b
        return lower, upper


class Invert(Bijection):
    """The same bijection, the other way round.

    Args:
        inner: The bijection to turn round.
    """

    def __init__(self, inner: Bijection) -> None:
        super().__init__()
        self.inner = inner

    def prepared(self, precision: Precision) -> Any:
        return self.inner.prepared(precision)

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        return self.inner.pull(x, call)

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        return self.inner.push(y, call)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        a, b = self.inner.bi_lipschitz(norms)
        return (1 / b if b else float("inf")), (1 / a if a else float("inf"))
