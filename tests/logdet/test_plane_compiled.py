"""Stochastic log-determinants of compiled blocks on a few dimensions: all of J in one call, and the same numbers."""

import pytest
import torch
import torch._inductor.config
from oracles import autograd_jacobians, close, enlarged, gradient

from idensenet.draws import GeneratorDraws
from idensenet.lipschitz import Pieces, dense_block, refresh_norms, residual_net
from idensenet.logdet import ExactLogDet, Geometric, RouletteLogDet, SeriesLogDet, series
from idensenet.logdet.matrices import Jacobians, compiled, compiled_for

QUICK = {"compile_threads": 1, "cpp.simdlen": 1}  # plain loops spare a third of the C++ compiler's time
BLOCKS = {
    "dense": lambda: dense_block([2], 2, 4, Pieces()),
    "residual": lambda: residual_net([2], [6, 6], [1, 1, 1], Pieces("lipswish")),
}


def block(kind):
    return enlarged(BLOCKS[kind]().double())


def losses(estimator, g, x, seed):
    gx, estimate = estimator(g, x, GeneratorDraws(torch.Generator().manual_seed(seed)))
    loss = gx.sin().sum() + (estimate.value * torch.arange(1, len(x) + 1, dtype=x.dtype)).sum()
    return gx.detach(), estimate.value.detach(), gradient(loss, g, x)


def no_products(*args):
    raise AssertionError("a product for each term")


@pytest.mark.parametrize("kind", list(BLOCKS))
def test_the_same_draws_give_the_same_value_and_gradient(kind, monkeypatch):
    torch._dynamo.reset()
    compiled.cache_clear()
    compiled_for.cache_clear()
    g, x = block(kind), torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    estimators = [RouletteLogDet(Geometric(0.5), 2, probes=2), SeriesLogDet(3)]
    right = [losses(estimator, g, x, seed) for estimator in estimators for seed in range(3)]
    g.compiled = True
    with torch._inductor.config.patch(QUICK), monkeypatch.context() as patch:
        patch.setattr(series, "neumann", no_products)
        found = [losses(estimator, g, x, seed) for estimator in estimators for seed in range(3)]
    for a, b in zip(found, right, strict=True):
        close(a, b, 1e-10)
    assert (found[0][1] - found[1][1]).abs().max() > 1e-3  # other draws, other values


@pytest.mark.parametrize("dims", [2, 3, 4])
@pytest.mark.parametrize("probe", ["rademacher", "gaussian"])
def test_the_rest_of_a_jacobian_needs_no_graph(dims, probe):
    """From the products along the probes and across the first one: the values and gradients of products for each term."""
    g = enlarged(residual_net([dims], [6, 6], [1, 1, 1], Pieces("lipswish")).double())
    x = torch.randn(5, dims, dtype=torch.float64, requires_grad=True)
    refresh_norms(g)
    method = RouletteLogDet(Geometric(0.3), 3, probes=2, probe=probe)
    draws = GeneratorDraws(torch.Generator().manual_seed(0))
    probes, weights = series.draw_probes(draws, x, 2, probe), method.draw_weights(draws, x)
    found = []
    for gx, values in (series._alone(x, g, probes, weights), series.weighted_log_det(g, x, probes, weights)):
        loss = gx.sin().sum() + (values * torch.arange(1, 6, dtype=x.dtype)).sum()
        found.append((gx.detach(), values.detach(), gradient(loss, g, x)))
    close(*found, 1e-10)
    others = series.across(probes[0])
    basis = torch.cat([probes[:1] / probes[:1].norm(dim=2, keepdim=True), others]).transpose(0, 1)
    close(basis @ basis.mT, torch.eye(dims, dtype=x.dtype).expand(5, dims, dims), 1e-12)


def test_more_dimensions_take_products(monkeypatch):
    monkeypatch.setattr(series, "compiled_block", lambda *args, **more: pytest.fail("the whole Jacobian of five dimensions"))
    g, x = dense_block([5], 2, 4, Pieces()).double(), torch.randn(3, 5, dtype=torch.float64)
    right = RouletteLogDet()(g, x, GeneratorDraws(torch.Generator().manual_seed(0)))[1].value
    g.compiled = True
    found = RouletteLogDet()(g, x, GeneratorDraws(torch.Generator().manual_seed(0)))[1].value
    close(found, right, 1e-10)


def test_matrices_are_a_linear_map():
    g, x = block("dense"), torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    matrix, v = autograd_jacobians(g, x).detach(), torch.randn(3, 4, 2, dtype=torch.float64)
    J = Jacobians(matrix)
    close(J.matvec(v), torch.einsum("nij,pnj->pni", matrix, v), 1e-12)
    close(J.rmatvec(v), torch.einsum("nij,pni->pnj", matrix, v), 1e-12)
    index = torch.tensor([3, 1])
    close(J.take(index).matvec(v[:, index]), J.matvec(v)[:, index], 1e-12)


def test_blocks_of_the_same_sizes_and_other_activations_do_not_share_code():
    torch._dynamo.reset()
    compiled.cache_clear()
    compiled_for.cache_clear()
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    with torch._inductor.config.patch(QUICK):
        for name in ("elu", "tanh"):
            g = dense_block([2], 1, 3, Pieces(name)).double()
            refresh_norms(g)
            for method in (ExactLogDet(compiled=True), RouletteLogDet()):
                g.compiled = True
                gx, estimate = method(g, x, GeneratorDraws())
                close(gx, g(x), 1e-12)
                assert estimate.value.shape == (5,)
