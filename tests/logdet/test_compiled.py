"""Compiled stacks: the numbers of eager ones, value and gradient, and no code that two stacks share.

One test uses the C++ compiler, as training does. The others trace and differentiate the same graphs and run them as they are.
"""

import copy
import pickle

import pytest
import torch
import torch._inductor.config
from oracles import actnorm, close, exact_stack
from torch._dynamo.utils import counters

from brute import scrambled
from idensenet.bijections import Call, ResidualBlock
from idensenet.draws import GeneratorDraws
from idensenet.errors import NonInvertibleError
from idensenet.lipschitz import Activation, Pieces, Stack, dense_block, register_activation, residual_net
from idensenet.logdet import ExactLogDet, KrylovLogDet, RouletteLogDet, SeriesLogDet, jacobian
from idensenet.precision import EXACT, Precision

QUICK = {"compile_threads": 1, "cpp.simdlen": 1}  # plain loops spare a third of the C++ compiler's time


@pytest.fixture
def traced(monkeypatch):
    """Compile without the C++ compiler; a stack that shares its code with another one is an error."""
    torch._dynamo.reset()
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: real(function, backend="aot_eager", dynamic=False))
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        yield


def stack(kind, shape, blocks, method, norm=True, activation="lipswish", dtype=torch.float64):
    """A small stack with weights above their bounds; every block is different."""
    pieces = Pieces(activation)
    if kind == "dense":
        g = dense_block(shape, 1, 4, pieces, blocks=blocks)
    else:
        g = residual_net(shape, [4], [3 if len(shape) > 1 else 1, 1], pieces, blocks=blocks)
    g = scrambled(g.to(dtype))
    return ResidualBlock(g, method, norm=actnorm(g, shape[0]).to(dtype) if norm else None)


def outcome(block, x, save=False, precision=EXACT):
    """What comes out, the log-determinant, and the gradient of a loss with weights per sample; twice the same gradient."""
    block.save = save
    draws = GeneratorDraws(torch.Generator().manual_seed(3))
    y, estimate = block.estimate(x, Call(draws, block.prepare(precision)))
    loss = y.sin().sum() + (estimate.value * torch.arange(1, len(x) + 1, dtype=x.dtype)).sum()
    wanted = [x, *block.parameters()]
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    again = torch.autograd.grad(loss, wanted)
    for a, b in zip(first, again, strict=True):
        close(a, b, 1e-12 if x.dtype == torch.float64 else 1e-5)
    return y.detach(), estimate.value.detach(), *first


def batch(shape, n=3, dtype=torch.float64):
    return torch.randn(n, *shape, dtype=dtype, requires_grad=True)


def agree(block, x, atol=1e-10, **options):
    """Compiled and eager outcomes are the same, and something was compiled. Leaves the block compiled."""
    block.compile_blocks(False)
    right = outcome(block, x, **options)
    block.compile_blocks()
    before = counters["stats"]["unique_graphs"]
    found = outcome(block, x, **options)
    assert counters["stats"]["unique_graphs"] > before
    for mine, theirs in zip(found, right, strict=True):
        close(mine, theirs, atol)
    assert all(float(part.abs().max()) > 1e-4 for part in right)  # nothing is right because it is zero
    return right


def agree_and_follow(block, x):
    """Agreement with eager code before and after the weights change, without a second compilation."""
    before = agree(block, x)
    graphs = counters["stats"]["unique_graphs"]
    with torch.no_grad():
        for p in block.parameters():
            p.add_(0.3)
    found = outcome(block, x)
    assert counters["stats"]["unique_graphs"] == graphs
    block.compile_blocks(False)
    for mine, theirs, stale in zip(found, outcome(block, x), before, strict=True):
        close(mine, theirs, 1e-10)
        assert (stale - theirs).abs().max() > 1e-4  # what a graph with the old weights would return
    if isinstance(block.log_det, ExactLogDet):
        y, value = exact_stack(block.g, x, norm=block.norm)
        close(found[0], y.detach(), 1e-10)
        close(found[1], value.detach(), 1e-10)


