"""The report of a solver."""

import pytest
import torch

from idensenet.errors import ConvergenceError
from idensenet.solve import Solution, Status


def solution(status, residual, growth=None, steps=7):
    n = len(status)
    return Solution(
        torch.zeros(n, 2),
        torch.tensor([int(s) for s in status]),
        torch.full((n,), steps),
        torch.tensor(residual),
        torch.tensor(growth or [0.5] * n),
    )


def test_converged_samples_raise_nothing():
    s = solution([Status.CONVERGED] * 2, [1e-9, 2.0], growth=[3.0, 3.0])
    assert s.converged.tolist() == [True, True]
    s.raise_unless_converged()


def test_the_error_bound_needs_a_contraction():
    s = solution([Status.CONVERGED] * 2, [1e-3, 3e-3])
    torch.testing.assert_close(s.error_bound(0.9), torch.tensor([1e-2, 3e-2]))
    assert torch.isinf(s.error_bound(1.0)).all()
    assert torch.isinf(s.error_bound(1.5)).all()


def test_the_message_names_samples_residual_steps_and_remedy():
    s = solution([Status.CONVERGED, Status.STEP_LIMIT, Status.STEP_LIMIT], [9.0, 0.25, 0.125])
    with pytest.raises(ConvergenceError) as caught:
        s.raise_unless_converged()
    assert str(caught.value) == (
        "The inverse did not converge for 2 of 3 samples (1, 2): the worst residual is 0.25 after 7 steps; "
        "allow more steps (max_steps) or a larger tolerance (tol)."
    )


def test_the_message_blames_a_step_that_grew_among_the_failed_only():
    failed = [Status.CONVERGED, Status.DIVERGED]
    with pytest.raises(ConvergenceError, match=r"not contractive \(a step multiplied the residual by 2\.5\)"):
        solution(failed, [0.0, 4.0], growth=[0.1, 2.5]).raise_unless_converged()
    with pytest.raises(ConvergenceError, match="max_steps"):
        solution(failed, [0.0, 4.0], growth=[2.5, 0.1]).raise_unless_converged()


def test_many_failures_are_abbreviated():
    with pytest.raises(ConvergenceError, match=r"12 of 12 samples \(0, 1, 2, 3, 4, 5, 6, 7, \.\.\.\)"):
        solution([Status.STEP_LIMIT] * 12, [1.0] * 12).raise_unless_converged()


def test_a_residual_that_is_not_a_number_is_the_worst():
    nan = float("nan")
    with pytest.raises(ConvergenceError, match=r"the worst residual is nan.*NaN or infinite"):
        solution([Status.STEP_LIMIT, Status.DIVERGED], [1.0, nan], growth=[0.5, nan]).raise_unless_converged()
