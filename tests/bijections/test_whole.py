"""A chain of dense blocks as one compiled function: the same numbers as block by block."""

import pytest
import torch
import torch._inductor.config

from idensenet.bijections import ActNorm, Chain, ResidualBlock
from idensenet.bijections.whole import LONGEST, whole
from idensenet.draws import GeneratorDraws
from idensenet.lipschitz import Pieces, dense_block, refresh_norms
from idensenet.logdet import ExactLogDet, Geometric, KrylovLogDet, RouletteLogDet
from idensenet.logdet.matrices import compiled, compiled_for

QUICK = {"compile_threads": 1, "cpp.simdlen": 1}  # plain loops spare a third of the C++ compiler's time
METHODS = {
    "exact": lambda: ExactLogDet(compiled=True),
    "roulette": lambda: RouletteLogDet(Geometric(0.5), 2, probes=2),
}


def chain(method, count=2, dims=2, growth=4, activation="clipswish"):
    blocks = [ResidualBlock(dense_block([dims], 2, growth, Pieces(activation)), METHODS[method]()) for _ in range(count)]
    for block in blocks:
        block.g.compiled = True
    return Chain(blocks).double().train()


def run(parts, x, seed=0):
    y, log_det = parts(x, GeneratorDraws(torch.Generator().manual_seed(seed)))
    loss = y.sin().sum() + (log_det * torch.arange(1, len(x) + 1, dtype=x.dtype)).sum()
    return y.detach(), log_det.detach(), *torch.autograd.grad(loss, [x, *parts.parameters()])


def points(dims=2):
    return torch.randn(5, dims, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("method", list(METHODS))
def test_value_and_gradient_are_those_of_the_blocks_with_the_same_draws(method, monkeypatch):
    torch._dynamo.reset()
    compiled.cache_clear()
    compiled_for.cache_clear()
    parts, x = chain(method), points()
    refresh_norms(parts)
    for part in parts:  # eagerly
        part.g.compiled = False
        part.log_det.compiled = False
    right = [run(parts, x, seed) for seed in range(2)]
    for part in parts:
        part.g.compiled = True
        part.log_det.compiled = True
    parts.compiled = True
    with torch._inductor.config.patch(QUICK), monkeypatch.context() as patch:
        patch.setattr(ResidualBlock, "forward", lambda *_: pytest.fail("block by block"))
        found = [run(parts, x, seed) for seed in range(2)]
    for ours, theirs in zip(found, right, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    assert (found[0][1] - found[1][1]).abs().max() > 1e-3 or method == "exact"  # other draws, other values


def test_long_series_go_block_by_block_with_the_draws_that_were_made(monkeypatch):
    parts, x = chain("roulette"), points()
    for part in parts:
        part.g.compiled = False
        part.log_det = RouletteLogDet(Geometric(0.5), exact_terms=LONGEST + 1)
    right = run(parts, x)
    for part in parts:
        part.g.compiled = True
    monkeypatch.setattr("idensenet.bijections.whole.compiled_for", lambda *_: pytest.fail("a long series was compiled"))
    monkeypatch.setattr("idensenet.bijections.whole.compiled", None)  # neither are the packs
    monkeypatch.setattr("idensenet.logdet.series.FEW", 0)  # nor the blocks
    parts.compiled = True
    for a, b in zip(run(parts, x), right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def changed(change):
    parts, x = chain("exact"), points()
    if change == "evaluation":
        parts.eval()
    elif change == "recomputation":
        parts.parts[1].recompute = True
    elif change == "another part":
        parts.parts.append(ActNorm(2).double())
    elif change == "another network":
        parts.parts[1] = chain("exact", 1, growth=6).parts[0]
    elif change == "another activation":
        parts.parts[1] = chain("exact", 1, growth=8, activation="lipswish").parts[0]
    elif change == "another log-determinant":
        parts.parts[1].log_det = KrylovLogDet()
    elif change == "two log-determinants":
        parts.parts[1].log_det = RouletteLogDet()
    elif change == "more dimensions":
        parts, x = chain("exact", dims=3), points(3)
    elif change == "not compiled":
        parts.parts[0].log_det.compiled = False
    return parts, x


CHANGES = (
    "evaluation",
    "recomputation",
    "another part",
    "another network",
    "another activation",
    "another log-determinant",
    "two log-determinants",
    "more dimensions",
    "not compiled",
)


@pytest.mark.parametrize("change", CHANGES)
def test_what_cannot_be_one_function_is_none(change, monkeypatch):
    monkeypatch.setattr("idensenet.bijections.whole.compiled", None)
    monkeypatch.setattr("idensenet.bijections.whole.compiled_for", lambda *_: lambda *_: "compiled")
    assert whole(chain("exact"), points(), None) == "compiled"  # so it would be
    parts, x = changed(change)
    assert whole(parts, x, None) is None


def test_without_gradients_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr("idensenet.bijections.whole.compiled_for", lambda *_: pytest.fail("compiled"))
    with torch.no_grad():
        assert whole(chain("exact"), points(), None) is None
