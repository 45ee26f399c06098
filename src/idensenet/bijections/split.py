"""Factoring out: half of the channels are done, the other half goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from idensenet.bijections.base import Bijection, Call, check_event
from idensenet.errors import ShapeError
from idensenet.lipschitz.certificate import OperatorNorms
from idensenet.precision import Precision


class Split(Bijection):
    """[first half ; rest] -> [first half, rest(second half)], flattened into one vector (Dinh et al., 2017).

    Args:
        shape: Shape of an event, channels first.
        rest: The bijection of the second half.

    Raises:
        ShapeError: There is one channel only.
    """

    def __init__(self, shape: Sequence[int], rest: Bijection) -> None:
        super().__init__()
        if shape[0] < 2:
            raise ShapeError(f"Half of the channels cannot be factored out of {shape[0]}; the shape is {tuple(shape)}.")
        self.shape, self.rest = tuple(shape), rest
        self.kept = shape[0] // 2
        self._rest_shape: tuple[int, ...] | None = None

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_event(x, self.shape, "This split")
        return x[:, : self.kept], x[:, self.kept :]

    def _join(self, done: Tensor, rest: Tensor) -> Tensor:
        return torch.cat([done.flatten(1), rest.flatten(1)], 1)

    def _latent_parts(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        total = math.prod(self.shape)
        check_event(y, (total,), "Undoing this split")
        done = total // self.shape[0] * self.kept
        return y[:, :done].view(-1, self.kept, *self.shape[1:]), y[:, done:].view(len(y), *self._latent_shape(y, call))

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
        done, going = self._parts(x)
        going, log_det = self.rest.push(going, call)
        return self._join(done, going), log_det

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        done, going = self._latent_parts(y, call)
        going, log_det = self.rest.pull(going, call)
        return torch.cat([done, going], 1), log_det

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        a, b = self.rest.bi_lipschitz(norms)
        return min(1.0, a), max(1.0, b)
