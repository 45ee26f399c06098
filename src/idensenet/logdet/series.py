"""log det(I + J) = sum_k (-1)^(k+1)/k tr(J^k), the traces by Hutchinson's probes."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from idensenet.draws import Draws
from idensenet.errors import OptionError
from idensenet.lipschitz.linearmap import LinearMap, rounding
from idensenet.lipschitz.packed import Plan
from idensenet.lipschitz.packed import value_and_jacobian as packed_value_and_jacobian
from idensenet.logdet.base import Estimate, Linearizable, LogDet, Recompute, push
from idensenet.logdet.gradient import attach, dot, neumann
from idensenet.logdet.matrices import Jacobians, compiled_block

Probe = Literal["rademacher", "gaussian"]


def draw_probes(draws: Draws, x: Tensor, probes: int, kind: Probe, small: bool = False) -> Tensor:
    """[probes, *x.shape], with identity covariance; `small` has signs in a byte each, for those who keep them."""
    source = x.detach()
    if kind == "gaussian":
        probe = draws.normal(source, probes)
    else:
        probe = draws.rademacher(source, probes).to(torch.int8 if small else source.dtype)
    return probe.contiguous()  # or products would be rounded differently where a graph is recorded


def next_power(J: LinearMap, power: Tensor, bfloat16: bool = False) -> Tensor:
    """J' power, with what can no longer matter set to zero: subnormal numbers slow a CPU down a hundredfold."""
    with rounding(bfloat16, power):
        found = J.rmatvec(power)
    return torch.nn.functional.hardshrink(found.to(power.dtype), 1e-25)


def weighted_series(
    weights: Tensor, J: LinearMap, probe: Tensor, product: Tensor, bfloat16: bool = False
) -> tuple[Tensor, Tensor]:
    """The first terms with weights [terms, (probes,) batch or 1]: values [probes, batch], and u for the gradient.

    With `bfloat16`, the products of the powers are rounded to it; their sums are not.
    """
    power, value, u = probe, torch.zeros_like(dot(probe, probe)), torch.zeros_like(probe)
    terms, sign = len(weights), 1.0
    for k in range(1, terms + 1):
        weight = sign * weights[k - 1].to(probe.dtype)
        value = value + weight / k * dot(power, product)
        u = u + weight.view(*weight.shape, *[1] * (probe.ndim - 2)) * power
        if k < terms:
            power = next_power(J, power, bfloat16)
        sign = -sign
    return value, u


def _matrix_series(matrix: Tensor, probe: Tensor, weights: Tensor) -> Tensor:
    """The same from whole Jacobians [batch, D, D]: values with their gradient."""
    J = Jacobians(matrix)
    product = J.matvec(probe)
    with torch.no_grad():
        value, u = weighted_series(weights, J, probe, product)
    return attach(value, dot(u, product))


def across(v: Tensor) -> Tensor:
    """For vectors [batch, D] D - 1 directions orthogonal to each and to one another, [D - 1, batch, D], by a reflection.

    >>> across(torch.tensor([[1.0, 0.0, 0.0]]))[:, 0].abs()
    tensor([[0., 1., 0.],
            [0., 0., 1.]])
    """
    unit = v / torch.linalg.vector_norm(v, dim=1, keepdim=True)
    first = torch.eye(v.shape[1], dtype=v.dtype, device=v.device)
    mirror = unit + torch.where(unit[:, :1] < 0, -first[:1], first[:1])
    directions: Tensor = first[1:, None] - (mirror[:, 1:] / (1 + unit[:, :1].abs())).T[:, :, None] * mirror
    return directions


