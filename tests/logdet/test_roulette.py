"""Roulette: its laws against scipy's, its expectation enumerated."""

import pytest
import scipy.stats
import torch
from oracles import (
    GivenDraws,
    MatrixNet,
    basis,
    close,
    exact,
    gradient,
    inputs,
    matrix,
    network,
    run,
    series_log_det,
    uniforms_for,
)

from idensenet.draws import GeneratorDraws, KeyedDraws, mix
from idensenet.errors import OptionError
from idensenet.logdet import Geometric, Poisson, RouletteLogDet

LAWS = {
    "geometric(0.5)": (Geometric(0.5), scipy.stats.geom(0.5, loc=-1)),
    "geometric(0.2)": (Geometric(0.2), scipy.stats.geom(0.2, loc=-1)),
    "poisson(2)": (Poisson(2.0), scipy.stats.poisson(2.0)),
    "poisson(0.3)": (Poisson(0.3), scipy.stats.poisson(0.3)),
    "poisson(15)": (Poisson(15.0), scipy.stats.poisson(15.0)),
}
laws = pytest.mark.parametrize(("law", "known"), LAWS.values(), ids=LAWS)


@laws
def test_survival_is_the_sum_of_the_probabilities(law, known):
    n = torch.arange(law.limit + 2)
    pmf = torch.tensor(known.pmf(torch.arange(law.limit + 400).numpy()))
    tail = pmf.flip(0).cumsum(0).flip(0)[: law.limit + 2]  # small ones first
    torch.testing.assert_close(law.survival(n), tail, rtol=1e-8, atol=0)
    assert law.survival(torch.tensor([0])) == 1
    assert law.survival(torch.tensor([law.limit + 1])) < 1e-16


@laws
def test_draw_has_the_law(law, known):
    cells = 200_000
    n = law.draw((torch.arange(cells, dtype=torch.float64) + 0.5) / cells)  # the inverse of the distribution, on a grid
    found = torch.bincount(n, minlength=law.limit + 1) / cells
    pmf = torch.tensor(known.pmf(torch.arange(len(found)).numpy()))
    close(found.double(), pmf, 1.01 / cells)
    assert law.draw(torch.tensor([1 - 2.0**-53, 0.0], dtype=torch.float64)).tolist() == [0, law.limit]


def test_a_uniform_on_the_boundary_does_not_reach_the_next_term():
    u = torch.tensor([0.75, 0.5, 0.25, 0.2], dtype=torch.float64)
    assert Geometric(0.5).draw(u).tolist() == [0, 0, 1, 2]  # u < P(N >= n), strictly


@laws
def test_weights_are_one_then_inverse_chances_then_zero(law, known):
    lengths = torch.tensor([[0, 1, 3], [2, 0, 0]])
    weights = law.weights(lengths, exact_terms=2, terms=5)
    assert weights.shape == (5, 2, 3)
    chances = torch.tensor(known.sf([0, 1, 2]))  # P(N > 0), P(N > 1), ...
    for i in range(2):
        for j in range(3):
            reached = int(lengths[i, j])
            want = torch.cat([torch.ones(2).double(), 1 / chances[:reached], torch.zeros(3 - reached).double()])
            torch.testing.assert_close(weights[:, i, j], want, rtol=1e-12, atol=0)


def expectation(law, known, exact_terms, g, x, weigh=lambda w: w):
    """E over N of the estimator of one sample, the traces exact: every length once, as a batch, weighted by its chance."""
    lengths = torch.arange(law.limit + 1)
    chances = torch.tensor(known.pmf(lengths.numpy()))
    weights = weigh(law.weights(lengths, exact_terms, exact_terms + law.limit))
    many = x.expand(len(lengths), *x.shape[1:])
    _, values = series_log_det(g.prepare()[0], many, basis(many), weights)
    return (chances * values).sum()


@pytest.mark.parametrize("exact_terms", [1, 2, 10])
@pytest.mark.parametrize("law", ["geometric(0.5)", "poisson(2)"])
@pytest.mark.parametrize("name", ["dense-2", "dense-4", "residual-3"])
def test_the_expectation_over_lengths_is_the_log_determinant(name: str, law: str, exact_terms: int):
    g, x = network(name), inputs(name, 1)
    value, right = expectation(*LAWS[law], exact_terms, g, x), exact(g, x)[0]
    close(value, right, 1e-8)
    close(gradient(value, g, x), gradient(right, g, x), 1e-7)


@pytest.mark.parametrize("law", ["geometric(0.5)", "poisson(2)"])
def test_the_expectation_holds_for_a_convolution(law: str):
    g, x = network("dense-conv"), inputs("dense-conv", 1)
    value, right = expectation(*LAWS[law], 2, g, x), exact(g, x)[0]
    close(value, right, 1e-8)
    close(gradient(value, g, x), gradient(right, g, x), 1e-7)


