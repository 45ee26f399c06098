"""tr f(J) from a Krylov space: for the same accuracy, a third of the products that the power series needs.

Arnoldi's process with a probe v gives an orthonormal basis Q of v, J v, J^2 v, ... and the small matrix H = Q' J Q. For
f(t) = log(1 + t), and likewise for each logarithm in f,

    v' log(I + J) v     is close to  |v|^2 e1' log(I + H) e1,
    u = (I + J')^-1 v   is close to  |v| Q (I + H)^-1 e1   (for the space of J'), with a residual that is known.

|H| <= |J| < 1, so the small logarithm is safe. What is missing in u, (I + J')^-1 residual, is added by roulette: the residual
is small, so it costs hardly any variance, and for every probe the expectation of the gradient is exact.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from idensenet.draws import Draws
from idensenet.errors import OptionError
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.logdet.base import PowerSeries
from idensenet.logdet.gradient import Series, dot, wide
from idensenet.logdet.roulette import Geometric, Law
from idensenet.logdet.series import Probe, ProbedLogDet, checked_counts

NODES = 32  # of the quadrature: to 1e-8 for a norm of 0.98


@lru_cache(maxsize=4)
def _quadrature(device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights of Gauss and Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return torch.from_numpy((nodes + 1) / 2).to(device), torch.from_numpy(weights / 2).to(device)


def log_corner(H: Tensor) -> Tensor:
    """e1' log(I + H) e1 for matrices [..., m, m] of norm below one, as the integral of H (I + t H)^-1 over [0, 1].

    >>> log_corner(torch.tensor([[0.5]], dtype=torch.float64))  # log 1.5
    tensor(0.4055, dtype=torch.float64)
    """
    nodes, weights = _quadrature(H.device)
    unit = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    t = nodes.to(H.dtype).view(-1, *[1] * H.ndim)
    corner = torch.linalg.solve(unit + t * H, unit[:, :1].expand(NODES, *H.shape[:-1], 1))[..., 0, 0]
    factor = (weights / nodes).to(H.dtype).view(-1, *[1] * (H.ndim - 2))
    value: Tensor = (factor * (1 - corner)).sum(0)
    return value


class KrylovLogDet(ProbedLogDet):
    """Steps until the value changes by less than `tolerance` nats per dimension, or `max_steps`.

    The value has an error of about the tolerance. It is far below the spread over probes, but it is a bias, which the roulette
    estimator does not have. The gradient is unbiased.

    Args:
        tolerance: Error at which a sample stops, in nats per dimension.
        max_steps: Most steps of Arnoldi's process.
        law: Distribution of the length of the tail of the gradient.
        probes: Number of probe vectors.
        probe: Distribution of the probe vectors: rademacher or gaussian.
    """

    def __init__(
        self,
        tolerance: float = 1e-5,
        max_steps: int = 30,
        law: Law | None = None,
        probes: int = 1,
        probe: Probe = "rademacher",
    ) -> None:
        checked_counts(max_steps=max_steps, probes=probes)
        if not tolerance > 0:
            raise OptionError(f"tolerance={tolerance} must be positive.")
        self.tolerance, self.max_steps = tolerance, max_steps
        self.law, self.probes, self.probe = law or Geometric(0.5), probes, probe

    def series(self, draws: Draws, x: Tensor, f: PowerSeries) -> Series:
        with_gradient = torch.is_grad_enabled()
        lengths = self.law.lengths(draws, x, self.probes) if with_gradient else torch.zeros(1)
        return partial(self._sum, lengths, with_gradient, f)

    def _sum(
        self, lengths: Tensor, with_gradient: bool, f: PowerSeries, J: LinearMap, probe: Tensor, product: Tensor
    ) -> tuple[Tensor, Tensor]:
        """With a gradient, u comes with the value, from the space of J'; else the space is J's: its first product is known."""
        batch, small = probe.shape[1], self.tolerance * math.prod(probe.shape[2:])
        value, u, rest = probe.new_zeros(probe.shape[:2], dtype=torch.float64), torch.zeros_like(probe), torch.zeros_like(probe)
        factors = probe.new_zeros(len(f.pairs), *probe.shape[:2])  # the residual of each logarithm in f is a multiple of `rest`
        index = torch.arange(batch, device=probe.device)  # the samples still running
        length = dot(probe, probe).sqrt()
        basis = (probe / wide(length, probe))[None]  # [steps, probes, samples, *event]
        H = probe.new_zeros(*probe.shape[:2], self.max_steps + 1, self.max_steps, dtype=torch.float64)
        running = torch.ones_like(value, dtype=torch.bool)
        before = torch.full_like(value, math.inf)
        J_part = J
        for m in range(1, self.max_steps + 1):
            if m == 1 and not with_gradient:
                w = product / wide(length, probe)
            else:
                w = J_part.rmatvec(basis[-1]) if with_gradient else J_part.matvec(basis[-1])
            for _ in range(2):  # once more against rounding
                part = (basis * w).flatten(3).sum(3)
                w = w - (wide(part, basis) * basis).sum(0)
                H[:, :, :m, m - 1] += part.movedim(0, -1)
            size = dot(w, w).sqrt()
            H[:, :, m, m - 1] = size
            whole = size <= 8 * torch.finfo(w.dtype).eps  # the space is all that J reaches from v
            basis = torch.cat([basis, torch.where(wide(whole, w), 0.0, w / wide(size, w))[None]])
            corners = [a * log_corner(s * H[:, :, :m, :m]) for a, s in f.pairs]
            now = length.double() ** 2 * sum(corners[1:], corners[0])
            done = running & (((now - before).abs() <= small) | whole | (m == self.max_steps))
            value[:, index] = torch.where(running, now, value[:, index])
            if with_gradient and bool(done.any()):
                found, left = self._solution(H[:, :, :m, :m], f, size, length, basis)
                u[:, index] = torch.where(wide(done, found), found, u[:, index])
                rest[:, index] = torch.where(wide(done, found), basis[-1], rest[:, index])
                factors[:, :, index] = torch.where(done, left, factors[:, :, index])
            running, before = running & ~done, now
            keep = running.any(0).nonzero().flatten()
            if len(keep) == 0:
                break
            if 2 * len(keep) <= len(index):  # fewer samples pay for the copy
                index, basis, H, length = index[keep], basis[:, :, keep], H[:, keep], length[:, keep]
                running, before, J_part = running[:, keep], before[:, keep], J_part.take(keep)
        return value.to(probe.dtype), u + self._tail(lengths, f, J, rest, factors) if with_gradient else u

    def _solution(self, H: Tensor, f: PowerSeries, size: Tensor, length: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
        """u = f'(J') v in the space, and for each pair (a, s) of f the residual v - (I + s J') u_s along the last vector."""
        unit = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
        right = unit[:, :1].expand(*H.shape[:-1], 1)
        total, left = torch.zeros_like(H[..., 0]), []
        for a, s in f.pairs:
            y = torch.linalg.solve(unit + s * H, right)[..., 0] * length.double()[..., None]
            total = total + a * s * y
            left.append((-s * size * y[..., -1]).to(basis.dtype))
        u = (wide(total.to(basis.dtype).movedim(-1, 0), basis) * basis[:-1]).sum(0)
        return u, torch.stack(left)

    def _tail(self, lengths: Tensor, f: PowerSeries, J: LinearMap, rest: Tensor, factors: Tensor) -> Tensor:
        """The sum over pairs of a s (I + s J')^-1 of the residual, on average."""
        longest = int(lengths.max()) if lengths.numel() else 0
        lengths = lengths.to(rest.device).expand(rest.shape[:2])
        total, power = torch.zeros_like(rest), rest
        for j in range(longest + 1):
            power = power if j == 0 else J.rmatvec(power)
            chance = self.law.survival(torch.tensor(float(j), dtype=torch.float64)).item()
            terms = [a * s * (-s) ** j * factor for (a, s), factor in zip(f.pairs, factors, strict=True)]
            total = total + wide((lengths >= j).to(rest.dtype) / chance * sum(terms[1:], terms[0]), rest) * power
        return total
