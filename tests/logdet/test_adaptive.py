"""The adaptive series: unbiased for every probe, and as short as the spectrum allows."""

import math

import pytest
import torch
from oracles import (
    GivenDraws,
    MatrixNet,
    Spied,
    TanhNet,
    basis,
    close,
    exact,
    gradient,
    inputs,
    matrix,
    network,
    run,
    uniforms_for,
)

from idensenet.draws import GeneratorDraws, KeyedDraws, mix
from idensenet.errors import OptionError
from idensenet.logdet import AdaptiveLogDet, Geometric, Poisson
from idensenet.logdet.adaptive import FACTORS

LONG = 200


def whole_series(A, v):
    """sum_k (-1)^(k+1)/k v' A^k v, for one probe."""
    total, power = 0.0, v
    for k in range(1, LONG + 1):
        power = A @ power
        total = total - (-1.0) ** k / k * (v @ power)
    return total


def expectation(estimator, g, x, probe, law=None):
    """E over N for one sample and given probes [probes, *event]; every length once, as a batch."""
    law, probes = law or estimator.law, len(probe)
    lengths = torch.arange(law.limit + 1)
    survival = law.survival(torch.arange(law.limit + 2))
    many = x.expand(len(lengths), *x.shape[1:])
    draws = GivenDraws(
        probe[:, None].expand(probes, len(lengths), *x.shape[1:]), uniforms_for(law.survival, lengths).expand(probes, -1)
    )
    value = run(estimator, g, many, draws)[1].value
    return ((survival[:-1] - survival[1:]) * value).sum()


@pytest.mark.parametrize("law", [Geometric(0.5), Geometric(0.3), Poisson(2.0)])
@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-7])
def test_for_every_probe_the_expectation_is_the_whole_series(law, tolerance: float):
    A, x = matrix(4, 0.6), torch.zeros(1, 4, dtype=torch.float64)
    for _ in range(3):
        v = torch.randn(4, dtype=torch.float64)
        mine = expectation(AdaptiveLogDet(tolerance, min_terms=1, law=law), MatrixNet(A), x, v[None])
        close(mine, whole_series(A, v), 1e-8)


