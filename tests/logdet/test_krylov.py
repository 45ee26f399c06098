"""The Krylov space, against the logarithm and the inverse of the whole Jacobian."""

import pytest
import torch
from oracles import MONOTONE, SERIES, GivenDraws, autograd_jacobians, close, gradient, inputs, network, run, uniforms_for

from idensenet.draws import GeneratorDraws, KeyedDraws
from idensenet.errors import OptionError
from idensenet.logdet import LOG_ONE_PLUS, ExactLogDet, Geometric, KrylovLogDet
from idensenet.logdet.krylov import log_corner

NETWORKS = ["dense-2", "dense-7", "dense-16", "residual-5", "dense-conv", "residual-conv"]
networks = pytest.mark.parametrize("name", NETWORKS)


functions = pytest.mark.parametrize("f", SERIES.values(), ids=SERIES)


def logarithm(matrix, f=LOG_ONE_PLUS):
    """f(matrix), from its eigenvalues."""
    values, vectors = torch.linalg.eig(matrix)
    values = sum(a * torch.log(1 + s * values) for a, s in f.pairs)
    return (vectors @ torch.diag_embed(values) @ torch.linalg.inv(vectors)).real


class Fixed(GeneratorDraws):
    """One probe that is known."""

    def __init__(self, probe, uniform=0.5):
        super().__init__()
        self.known, self.uniform_number = probe, uniform

    def rademacher(self, like, copies=1):
        return self.known

    def lengths(self, batch, device):
        return torch.tensor([self.uniform_number], dtype=torch.float64)


@pytest.mark.parametrize("norm", [0.3, 0.9, 0.98])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_corner_of_a_small_logarithm(norm, size):
    H = torch.randn(5, size, size, dtype=torch.float64)
    H = H * norm / torch.linalg.matrix_norm(H, 2)[:, None, None]
    H[0] = -norm * torch.eye(size)  # as close to singular as it gets
    close(log_corner(H), logarithm(H)[:, 0, 0], 1e-7)


@networks
@functions
def test_the_value_is_the_quadratic_form_of_the_function(name, f):
    g, x = network(name), inputs(name)
    probe = torch.randn(1, *x.shape, dtype=torch.float64)
    J, v = autograd_jacobians(g, x).detach(), probe[0].flatten(1)
    right = torch.einsum("bi,bij,bj->b", v, logarithm(J, f), v)
    for enabled in (True, False):  # the space of J', and the space of J
        with torch.set_grad_enabled(enabled):
            found = run(KrylovLogDet(1e-12), g, x, Fixed(probe), f)[1].value
            close(found, right, 1e-7)
            dims = v.shape[1]
            loose = run(KrylovLogDet(1e-4), g, x, Fixed(probe), f)[1].value
            assert (loose - right).abs().max() < 1e-3 * dims
    one = run(KrylovLogDet(1e-12, max_steps=1), g, x, Fixed(probe), f)[1].value
    assert (one - right).abs().max() > 1e-4  # one step is not enough: something is compared


@networks
@pytest.mark.parametrize(("steps", "f"), [(1, LOG_ONE_PLUS), (2, LOG_ONE_PLUS), (1, MONOTONE)])
def test_the_expectation_of_the_gradient_over_the_law_is_exact_for_every_probe(name, steps, f):
    """Enumerated: the sum over all lengths of their chance times the gradient is u' dJ v with the exact u."""
    g, x = network(name), inputs(name)
    batch, probe = len(x), torch.randn(1, *x.shape, dtype=torch.float64)
    weight = torch.randn(batch, dtype=torch.float64)
    J, v = autograd_jacobians(g, x), probe[0].flatten(1)
    unit = torch.eye(v.shape[1], dtype=torch.float64)
    u = sum(a * s * torch.linalg.solve((unit + s * J.detach()).mT, v) for a, s in f.pairs)
    right = gradient((weight * torch.einsum("bi,bij,bj->b", u, J, v)).sum(), g, x)
    law, last = Geometric(0.5), 60
    survival = law.survival(torch.arange(last + 1, dtype=torch.float64))
    chances = survival[:-1] - survival[1:]
    method, sides = KrylovLogDet(1e-15, max_steps=steps, law=law), [1] * (x.ndim - 1)

    def found(lengths, chances):
        """Every length with its chance, for each of the samples: one batch."""
        uniforms = uniforms_for(law.survival, lengths).repeat_interleave(batch)[
            None
        ]  # drawn by inverting the survival function
        draws = GivenDraws(probe.repeat(1, len(lengths), *sides), uniforms)
        value = run(method, g, x.repeat(len(lengths), *sides), draws, f)[1].value
        return gradient((chances.repeat_interleave(batch) * weight.repeat(len(lengths)) * value).sum(), g, x)

    close(found(torch.arange(last), chances), right, 1e-7)
    if not (name == "dense-2" and steps == 2):  # there the space is everything
        short = found(torch.zeros(1), torch.ones(1, dtype=torch.float64))
        assert (short - right).abs().max() > 1e-6  # without the tail it would be biased


def test_a_sample_has_the_same_value_in_every_batch():
    g, x = network("dense-16"), inputs("dense-16", batch=9).detach()
    x[4:] *= 5  # others stop after another number of steps
    method = KrylovLogDet(1e-4)
    with torch.no_grad():
        together = run(method, g, x, KeyedDraws.of(x))[1].value
        apart = torch.cat([run(method, g, row[None], KeyedDraws.of(row[None]))[1].value for row in x])
    close(together, apart, 1e-12)


def test_several_probes_have_a_standard_error_that_covers_the_truth():
    g, x = network("dense-7"), inputs("dense-7")
    _, exact = run(ExactLogDet(), g, x, GeneratorDraws())
    draws = GeneratorDraws(torch.Generator().manual_seed(3))
    with torch.no_grad():
        _, found = run(KrylovLogDet(1e-8, probes=400), g, x, draws)
    assert ((found.value - exact.value).abs() < 4 * found.standard_error).all()
    assert ((found.value - exact.value - 6 * found.standard_error).abs() > 4 * found.standard_error).all()


def test_single_precision_and_a_jacobian_of_zero():
    g, x = network("dense-16").float(), inputs("dense-16").float()
    with torch.no_grad():
        probe = torch.randn(1, *x.shape)
        single = run(KrylovLogDet(), g, x, Fixed(probe))[1].value
        double = run(KrylovLogDet(1e-12), g.double(), x.double(), Fixed(probe.double()))[1].value
    assert (single - double).abs().max() < 1e-3
    with torch.no_grad():
        for p in g.parameters():
            p.zero_()
    gx, estimate = run(KrylovLogDet(), g, x.double().requires_grad_(), GeneratorDraws())
    assert estimate.value.tolist() == [0.0] * len(x)
    assert torch.isfinite(gradient(estimate.value.sum() + gx.sum(), g, x.double().requires_grad_())).all()


def test_bad_options_raise():
    with pytest.raises(OptionError, match="tolerance"):
        KrylovLogDet(0.0)
    with pytest.raises(OptionError, match="max_steps"):
        KrylovLogDet(max_steps=0)


@pytest.mark.parametrize("gradient", [True, False])
def test_an_empty_batch_has_no_numbers(gradient):
    g = network("dense-7")
    with torch.set_grad_enabled(gradient):
        _, estimate = run(KrylovLogDet(), g, inputs("dense-7")[:0], GeneratorDraws())
    assert estimate.value.shape == (0,)
