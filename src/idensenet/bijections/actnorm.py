"""Scale and shift per channel or per dimension, first set so that a batch comes out standardised."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from idensenet.bijections.base import Bijection, constant_log_det
from idensenet.draws import Draws
from idensenet.errors import ShapeError, UninitializedError
from idensenet.lipschitz.certificate import OperatorNorms


class _Affine(torch.autograd.Function):
    """exp(log_scale) * (x + shift), keeping what comes out, which what follows keeps as well, and not what went in."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, log_scale: Tensor, shift: Tensor) -> Tensor:
        return torch.exp(log_scale) * (x + shift)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(output, inputs[1])
        ctx.save_for_forward(output, inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        y, log_scale = ctx.saved_tensors
        grad_x = grads[0] * torch.exp(log_scale)
        return grad_x, (grads[0] * y).sum_to_size(log_scale.shape), grad_x.sum_to_size(log_scale.shape)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        x, log_scale, shift = tangents
        y, scale = ctx.saved_tensors[0], torch.exp(ctx.saved_tensors[1])
        found = torch.zeros_like(y)
        for term in (x, shift):
            found = found if term is None else found + scale * term
        return found if log_scale is None else found + y * log_scale


class ActNorm(Bijection):
    """y = exp(log_scale) * (x + shift), per channel of [batch, channels, ...] (Kingma and Dhariwal, 2018).

    The state says whether it has been initialised, so one that was loaded is never initialised again.
    """

    initialized: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(channels))
        self.shift = nn.Parameter(torch.zeros(channels))
        self.register_buffer("initialized", torch.tensor(False))
        self._ready = False  # remembers a yes, which never turns into a no, so that no call waits for the device

    def _spread(self, parameter: Tensor, x: Tensor) -> Tensor:
        if not (self._ready or bool(self.initialized)):
            raise UninitializedError(
                "An ActNorm has seen no data yet: call flow.initialize(batch) with a batch of training data first."
            )
        self._ready = True
        self._check(x)
        return parameter.view(1, -1, *[1] * (x.ndim - 2))

    def _check(self, x: Tensor) -> None:
        if x.ndim < 2 or x.shape[1] != len(self.shift):
            raise ShapeError(f"This ActNorm takes {len(self.shift)} channels, not a tensor of shape {tuple(x.shape)}.")

    def _log_det(self, x: Tensor) -> Tensor:
        return constant_log_det(x, self.log_scale.sum() * (math.prod(x.shape[1:]) // len(self.log_scale)))

    def initialize(self, x: Tensor) -> Tensor:
        if not bool(self.initialized):
            self._check(x)
            if x.numel() == 0:
                raise ShapeError(f"An ActNorm learns nothing from an empty batch, {tuple(x.shape)}; initialize with data.")
            with torch.no_grad():
                rows = x.transpose(0, 1).flatten(1)
                std = rows.std(1, unbiased=False)
                # a channel that is constant in the batch keeps its scale
                self.log_scale.copy_(-torch.log(torch.where(std > 1e-6, std, torch.ones_like(std))))
                self.shift.copy_(-rows.mean(1))
                self.initialized.fill_(True)
        return self.encode(x)

    def forward(self, x: Tensor, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        y: Tensor = _Affine.apply(x, self._spread(self.log_scale, x), self._spread(self.shift, x))  # type: ignore[no-untyped-call]
        return y, self._log_det(x)

    def inverse(self, y: Tensor, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        return y * torch.exp(-self._spread(self.log_scale, y)) - self._spread(self.shift, y), -self._log_det(y)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        scale = torch.exp(self.log_scale.detach().double())
        return float(scale.min()), float(scale.max())

    def _load_from_state_dict(self, *args: object) -> None:
        self._ready = False
        super()._load_from_state_dict(*args)
