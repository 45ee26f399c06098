"""The linear map that makes data uncorrelated with deviation one: a Gaussian's own normalising flow."""

from __future__ import annotations

import torch
from torch import Tensor

from idensenet.bijections.base import Bijection, Call, check_event, constant_log_det
from idensenet.lipschitz.certificate import OperatorNorms
from idensenet.moments import Moments


def shares(weight: Tensor | None, rows: Tensor) -> Tensor:
    """The share of each row in a mean, [rows, 1], from weights or for rows that all count the same."""
    weight = torch.ones(len(rows), device=rows.device) if weight is None else weight
    return (weight.double() / weight.double().sum())[:, None]


def shrinkage(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """How far to move the covariance of centred rows towards a multiple of the identity (Ledoit and Wolf, 2004)."""
    share = shares(weight, x)
    rows = 1 / share.square().sum()  # how many they are worth: all, if all count the same,
    rows = rows if weight is None else torch.maximum(rows, weight.double().sum())  # and a row of weight two is two
    return _shrinkage(x.T @ (share * x), (share[:, 0] * x.square().sum(1).square()).sum(), rows)


def _shrinkage(covariance: Tensor, fourth: Tensor, rows: Tensor) -> Tensor:
    """The same from the covariance, the mean of |x|^4 and the number of rows."""
    target = covariance.diagonal().mean() * torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    distance = (covariance - target).square().sum()
    noise = (fourth - covariance.square().sum()) / rows
    return torch.where(distance > 0, torch.minimum(noise, distance) / distance, torch.ones_like(distance))


class Whiten(Bijection):
    """y = W (x - loc), with W from `fit`; the identity before that.

    Args:
        dims: Number of columns.
    """

    loc: Tensor
    weight: Tensor

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dims = dims
        self.register_buffer("loc", torch.zeros(dims))
        self.register_buffer("weight", torch.eye(dims))

    @torch.no_grad()
    def fit(self, data: Tensor, weight: Tensor | None = None) -> None:
        """From rows of data: each column by its deviation, then the correlation, shrunk as far as its noise asks for.

        A constant column is only shifted. Computed in float64, since correlations are lost in less.

        Args:
            data: Rows.
            weight: How much each row counts, [rows]; all the same by default.
        """
        x, share = data.double(), shares(weight, data)
        loc = (share * x).sum(0)
        deviation = (share * (x - loc).square()).sum(0).sqrt()
        constant = (x == x[0]).all(0)
        deviation = torch.where(constant, 1.0, deviation)
        x = (x - loc) / deviation
        self._take(loc, deviation, x.T @ (share * x) + constant.diag(), shrinkage(x, weight))

    @torch.no_grad()
    def fit_moments(self, found: Moments, fourth: float) -> None:
        """The same from rows that came block by block.

        Args:
            found: Their mean and covariance.
            fourth: The mean of |(x - mean) / deviation|^4, where the deviation of a constant column is one.
        """
        device = self.loc.device
        constant, loc, covariance = (
            torch.from_numpy(each).to(device) for each in (found.constant, found.mean, found.covariance)
        )
        deviation = torch.where(constant, 1.0, covariance.diagonal().sqrt())
        correlation = covariance / torch.outer(deviation, deviation)
        numbers = torch.tensor([fourth, found.worth], dtype=torch.float64, device=device)
        self._take(loc, deviation, correlation + constant.diag(), _shrinkage(correlation, numbers[0], numbers[1]))

    def _take(self, loc: Tensor, deviation: Tensor, correlation: Tensor, shrunk: Tensor) -> None:
        correlation = (1 - shrunk) * correlation + shrunk * torch.eye(
            self.dims, dtype=correlation.dtype, device=correlation.device
        )
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
        """Returns the constants from the induced norms of the matrix and of its inverse.

        Args:
            norms: Names the p-norm.
        """
        order = {1.0: 1, 2.0: 2}.get(norms.norm, torch.inf)
        weight = self.weight.double()
        up, down = (float(torch.linalg.matrix_norm(m, order)) for m in (weight, torch.linalg.inv(weight)))
        return 1 / (down * (1 + 1e-9)), up * (1 + 1e-9)
