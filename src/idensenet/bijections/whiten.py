"""The linear map that makes data uncorrelated with deviation one: a Gaussian's own normalising flow."""

from __future__ import annotations

import torch
from torch import Tensor

from idensenet.bijections.base import Bijection, Call, check_event, constant_log_det
from idensenet.lipschitz.certificate import OperatorNorms


def shrinkage(x: Tensor) -> Tensor:
    """How far to move the covariance of centred rows towards a multiple of the identity (Ledoit and Wolf, 2004)."""
    n, dims = x.shape
    covariance = x.T @ x / n
    target = covariance.diagonal().mean() * torch.eye(dims, dtype=x.dtype, device=x.device)
    distance = (covariance - target).square().sum()
    noise = (x.square().sum(1).square().mean() - covariance.square().sum()) / n
    return torch.where(distance > 0, torch.minimum(noise, distance) / distance, torch.ones_like(distance))


class Whiten(Bijection):
    """y = W (x - loc), with W from `fit`; the identity before that."""

    loc: Tensor
    weight: Tensor

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dims = dims
        self.register_buffer("loc", torch.zeros(dims))
        self.register_buffer("weight", torch.eye(dims))

    @torch.no_grad()
    def fit(self, data: Tensor) -> None:
        """From rows of data: each column by its deviation, then the correlation, shrunk as far as its noise asks for.

        A constant column is only shifted. Computed in float64, since correlations are lost in less.
        """
        x = data.double()
        loc, deviation = x.mean(0), x.std(0, unbiased=False)
        constant = deviation == 0
        deviation = torch.where(constant, 1.0, deviation)
        x = (x - loc) / deviation
        weight = shrinkage(x)
        correlation = (1 - weight) * (x.T @ x / len(x) + constant.diag())
        correlation += weight * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        values, vectors = torch.linalg.eigh(correlation)
        self.loc.copy_(loc)
        self.weight.copy_((vectors * values.clamp(min=1e-12).rsqrt()) @ vectors.T / deviation)

    def _log_det(self, x: Tensor) -> Tensor:
        check_event(x, tuple(self.loc.shape), "This whitening")
        return constant_log_det(x, torch.linalg.slogdet(self.weight).logabsdet)

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        log_det = self._log_det(x)
        return (x - self.loc) @ self.weight.T, log_det

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        log_det = self._log_det(y)
        x: Tensor = torch.linalg.solve(self.weight, y.T).T + self.loc
        return x, -log_det

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        """From the induced norms of the matrix and of its inverse."""
        order = {1.0: 1, 2.0: 2}.get(norms.norm, torch.inf)
        weight = self.weight.double()
        up, down = (float(torch.linalg.matrix_norm(m, order)) for m in (weight, torch.linalg.inv(weight)))
        return 1 / (down * (1 + 1e-9)), up * (1 + 1e-9)
