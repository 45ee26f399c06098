import copy
import math
import pickle

import pytest
import torch
from bijection_registry import conditional, dense, jitter, residual

from idensenet.bijections import ActNorm, Call, Chain, ResidualBlock
from idensenet.draws import GeneratorDraws, KeyedDraws, default_draws
from idensenet.errors import ConvergenceError, OptionError, ShapeError
from idensenet.lipschitz import LipschitzMap, OperatorNorms, Pieces, dense_block, refresh_norms
from idensenet.logdet import AdaptiveLogDet, ExactLogDet, KrylovLogDet, RouletteLogDet, SeriesLogDet
from idensenet.solve import Anderson, Newton, Picard

stacks = pytest.mark.parametrize(("blocks", "norm"), [(1, False), (3, False), (3, True)])


def block(blocks=1, norm=False, **options):
    torch.manual_seed(1)
    actnorm = ActNorm(4, blocks) if norm else None
    made = ResidualBlock(dense_block([4], 2, 4, Pieces(), blocks=blocks), norm=actnorm, **options).double()
    made.initialize(torch.randn(32, 4, dtype=torch.float64))
    return jitter(made)


def call(made, x, draws=None):
    return Call(draws or default_draws(x, made.training), made.prepare())


@stacks
def test_training_and_evaluation_have_their_own_log_determinant(blocks, norm):
    made = block(blocks, norm, log_det=SeriesLogDet(1, probes=2), eval_log_det=ExactLogDet())
    x = torch.randn(3, 4, dtype=torch.float64)
    assert made.eval().estimate(x, call(made, x))[1].standard_error is None
    assert made.train().estimate(x, call(made, x))[1].standard_error.shape == (3,)
    assert ResidualBlock(made.g, SeriesLogDet(1)).eval_log_det.terms == 1


@stacks
def test_out_of_training_a_block_on_its_own_is_a_function_of_its_input(blocks, norm):
    made = block(blocks, norm, log_det=RouletteLogDet()).eval()
    x = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(made(x)[1], made(x)[1])
    made.train()
    assert not torch.equal(made(x)[1], made(x)[1])


METHODS = {
    "exact": ExactLogDet,
    "series": lambda: SeriesLogDet(4, probes=2),
    "roulette": RouletteLogDet,
    "adaptive": AdaptiveLogDet,
    "krylov": KrylovLogDet,
}


def weighted_gradients(made, x, again=False):
    """Value, log-determinant and all gradients of a loss that weighs samples differently."""
    y, log_det = made(x, GeneratorDraws(torch.Generator().manual_seed(0)))
    weights = torch.linspace(-1, 2, len(x), dtype=x.dtype)
    loss = (y.square().sum(1) * weights).sum() + (log_det * weights.flip(0)).sum()
    found = torch.autograd.grad(loss, [x, *made.parameters()], retain_graph=True)
    if again:
        for a, b in zip(found, torch.autograd.grad(loss, [x, *made.parameters()]), strict=True):
            assert torch.equal(a, b)
    return [y.detach(), log_det.detach(), *found]


@stacks
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_saving_memory_changes_no_number(method, blocks, norm):
    x = torch.randn(3, 4, dtype=torch.float64).requires_grad_()
    results = []
    for save in (False, True):
        made = block(blocks, norm, log_det=method(), save=save).train()
        results.append(weighted_gradients(made, x, again=True))
    assert all(float(each.abs().max()) > 1e-4 for each in results[0])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def alone(stack, k):
    """The k-th block of a stack, with its ActNorm, as a stack of one."""
    made = copy.deepcopy(stack)
    one = made.g.inner if hasattr(made.g, "inner") else made.g
    for module in made.modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and tensor.ndim and name != "sketch":
                tensor.data = tensor.data[k : k + 1].clone()
            elif name == "sketch":
                tensor.data = tensor.data[:, k : k + 1].clone()
        if hasattr(module, "blocks") and not isinstance(module, ResidualBlock):
            module.blocks = 1
    assert one.blocks == 1
    refresh_norms(made)
    return made


STACKS = {
    "vectors": (lambda: dense((4,), blocks=3), (4,)),
    "vectors, ActNorm": (lambda: dense((4,), blocks=3, norm=True), (4,)),
    "two dimensions, ActNorm": (lambda: residual((2,), blocks=3, norm=True), (2,)),
    "images, ActNorm": (lambda: dense((2, 3, 4), Pieces("leakylipswish"), blocks=3, norm=True), (2, 3, 4)),
    "residual, images": (lambda: residual((2, 4, 3), blocks=3), (2, 4, 3)),
    "conditional": (lambda: conditional(3, 3), (3,)),
    "conditional, ActNorm": (lambda: conditional(3, 3, norm=True), (3,)),
}


