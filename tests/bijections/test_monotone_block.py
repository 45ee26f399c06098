"""Monotone blocks against brute force: estimators, implicit gradients, the certificate, compiled code, saving memory."""

import math

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from bijection_registry import inputs, jitter, monotone, monotone_reference

from idensenet.bijections import ActNorm, Call, MonotoneBlock, ResidualBlock
from idensenet.bijections.monotone import negative
from idensenet.draws import Draws, GeneratorDraws
from idensenet.errors import ConvergenceError
from idensenet.lipschitz import LipschitzMap, OperatorNorms, Pieces, branch, dense_block, refresh_norms
from idensenet.logdet import AdaptiveLogDet, ExactLogDet, KrylovLogDet, RouletteLogDet, SeriesLogDet
from idensenet.solve import Picard, small
from lipschitz.adversary import largest_ratio


def block(shape, blocks=1, norm=False, **options):
    torch.manual_seed(1)
    g = dense_block(shape, 2, 4, Pieces(), blocks=blocks)
    made = MonotoneBlock(g, norm=ActNorm(shape[0], blocks) if norm else None, **options).double()
    made.initialize(inputs(shape, 32))
    return jitter(made)


class Units(Draws):
    """Probes over which the mean of v' A v is the trace of A; series that stop where they can."""

    def fold(self, part):
        return self

    def uniform(self, like, copies=1):
        raise NotImplementedError

    def rademacher(self, like, copies=1):
        dims = like[0].numel()
        return (torch.eye(dims, dtype=like.dtype).view(dims, 1, *like.shape[1:]) * dims**0.5).expand(dims, *like.shape)

    normal = rademacher

    def lengths(self, batch, device):
        return torch.full((batch,), 0.999, dtype=torch.float64)


METHODS = {  # with all unit vectors for probes, and terms until nothing is left
    "exact": lambda dims: ExactLogDet(),
    "series": lambda dims: SeriesLogDet(400, probes=dims),
    "roulette": lambda dims: RouletteLogDet(exact_terms=400, probes=dims),
    "adaptive": lambda dims: AdaptiveLogDet(1e-14, max_terms=400, probes=dims),
    "krylov": lambda dims: KrylovLogDet(1e-13, dims + 1, probes=dims),
}


@pytest.mark.parametrize("shape", [(2,), (6,), (16,), (2, 3, 3)], ids=str)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_estimator_has_the_log_determinant_of_brute_force_and_its_gradient(method, shape):
    made, x = block(shape, log_det=method(math.prod(shape))).train(), inputs(shape, 2).requires_grad_()
    weights = torch.tensor([1.5, -0.7], dtype=torch.float64)
    (y, log_det), (right_y, right) = made(x, Units()), monotone_reference(made, x)
    torch.testing.assert_close(y, right_y, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(log_det, right, rtol=1e-7, atol=1e-7)
    wanted = [x, *made.parameters()]
    found, brute = (torch.autograd.grad((weights * each).sum(), wanted, allow_unused=True) for each in (log_det, right))
    for a, b in zip(found, brute, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("shape", "blocks"), [((3,), 2), ((9,), 1), ((1, 2, 2), 1)])
def test_the_implicit_gradient_passes_gradcheck_both_ways(shape, blocks):
    made, x = block(shape, blocks, norm=True).eval(), inputs(shape, 1).requires_grad_()
    for way in (made.forward, made.inverse):
        assert torch.autograd.gradcheck(lambda a, way=way: way(a), (x,), atol=1e-6)


@pytest.mark.parametrize("shape", [(3,), (9,)], ids=str)
def test_a_second_derivative_is_refused(shape):
    x = inputs(shape, 2).requires_grad_()
    y, log_det = block(shape).train()(x)
    for each in (y, log_det):
        with pytest.raises(RuntimeError, match="first derivatives only"):
            torch.autograd.grad(each.sum(), x, create_graph=True, retain_graph=True)


@pytest.mark.parametrize(("shape", "blocks"), [((2,), 3), ((9,), 2), ((2, 3, 3), 2)])
@pytest.mark.parametrize("method", [ExactLogDet, RouletteLogDet, KrylovLogDet])
def test_saving_memory_changes_no_number_and_a_second_backward_pass_is_the_same(shape, blocks, method):
    results, weights = [], torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for save in (False, True):
        made, x = block(shape, blocks, norm=True, log_det=method(), save=save).train(), inputs(shape, 3).requires_grad_()
        x = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x).requires_grad_()
        y, log_det = made(x, GeneratorDraws(torch.Generator().manual_seed(0)))
        loss = (y.sin().flatten(1).sum(1) * weights).sum() + (log_det * weights.flip(0)).sum()
        found, again = (torch.autograd.grad(loss, [x, *made.parameters()], retain_graph=True) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
        results.append([y.detach(), log_det.detach(), *found])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("shape", "tolerance"), [((2,), 1e-4), ((12,), 1e-3), ((2, 4, 4), 1e-3)])
