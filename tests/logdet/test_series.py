"""The truncated series, against traces of powers of autograd's Jacobian."""

import pytest
import torch
from oracles import (
    MONOTONE,
    MatrixNet,
    autograd_jacobians,
    basis,
    close,
    exact,
    gradient,
    inputs,
    matrix,
    monotone_terms,
    network,
    run,
    series_log_det,
    series_terms,
)

from brute import plain_network
from idensenet.draws import GeneratorDraws, KeyedDraws, mix
from idensenet.errors import OptionError
from idensenet.lipschitz.branch import TINY
from idensenet.logdet import LOG_ONE_PLUS, SeriesLogDet

NETWORKS = ["dense-2", "dense-6", "residual-3", "residual-16", "dense-conv", "residual-conv"]


def truncated(g, x, terms, each=series_terms):
    return each(autograd_jacobians(g, x), terms).sum(0)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("terms", [1, 2, 7])
def test_over_a_basis_of_probes_value_and_gradient_are_those_of_the_truncated_sum(name: str, terms: int):
    g, x = network(name), inputs(name)
    gx, value = series_log_det(g.prepare()[0], x, basis(x), torch.ones(terms, 1))
    close(gx, plain_network(g, x), 1e-12)
    right = truncated(g, x, terms)
    close(value, right, 1e-12)
    weight = torch.randn(len(x), dtype=torch.float64)
    close(gradient((weight * value).sum(), g, x), gradient((weight * right).sum(), g, x), 1e-10)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("terms", [1, 2, 7])
def test_another_function_of_the_jacobian_has_its_own_terms(name: str, terms: int):
    g, x = network(name), inputs(name)
    _, value = series_log_det(g.prepare()[0], x, basis(x), torch.ones(terms, 1), MONOTONE)
    right = truncated(g, x, terms, monotone_terms)
    close(value, right, 1e-12)
    weight = torch.randn(len(x), dtype=torch.float64)
    close(gradient((weight * value).sum(), g, x), gradient((weight * right).sum(), g, x), 1e-10)
    assert (right - truncated(g, x, terms)).abs().max() > 1e-3  # the control


def test_coefficients_are_those_of_the_logarithms():
    t = torch.linspace(-0.5, 0.5, 7, dtype=torch.float64)
    for f, want in ((LOG_ONE_PLUS, torch.log1p(t)), (MONOTONE, torch.log1p(-t) - torch.log1p(t))):
        close(sum(f.coefficient(k) * t**k for k in range(1, 60)), want, 1e-14)


@pytest.mark.parametrize("name", ["dense-6", "residual-conv"])
def test_the_same_check_sees_a_missing_sign_factor_or_term(name: str):
    g, x = network(name), inputs(name)
    terms, J = 4, autograd_jacobians(g, x)
    _, value = series_log_det(g.prepare()[0], x, basis(x), torch.ones(terms, 1))
    k = torch.arange(1, terms + 1, dtype=torch.float64)[:, None]
    each = series_terms(J, terms)
    wrong = {"no sign": (each * -((-1) ** k)).sum(0), "no 1/k": (each * k).sum(0), "last term": each[:-1].sum(0)}
    right_gradient = gradient(value.sum(), g, x)
    for what, sum_ in wrong.items():
        assert (sum_ - value).abs().max() > 1e-6, what
        assert (gradient(sum_.sum(), g, x, retain_graph=True) - right_gradient).abs().max() > 1e-6, what


@pytest.mark.parametrize("name", ["dense-2", "dense-6", "residual-16", "dense-conv"])
def test_many_terms_converge_to_the_log_determinant(name: str):
    g, x = network(name), inputs(name)
    _, value = series_log_det(g.prepare()[0], x, basis(x), torch.ones(150, 1))
    weight = torch.randn(len(x), dtype=torch.float64)
    close(value, exact(g, x), 1e-9)
    close(gradient((weight * value).sum(), g, x), gradient((weight * exact(g, x)).sum(), g, x), 1e-8)


def test_the_bias_is_within_its_bound():
    x, D, L = torch.zeros(1, 5, dtype=torch.float64), 5, 0.7
    A = -L * torch.eye(D, dtype=torch.float64)  # the worst case: every term has the same sign
    right = torch.linalg.slogdet(torch.eye(D) + A).logabsdet
    for n in (1, 5, 20):
        _, value = series_log_det(MatrixNet(A), x, basis(x), torch.ones(n, 1))
        assert 0 < (value - right).abs() <= D * L ** (n + 1) / ((n + 1) * (1 - L))


