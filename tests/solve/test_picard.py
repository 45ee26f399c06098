"""The fixed-point iteration."""

import torch
from contractions import Zigzag, contraction, norms, root

from idensenet.solve import Picard, solve


def test_the_residual_shrinks_by_the_lipschitz_constant_every_step():
    A, y = contraction(5, 0.8), torch.randn(4, 5, dtype=torch.float64)
    start = norms(y @ A.T)
    for steps in (1, 5, 20):
        residual = solve(lambda x: x @ A.T, y, Picard(max_steps=steps)).residual
        assert (residual <= 0.8**steps * start * (1 + 1e-9)).all()
    solution = solve(lambda x: x @ A.T, y, Picard())
    assert (solution.growth <= 0.8 + 1e-3).all()  # the last residuals are near rounding


def test_the_iterates_are_those_of_the_definition():
    A, y = contraction(3, 0.9), torch.randn(2, 3, dtype=torch.float64)
    x = y
    for _ in range(4):
        x = y - torch.tanh(x @ A.T)
    torch.testing.assert_close(solve(lambda x: torch.tanh(x @ A.T), y, Picard(max_steps=4)).value, x, rtol=0, atol=1e-15)


def test_a_rough_contraction_is_solved():
    y = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    solution = solve(Zigzag(), y, Picard())
    assert solution.converged.all()
    assert (solution.value - root(Zigzag(), y)).abs().max() <= 1e-10