@pytest.mark.parametrize(("make", "shape"), STACKS.values(), ids=STACKS)
def test_a_stack_is_its_blocks_one_after_the_other(make, shape):
    stack = make().double().eval()
    context = torch.randn(5, 2, dtype=torch.float64)
    stack.initialize(torch.randn(5, *shape, dtype=torch.float64), context)
    jitter(stack)
    for m in stack.modules():
        if hasattr(m, "tolerance"):
            m.tolerance = 1e-13
    refresh_norms(stack)
    chain = Chain([alone(stack, k) for k in range(3)]).eval()
    x = torch.randn(5, *shape, dtype=torch.float64, requires_grad=True)
    weights = torch.linspace(-1, 2, 5, dtype=torch.float64)

    def gradients(bijection, way):
        y, log_det = getattr(bijection, way)(x, context=context)
        loss = (y.sin().flatten(1).sum(1) * weights).sum() + (log_det * weights.flip(0)).sum()
        found = torch.autograd.grad(loss, [x, *bijection.parameters()])
        return y.detach(), log_det.detach(), found

    for way in ("forward", "inverse"):
        y, log_det, found = gradients(stack, way)
        right, right_log_det, wanted = gradients(chain, way)
        torch.testing.assert_close(y, right, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(log_det, right_log_det, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found[0], wanted[0], rtol=1e-8, atol=1e-8)
        each = (len(wanted) - 1) // 3
        for i, grad in enumerate(found[1:], 1):
            together = torch.cat([wanted[i + k * each] for k in range(3)])
            torch.testing.assert_close(grad, together, rtol=1e-8, atol=1e-8)
    norms = OperatorNorms(2.0)
    assert stack.lipschitz(norms) == pytest.approx([part.lipschitz(norms)[0] for part in chain], rel=1e-9)
    assert stack.bi_lipschitz(norms) == pytest.approx(chain.bi_lipschitz(norms), rel=1e-9)
    other = Chain([chain.parts[i] for i in (1, 0, 2)])
    assert float((other(x, context=context)[0] - stack(x, context=context)[0]).detach().abs().max()) > 1e-4  # the order matters


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("method", [lambda: SeriesLogDet(60, probes=400), lambda: RouletteLogDet(exact_terms=20, probes=400)])
def test_the_estimate_of_a_stack_is_within_its_standard_error_of_the_exact_value(method, norm):
    made = block(3, norm, log_det=method(), eval_log_det=ExactLogDet()).train()
    x = torch.randn(6, 4, dtype=torch.float64)
    with torch.no_grad():
        y, found = made.estimate(x, call(made, x, KeyedDraws.of(x)))
        right_y, right = made.eval().estimate(x, call(made, x))
    torch.testing.assert_close(y, right_y, rtol=1e-12, atol=1e-12)
    off = (found.value - right.value).abs() / found.standard_error
    assert float(off.max()) < 4
    assert float(found.standard_error.min()) > 1e-4


def test_every_block_of_a_stack_has_draws_of_its_own():
    made = block(2, log_det=SeriesLogDet(1)).eval()
    with torch.no_grad():
        for p in made.parameters():
            p[1] = p[0]  # the same network twice
    x = torch.zeros(1, 4, dtype=torch.float64)
    seen = []

    class Watched(SeriesLogDet):
        def measure(self, g, x, draws, f, save=False):
            seen.append(draws.rademacher(x, 64))
            return super().measure(g, x, draws, f, save)

    made.eval_log_det = Watched(1)
    made(x)
    assert len(seen) == 2
    assert not torch.equal(seen[0], seen[1])


@stacks
@pytest.mark.parametrize("solver", [Picard(), Anderson(), Newton()])
def test_the_solution_reports_a_residual_within_its_goal_and_bounds_its_error(solver, blocks, norm):
    made = block(blocks, norm, solver=solver).eval()
    x = torch.randn(5, 4, dtype=torch.float64)
    with torch.no_grad():
        between = [x]  # in front of each block, and behind the last
        for k in range(blocks):
            y = between[-1] + made.g(between[-1], k)
            between.append(made.norm.affine(y, made.norm.log_scale[k], made.norm.shift[k]) if norm else y)
    solutions = made.solve(between[-1], call(made, x))
    bounds = made.lipschitz(OperatorNorms(2.0))
    assert len(solutions) == len(bounds) == blocks
    for k, (solution, L) in enumerate(zip(solutions, bounds, strict=True)):
        assert bool(solution.converged.all())
        target = solution.value + made.g(solution.value, k).detach()
        goal = torch.clamp(4 * 2.3e-16 * target.norm(dim=1), min=1e-12 * 2)
        assert bool((solution.residual <= goal).all())
        assert L < 1
        if k == blocks - 1:  # the blocks before it also inherit the error of what they are given
            assert bool(((solution.value - between[k]).norm(dim=1) <= solution.error_bound(L) + 1e-13).all())
        torch.testing.assert_close(solution.value, between[k], rtol=0, atol=1e-9)


@stacks
def test_the_weights_before_and_after_a_step_have_different_inverses_without_any_call(blocks, norm):
    made = block(blocks, norm).eval()
    y = torch.randn(3, 4, dtype=torch.float64)
    with torch.no_grad():
        before = made.decode(y)
        for p in made.parameters():
            p.data.add_(0.1 * torch.randn_like(p))
        after = made.decode(y)
        torch.testing.assert_close(made.encode(after), y, rtol=1e-10, atol=1e-10)
    assert float((after - before).abs().max()) > 1e-3


@stacks
def test_decode_carries_a_graph_only_where_something_wants_a_gradient(blocks, norm):
    made, y = block(blocks, norm).eval(), torch.randn(3, 4, dtype=torch.float64)
    assert made.decode(y).requires_grad
    with torch.no_grad():
        assert not made.decode(y).requires_grad
    frozen = copy.deepcopy(made).requires_grad_(False)
    assert not frozen.decode(y).requires_grad
    assert frozen.decode(y.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_is_prepared_keeps_its_graph_though_it_was_first_used_without_one(mode):
    made, x = block(3, True).train(), torch.randn(3, 4, dtype=torch.float64)
    prepared = made.prepare()
    given = Call(default_draws(x, True), prepared)
    with mode():
        made.push(x, given)
    _, log_det = made.push(x, given)
    right = torch.autograd.grad(made(x)[1].sum(), list(made.parameters()), allow_unused=True)
    found = torch.autograd.grad(log_det.sum(), list(made.parameters()), allow_unused=True)
    for a, b in zip(found, right, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_branch_that_does_not_contract_is_an_error_of_the_inverse_and_has_no_lower_bound(blocks):
    made = dense((2,), Pieces("identity"), blocks=blocks).double().eval()
    with torch.no_grad():
        for m in made.modules():
            if isinstance(m, LipschitzMap):
                m.coeff = 9.0
                m.weight[-1].mul_(100)
    refresh_norms(made)
    lower, upper = made.bi_lipschitz(OperatorNorms(2.0))
    assert lower == 0
    assert 2 < upper < math.inf
    with torch.no_grad(), pytest.raises(ConvergenceError, match=r"not contractive"):
        ResidualBlock(made.g, solver=Picard()).inverse(torch.randn(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("way", ["forward", "inverse"])
def test_chains_and_stacks_on_their_own_do_not_depend_on_the_batch(way):
    blocks = [ResidualBlock(dense_block([3, 4, 4], 2, 8, Pieces()), RouletteLogDet()) for _ in range(3)]
    stack = ResidualBlock(dense_block([3, 4, 4], 2, 8, Pieces(), blocks=3), RouletteLogDet(), norm=ActNorm(3, 3)).eval()
    stack.initialize(torch.randn(32, 3, 4, 4))
    chain, x = Chain(blocks).eval(), torch.randn(6, 3, 4, 4)
    for bijection in (chain, blocks[0], stack):
        with torch.no_grad():
            together = getattr(bijection, way)(x)[1]
            alone = torch.cat([getattr(bijection, way)(x[i : i + 1])[1] for i in range(6)])
        torch.testing.assert_close(together, alone, atol=1e-3, rtol=0)


@stacks
def test_a_stack_is_pickled_and_copied(blocks, norm):
    made, x = block(blocks, norm).eval(), torch.randn(3, 4, dtype=torch.float64)
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert all(torch.equal(a, b) for a, b in zip(other(x), made(x), strict=True))


def test_a_conditional_stack_needs_a_context_for_each_sample():
    made = conditional(3, 2).double()
    with pytest.raises(OptionError, match="give it a context for each sample"):
        made(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(ShapeError, match="2 samples but 5 contexts"):
        made(torch.zeros(2, 3, dtype=torch.float64), context=torch.zeros(5, 2, dtype=torch.float64))
    with pytest.raises(ShapeError, match=r"vectors of 3 numbers.*\(2, 4\)"):
        made(torch.zeros(2, 4, dtype=torch.float64), context=torch.zeros(2, 2, dtype=torch.float64))