def test_gradients_of_training_in_float32_are_those_of_float64(shape, tolerance):
    """In float32 a step of training solves its equations to 1e-4 only."""
    made, x = block(shape, 3, norm=True, log_det=SeriesLogDet(8)).train(), inputs(shape, 4)
    signs = inputs(shape, 4).sign()

    def gradients(dtype):
        flow, at = made.to(dtype), x.to(dtype).requires_grad_()

        class Signs(Units):
            def rademacher(self, like, copies=1):
                return signs.to(like.dtype)[None]

        y, log_det = flow(at, Signs())
        loss = y.square().sum() + log_det.sum()
        return torch.cat([each.flatten() for each in torch.autograd.grad(loss, [at, *flow.parameters()])]).double()

    right, found = gradients(torch.float64), gradients(torch.float32)
    assert float((found - right).norm() / right.norm()) < tolerance


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_an_adversary_stays_within_both_constants(norm):
    made = monotone((3,), pieces=Pieces("identity", 0.8, norm=norm)).double().eval()
    jitter(made)
    refresh_norms(made)
    lower, upper = made.bi_lipschitz(OperatorNorms(norm))
    (L,) = made.lipschitz(OperatorNorms(norm))
    assert (lower, upper) == pytest.approx(((1 - L) / (1 + L), (1 + L) / (1 - L)))
    assert largest_ratio(made.encode, (3,), norm, steps=15, pairs=3) <= upper * (1 + 1e-9)
    assert largest_ratio(made.decode, (3,), norm, steps=15, pairs=3) <= 1 / lower * (1 + 1e-9)


def test_the_constants_are_reached_and_a_residual_block_is_nineteen_times_and_twice_as_steep():
    g = dense_block([1], 1, 2, Pieces("identity", learnable=False), outputs=1).double()
    linear = MonotoneBlock(g).eval()
    with torch.no_grad():
        for m in g.modules():
            if isinstance(m, LipschitzMap):
                m.weight.abs_().add_(3)  # far above its bound, and of one sign
                m.bias.zero_()
    x = torch.tensor([[-1.0], [2.0]], dtype=torch.float64)
    slope = float((g(x[1:]) - g(x[:1])) / 3)
    there = linear.encode(x).detach()
    assert float((there[1] - there[0]) / 3) == pytest.approx((1 - slope) / (1 + slope), rel=1e-9)
    assert slope > 0.3


def test_negative_is_minus_g_with_its_gradient():
    made = block((3,), 2)
    x = inputs((3,), 4)
    g = made.prepare()[1]
    torch.testing.assert_close(negative(g)(x), -g(x), rtol=1e-12, atol=1e-12)
    found, right = (torch.autograd.grad(each.sin().sum(), g.tensors()) for each in (negative(g)(x), -g(x)))
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(2,), (9,)], ids=str)
def test_where_g_does_not_contract_the_forward_pass_is_an_error_and_nothing_is_guaranteed(shape):
    made = monotone(shape, pieces=Pieces("identity")).double().train()
    made.solver = Picard(max_steps=200)
    with torch.no_grad():
        for m in made.modules():
            if isinstance(m, LipschitzMap):
                m.coeff = 9.0
                m.weight.mul_(100)
    refresh_norms(made)
    assert made.bi_lipschitz(OperatorNorms(2.0)) == (0.0, math.inf)
    with pytest.raises(ConvergenceError, match="did not converge"):
        made(torch.randn(3, *shape, dtype=torch.float64) * torch.nan)


def test_samples_that_newton_does_not_finish_are_solved_by_the_solver(monkeypatch):
    made, x = block((2,), 2).train(), inputs((2,), 5).requires_grad_()
    right = [each.detach() for each in made(x)]
    monkeypatch.setattr(small, "STEPS", 0)
    solved = []
    monkeypatch.setattr(small, "solve", lambda *a, inner=small.solve: solved.append(1) or inner(*a))
    found = made(x)
    assert solved
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=1e-9, atol=1e-9)


def test_compiled_blocks_have_the_numbers_of_eager_ones():
    made, x = block((2,), 2, norm=True).train(), inputs((2,), 4).requires_grad_()

    def run():
        y, log_det = made(x, GeneratorDraws(torch.Generator().manual_seed(0)))
        loss = y.sin().sum() + (log_det * torch.arange(1, 5, dtype=x.dtype)).sum()
        return [y.detach(), log_det.detach(), *torch.autograd.grad(loss, [x, *made.parameters()])]

    right = run()
    torch._dynamo.reset()
    with torch._inductor.config.patch({"compile_threads": 1, "cpp.simdlen": 1}):
        made.compile_blocks()
        for _ in range(2):
            for a, b in zip(run(), right, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
    assert isinstance(made.walk, small.SmallSolver)
    assert made.prepare()[0].eager().plan.push is branch.push  # solvers are not compiled
    torch._dynamo.reset()
    made.compile_blocks(False)
    for a, b in zip(run(), right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_blocks_of_a_residual_stack_differ_from_those_of_a_monotone_one():
    made, x = block((4,), 2).eval(), inputs((4,), 3)
    other = ResidualBlock(made.g).eval()
    assert float((made.encode(x) - other.encode(x)).detach().abs().max()) > 0.01
    given = Call(GeneratorDraws(), made.prepare())
    solution = made.solve(made.encode(x).detach(), given)[0]
    (L, _) = made.lipschitz(OperatorNorms(2.0))
    assert bool(((solution.value - x).norm(dim=1) <= solution.error_bound(L) * 10 + 1e-9).all())