@pytest.mark.parametrize(
    ("kind", "shape", "blocks", "method"),
    [("residual", [3], 1, ExactLogDet()), ("dense", [2, 2, 3], 3, RouletteLogDet(probes=2))],
    ids=["exact, residual, one block", "roulette, dense, maps, three blocks"],
)
def test_a_compiled_stack_is_the_eager_one_and_follows_its_weights(kind, shape, blocks, method):
    """With the C++ compiler; exact log-determinants of two dimensions are in tests/bijections/test_compiled_stack.py."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(QUICK):
        agree_and_follow(stack(kind, shape, blocks, method, norm=blocks > 1), batch(shape))


CASES = {
    "exact, 2-D, three blocks": ("dense", [2], 3, ExactLogDet()),
    "exact, maps": ("dense", [2, 1, 2], 1, ExactLogDet()),  # as many channels as columns
    "series, three blocks": ("residual", [2], 3, SeriesLogDet(3)),
    "krylov": ("dense", [3], 1, KrylovLogDet(1e-9, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_other_stacks_with_an_actnorm_behind_each_block(name, traced):
    kind, shape, blocks, method = CASES[name]
    agree_and_follow(stack(kind, shape, blocks, method), batch(shape))


def test_saving_memory_and_rounding_go_through_compiled_functions(traced):
    """Two versions of each function: with a graph, and without one in the forward pass that saves memory."""
    block = stack("dense", [2, 2, 3], 2, RouletteLogDet())
    agree(block, batch([2, 2, 3]), save=True)
    block = stack("dense", [2, 2, 3], 2, RouletteLogDet(), dtype=torch.float32)
    x = batch([2, 2, 3], dtype=torch.float32)
    full = outcome(block, x)
    right = outcome(block, x, precision=Precision(bfloat16=True))
    block.compile_blocks()
    found = outcome(block, x, precision=Precision(bfloat16=True))
    for mine, wanted, unrounded in zip(found, right, full, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - wanted).norm() <= 2e-2 * wanted.norm() + 1e-6
        assert (mine - unrounded).norm() <= 3e-2 * unrounded.norm() + 1e-6
    assert not torch.equal(found[1], full[1])


class Bent(Activation):
    """tanh with a slope of its own at zero: a constant that is neither a parameter nor a factor around it."""

    bend = 0.9

    def curves(self, x, *own):
        y = torch.tanh(self.bend * x)
        return (y,), lambda: (self.bend * (1 - y * y),)


class MoreBent(Bent):
    """The same with another constant."""

    bend = 0.5


register_activation("bent", Bent)
register_activation("more-bent", MoreBent)


@pytest.mark.parametrize("method", [ExactLogDet(), SeriesLogDet(2)], ids=["exact", "series"])
def test_activations_that_differ_in_a_constant_do_not_share_code(method, traced):
    """Nor do many stacks: the number of versions of one function is limited, and beyond it nothing would be compiled."""
    values, x = [], batch([3])
    with torch._dynamo.config.patch(recompile_limit=1):
        for name, bend in (("bent", 0.9), ("more-bent", 0.5), ("bent", 0.7)):
            torch.manual_seed(0)  # the same weights
            block = stack("residual", [3], 1, method, norm=False, activation=name)
            for layer in block.g.layers:
                if isinstance(layer, Bent) and bend == 0.7:
                    layer.bend = bend  # of this object, not of its class
            values.append(agree(block, x)[0])
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert (values[i] - values[j]).abs().max() > 1e-3


def test_without_gradients_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *args: pytest.fail("compiled code was called"))
    for method in (ExactLogDet(), RouletteLogDet()):
        block, x = stack("dense", [2], 2, method), batch([2])
        block.compile_blocks()
        with torch.no_grad():
            block(x)
            block.inverse(x)
            block.encode(x)


def test_copies_and_pickles_leave_compiled_code_behind(traced):
    block, x = stack("residual", [2], 1, ExactLogDet()), batch([2])
    right = agree(block, x)
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert other.walk is None
        assert other.g.compiled is None
        for mine, theirs in zip(outcome(other, x), right, strict=True):
            close(mine, theirs, 1e-12)
    assert block.walk is not None


def test_a_lost_inverse_shows_in_the_compiled_stack(traced):
    """The determinants come out of compiled code; their signs are read outside of it, where an error can be raised."""
    block, x = stack("residual", [2], 1, ExactLogDet(), norm=False), batch([2])
    prepared = block.prepare()
    weight = prepared.steps[-1][0]
    J = jacobian(prepared[0].linearize(x)[1], x).detach()[0]
    prepared.steps[-1][0] = torch.diag(torch.tensor([1.0, 0.0]).double()) @ weight * (-3 / J[0, 0])  # det(I + J) is -2
    for on in (False, True):
        block.compile_blocks(on)
        with pytest.raises(NonInvertibleError, match="sample 0"):
            block.estimate(x, Call(GeneratorDraws(), Stack(prepared.plan, prepared.steps)))
