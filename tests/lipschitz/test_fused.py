"""Elementwise steps compiled into one pass: the numbers of plain code, for every kind of network, value and gradient."""

import pytest
import torch
import torch._inductor.config

from idensenet.draws import GeneratorDraws
from idensenet.lipschitz import Pieces, dense_block, residual_net
from idensenet.lipschitz.block import one_pass
from idensenet.logdet import RouletteLogDet

QUICK = {"compile_threads": 1, "cpp.simdlen": 1}  # plain loops spare a third of the C++ compiler's time
NETWORKS = {
    "dense maps": lambda: dense_block([2, 4, 4], 2, 4, Pieces()),
    "dense behind a linear map": lambda: dense_block([6], 1, 4, Pieces(), first=5),
    "residual maps": lambda: residual_net([2, 4, 4], [6, 6], [3, 1, 3], Pieces("lipswish")),
}


def outcome(g, x, recompute, bfloat16=False):
    draws = GeneratorDraws(torch.Generator().manual_seed(5))
    gx, estimate = RouletteLogDet(bfloat16=bfloat16)(g, x, draws, recompute)
    loss = gx.sin().sum() + (estimate.value * torch.arange(1, len(x) + 1, dtype=x.dtype)).sum()
    return gx.detach(), estimate.value.detach(), *torch.autograd.grad(loss, [x, *g.parameters()])


@pytest.mark.parametrize("name", NETWORKS)
def test_compiled_steps_change_nothing_but_rounding(name):
    torch._dynamo.reset()
    one_pass.cache_clear()
    torch.manual_seed(0)
    g = NETWORKS[name]().double()
    with torch.no_grad():
        for p in g.parameters():
            p.mul_(3)
    shape = [6] if "linear" in name else [2, 4, 4]
    with torch._inductor.config.patch(QUICK):
        for batch, recompute in ((3, False), (5, True)):
            x = torch.randn(batch, *shape, dtype=torch.float64, requires_grad=True)
            g.compiled = False
            right = outcome(g, x, recompute)
            g.compiled = True
            before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            torch.testing.assert_close(outcome(g, x, recompute), right, rtol=1e-10, atol=1e-11)
            assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before or batch == 5  # it was compiled
            with torch.no_grad():  # as solvers call it
                values = g(x)
            g.compiled = False
            torch.testing.assert_close(values, g(x).detach(), rtol=1e-10, atol=1e-11)
    assert any(float(part.abs().max()) > 1e-3 for part in right)


def test_a_series_in_bfloat16_goes_through_compiled_steps_too():
    torch._dynamo.reset()
    one_pass.cache_clear()
    torch.manual_seed(0)
    g, x = NETWORKS["dense maps"](), torch.randn(3, 2, 4, 4, requires_grad=True)
    right = outcome(g, x, False, bfloat16=True)
    g.compiled = True
    with torch._inductor.config.patch(QUICK):
        found = outcome(g, x, False, bfloat16=True)
        full = outcome(g, x, False)
    for mine, wanted, unrounded in zip(found, right, full, strict=True):
        assert (mine - wanted).norm() <= 2e-2 * wanted.norm() + 1e-6
        assert (mine - unrounded).norm() <= 2e-2 * unrounded.norm() + 1e-6
    assert not torch.equal(found[1], full[1])