@pytest.mark.parametrize("law", ["geometric(0.5)", "poisson(2)"])
def test_without_the_division_by_chances_the_expectation_is_wrong(law: str):
    g, x = network("dense-4"), inputs("dense-4", 1)
    value, right = expectation(*LAWS[law], 1, g, x, lambda w: w.clamp(max=1)), exact(g, x)[0]
    assert (value - right).abs() > 1e-4
    assert (gradient(value, g, x) - gradient(right, g, x)).abs().max() > 1e-4


def test_the_expectation_holds_for_the_estimator_as_it_is_called():
    g, x = network("dense-3"), inputs("dense-3", 1)
    law, known = LAWS["geometric(0.5)"]
    lengths = torch.arange(law.limit + 1)
    many = x.expand(len(lengths), 3)
    uniforms = uniforms_for(law.survival, lengths).expand(3, -1)
    _, estimate = run(RouletteLogDet(law, exact_terms=1, probes=3), g, many, GivenDraws(basis(many), uniforms))
    close((torch.tensor(known.pmf(lengths.numpy())) * estimate.value).sum(), exact(g, x)[0], 1e-8)


@pytest.mark.parametrize("probe", ["gaussian", "rademacher"])
def test_monte_carlo_where_the_variance_is_finite(probe: str):
    rows, A = 40_000, matrix(4, 0.7)  # 1 - p = 0.7 > 0.7^2
    x = torch.zeros(rows, 4, dtype=torch.float64)
    draws = KeyedDraws(lambda: mix(torch.arange(rows)))
    right = torch.linalg.slogdet(torch.eye(4) + A).logabsdet
    _, estimate = run(RouletteLogDet(Geometric(0.3), 1, probe=probe), MatrixNet(A), x, draws)
    error = estimate.value.std() / rows**0.5
    assert (estimate.value.mean() - right).abs() <= 4 * error
    first = torch.trace(A)
    assert (estimate.value.mean() - first).abs() > 4 * error  # the control: it is not the first term alone


@pytest.mark.parametrize(("law", "exact_terms"), [(Geometric(0.3), 1), (Geometric(0.5), 2)])
def test_the_standard_error_counts_the_lengths_too(law, exact_terms):
    rows, probes = 4000, 16
    g = MatrixNet(matrix(6, 0.6, symmetric=True))
    x = torch.zeros(rows, 6, dtype=torch.float64)
    _, estimate = run(RouletteLogDet(law, exact_terms, probes), g, x, KeyedDraws(lambda: mix(torch.arange(rows))))
    reported = estimate.standard_error.square().mean().sqrt()
    # over 4000 repetitions a spread with these heavy tails is known to about 2 percent: 4 of these
    assert abs(float(reported / estimate.value.std()) - 1) < 0.08


def test_probes_have_lengths_of_their_own():
    x = torch.zeros(50, 2)
    lengths = Poisson(2.0).lengths(KeyedDraws.of(torch.randn(50, 2)), x, probes=4)
    assert lengths.shape == (4, 50)
    assert (lengths[0] != lengths[1]).any()
    assert Poisson(2.0).lengths(GeneratorDraws(), x, probes=4).shape == (4, 1)  # one length steers the whole batch


def test_draws_from_a_generator_are_reproducible():
    g, x = network("dense-3"), inputs("dense-3")
    runs = [run(RouletteLogDet(), g, x, GeneratorDraws(torch.Generator().manual_seed(s)))[1].value for s in (3, 3, 4)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_keyed_lengths_vary_by_sample_and_not_by_batch():
    g, x = network("dense-3"), inputs("dense-3", 20).detach()
    estimator = RouletteLogDet(exact_terms=1)
    weights = estimator.draw_weights(KeyedDraws.of(x), x)
    lengths = (weights != 0).sum(0)[0]
    assert lengths.unique().numel() > 2
    whole = run(estimator, g, x, KeyedDraws.of(x))[1].value
    order = torch.randperm(20)
    close(run(estimator, g, x[order], KeyedDraws.of(x[order]))[1].value, whole[order], 1e-12)
    for i in (0, 7, 19):
        alone = x[i : i + 1]
        assert int((estimator.draw_weights(KeyedDraws.of(alone), alone) != 0).sum()) == int(lengths[i])
        close(run(estimator, g, alone, KeyedDraws.of(alone))[1].value, whole[i : i + 1], 1e-12)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: Geometric(0.0), "p=0.0"),
        (lambda: Geometric(1.0), "p=1.0"),
        (lambda: Poisson(0.0), "mean=0.0"),
        (lambda: Poisson(float("nan")), "mean=nan"),
        (lambda: RouletteLogDet(exact_terms=0), "exact_terms=0"),
        (lambda: RouletteLogDet(probes=0), "probes=0"),
    ],
)
def test_options_out_of_range_are_refused(build, named: str):
    with pytest.raises(OptionError, match=named):
        build()


def test_an_empty_batch_has_no_values():
    g, x = network("dense-2"), inputs("dense-2", 0)
    for draws in (GeneratorDraws(), KeyedDraws.of(x)):
        assert run(RouletteLogDet(), g, x, draws)[1].value.shape == (0,)
