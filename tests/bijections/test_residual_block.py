import copy
import math

import pytest
import torch
from bijection_registry import dense, jitter

from idensenet.bijections import Chain, ResidualBlock
from idensenet.draws import GeneratorDraws
from idensenet.errors import ConvergenceError
from idensenet.lipschitz import LipschitzMap, OperatorNorms, Pieces, dense_block
from idensenet.logdet import ExactLogDet, RouletteLogDet, SeriesLogDet
from idensenet.solve import Anderson, Newton, Picard


def block(**options):
    torch.manual_seed(1)
    return jitter(ResidualBlock(dense_block([4], 2, 4, Pieces()), **options).double())


def test_training_and_evaluation_have_their_own_log_determinant():
    made = block(log_det=SeriesLogDet(1, probes=2), eval_log_det=ExactLogDet())
    x = torch.randn(3, 4, dtype=torch.float64)
    assert made.eval().estimate(x)[1].standard_error is None
    assert made.train().estimate(x)[1].standard_error.shape == (3,)
    assert ResidualBlock(made.g, SeriesLogDet(1)).eval_log_det.terms == 1


def test_out_of_training_a_block_on_its_own_is_a_function_of_its_input():
    made = block(log_det=RouletteLogDet()).eval()
    x = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(made(x)[1], made(x)[1])
    made.train()
    assert not torch.equal(made(x)[1], made(x)[1])


def test_recomputation_changes_no_number():
    x = torch.randn(3, 4, dtype=torch.float64)
    results = []
    for recompute in (False, True, "input"):
        made = block(log_det=RouletteLogDet(), recompute=recompute).train()
        y, log_det = made(x, GeneratorDraws(torch.Generator().manual_seed(0)))
        (y.square().sum() + log_det.sum()).backward()
        results.append([y, log_det, *[p.grad for p in made.parameters()]])
    for a, *others in zip(*results, strict=True):
        for b in others:
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("solver", [Picard(), Anderson(), Newton()])
def test_the_solution_reports_a_residual_within_its_goal_and_bounds_its_error(solver):
    made = block(solver=solver).eval()
    x = torch.randn(5, 4, dtype=torch.float64)
    y = made.encode(x).detach()
    solution = made.solve(y)
    assert bool(solution.converged.all())
    assert bool((solution.residual <= torch.clamp(4 * 2.3e-16 * y.norm(dim=1), min=1e-12 * 2)).all())
    L = made.lipschitz(OperatorNorms(2.0))
    assert bool(((solution.value - x).norm(dim=1) <= solution.error_bound(L) + 1e-14).all())


def test_the_weights_before_and_after_a_step_have_different_inverses_without_any_call():
    made = block().eval()
    y = torch.randn(3, 4, dtype=torch.float64)
    with torch.no_grad():
        before = made.decode(y)
        for p in made.parameters():
            p.data.add_(0.1 * torch.randn_like(p))
        after = made.decode(y)
        torch.testing.assert_close(made.encode(after), y, rtol=1e-10, atol=1e-10)
    assert float((after - before).abs().max()) > 1e-3


def test_decode_carries_a_graph_only_where_something_wants_a_gradient():
    made, y = block().eval(), torch.randn(3, 4, dtype=torch.float64)
    assert made.decode(y).requires_grad
    with torch.no_grad():
        assert not made.decode(y).requires_grad
    frozen = copy.deepcopy(made).requires_grad_(False)
    assert not frozen.decode(y).requires_grad
    assert frozen.decode(y.clone().requires_grad_()).requires_grad


def test_a_branch_that_does_not_contract_is_an_error_of_the_inverse_and_has_no_lower_bound():
    made = dense((2,), Pieces("identity")).double().eval()
    with torch.no_grad():
        for m in made.modules():
            if isinstance(m, LipschitzMap):
                m.coeff = 9.0
                m.weight.mul_(100)
    lower, upper = made.bi_lipschitz(OperatorNorms(2.0))
    assert lower == 0
    assert 2 < upper < math.inf
    with torch.no_grad(), pytest.raises(ConvergenceError, match=r"not contractive"):
        ResidualBlock(made.g, solver=Picard()).inverse(torch.randn(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("way", ["forward", "inverse"])
def test_chains_on_their_own_do_not_depend_on_the_batch(way):
    blocks = [ResidualBlock(dense_block([3, 4, 4], 2, 8, Pieces()), RouletteLogDet()) for _ in range(3)]
    chain, x = Chain(blocks).eval(), torch.randn(6, 3, 4, 4)
    for bijection in (chain, blocks[0]):
        with torch.no_grad():
            together = getattr(bijection, way)(x)[1]
            alone = torch.cat([getattr(bijection, way)(x[i : i + 1])[1] for i in range(6)])
        torch.testing.assert_close(together, alone, atol=1e-3, rtol=0)
