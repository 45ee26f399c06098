"""A shift and a scale of each dimension that depend on the context."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from idensenet.bijections.base import Bijection, Call, sum_event
from idensenet.errors import OptionError
from idensenet.lipschitz.certificate import OperatorNorms
from idensenet.lipschitz.conditional import Embedding

LIMIT = 5.0  # of the logarithm of a scale


class ConditionalAffine(Bijection):
    """y = (x - loc(c)) exp(-s(c)) with |s| <= LIMIT; the identity at first."""

    def __init__(self, dims: int, context: int, width: int) -> None:
        super().__init__()
        self.dims, self.context, self.width = dims, context, width
        self.net = Embedding(context, width, 2 * dims)
        nn.init.zeros_(self.net.weights[1])
        nn.init.zeros_(self.net.biases[1])

    def _parts(self, call: Call) -> tuple[Tensor, Tensor]:
        if call.context is None:
            raise OptionError("This flow is conditional: give it a context for each sample.")
        loc, scale = self.net(call.context)[0].chunk(2, 1)
        return loc, LIMIT * torch.tanh(scale / LIMIT)

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        loc, log_scale = self._parts(call)
        return (x - loc) * torch.exp(-log_scale), -sum_event(log_scale)

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        loc, log_scale = self._parts(call)
        return y * torch.exp(log_scale) + loc, sum_event(log_scale)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        return math.exp(-LIMIT), math.exp(LIMIT)