def _alone(x: Tensor, g: Linearizable, probe: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """g(x) and the values. The gradient needs J along the probes alone, so the rest of J is computed without a graph."""
    gx, product, J = push(g, x, probe)
    with torch.no_grad():
        v, others = probe[0], across(probe[0])
        columns = torch.cat([product[:1] / v.square().sum(1)[:, None], J.matvec(others)])
        matrix = torch.einsum("kni,knj->nij", columns, torch.cat([v[None], others]))
        value, u = weighted_series(weights, Jacobians(matrix), probe, product)
    return gx, attach(value, dot(u, product))


def together(x: Tensor, plan: Plan, row: Tensor, probe: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """g(x) and the values of a block that was prepared together with its peers; a function to compile."""
    gx, matrix = packed_value_and_jacobian(x, plan, row)
    return gx, _matrix_series(matrix, probe, weights)


FEW = 4  # dimensions up to which a compiled block takes its whole Jacobian
EIGHT = 8  # and weights are padded to a multiple of this, so that few lengths are compiled


def padded(weights: Tensor, terms: int = 0) -> Tensor:
    """With zeros for more terms: at least so many, and a multiple of eight."""
    wanted = -(-max(terms, len(weights)) // EIGHT) * EIGHT
    return torch.cat([weights, weights.new_zeros(wanted - len(weights), *weights.shape[1:])])


def weighted_log_det(
    g: Linearizable, x: Tensor, probe: Tensor, weights: Tensor, recompute: Recompute = False, bfloat16: bool = False
) -> tuple[Tensor, Tensor]:
    """g(x) and the weighted series, [probes, batch]. A compiled block on a few dimensions is one function, series and all."""
    few = x.ndim == 2 and x.shape[1] <= FEW
    if few and getattr(g, "compiled", False) and torch.is_grad_enabled() and not recompute:
        return compiled_block(x, g, probe, padded(weights), alone=_alone, together=together)
    return neumann(g, x, probe, partial(weighted_series, weights, bfloat16=bfloat16), recompute, bfloat16)


def over_probes(values: Tensor) -> Estimate:
    """Mean over probes, and its standard error if there are several."""
    probes = len(values)
    error = values.detach().std(0) / probes**0.5 if probes > 1 else None
    return Estimate(values.mean(0), error)


def series_log_det(
    g: Linearizable, x: Tensor, probe: Tensor, term_weights: Tensor, recompute: Recompute = False
) -> tuple[Tensor, Tensor]:
    """g(x) and the log-determinant for given probes [probes, *x.shape] and weights: no draw and no decision inside.

    This is the function to compile: tensor arithmetic only, given norms that are up to date.
    """
    gx, values = neumann(g, x, probe, partial(weighted_series, term_weights), recompute)
    return gx, values.mean(0)


def checked_counts(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise OptionError(f"{name}={value} must be at least 1.")


class WeightedLogDet(LogDet):
    """The first terms of the series, with weights."""

    probes: int
    probe: Probe
    bfloat16: bool

    @abstractmethod
    def draw_weights(self, draws: Draws, x: Tensor) -> Tensor:
        """[terms, (probes,) batch or 1], for as many terms as there are."""

    def __call__(self, g: Linearizable, x: Tensor, draws: Draws, recompute: Recompute = False) -> tuple[Tensor, Estimate]:
        probe = draw_probes(draws, x, self.probes, self.probe, bool(recompute))
        weights = self.draw_weights(draws, x)
        gx, values = weighted_log_det(g, x, probe, weights, recompute, self.bfloat16)
        return gx, over_probes(values)


class SeriesLogDet(WeightedLogDet):
    """A fixed number of terms: biased, by at most D L^(n+1) / ((n + 1)(1 - L)). `bfloat16` rounds products with J."""

    def __init__(self, terms: int = 10, probes: int = 1, probe: Probe = "rademacher", bfloat16: bool = False) -> None:
        checked_counts(terms=terms, probes=probes)
        self.terms, self.probes, self.probe, self.bfloat16 = terms, probes, probe, bfloat16

    def draw_weights(self, draws: Draws, x: Tensor) -> Tensor:
        return torch.ones(self.terms, 1, device=x.device)
