"""Stacks of residual blocks in compiled code: the same numbers as eagerly, and every stack its own code."""

import copy
import pickle

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from bijection_registry import jitter

from idensenet.bijections import ActNorm, ResidualBlock
from idensenet.draws import GeneratorDraws
from idensenet.lipschitz import Pieces, branch, dense_block
from idensenet.lipschitz.conditional import ConditionalNetwork, Embedding
from idensenet.lipschitz.linear import maps_of, refresh_norms
from idensenet.logdet import ExactLogDet, Geometric, RouletteLogDet

QUICK = {"compile_threads": 1, "cpp.simdlen": 1}  # plain loops spare a third of the C++ compiler's time


def stack(log_det, context, norm=True):
    """Two blocks, conditional or not, with an ActNorm behind each or without."""
    torch.manual_seed(1)
    if context:
        g = ConditionalNetwork(dense_block([5], 1, 2, Pieces(), outputs=2, blocks=2), Embedding(2, 3, 3, 2), 2)
    else:
        g = dense_block([2], 1, 2, Pieces("lipswish"), blocks=2)
    made = ResidualBlock(g, log_det, norm=ActNorm(2, 2) if norm else None).double()
    made.initialize(torch.randn(32, 2, dtype=torch.float64), torch.randn(32, 2, dtype=torch.float64))
    return jitter(made).train()


def run(made, x, c, seed=0, twice=True):
    """Values, and gradients of a loss that weighs samples differently; `twice` asks for them a second time."""
    y, log_det = made(x, GeneratorDraws(torch.Generator().manual_seed(seed)), c)
    loss = y.sin().sum() + (log_det * torch.arange(1, len(x) + 1, dtype=x.dtype)).sum()
    targets = [x, *([c] if isinstance(made.g, ConditionalNetwork) else []), *made.parameters()]
    found = torch.autograd.grad(loss, targets, retain_graph=twice)
    if twice:
        again = torch.autograd.grad(loss, targets)
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    return y.detach(), log_det.detach(), *found


def network(made):
    return made.g.inner if isinstance(made.g, ConditionalNetwork) else made.g


def samples():
    torch.manual_seed(2)
    return [torch.randn(5, 2, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def same(found, right):
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    assert all(float(each.abs().max()) > 1e-4 for each in found)


@pytest.fixture
def quick():
    torch._dynamo.reset()
    with torch._inductor.config.patch(QUICK):
        yield
    torch._dynamo.reset()


CASES = {
    "conditional, ActNorm, two backward passes": (True, True, True),
    "ActNorm": (False, True, False),
    "plain": (False, False, False),
}


@pytest.mark.parametrize(("context", "norm", "twice"), CASES.values(), ids=CASES)
def test_a_stack_with_exact_log_determinants_is_one_compiled_function(context, norm, twice, quick, monkeypatch):
    made, (x, c) = stack(ExactLogDet(), context, norm), samples()
    right = run(made, x, c)
    moved = copy.deepcopy(made)
    with torch.no_grad():
        for p in moved.parameters():
            p.add_(0.1 * torch.randn_like(p))
    after = run(moved, x, c)
    made.compile_blocks()
    before = copy.deepcopy(made.state_dict())
    # by default torch lets the backward pass write over what it has saved, and refuses a second one
    with monkeypatch.context() as patch, torch._functorch.config.patch(donated_buffer=not twice):
        patch.setattr(ExactLogDet, "measure", lambda *_: pytest.fail("block by block"))
        for _ in range(2):
            same(run(made, x, c, twice=twice), right)
            for name, value in made.state_dict().items():  # norms are computed anew, and marked as unknown to others
                torch.testing.assert_close(value, value.new_tensor(-1) if "fingerprint" in name else before[name])
        with torch.no_grad():
            for p, new in zip(made.parameters(), moved.parameters(), strict=True):
                p.copy_(new)
        same(run(made, x, c, twice=twice), after)  # with other weights
        for linear in maps_of(made):
            torch.testing.assert_close(linear.sigma, torch.linalg.matrix_norm(linear.weight.detach(), 2))

    # any other use computes norms of these weights by itself
    assert refresh_norms(made) == 0  # where gradients are recorded, compiled code has done it
    with torch.no_grad():
        assert refresh_norms(made) == len(list(maps_of(made)))
    # without a gradient, or to save memory, blocks are computed one by one
    monkeypatch.setattr(made, "walk", lambda *_: pytest.fail("compiled"))
    with torch.no_grad():
        torch.testing.assert_close(made(x, context=c)[1], after[1], rtol=1e-9, atol=1e-10)

    # copies leave compiled code behind, and it can be switched off
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert other.walk is None
        same(run(other, x, c), after)
    made.compile_blocks(False)
    assert made.walk is None
    assert network(made).compiled is None
    same(run(made, x, c), after)


def test_a_stack_with_a_stochastic_log_determinant_compiles_the_function_of_a_block(quick):
    made, (x, c) = stack(RouletteLogDet(Geometric(0.5), 2, probes=2), True), samples()
    right = [run(made, x, c, seed) for seed in range(2)]
    made.compile_blocks()
    assert made.walk is None
    assert network(made).compiled[1].push is not branch.push
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch._functorch.config.patch(donated_buffer=False):
        for seed, each in enumerate(right):
            same(run(made, x, c, seed), each)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > graphs
    assert (right[0][1] - right[1][1]).abs().max() > 1e-3  # other draws, other values
