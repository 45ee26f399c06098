"""The exact log-determinant as a compiled function: the same numbers, blocks that share code, and lost inverses."""

import pytest
import torch
import torch._inductor.config
from oracles import close, exact, gradient, inputs, network

from idensenet.draws import GeneratorDraws
from idensenet.lipschitz import refresh_norms
from idensenet.logdet import ExactLogDet
from idensenet.logdet.exact import exact_log_det, log_abs_det
from idensenet.logdet.matrices import compiled, compiled_for

QUICK = {"compile_threads": 1, "cpp.simdlen": 1}  # plain loops spare a third of the C++ compiler's time


@pytest.mark.parametrize("name", ["dense-2", "dense-3", "dense-16"])
def test_the_compiled_value_and_gradient_are_those_of_slogdet(name):
    torch._dynamo.reset()
    compiled.cache_clear()
    compiled_for.cache_clear()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch._inductor.config.patch(QUICK):
        for _ in range(3):  # three blocks, one of them after the other
            g, x = network(name), inputs(name)
            refresh_norms(g)
            gx, estimate = ExactLogDet(compiled=True)(g, x, GeneratorDraws())
            close(gx, g(x), 1e-12)
            close(estimate.value, exact(g, x), 1e-10)
            weight = torch.randn(len(x), dtype=torch.float64)
            loss = (weight * estimate.value).sum() + gx.sin().sum()
            right = (weight * exact(g, x)).sum() + g(x).sin().sum()
            close(gradient(loss, g, x), gradient(right, g, x), 1e-9)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 2  # of the pack and of a block


def test_it_is_one_graph_that_follows_the_weights():
    torch._dynamo.reset()
    g, x = network("dense-2"), inputs("dense-2")
    run = torch.compile(lambda g, x: exact_log_det(x, g), fullgraph=True, backend="aot_eager")
    refresh_norms(g)
    before = run(g, x)[1].detach()
    with torch.no_grad():
        for p in g.parameters():
            p.add_(0.3)
    refresh_norms(g)
    close(run(g, x)[1], exact(g, x), 1e-10)
    assert (before - exact(g, x)).abs().max() > 1e-3  # a stale graph would return this


def test_a_lost_inverse_is_nan_in_compiled_code():
    torch._dynamo.reset()
    matrix = torch.stack([torch.diag(torch.tensor([-2.0, 0.5, 0.1])), 0.1 * torch.eye(3)])
    found = torch.compile(log_abs_det, fullgraph=True, backend="aot_eager")(matrix)
    assert torch.isnan(found[0])
    close(found[1], 3 * torch.log(torch.tensor(1.1)), 1e-6)


def test_without_gradients_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr("idensenet.logdet.matrices.compiled", lambda function: pytest.fail("compiled"))
    g, x = network("dense-2"), inputs("dense-2")
    with torch.no_grad():
        close(ExactLogDet(compiled=True)(g, x, GeneratorDraws())[1].value, exact_log_det(x, g)[1], 1e-12)
