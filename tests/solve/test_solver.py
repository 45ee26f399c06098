"""What holds for every solver, and the loop that drives them."""

import math

import pytest
import torch
from contractions import Square, TanhNet, branch, contraction, network, norms, points, root

from idensenet.errors import ConvergenceError, OptionError
from idensenet.lipschitz import OperatorNorms
from idensenet.solve import Anderson, Newton, Picard, Status, solve

SOLVERS = [Picard, Anderson, Newton]
solvers = pytest.mark.parametrize("kind", SOLVERS)
networks = pytest.mark.parametrize("name", ["dense", "residual", "dense-conv", "residual-conv"])


@solvers
@networks
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_the_solution_is_the_inverse_to_the_tolerance_and_says_how_well(kind, name: str, dtype: torch.dtype, tol: float):
    g, y = branch(name, dtype), points(name, dtype=dtype)
    solution = solve(g, y, kind())
    assert solution.converged.all()
    assert (solution.status == Status.CONVERGED).all()
    assert solution.value.dtype == dtype
    assert not solution.value.requires_grad
    assert (solution.residual <= tol * math.prod(y.shape[1:]) ** 0.5).all()
    with torch.no_grad():
        again = norms(solution.value + g(solution.value) - y)
    # the reported residual is of a smaller batch, so it may be rounded differently
    torch.testing.assert_close(solution.residual, again, rtol=0, atol=20 * torch.finfo(dtype).eps)
    assert norms(solution.value - root(g, y)).max() <= 20 * tol * math.prod(y.shape[1:]) ** 0.5
    assert (solution.steps > 0).all()
    solution.raise_unless_converged()


@solvers
@networks
def test_with_a_certificate_the_error_is_bounded_by_the_residual(kind, name: str):
    net, y = network(name), points(name, 20)
    with torch.no_grad():
        g = net.prepare()[0]
    (L,) = net.lipschitz(OperatorNorms(2.0))
    assert 0.8 < L < 1
    solution = solve(g, y, kind(tol=1e-2))
    error = norms(solution.value - root(g, y))
    assert (error <= solution.error_bound(L)).all()
    assert (solution.residual <= 1e-2 * math.prod(y.shape[1:]) ** 0.5).all()
    assert error.max() > 1e-6  # the tolerance was used
    assert (error > solution.error_bound(-1.0)).any()  # the control: half the residual is no bound


@solvers
def test_the_tolerance_is_on_the_residual_and_not_on_its_square(kind):
    g, y = branch("dense"), points("dense", 50)
    for tol in (1e-2, 1e-5, 1e-10):
        residual = solve(g, y, kind(tol=tol)).residual
        assert (residual <= tol * 3**0.5).all()
    assert (solve(g, y, kind(tol=1e-2)).residual > 1e-2 * 1e-2 * 3**0.5).any()  # nor more work than asked for


@solvers
def test_every_sample_is_solved_as_if_alone(kind):
    A = contraction(4, 0.95)
    far = torch.full((5, 4), 30.0, dtype=torch.float64)  # tanh is flat there: one step
    near = 0.1 * torch.randn(5, 4, dtype=torch.float64)
    y = torch.stack([far, near], 1).flatten(0, 1)
    g = TanhNet(A)
    together = solve(g, y, kind())
    assert g.sizes[0] == 10
    assert g.sizes[-1] <= 5  # the easy ones left the work
    alone = [solve(TanhNet(A), y[i : i + 1], kind()) for i in range(10)]
    assert together.steps.tolist() == [int(s.steps) for s in alone]
    torch.testing.assert_close(together.value, torch.cat([s.value for s in alone]), rtol=0, atol=1e-12)
    torch.testing.assert_close(together.residual, torch.cat([s.residual for s in alone]), rtol=0, atol=1e-13)
    assert together.steps[0::2].max() < together.steps[1::2].min()


@solvers
def test_a_function_without_a_solution_is_called_not_contractive(kind):
    y = torch.tensor([[0.1], [-5.0], [0.05], [-8.0]], dtype=torch.float64)
    solution = solve(Square(), y, kind(max_steps=60))
    assert solution.converged.tolist() == [True, False, True, False]
    with pytest.raises(ConvergenceError, match=r"2 of 4 samples \(1, 3\).*residual is .* not contractive.*certify"):
        solution.raise_unless_converged()
    torch.testing.assert_close(solution.value[[0, 2]], (-1 + (1 + 4 * y[[0, 2]]).sqrt()) / 2, rtol=0, atol=1e-11)


def test_a_diverging_iteration_is_stopped():
    solution = solve(lambda x: 3 * x, torch.ones(2, 2, dtype=torch.float64), Picard())
    assert (solution.status == Status.DIVERGED).all()
    assert (solution.steps < 50).all()
    assert solution.growth.allclose(torch.tensor(3.0, dtype=torch.float64))


@solvers
def test_the_step_limit_is_named(kind):
    y = 0.1 * torch.randn(3, 4, dtype=torch.float64)
    limit = 1
    solution = solve(TanhNet(contraction(4, 0.95)), y, kind(max_steps=limit))
    assert (solution.status == Status.STEP_LIMIT).all()
    assert (solution.steps == limit).all()
    assert (solution.growth < 1).all()
    with pytest.raises(ConvergenceError, match=r"3 of 3 samples \(0, 1, 2\).*after 1 steps.*max_steps.*tol"):
        solution.raise_unless_converged()


@solvers
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_spoils_its_own_sample_only(kind, bad: float):
    g, y = branch("dense"), points("dense", 4)
    right = solve(g, y, kind()).value
    y[2, 1] = bad
    solution = solve(g, y, kind())
    assert solution.converged.tolist() == [True, True, False, True]
    assert solution.status[2] == Status.DIVERGED
    keep = [0, 1, 3]
    torch.testing.assert_close(solution.value[keep], right[keep], rtol=0, atol=1e-11)
    with pytest.raises(ConvergenceError, match=r"\(2\).*NaN or infinite"):
        solution.raise_unless_converged()


@solvers
def test_an_empty_batch_is_solved(kind):
    solution = solve(branch("dense"), points("dense", 0), kind())
    assert solution.value.shape == (0, 3)
    assert solution.converged.shape == (0,)
    solution.raise_unless_converged()


@solvers
def test_a_solution_known_from_the_start_takes_no_step(kind):
    g, y = TanhNet(torch.zeros(3, 3, dtype=torch.float64)), points("dense")
    solution = solve(g, y, kind())
    assert (solution.steps == 0).all()
    assert torch.equal(solution.value, y)


@solvers
@pytest.mark.parametrize("size", [1e6, 1e-6])
def test_the_tolerance_is_never_below_the_rounding_of_the_target(kind, size: float):
    g = TanhNet(contraction(4, 0.9).float())
    y = size * torch.randn(5, 4)
    solution = solve(g, y, kind())
    assert solution.converged.all()
    assert (solution.residual <= torch.clamp(4 * torch.finfo(torch.float32).eps * norms(y), min=2e-6)).all()


@solvers
def test_a_target_is_not_changed(kind):
    y = points("dense")
    before = y.clone()
    solution = solve(branch("dense"), y, kind())
    assert torch.equal(y, before)
    assert solution.value.data_ptr() != y.data_ptr()


@solvers
def test_options_out_of_range_are_refused(kind):
    for tol in (0.0, -1.0, float("nan")):
        with pytest.raises(OptionError, match=f"tol={tol}"):
            kind(tol=tol)
    with pytest.raises(OptionError, match="max_steps=0"):
        kind(max_steps=0)
