"""Bijections in zuko's flows (`pip install 'idensenet[zuko]'`)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.distributions import Transform

from idensenet.bijections import Bijection
from idensenet.distributions import BijectionTransform
from idensenet.extras import needs

with needs("idensenet.zuko"):
    from zuko.lazy import LazyTransform


class LazyBijection(LazyTransform):  # type: ignore[misc]
    """A bijection, or a whole flow's body, as one of the transforms of a `zuko.lazy.Flow`; a context is handed on to it."""

    def __init__(self, bijection: Bijection, event_shape: Sequence[int]) -> None:
        super().__init__()
        self.bijection, self.event_shape = bijection, tuple(event_shape)

    def forward(self, c: Tensor | None = None) -> Transform:
        return BijectionTransform(self.bijection, self.event_shape, c)
