"""A shift and a scale of each dimension that follow the context."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from idensenet.bijections.base import Bijection, sum_event
from idensenet.draws import Draws
from idensenet.errors import OptionError
from idensenet.lipschitz.certificate import OperatorNorms
from idensenet.lipschitz.conditional import embedding

LIMIT = 5.0  # of the logarithm of a scale


class ConditionalAffine(Bijection):
    """y = (x - loc(c)) exp(-s(c)) with |s| <= LIMIT; the identity at first."""

    def __init__(self, dims: int, context: int, width: int) -> None:
        super().__init__()
        self.net = embedding(context, width, 2 * dims)
        last = self.net[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    @property
    def conditional(self) -> bool:
        return True

    def _parts(self, context: Tensor | None) -> tuple[Tensor, Tensor]:
        if context is None:
            raise OptionError("This flow is conditional: give it a context for each sample.")
        loc, scale = self.net(context).chunk(2, 1)
        return loc, LIMIT * torch.tanh(scale / LIMIT)

    def forward(self, x: Tensor, draws: Draws | None = None, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        loc, log_scale = self._parts(context)
        return (x - loc) * torch.exp(-log_scale), -sum_event(log_scale)

    def inverse(self, y: Tensor, draws: Draws | None = None, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        loc, log_scale = self._parts(context)
        return y * torch.exp(log_scale) + loc, sum_event(log_scale)

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return self.forward(x, None, context)[0]

    def decode(self, y: Tensor, context: Tensor | None = None) -> Tensor:
        return self.inverse(y, None, context)[0]

    def initialize(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return self.encode(x, context)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        return math.exp(-LIMIT), math.exp(LIMIT)
