"""Anderson acceleration, and its way back to the fixed-point step."""

import pytest
import torch
from contractions import TanhNet, Zigzag, branch, contraction, forgetful, norms, points, root

from idensenet.errors import OptionError
from idensenet.solve import Anderson, Picard, solve


@pytest.mark.parametrize("dims", [4, 16])
def test_it_needs_far_fewer_steps_than_picard_where_the_contraction_is_weak(dims: int):
    g, y = TanhNet(contraction(dims, 0.95)), 0.3 * torch.randn(8, dims, dtype=torch.float64)
    mine, plain = solve(g, y, Anderson()), solve(g, y, Picard())
    assert mine.converged.all()
    assert plain.converged.all()
    assert (mine.steps < plain.steps).all()
    assert mine.steps.sum() < plain.steps.sum() / 2.5


@pytest.mark.parametrize("depth", [4, 6])
def test_a_linear_equation_is_solved_in_as_many_steps_as_it_has_dimensions(depth: int):
    A, y = contraction(4, 0.95), torch.randn(5, 4, dtype=torch.float64)
    solution = solve(lambda x: x @ A.T, y, Anderson(depth=depth))
    assert (solution.steps <= 4 + 4).all()  # in exact arithmetic one more than dimensions; the ridge costs a few
    torch.testing.assert_close(solution.value, torch.linalg.solve(torch.eye(4) + A, y.T).T, rtol=0, atol=1e-10)
    assert (solve(lambda x: x @ A.T, y, Picard()).steps > 100).all()


def test_where_proposals_are_refused_it_falls_back_and_converges():
    y, refused = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None], []
    solution = solve(Zigzag(), y, forgetful(Anderson(), refused))
    assert sum(refused) > 0
    assert solution.converged.all()
    assert (solution.value - root(Zigzag(), y)).abs().max() <= 1e-10


def test_where_proposals_help_none_is_refused():
    A, refused = contraction(3, 0.5), []
    solve(lambda x: x @ A.T, torch.randn(5, 3, dtype=torch.float64), forgetful(Anderson(tol=1e-6), refused))
    assert refused
    assert sum(refused) == 0


def test_a_network_takes_fewer_steps_than_picard():
    for name in ("dense", "dense-conv"):
        g, y = branch(name), points(name)
        assert (solve(g, y, Anderson()).steps < solve(g, y, Picard()).steps).all()


def test_one_remembered_step_is_enough_to_help():
    g, y = TanhNet(contraction(6, 0.95)), 0.3 * torch.randn(4, 6, dtype=torch.float64)
    solution = solve(g, y, Anderson(depth=1))
    assert solution.converged.all()
    assert (norms(solution.value - root(g, y)) <= solution.error_bound(0.95) + 1e-14).all()


def test_a_memory_without_room_is_refused():
    with pytest.raises(OptionError, match="depth=0"):
        Anderson(depth=0)
