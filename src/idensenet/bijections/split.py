"""Factoring out: half of the channels are done, the other half goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from idensenet.bijections.base import Bijection, Call, check_event, sum_event
from idensenet.errors import ShapeError
from idensenet.lipschitz.certificate import OperatorNorms
from idensenet.precision import Precision

LIMIT = 5.0  # of the logarithm of a scale


class Split(Bijection):
    """[first half ; rest] -> [first half, rest(second half)], flattened into one vector (Dinh et al., 2017).

    With `conditional`, the first half is standardised by a mean and a scale that are functions of the second half: it is a
    Gaussian given the second half, and not a standard one (Kingma and Dhariwal, 2018).

    Args:
        shape: Shape of an event, channels first.
        rest: The bijection of the second half.
        conditional: Whether the first half is a Gaussian given the second.

    Raises:
        ShapeError: There is one channel only.
    """

    def __init__(self, shape: Sequence[int], rest: Bijection, conditional: bool = False) -> None:
        super().__init__()
        if shape[0] < 2:
            raise ShapeError(f"Half of the channels cannot be factored out of {shape[0]}; the shape is {tuple(shape)}.")
        self.shape, self.rest = tuple(shape), rest
        self.kept, self.conditional = shape[0] // 2, conditional
        self.net = _net(shape[0] - self.kept, 2 * self.kept, len(shape) == 3) if conditional else None
        self._rest_shape: tuple[int, ...] | None = None

    def _latent_shape(self, like: Tensor, call: Call) -> tuple[int, ...]:
        """The shape in which `rest` leaves its half, found by sending one sample through it."""
        if self._rest_shape is None:
            with torch.no_grad():
                sample = like.new_zeros(1, self.shape[0] - self.kept, *self.shape[1:])
                some = None if call.context is None else call.context.new_zeros(1, *call.context.shape[1:])
                one = Call(call.draws, call.prepared, some, log_det=False)
                self._rest_shape = tuple(self.rest.push(sample, one)[0].shape[1:])
        return self._rest_shape

    def prepared(self, precision: Precision) -> Any:
        return self.rest.prepared(precision)

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        check_event(x, self.shape, "This split")
        done, going = x[:, : self.kept], x[:, self.kept :]
        loc, log_scale = self._gaussian(going)
        going, log_det = self.rest.push(going, call)
        done = (done - loc) * torch.exp(-log_scale)
        return torch.cat([done.flatten(1), going.flatten(1)], 1), log_det - sum_event(log_scale.expand_as(done))

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        total = math.prod(self.shape)
        check_event(y, (total,), "Undoing this split")
        done, going = torch.tensor_split(y, [total // self.shape[0] * self.kept], 1)
        going, log_det = self.rest.pull(going.view(len(y), *self._latent_shape(y, call)), call)
        loc, log_scale = self._gaussian(going)
        done = done.view(-1, self.kept, *self.shape[1:]) * torch.exp(log_scale) + loc
        return torch.cat([done, going], 1), log_det + sum_event(log_scale.expand_as(done))

    def _gaussian(self, going: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the scale of the first half, given the second."""
        if self.net is None:
            return going.new_zeros(()), going.new_zeros(())
        loc, log_scale = self.net(going).chunk(2, 1)
        return loc, LIMIT * torch.tanh(log_scale / LIMIT)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        if self.conditional:
            return 0.0, math.inf  # nothing bounds the network
        a, b = self.rest.bi_lipschitz(norms)
        return min(1.0, a), max(1.0, b)


def _net(inputs: int, outputs: int, images: bool) -> nn.Module:
    """A 3x3 convolution or a matrix, zero at first."""
    net = nn.Conv2d(inputs, outputs, 3, padding=1) if images else nn.Linear(inputs, outputs)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    return net
