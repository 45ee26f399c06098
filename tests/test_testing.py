"""The public checks: they pass what is right, and each fails on something that is wrong in one place."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from idensenet.bijections import Bijection, ResidualBlock, Squeeze
from idensenet.bijections.base import no_log_det
from idensenet.lipschitz import ACTIVATIONS, LinearMap, Pieces, activation, dense_block, residual_net
from idensenet.lipschitz.activations import LipSwish, Tanh
from idensenet.logdet import (
    AdaptiveLogDet,
    ExactLogDet,
    Geometric,
    KrylovLogDet,
    PowerSeries,
    RouletteLogDet,
    SeriesLogDet,
)
from idensenet.testing import check_activation, check_bijection, check_linear_map, check_log_det

MONOTONE = PowerSeries(((1.0, -1.0), (-1.0, 1.0)))  # log(1 - t) - log(1 + t)
METHODS = {
    "exact": (ExactLogDet(), 1e-9),
    "series": (SeriesLogDet(40, probes=20), 1e-4),
    "roulette": (RouletteLogDet(Geometric(0.3), probes=20), 1e-9),
    "adaptive": (AdaptiveLogDet(1e-3, probes=20), 1e-9),
    "krylov": (KrylovLogDet(1e-6, probes=20), 1e-5),
}


def networks(blocks=2, shape=(3,)):
    """Weights well above their bounds, so that Jacobians are not small."""
    torch.manual_seed(0)
    made = dense_block(shape, 2, 6, Pieces(coeff=0.9), blocks=blocks).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(4 if parameter.ndim == 3 else 1)
    return made


def rows(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_every_activation_passes(name, norm):
    made = activation(name, 2, norm)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.tensor([0.0, 1.5]))
    check_activation(made)


def test_an_activation_with_a_wrong_slope_or_constant_fails():
    class WrongSlope(Tanh):
        def curves(self, x, *own):
            values, _ = super().curves(x, *own)
            return values, lambda: (torch.ones_like(x),)

    class TooSmall(Tanh):
        def lipschitz(self, norm):
            return 0.9

    class WrongFold(LipSwish):
        def folded(self):
            return replace(super().folded(), outer=1.2 / F.softplus(self.beta))

    with pytest.raises(AssertionError, match="slope"):
        check_activation(WrongSlope())
    with pytest.raises(AssertionError, match="above lipschitz"):
        check_activation(TooSmall())
    with pytest.raises(AssertionError, match="above lipschitz"):
        check_activation(WrongFold())


@pytest.mark.parametrize("series", [PowerSeries(((1.0, 1.0),)), MONOTONE], ids=["log(1 + t)", "log(1 - t) - log(1 + t)"])
@pytest.mark.parametrize("name", METHODS)
def test_every_estimator_passes_for_two_functions_of_the_jacobian(name, series):
    method, bias = METHODS[name]
    check_log_det(method, networks(), rows(3, 3), series, draws=40, bias=bias)


def test_a_biased_estimator_and_a_wrong_gradient_fail():
    with pytest.raises(AssertionError, match="is off by"):
        check_log_det(SeriesLogDet(1, probes=200), networks(), rows(3, 3), draws=50)

    class NoGradient(ExactLogDet):
        def measure(self, g, x, draws, f, save=False):
            gx, found = super().measure(g, x, draws, f, save)
            return gx, found.detach() + 0 * sum(t.sum() for t in g.tensors())

    with pytest.raises(AssertionError, match="the gradient"):
        check_log_det(NoGradient(), networks(), rows(3, 3))


@pytest.mark.parametrize("make", [dense_block, residual_net])
@pytest.mark.parametrize("shape", [(3,), (2, 3, 3)])
def test_the_jacobian_of_every_block_passes(make, shape):
    torch.manual_seed(0)
    sizes = (2, 6) if make is dense_block else ([6, 6], [3, 1, 3] if len(shape) == 3 else [1, 1, 1])
    g = make(shape, *sizes, Pieces(coeff=0.9), blocks=3).double()
    x = rows(3, *shape)
    for branch in g.prepare().branches:
        check_linear_map(branch, branch.linearize(x)[1], x)


def test_a_jacobian_with_a_wrong_transpose_fails():
    class Wrong(LinearMap):
        def __init__(self, inner):
            self.inner = inner

        def matvec(self, v):
            return self.inner.matvec(v)

        def rmatvec(self, u):
            return self.inner.matvec(u)

        def take(self, index):
            return Wrong(self.inner.take(index))

    branch, x = networks(1).prepare()[0], rows(3, 3)
    with pytest.raises(AssertionError, match="J' u"):
        check_linear_map(branch, Wrong(branch.linearize(x)[1]), x)


def test_bijections_pass_and_wrong_ones_fail():
    check_bijection(ResidualBlock(networks(3)).eval(), rows(4, 3))
    check_bijection(Squeeze(), rows(3, 1, 4, 4))

    class WrongLogDet(Bijection):
        def push(self, x, call):
            return 2 * x, no_log_det(x)

        def pull(self, y, call):
            return y / 2, no_log_det(y)

        def bi_lipschitz(self, norms):
            return 2.0, 2.0

    class WrongInverse(WrongLogDet):
        def pull(self, y, call):
            return y / 3, no_log_det(y)

    class WrongConstants(WrongLogDet):
        def push(self, x, call):
            return 2 * x, no_log_det(x) + math.log(2) * x[0].numel()

        def pull(self, y, call):
            return y / 2, no_log_det(y) - math.log(2) * y[0].numel()

        def bi_lipschitz(self, norms):
            return 0.5, 1.5

    for wrong, words in ((WrongLogDet(), "log-determinant"), (WrongInverse(), "inverse"), (WrongConstants(), "constants")):
        with pytest.raises(AssertionError, match=words):
            check_bijection(wrong, rows(4, 3))