@pytest.mark.parametrize("probe", ["gaussian", "rademacher"])
def test_random_probes_are_unbiased(probe: str):
    g, x = network("dense-3"), inputs("dense-3", 4)
    probes, terms = 4000, 5
    _, estimate = run(SeriesLogDet(terms, probes, probe), g, x, GeneratorDraws(torch.Generator().manual_seed(1)))
    right = truncated(g, x, terms)
    error = estimate.standard_error  # of the mean of 4000 probes
    assert ((estimate.value - right).abs() <= 4 * error).all()
    assert (error < 0.05).all()
    assert (estimate.value - truncated(g, x, 1)).abs().max() > 4 * error.max()  # the control: one term only


@pytest.mark.parametrize("probe", ["gaussian", "rademacher"])
def test_the_gradient_over_random_probes_is_unbiased(probe: str):
    g, x = network("residual-3"), inputs("residual-3", 1)
    rows = 4000
    many = x.detach().expand(rows, 3).clone().requires_grad_()
    _, estimate = run(SeriesLogDet(4, 1, probe), g, many, GeneratorDraws(torch.Generator().manual_seed(1)))
    (each,) = torch.autograd.grad(estimate.value.sum(), many)
    (right,) = torch.autograd.grad(truncated(g, x, 4).sum(), x)
    error = each.std(0) / rows**0.5
    assert ((each.mean(0) - right[0]).abs() <= 4 * error).all()
    (wrong,) = torch.autograd.grad(truncated(g, x, 1).sum(), x)
    assert ((each.mean(0) - wrong[0]).abs() > 4 * error).any()


@pytest.mark.parametrize("probe", ["gaussian", "rademacher"])
def test_the_standard_error_is_the_spread_of_the_estimate(probe: str):
    rows, probes = 4000, 6
    g = MatrixNet(matrix(5, 0.8))
    _, estimate = run(
        SeriesLogDet(6, probes, probe),
        g,
        torch.zeros(rows, 5, dtype=torch.float64),
        KeyedDraws(lambda: mix(torch.arange(rows))),
    )
    reported = estimate.standard_error.square().mean().sqrt()
    # over 4000 repetitions a spread is known to about 1.5 percent: 4 of these
    assert abs(float(reported / estimate.value.std()) - 1) < 0.06


def test_one_probe_has_no_standard_error():
    _, estimate = run(SeriesLogDet(), network("dense-2"), inputs("dense-2"), GeneratorDraws())
    assert estimate.standard_error is None
    values = torch.randn(2, 3, 4, requires_grad=True)  # two blocks, three probes
    several = SeriesLogDet().total(values, LOG_ONE_PLUS)
    close(several.value, values.mean(1).sum(0), 1e-6)
    assert not several.standard_error.requires_grad
    close(several.standard_error, (values.detach().var(1) / 3).sum(0).sqrt(), 1e-7)  # blocks have independent probes


def test_draws_from_a_generator_are_reproducible():
    g, x = network("dense-3"), inputs("dense-3")
    first, second, other = (
        run(SeriesLogDet(), g, x, GeneratorDraws(torch.Generator().manual_seed(s)))[1].value for s in (5, 5, 6)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tiny_jacobian_is_exact_and_leaves_no_subnormal_numbers(dtype: torch.dtype):
    A = (1e-20 * matrix(4, 1.0)).to(dtype)
    probe = torch.randn(2, 3, 4, dtype=dtype)
    _, value = series_log_det(MatrixNet(A), torch.zeros(3, 4, dtype=dtype), probe, torch.ones(12, 1))
    torch.testing.assert_close(value, ((probe @ A.T) * probe).sum(2).mean(0), rtol=1e-5, atol=0)


def test_a_branch_leaves_no_subnormal_numbers():
    g, x = network("dense-3").float(), inputs("dense-3").float()
    with torch.no_grad():
        for p in g.parameters():
            if p.ndim > 2:
                p.mul_(1e-13)
        _, J = g.prepare()[0].linearize(x)
        power = torch.randn_like(x)
        for _ in range(4):
            power = J.rmatvec(power)
            assert not ((power != 0) & (power.abs() < TINY)).any()
        assert not power.any()


def test_counts_below_one_are_refused():
    with pytest.raises(OptionError, match="terms=0"):
        SeriesLogDet(terms=0)
    with pytest.raises(OptionError, match="probes=0"):
        SeriesLogDet(probes=0)


def test_an_empty_batch_has_no_values():
    _, estimate = run(SeriesLogDet(), network("dense-2"), inputs("dense-2", 0), GeneratorDraws())
    assert estimate.value.shape == (0,)