def test_a_limit_on_the_certain_terms_keeps_it_unbiased():
    A, x, v = matrix(4, 0.6), torch.zeros(1, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    for limit in (1, 3):
        short = AdaptiveLogDet(1e-12, min_terms=1, max_terms=limit, law=Geometric(0.5))
        close(expectation(short, MatrixNet(A), x, v[None]), whole_series(A, v), 1e-8)


@pytest.mark.parametrize("norm", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("terms", [1, 2, 5])
def test_a_tail_that_follows_the_powers_is_unbiased_for_every_probe(norm: float, terms: int):
    """With the number of certain terms given, the factor comes from the last two powers, or from the first product."""
    A, x = matrix(4, norm, symmetric=terms > 2), torch.zeros(1, 4, dtype=torch.float64)
    estimator = AdaptiveLogDet(1e-30, min_terms=terms, max_terms=terms)
    for _ in range(3):
        v = torch.randn(4, dtype=torch.float64)
        powers = [v]
        for _ in range(terms):
            powers.append(A.T @ powers[-1])
        factor = (A @ v).norm() / v.norm() if terms == 1 else powers[terms - 1].norm() / powers[terms - 2].norm()
        law = Geometric(1 - float(factor.clamp(*FACTORS)))
        beyond = norm**law.limit * float(v @ v)  # what longer series could add
        close(expectation(estimator, MatrixNet(A), x, v[None], law), whole_series(A, v), 1e-8 + beyond)
        if 0.55 < float(factor) < 0.85:  # the control: lengths from another law
            off = expectation(estimator, MatrixNet(A), x, v[None], Geometric(0.9 - float(factor)))
            assert (off - whole_series(A, v)).abs() > 1e-5 + 2 * beyond


@pytest.mark.parametrize("c", [0.8, -0.9])
def test_slow_series_have_no_heavy_tail(c: float):
    """On c I every probe has the same value but for the roulette, so the spread comes from the tail alone."""
    n, d = 40_000, 4
    x, g = torch.zeros(n, d, dtype=torch.float64), MatrixNet(c * torch.eye(d, dtype=torch.float64))
    truth = math.log1p(c) * d

    def errors(law):
        return run(AdaptiveLogDet(law=law), g, x, KeyedDraws(lambda: mix(torch.arange(n))))[1].value - truth

    mine, half = errors(None), errors(Geometric(0.5))
    assert mine.mean().abs() < 4 * mine.std() / n**0.5
    assert mine.abs().max() < 0.1 * half.abs().max()  # the control
    assert mine.std() < 0.5 * half.std()


def test_the_same_check_sees_a_tail_with_the_weights_of_another_law():
    A, x, v = matrix(4, 0.6), torch.zeros(1, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    short = AdaptiveLogDet(1e-12, min_terms=1, max_terms=1, law=Geometric(0.4))
    assert (expectation(short, MatrixNet(A), x, v[None], Geometric(0.5)) - whole_series(A, v)).abs() > 1e-4


@pytest.mark.parametrize("name", ["dense-2", "dense-4", "residual-3", "dense-conv"])
def test_over_a_basis_of_probes_it_is_the_log_determinant_with_its_gradient(name: str):
    g, x = network(name), inputs(name, 1)
    estimator = AdaptiveLogDet(1e-2, min_terms=1, max_terms=20, probes=x[0].numel(), law=Geometric(0.5))
    value, right = expectation(estimator, g, x, basis(x)[:, 0]), exact(g, x)[0]
    close(value, right, 1e-8)
    close(gradient(value, g, x), gradient(right, g, x), 1e-7)


def test_for_a_symmetric_jacobian_the_gradient_is_the_derivative_of_the_value_itself():
    # elsewhere v' J^k v has the derivative k v' J^(k-1) dJ v only in expectation over v
    S, x = matrix(4, 1.0, symmetric=True), torch.zeros(3, 4, dtype=torch.float64)
    draws, estimator = KeyedDraws(lambda: mix(torch.arange(3))), AdaptiveLogDet(1e-3, probes=2)
    a, h = torch.tensor(0.5, dtype=torch.float64, requires_grad=True), 1e-6
    (slope,) = torch.autograd.grad(run(estimator, MatrixNet(a * S), x, draws)[1].value.sum(), a)
    up, down = (run(estimator, MatrixNet((a.detach() + s * h) * S), x, draws)[1].value.sum() for s in (1, -1))
    close(slope, (up - down) / (2 * h), 1e-7)


def test_it_stops_early_where_the_spectrum_is_small():
    x = torch.zeros(5, 6, dtype=torch.float64)
    none = GivenDraws(torch.randn(1, 5, 6, dtype=torch.float64), torch.full((1, 5), 0.99, dtype=torch.float64))  # N = 0
    counts = []
    for norm in (0.01, 0.3, 0.9):
        g = Spied(MatrixNet(matrix(6, norm, symmetric=True)))
        run(AdaptiveLogDet(1e-5), g, x, none)
        counts.append(len(g.sizes))
    assert counts[0] <= 4
    assert counts[0] < counts[1] < counts[2] <= 99


def test_no_more_than_the_allowed_terms_are_taken_for_certain():
    x = torch.zeros(2, 4, dtype=torch.float64)
    draws = GivenDraws(torch.randn(1, 2, 4, dtype=torch.float64), torch.full((1, 2), 0.99, dtype=torch.float64))  # N = 0
    for limit in (1, 2, 7):
        g = Spied(MatrixNet(matrix(4, 0.9)))
        run(AdaptiveLogDet(1e-12, min_terms=1, max_terms=limit), g, x, draws)
        assert len(g.sizes) == limit - 1  # the first term needs no product with the transpose


def test_every_sample_stops_on_its_own_and_leaves_the_work():
    torch.manual_seed(1)
    g, hard = Spied(TanhNet(matrix(5, 0.9, symmetric=True))), 2
    x = torch.full((8, 5), 4.0, dtype=torch.float64)  # tanh is flat there
    x[hard] = 0
    probe = torch.randn(1, 8, 5, dtype=torch.float64)
    u = torch.full((1, 8), 0.99, dtype=torch.float64)
    run(AdaptiveLogDet(1e-6), g, x, GivenDraws(probe, u))
    together = list(g.sizes)
    assert together[0] == 8
    assert together[-1] == 1
    alone = []
    for i in range(8):
        g.sizes.clear()
        run(AdaptiveLogDet(1e-6), g, x[i : i + 1], GivenDraws(probe[:, i : i + 1], u[:, i : i + 1]))
        alone.append(len(g.sizes))
    assert len(together) == alone[hard]
    assert max(alone[:hard] + alone[hard + 1 :]) < alone[hard] / 3


@pytest.mark.parametrize("probes", [1, 3])
@pytest.mark.parametrize("name", ["dense-3", "residual-conv"])
def test_a_batch_gives_the_numbers_of_its_samples(name: str, probes: int):
    g = network(name)
    x = inputs(name, 12).detach() * torch.logspace(-1, 1, 12, dtype=torch.float64).view(-1, *[1] * (inputs(name).ndim - 1))
    x.requires_grad_()
    estimator = AdaptiveLogDet(1e-4, probes=probes, law=Geometric(0.3))
    watched = Spied(g)
    together = run(estimator, watched, x, KeyedDraws.of(x))[1].value
    assert watched.sizes[-1] < 12  # samples were dropped on the way
    alone = torch.cat([run(estimator, g, x[i : i + 1], KeyedDraws.of(x[i : i + 1]))[1].value for i in range(12)])
    close(together, alone, 1e-12)
    weight = torch.randn(12, dtype=torch.float64)
    close(gradient((weight * together).sum(), g, x), gradient((weight * alone).sum(), g, x), 1e-11)


def test_monte_carlo_is_unbiased_and_the_standard_error_is_right():
    rows, probes, A = 4000, 4, matrix(4, 0.6)
    x = torch.zeros(rows, 4, dtype=torch.float64)
    _, estimate = run(AdaptiveLogDet(0.05, probes=probes), MatrixNet(A), x, KeyedDraws(lambda: mix(torch.arange(rows))))
    error = estimate.value.std() / rows**0.5
    assert (estimate.value.mean() - torch.linalg.slogdet(torch.eye(4) + A).logabsdet).abs() <= 4 * error
    reported = estimate.standard_error.square().mean().sqrt()
    assert abs(float(reported / estimate.value.std()) - 1) < 0.08  # known to about 2 percent: 4 of these


def test_a_tiny_jacobian_takes_the_fewest_terms():
    g = Spied(MatrixNet(1e-30 * matrix(4, 1.0)))
    probe = torch.randn(1, 2, 4, dtype=torch.float64)
    draws = GivenDraws(probe, torch.full((1, 2), 0.99, dtype=torch.float64))
    _, estimate = run(AdaptiveLogDet(min_terms=2), g, torch.zeros(2, 4, dtype=torch.float64), draws)
    assert len(g.sizes) == 1
    torch.testing.assert_close(estimate.value, ((probe @ g.g.A.T) * probe).sum(2)[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tolerance": 0.0}, "tolerance=0.0"),
        ({"tolerance": float("nan")}, "tolerance=nan"),
        ({"min_terms": 0}, "min_terms=0"),
        ({"min_terms": 5, "max_terms": 4}, "max_terms=4"),
        ({"probes": 0}, "probes=0"),
    ],
)
def test_options_out_of_range_are_refused(options, named: str):
    with pytest.raises(OptionError, match=named):
        AdaptiveLogDet(**options)


def test_an_empty_batch_has_no_values():
    g, x = network("dense-2"), inputs("dense-2", 0)
    for draws in (GeneratorDraws(), KeyedDraws.of(x)):
        assert run(AdaptiveLogDet(), g, x, draws)[1].value.shape == (0,)
