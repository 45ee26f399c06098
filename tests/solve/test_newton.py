"""Newton's method."""

import pytest
import torch
from contractions import ScaledMatrix, TanhNet, Zigzag, branch, contraction, forgetful, points, root

from idensenet.errors import InputError
from idensenet.solve import Newton, Picard, solve


def test_a_linear_equation_takes_one_step():
    class Linear(TanhNet):
        def __call__(self, x):
            return x @ self.A.T

        def linearize(self, x):
            return self(x), ScaledMatrix(self.A, torch.ones_like(x))

    g, y = Linear(contraction(5, 0.95)), torch.randn(4, 5, dtype=torch.float64)
    solution = solve(g, y, Newton())
    assert (solution.steps == 1).all()
    torch.testing.assert_close(solution.value, torch.linalg.solve(torch.eye(5) + g.A, y.T).T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["dense", "residual", "dense-conv"])
def test_a_few_steps_do_what_picard_needs_many_for(name: str):
    g, y = branch(name), points(name)
    mine, plain = solve(g, y, Newton()), solve(g, y, Picard())
    assert (mine.steps <= 6).all()
    assert (mine.steps < plain.steps).all()


def test_where_a_step_does_not_help_it_falls_back_and_converges():
    y, refused = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None], []
    solution = solve(Zigzag(), y, forgetful(Newton(), refused))
    assert sum(refused) > 0
    assert solution.converged.all()
    assert (solution.value - root(Zigzag(), y)).abs().max() <= 1e-10


def test_a_plain_function_is_refused():
    with pytest.raises(InputError, match=r"linearize.*Picard or Anderson"):
        solve(lambda x: 0.5 * torch.tanh(x), torch.ones(2, 3), Newton())
