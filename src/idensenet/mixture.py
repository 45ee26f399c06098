"""A mixture of Gaussians as the base of a flow: the distribution of z = F(x) where one Gaussian is too little.

A contraction moves mass smoothly, so a flow of x + g(x) is slow to part one Gaussian into clusters. A mixture has them from the
start, and the flow bends them into shape.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from idensenet.errors import OptionError

RIDGE = 1e-6  # least variance, where the rows have variance one
LLOYD = 8  # rounds of k-means before the first expectation step


class Mixture(nn.Module):
    """p(z) = sum_k w_k N(z; m_k, S_k) with S_k^-1 = P_k' P_k.

    log p(z) = logsumexp_k [log w_k + log det P_k - |P_k z - s_k|^2 / 2] - D / 2 log(2 pi),    s_k = P_k m_k

    P_k is lower triangular with a positive diagonal, so whatever an optimiser writes is a mixture. All components are the
    standard Gaussian before `fit`.

    Args:
        components: The number of Gaussians.
        dims: Dimensions of z.

    >>> Mixture(3, 2).log_prob(torch.zeros(1, 2)).detach()  # - log(2 pi)
    tensor([-1.8379])
    """

    def __init__(self, components: int, dims: int) -> None:
        super().__init__()
        if components < 1:
            raise OptionError(f"components={components} must be a positive integer.")
        self.components, self.dims = components, dims
        self.logits = nn.Parameter(torch.zeros(components))
        self.shift = nn.Parameter(torch.zeros(components, dims))
        self.factor = nn.Parameter(torch.zeros(components, dims, dims))  # P below the diagonal, its logarithm on it

    def precision(self) -> Tensor:
        """P, [components, dims, dims]."""
        diagonal = self.factor.diagonal(dim1=1, dim2=2).exp()
        return self.factor.tril(-1) + torch.diag_embed(diagonal)

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z) of vectors [batch, dims]."""
        rows = (self.precision().flatten(0, 1) @ z.mT).unflatten(0, (self.components, self.dims))  # type: ignore[no-untyped-call]
        distance = (rows - self.shift[:, :, None]).square().sum(1)
        level = self.logits.log_softmax(0) + self.factor.diagonal(dim1=1, dim2=2).sum(1)
        return torch.logsumexp(level[:, None] - 0.5 * distance, 0) - 0.5 * self.dims * math.log(2 * math.pi)

    def sample(self, n: int, generator: torch.Generator | None = None, temperature: float = 1.0) -> Tensor:
        """n draws, differentiable in means and covariances; the temperature scales the noise inside a component."""
        noise = torch.randn((n, self.dims), generator=generator, dtype=self.shift.dtype, device=self.shift.device)
        which = torch.multinomial(self.logits.softmax(0), n, replacement=True, generator=generator) if n else noise[:, 0].long()
        P, found = self.precision(), torch.zeros_like(noise)
        for k in sorted(set(which.tolist())):
            rows = (which == k).nonzero().flatten()
            right = temperature * noise[rows] + self.shift[k]
            found = found.index_copy(0, rows, torch.linalg.solve_triangular(P[k], right.mT, upper=False).mT)
        return found

    @torch.no_grad()
    def fit(
        self,
        rows: Tensor,
        weight: Tensor | None = None,
        tied: float | None = None,
        steps: int = 60,
        generator: torch.Generator | None = None,
    ) -> float:
        """Fit to rows by k-means and then expectation maximisation, in float64.

        Args:
            rows: Rows of variance about one, [rows, dims].
            weight: How much each row counts; all the same by default.
            tied: The pooled covariance counts as so many rows in each component; `dims` by default. A large number makes all
                covariances equal.
            steps: Most steps; it ends where one gains less than a thousandth of a nat.
            generator: Draws the first centres.

        Returns:
            The mean log-density of the rows.
        """
        x = rows.double()
        if len(x) < self.components:
            raise OptionError(f"{len(x)} rows are too few for {self.components} components; use fewer components.")
        w = torch.ones_like(x[:, 0]) if weight is None else weight.double() / weight.double().mean()
        tied = float(self.dims) if tied is None else tied
        chances = _clusters(x, w, self.components, generator)
        score = -math.inf
        for _ in range(steps):
            level, P, shift = _maximised(x, chances * w, tied)
            joint = _joint(x, level, P, shift)
            total = torch.logsumexp(joint, 0)
            before, score = score, float((w * total).mean())
            if score - before < 1e-3:
                break
            chances = (joint - total).exp()
        self.logits.copy_(level)
        self.shift.copy_(shift)
        self.factor.copy_(P.tril(-1) + torch.diag_embed(P.diagonal(dim1=1, dim2=2).log()))
        return score


def _maximised(x: Tensor, counts: Tensor, tied: float) -> tuple[Tensor, Tensor, Tensor]:
    """log w, P and s from the counts [components, rows] of rows in components."""
    size = counts.sum(1).clamp(min=1e-9)
    mean = counts @ x / size[:, None]
    scatter = torch.stack([(x.mT * each) @ x for each in counts])
    scatter = scatter - size[:, None, None] * mean[:, :, None] * mean[:, None]
    pooled = scatter.sum(0) / size.sum()
    covariance = (scatter + tied * pooled) / (size + tied)[:, None, None]
    covariance.diagonal(dim1=1, dim2=2).add_(RIDGE)
    lower = torch.linalg.cholesky(covariance)
    P = torch.linalg.solve_triangular(lower, torch.eye(len(x.mT), dtype=x.dtype, device=x.device).expand_as(lower), upper=False)
    return (size / size.sum()).log(), P, (P @ mean[:, :, None])[:, :, 0]


def _joint(x: Tensor, level: Tensor, P: Tensor, shift: Tensor) -> Tensor:
    """log w_k N(x; m_k, S_k), [components, rows]."""
    height = level + P.diagonal(dim1=1, dim2=2).log().sum(1) - 0.5 * x.shape[1] * math.log(2 * math.pi)
    parts = zip(P, shift, height, strict=True)
    return torch.stack([h - 0.5 * (factor @ x.mT - s[:, None]).square().sum(0) for factor, s, h in parts])


def _clusters(x: Tensor, w: Tensor, components: int, generator: torch.Generator | None) -> Tensor:
    """k-means from centres drawn far apart (k-means++): which row is in which cluster, [components, rows] of 0 and 1."""
    first = torch.multinomial(w, 1, generator=generator)
    centres, nearest = x[first], (x - x[first]).square().sum(1)
    for _ in range(components - 1):
        chance = w * nearest
        chance = chance if bool(chance.sum() > 0) else w
        new = x[torch.multinomial(chance, 1, generator=generator)]
        centres, nearest = torch.cat([centres, new]), torch.minimum(nearest, (x - new).square().sum(1))
    for _ in range(LLOYD):
        inside = torch.nn.functional.one_hot(torch.cdist(x, centres).argmin(1), components).to(x.dtype).mT
        counts = inside * w
        size = counts.sum(1, keepdim=True)
        centres = torch.where(size > 0, counts @ x / size.clamp(min=1e-300), centres)
    return inside
