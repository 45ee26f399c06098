"""Bijections one after the other, and a bijection backwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from idensenet.bijections.base import Bijection, no_log_det
from idensenet.bijections.whole import whole
from idensenet.draws import Draws, default_draws
from idensenet.lipschitz.certificate import OperatorNorms
from idensenet.lipschitz.linear import fresh_norms


def given(part: Bijection, context: Tensor | None) -> dict[str, Tensor | None]:
    """The context, for a part that takes one."""
    return {"context": context} if context is not None and part.conditional else {}


class Chain(Bijection):
    """The parts in order; their log-determinants add up. `compiled` makes one function of them where that can be done."""

    def __init__(self, parts: Sequence[Bijection]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.compiled = False

    def __iter__(self) -> Iterator[Bijection]:
        return iter(self.parts)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def conditional(self) -> bool:
        return any(part.conditional for part in self)

    def forward(self, x: Tensor, draws: Draws | None = None, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if self.compiled:
            with fresh_norms(self):
                found = whole(self, x, draws)
            if found is not None:
                return found
        total, draws = no_log_det(x), draws or default_draws(x, self.training)
        for i, part in enumerate(self):
            x, log_det = part(x, draws.fold(i), **given(part, context))
            total = total + log_det
        return x, total

    def inverse(self, y: Tensor, draws: Draws | None = None, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total, draws = no_log_det(y), draws or default_draws(y, self.training)
        for i, part in reversed(list(enumerate(self))):
            y, log_det = part.inverse(y, draws.fold(i), **given(part, context))
            total = total + log_det
        return y, total

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        for part in self:
            x = part.encode(x, **given(part, context))
        return x

    def decode(self, y: Tensor, context: Tensor | None = None) -> Tensor:
        for part in reversed(list(self)):
            y = part.decode(y, **given(part, context))
        return y

    def initialize(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        for part in self:
            x = part.initialize(x, **given(part, context))
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

    @property
    def conditional(self) -> bool:
        return self.inner.conditional

    def forward(self, x: Tensor, draws: Draws | None = None, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.inner.inverse(x, draws, **given(self.inner, context))

    def inverse(self, y: Tensor, draws: Draws | None = None, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        value, log_det = self.inner(y, draws, **given(self.inner, context))
        return value, log_det

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return self.inner.decode(x, **given(self.inner, context))

    def decode(self, y: Tensor, context: Tensor | None = None) -> Tensor:
        return self.inner.encode(y, **given(self.inner, context))

    def initialize(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return self.encode(x, context)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        a, b = self.inner.bi_lipschitz(norms)
        return (1 / b if b else float("inf")), (1 / a if a else float("inf"))
