"""Bijections one after the other, and a bijection backwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from idensenet.bijections.base import Bijection, no_log_det
from idensenet.draws import Draws
from idensenet.lipschitz.certificate import OperatorNorms


class Chain(Bijection):
    """The parts in order; their log-determinants add up."""

    def __init__(self, parts: Sequence[Bijection]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def __iter__(self) -> Iterator[Bijection]:
        return iter(self.parts)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.parts)

    def forward(self, x: Tensor, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        total = no_log_det(x)
        for i, part in enumerate(self):
            x, log_det = part(x, draws.fold(i) if draws else None)
            total = total + log_det
        return x, total

    def inverse(self, y: Tensor, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        total = no_log_det(y)
        for i in reversed(range(len(self))):
            y, log_det = self.parts[i].inverse(y, draws.fold(i) if draws else None)  # type: ignore[operator]
            total = total + log_det
        return y, total

    def encode(self, x: Tensor) -> Tensor:
        for part in self:
            x = part.encode(x)
        return x

    def decode(self, y: Tensor) -> Tensor:
        for part in reversed(list(self)):
            y = part.decode(y)
        return y

    def initialize(self, x: Tensor) -> Tensor:
        for part in self:
            x = part.initialize(x)
        return x

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        lower = upper = 1.0
        for part in self:
            a, b = part.bi_lipschitz(norms)
            lower, upper = lower * a, upper * b
        return lower, upper


class Invert(Bijection):
    """The same bijection, the other way round."""

    def __init__(self, inner: Bijection) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        return self.inner.inverse(x, draws)

    def inverse(self, y: Tensor, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        value, log_det = self.inner(y, draws)
        return value, log_det

    def encode(self, x: Tensor) -> Tensor:
        return self.inner.decode(x)

    def decode(self, y: Tensor) -> Tensor:
        return self.inner.encode(y)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        a, b = self.inner.bi_lipschitz(norms)
        return (1 / b if b else float("inf")), (1 / a if a else float("inf"))
