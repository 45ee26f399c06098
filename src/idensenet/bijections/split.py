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
    """[first half ; rest] -> [first half, rest(second half)], flattened into one vector (Dinh et al., 2017)."""

    def __init__(self, shape: Sequence[int], rest: Bijection) -> None:
        super().__init__()
        if shape[0] < 2:
            raise ShapeError(f"Half of the channels cannot be factored out of {shape[0]}; the shape is {tuple(shape)}.")
        self.shape, self.rest = tuple(shape), rest
        self.kept = shape[0] // 2
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
        going, log_det = self.rest.push(x[:, self.kept :], call)
        return torch.cat([x[:, : self.kept].flatten(1), going.flatten(1)], 1), log_det

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        total = math.prod(self.shape)
        check_event(y, (total,), "Undoing this split")
        done, going = torch.tensor_split(y, [total // self.shape[0] * self.kept], 1)
        going, log_det = self.rest.pull(going.view(len(y), *self._latent_shape(y, call)), call)
        return torch.cat([done.view(-1, self.kept, *self.shape[1:]), going], 1), log_det

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        a, b = self.rest.bi_lipschitz(norms)
        return min(1.0, a), max(1.0, b)
