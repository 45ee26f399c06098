"""The series under torch.compile: one graph, forward and backward, that follows the weights."""

import pytest
import torch
import torch._inductor.config
from oracles import enlarged, gradient

from idensenet.lipschitz import Pieces, dense_block, refresh_norms
from idensenet.logdet import series_log_det


def block(shape, depth, dtype):
    return enlarged(dense_block(shape, depth, growth=4, pieces=Pieces()).to(dtype))


def losses(run, g, x, probe, weights):
    gx, value = run(x, probe, weights)
    loss = gx.sin().sum() + (value * torch.arange(1, len(x) + 1, dtype=x.dtype)).sum()
    return gx.detach(), value.detach(), gradient(loss, g, x)


def agree(run, g, x, probe, weights, atol):
    found = losses(run, g, x, probe, weights)
    right = losses(lambda *args: series_log_det(g, *args), g, x, probe, weights)
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=atol, atol=atol)
    return right


def check(shape, depth, dtype, atol, backend, calls):
    """Agreement with eager code, before and after steps of an optimiser, with `calls` calls for each state of the weights."""
    torch._dynamo.reset()
    g = block(shape, depth, dtype)
    x = torch.randn(3, *shape, dtype=dtype, requires_grad=True)
    probe, weights = torch.randn(1, *x.shape, dtype=dtype), torch.tensor([[1.0], [1.7]], dtype=dtype).expand(2, 3)
    run = torch.compile(lambda *args: series_log_det(g, *args), fullgraph=True, backend=backend)
    optimizer, before = torch.optim.Adam(g.parameters(), lr=0.2), None
    for _ in range(2):
        refresh_norms(g)
        for _ in range(calls):
            right = agree(run, g, x, probe, weights, atol)
        if before is not None:  # the step changed what a stale graph would still return
            assert all((a - b).abs().max() > 100 * atol for a, b in zip(before, right, strict=True))
        before = right
        series_log_det(g, x, probe, weights)[1].sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("shape", "depth", "dtype", "atol"),
    [([2], 2, torch.float64, 1e-10), ([2, 4, 4], 1, torch.float32, 1e-5)],
    ids=["vector", "convolution"],
)
def test_the_compiled_series_equals_the_eager_one(shape, depth: int, dtype: torch.dtype, atol: float):
    quick = {"compile_threads": 1, "cpp.simdlen": 1}  # plain loops spare a third of the C++ compiler's time
    with torch._inductor.config.patch(quick):
        check(shape, depth, dtype, atol, "inductor", calls=1)


@pytest.mark.parametrize(("shape", "depth"), [([2], 2), ([2, 4, 4], 1)], ids=["vector", "convolution"])
def test_gradients_of_norms_kept_between_calls_are_not_stale(shape, depth: int):
    check(shape, depth, torch.float64, 1e-10, "aot_eager", calls=2)
