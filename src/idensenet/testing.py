"""Checks against brute force, for bijections, log-determinants, linear maps and activations of your own.

Every check computes the slow exact answer with autograd in float64 and raises an AssertionError that says what differs.
Our own test suite uses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from idensenet.bijections import Bijection
from idensenet.draws import GeneratorDraws
from idensenet.lipschitz import Activation, LinearMap, Network, OperatorNorms
from idensenet.logdet import LOG_ONE_PLUS, ExactLogDet, LogDet, PowerSeries

SIGMAS = 5.0  # standard errors that a statistical check allows


def _close(found: Tensor, right: Tensor, tolerance: float, what: str) -> None:
    scale = 1 + float(right.detach().abs().max()) if right.numel() else 1.0
    error = float((found.detach() - right.detach()).abs().max()) if right.numel() else 0.0
    assert error <= tolerance * scale, f"{what} is off by {error:.3g} (allowed: {tolerance * scale:.3g})"


def brute_jacobian(function: Callable[[Tensor], Tensor], x: Tensor, create_graph: bool = False) -> Tensor:
    """The Jacobians [batch, D, D'] of a function of samples, one sample at a time, by autograd.

    Args:
        function: A function of samples [batch, *event].
        x: Samples.
        create_graph: Whether the Jacobians can be differentiated.

    Returns:
        The Jacobians.
    """

    def one(sample: Tensor) -> Tensor:
        return function(sample[None])[0].flatten()

    jacobian: Callable[..., Tensor] = torch.autograd.functional.jacobian
    rows = [jacobian(one, sample, create_graph=create_graph) for sample in x]
    return torch.stack([row.reshape(row.shape[0], -1) for row in rows])


def check_linear_map(function: Callable[[Tensor], Tensor], J: LinearMap, x: Tensor, tolerance: float = 1e-9) -> None:
    """J is the Jacobian of `function` at x, J' its transpose, and `take` picks samples.

    Args:
        function: The map of samples [batch, *event].
        J: The linear map to check.
        x: Samples in float64.
        tolerance: Relative to the largest number.

    Raises:
        AssertionError: Something differs; the message says what and by how much.
    """
    matrix = brute_jacobian(function, x)
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, *x.shape, generator=generator, dtype=x.dtype)
    shape = function(x).shape
    u = torch.randn(2, *shape, generator=generator, dtype=x.dtype)
    right = torch.einsum("nij,pnj->pni", matrix, v.flatten(2)).reshape(u.shape)
    left = torch.einsum("nij,pni->pnj", matrix, u.flatten(2)).reshape(v.shape)
    _close(J.matvec(v), right, tolerance, "J v")
    _close(J.matvec(v[0]), right[0], tolerance, "J v of one probe")
    _close(J.rmatvec(u), left, tolerance, "J' u")
    _close(J.rmatvec(u[0]), left[0], tolerance, "J' u of one probe")
    index = torch.tensor([len(x) - 1, 0])
    _close(J.take(index).matvec(v[0][index]), right[0][index], tolerance, "J v of some samples")
    _close(J.take(index).rmatvec(u[0][index]), left[0][index], tolerance, "J' u of some samples")


def check_activation(activation: Activation, limit: float = 30.0, points: int = 20001) -> None:
    """Slopes are derivatives, and Lipschitz constants hold in every norm.

    Args:
        activation: The activation; it is checked in float64, for each of its blocks.
        limit: Slopes are checked on [-limit, limit].
        points: How many.

    Raises:
        AssertionError: Something differs; the message says what and by how much.
    """
    activation = activation.double()
    grid = torch.linspace(-limit, limit, points, dtype=torch.float64)
    for block in range(activation.blocks):
        x = grid.clone().requires_grad_()
        values, slopes = activation.linearize(x, block)
        assert len(values) == len(slopes) == activation.expansion, "there must be `expansion` values and slopes"
        for value, slope in zip(values, slopes, strict=True):
            (right,) = torch.autograd.grad(value.sum(), x, retain_graph=True)
            kinks = torch.isclose(grid, torch.zeros_like(grid))  # where a derivative may not exist
            _close(slope[~kinks], right[~kinks], 1e-9, "a slope")
        stacked = torch.stack(list(slopes)).detach()
        for norm in (1.0, 2.0, math.inf):
            size = float(torch.linalg.vector_norm(stacked, norm, dim=0).max())
            bound = activation.lipschitz(norm)
            if norm == activation.norm or activation.expansion == 1:
                assert size <= bound + 1e-6, (
                    f"the {norm}-norm of the slopes reaches {size:.6f}, above lipschitz({norm}) = {bound}"
                )


def check_log_det(
    method: LogDet,
    g: Network,
    x: Tensor,
    series: PowerSeries = LOG_ONE_PLUS,
    draws: int = 400,
    bias: float = 1e-9,
) -> None:
    """Value and gradient of tr f(J) agree with the whole Jacobian: to rounding if exact, else on average over draws.

    Args:
        method: The estimator.
        g: A stack of networks in float64; every block is checked.
        x: Samples in float64.
        series: f.
        draws: Number of draws for a stochastic estimator; its error shrinks as one over their square root.
        bias: Relative error that is allowed in addition to five standard errors, for the truncation of a biased estimator.

    Raises:
        AssertionError: Something differs; the message says what and by how much.
    """
    generator = GeneratorDraws(torch.Generator().manual_seed(0))
    weights = torch.linspace(0.5, 1.5, len(x), dtype=x.dtype)  # gradients must be right for each sample
    for block in range(g.blocks):
        matrix = brute_jacobian(lambda s, k=block: g.prepare()[k](s), x, create_graph=True)  # type: ignore[misc]
        unit = torch.eye(matrix.shape[-1], dtype=x.dtype)
        terms = [a * torch.linalg.slogdet(unit + s * matrix).logabsdet for a, s in series.pairs]
        right = sum(terms[1:], terms[0])
        wanted = [p for p in g.parameters() if p.requires_grad]
        right_grads = torch.autograd.grad((weights * right).sum(), wanted, allow_unused=True)
        values, grads = [], []
        for _ in range(1 if isinstance(method, ExactLogDet) else draws):
            gx, found = method.measure(g.prepare()[block], x, generator, series)
            value = method.total(found[None], series).value
            values.append(value.detach())
            each = torch.autograd.grad((weights * value).sum(), wanted, allow_unused=True)
            grads.append(torch.cat([_dense(a, p) for a, p in zip(each, wanted, strict=True)]))
        _close(gx, g(x, block), 1e-12, "g(x)")
        target = torch.cat([_dense(a, p) for a, p in zip(right_grads, wanted, strict=True)])
        _agree(torch.stack(values), right.detach(), bias, "the value")
        _agree(torch.stack(grads), target, bias, "the gradient")


def _dense(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter).flatten() if gradient is None else gradient.flatten()


def _agree(draws: Tensor, right: Tensor, bias: float, what: str) -> None:
    """The mean over draws is the right value, to five standard errors of its length; one draw must be exact."""
    mean, scale = draws.mean(0), 1 + float(right.abs().max())
    if len(draws) == 1:
        return _close(mean, right, max(bias, 1e-9), what)
    error = float((draws.var(0) / len(draws)).sum().sqrt())
    off = float((mean - right).norm())
    assert off <= SIGMAS * error + bias * scale * right.numel() ** 0.5, (
        f"{what} is off by {off:.3g}, its standard error is {error:.3g}"
    )
    return None


def check_bijection(
    bijection: Bijection, x: Tensor, context: Tensor | None = None, tolerance: float = 1e-8, exact: bool = True
) -> None:
    """Round trips, log-determinants against `slogdet`, and bi-Lipschitz constants on pairs of samples.

    Args:
        bijection: The bijection, in float64 and in evaluation mode, initialised.
        x: At least two samples in float64.
        context: A context for each sample, for a conditional bijection.
        tolerance: Relative to the largest number.
        exact: Whether its log-determinant is exact; estimates are checked by `check_log_det`.

    Raises:
        AssertionError: Something differs; the message says what and by how much.
    """
    with torch.no_grad():
        y, log_det = bijection(x, context=context)
        back, inverse_log_det = bijection.inverse(y, context=context)
        _close(back, x, tolerance, "the inverse of F(x)")
        _close(bijection(back, context=context)[0], y, tolerance, "F of the inverse")
        _close(bijection.encode(x, context), y, tolerance, "encode")
        _close(bijection.decode(y, context), x, tolerance, "decode")
        assert log_det.shape == (len(x),), f"a log-determinant has the shape {tuple(log_det.shape)}, not one number per sample"
        one, _ = bijection(x[:1], context=None if context is None else context[:1])
        _close(one, y[:1], tolerance, "a sample on its own")
    if exact:
        rows = []
        for i, sample in enumerate(x):
            given = None if context is None else context[i : i + 1]
            rows.append(brute_jacobian(lambda s, c=given: bijection.encode(s, c), sample[None])[0])  # type: ignore[misc]
        right = torch.linalg.slogdet(torch.stack(rows)).logabsdet
        _close(log_det, right, tolerance, "the log-determinant")
        _close(inverse_log_det, -right, tolerance, "the log-determinant of the inverse")
    norm = next((m.norm for m in bijection.modules() if isinstance(m, Network)), 2.0)
    with torch.no_grad():
        bijection.prepare()
        lower, upper = bijection.bi_lipschitz(OperatorNorms(norm))
    if context is None:
        moved, kept = (y.flatten(1)[:, None] - y.flatten(1)), (x.flatten(1)[:, None] - x.flatten(1))
        far = ~torch.eye(len(x), dtype=torch.bool)
        ratio = torch.linalg.vector_norm(moved[far], norm, dim=-1) / torch.linalg.vector_norm(kept[far], norm, dim=-1)
        low, high = float(ratio.min()), float(ratio.max())
        assert lower - 1e-9 <= low <= high <= upper + 1e-9, (
            f"distances change by {low:.4g} to {high:.4g}, outside of the constants {lower:.4g} and {upper:.4g}"
        )
