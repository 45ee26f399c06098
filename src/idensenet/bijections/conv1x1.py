"""An invertible matrix across channels, the same at every place (Kingma and Dhariwal, 2018)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from idensenet.bijections.base import Bijection, Call, constant_log_det
from idensenet.errors import NonInvertibleError, ShapeError
from idensenet.lipschitz.certificate import OperatorNorms


class InvertibleConv1x1(Bijection):
    """y = W x over channels.

    Args:
        channels: Number of channels.
        whiten: Start from data: the first batch that `initialize` sees comes out with uncorrelated channels of deviation one.
            Otherwise W starts as a random rotation (Kingma and Dhariwal, 2018).
    """

    initialized: Tensor

    def __init__(self, channels: int, whiten: bool = False) -> None:
        super().__init__()
        self.channels, self.whiten = channels, whiten
        start = torch.eye(channels) if whiten else torch.linalg.qr(torch.randn(channels, channels))[0]
        self.weight = nn.Parameter(start)
        self.register_buffer("initialized", torch.tensor(not whiten))

    @torch.no_grad()
    def _learn(self, x: Tensor) -> None:
        rows = x.transpose(0, 1).flatten(1).double()
        rows = rows - rows.mean(1, keepdim=True)
        values, vectors = torch.linalg.eigh(rows @ rows.T / rows.shape[1])
        floor = 1e-6 * values[-1].clamp(min=1e-12)  # a direction without any spread keeps a finite scale
        self.weight.copy_((vectors * values.clamp(min=float(floor)).rsqrt()) @ vectors.T)
        self.initialized.fill_(True)

    def _mix(self, weight: Tensor, x: Tensor) -> Tensor:
        if x.shape[1] != len(weight):
            raise ShapeError(f"This 1x1 convolution takes {len(weight)} channels, not a tensor of shape {tuple(x.shape)}.")
        return torch.einsum("ij,nj...->ni...", weight, x)

    def _log_det(self, x: Tensor) -> Tensor:
        return constant_log_det(x, torch.linalg.slogdet(self.weight).logabsdet * (math.prod(x.shape[1:]) // len(self.weight)))

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        if call.learn and not bool(self.initialized):
            self._learn(x)
        return self._mix(self.weight, x), self._log_det(x)

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        inverse, info = torch.linalg.inv_ex(self.weight)
        if int(info):
            raise NonInvertibleError("The matrix of a 1x1 convolution has become singular; go back to an earlier checkpoint.")
        return self._mix(inverse, y), -self._log_det(y)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        weight = self.weight.detach().double()
        upper = float(torch.linalg.matrix_norm(weight, norms.norm))
        inverse, info = torch.linalg.inv_ex(weight)
        return (0.0 if int(info) else 1 / float(torch.linalg.matrix_norm(inverse, norms.norm))), upper
