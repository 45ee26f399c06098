"""Gradients through the inverse, against finite differences."""

import pytest
import torch
from contractions import SHAPES, TanhNet, contraction, network, points

from idensenet.bijections import ActNorm, Call, ResidualBlock
from idensenet.draws import default_draws
from idensenet.errors import ConvergenceError
from idensenet.lipschitz import LipschitzConv2d
from idensenet.logdet import ExactLogDet
from idensenet.solve import Anderson, Newton, Picard, solve
from idensenet.solve.implicit import _Transposed

networks = pytest.mark.parametrize("name", ["dense", "residual", "dense-conv"])
stacks = pytest.mark.parametrize(("blocks", "actnorm"), [(1, False), (3, False), (3, True)])


def block(name: str, solver=None, blocks: int = 1, actnorm: bool = False) -> ResidualBlock:
    g = network(name, blocks=blocks)
    for m in g.modules():
        if isinstance(m, LipschitzConv2d):
            m.tolerance = 1e-14  # or sigma would jump by its tolerance under finite differences
    norm = None
    if actnorm:
        norm = ActNorm(SHAPES[name][0], blocks).double()
        torch.nn.init.normal_(norm.log_scale, std=0.2)
        torch.nn.init.normal_(norm.shift, std=0.2)
        norm.initialized.fill_(True)
    return ResidualBlock(g, ExactLogDet(), solver=solver, norm=norm)


def ready(b: ResidualBlock, y: torch.Tensor) -> Call:
    return Call(default_draws(y, False), b.prepare())


def slope(loss, p: torch.Tensor, direction: torch.Tensor, h: float = 1e-5) -> float:
    """Central difference of loss() along `direction` in p, written through `.data`."""
    values = []
    with torch.no_grad():
        for sign in (1, -1):
            p.data.add_(direction, alpha=sign * h)
            values.append(float(loss()))
            p.data.sub_(direction, alpha=sign * h)
    return (values[0] - values[1]) / (2 * h)


@pytest.mark.parametrize(
    ("name", "solver"), [("dense", None), ("dense", Picard()), ("dense", Newton()), ("residual", None), ("dense-conv", None)]
)
def test_the_derivative_of_the_inverse_passes_gradcheck(name: str, solver):
    y = points(name, 1 if name == "dense-conv" else 2).requires_grad_()
    assert torch.autograd.gradcheck(block(name, solver).decode, (y,), eps=1e-5, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("actnorm", [False, True])
def test_the_derivative_of_the_inverse_of_a_stack_passes_gradcheck(actnorm: bool):
    y = points("dense", 2).requires_grad_()
    b = block("dense", blocks=3, actnorm=actnorm)
    assert torch.autograd.gradcheck(b.decode, (y,), eps=1e-5, atol=1e-6, rtol=1e-5)
    assert torch.autograd.gradcheck(b.inverse, (y[:1].detach().requires_grad_(),), eps=1e-5, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["dense", "dense-conv"])
def test_the_derivative_of_the_inverse_and_its_log_determinant_passes_gradcheck(name: str):
    y = points(name, 1).requires_grad_()
    assert torch.autograd.gradcheck(block(name).inverse, (y,), eps=1e-5, atol=1e-6, rtol=1e-5)


@networks
@stacks
@pytest.mark.parametrize("what", ["decode", "inverse"])
def test_the_derivative_with_respect_to_every_parameter_is_that_of_finite_differences(
    name: str, what: str, blocks: int, actnorm: bool
):
    b, y = block(name, blocks=blocks, actnorm=actnorm), points(name, 3)
    weight = torch.randn_like(y)
    per_sample = torch.randn(3, dtype=torch.float64)

    def loss():
        if what == "decode":
            return (weight * b.decode(y)).sum()
        x, log_det = b.inverse(y)
        return (weight * x).sum() + (per_sample * log_det).sum()

    loss().backward()
    largest = 0.0
    for label, p in b.named_parameters():
        direction = torch.randn_like(p)
        found = 0.0 if p.grad is None else float((p.grad * direction).sum())
        assert found == pytest.approx(slope(loss, p, direction), abs=2e-6, rel=1e-5), label
        largest = max(largest, abs(found))
    assert largest > 0.1


def test_the_same_check_sees_a_wrong_sign_and_a_missing_inverse():
    b, y = block("dense"), points("dense", 3)
    weight = torch.randn_like(y)
    p = b.g.layers[-1].weight
    direction = torch.randn_like(p)
    right = slope(lambda: (weight * b.decode(y)).sum(), p, direction)
    (found,) = torch.autograd.grad((weight * b.decode(y)).sum(), p)
    x = b.decode(y).detach()
    (without,) = torch.autograd.grad((weight * b.g(x)).sum(), p)  # dg without (I + J)^(-1) and without its sign
    assert float((found * direction).sum()) == pytest.approx(right, abs=2e-6)
    assert float((without * direction).sum()) != pytest.approx(right, abs=1e-3)
    assert float((-without * direction).sum()) != pytest.approx(right, abs=1e-3)


@pytest.mark.parametrize("scale", [1e-8, 1e-100, 1e8])
def test_the_gradient_is_as_right_at_every_scale(scale: float):
    b, y = block("residual"), points("residual").requires_grad_()
    weight = torch.randn_like(y)
    wrt = [y, *b.g.parameters()]
    unit = torch.autograd.grad((weight * b.decode(y)).sum(), wrt, allow_unused=True)
    scaled = torch.autograd.grad((scale * weight * b.decode(y)).sum(), wrt, allow_unused=True)
    for a, c in zip(unit, scaled, strict=True):
        assert (a is None) == (c is None)
        if a is not None:
            assert (c / scale - a).norm() <= 1e-9 * a.norm() + 1e-12


def test_samples_with_gradients_of_very_different_size_are_all_right():
    b, y = block("dense"), points("dense", 4).requires_grad_()
    weight = torch.randn_like(y)
    size = torch.tensor([1e-8, 1.0, 0.0, 1e8], dtype=torch.float64)[:, None]
    (mixed,) = torch.autograd.grad((size * weight * b.decode(y)).sum(), y)
    (even,) = torch.autograd.grad((weight * b.decode(y)).sum(), y)
    torch.testing.assert_close(mixed, size * even, rtol=1e-9, atol=0)


def test_in_single_precision_the_gradient_is_that_of_double_precision():
    b, y = block("dense"), points("dense", 4)
    weight = torch.randn_like(y)
    found = []
    for dtype in (torch.float64, torch.float32):
        b = b.to(dtype)
        z = y.to(dtype).requires_grad_()
        found.append(torch.autograd.grad((1e-8 * weight.to(dtype) * b.decode(z)).sum(), z)[0].double())
    assert (found[1] - found[0]).norm() <= 1e-5 * found[0].norm()


@stacks
def test_a_second_backward_equals_the_first(blocks: int, actnorm: bool):
    b, y = block("dense", blocks=blocks, actnorm=actnorm), points("dense").requires_grad_()
    wrt = [y, *b.parameters()]
    x = b.decode(y).sin().sum()
    first, second = (torch.autograd.grad(x, wrt, retain_graph=True, allow_unused=True) for _ in range(2))
    for a, c in zip(first, second, strict=True):
        assert (a is None and c is None) or torch.equal(a, c)


def test_a_graph_of_the_gradient_is_refused():
    b, y = block("dense"), points("dense").requires_grad_()
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(b.decode(y).sum(), y, create_graph=True)


def test_only_what_asks_for_a_gradient_gets_one():
    b, y = block("dense"), points("dense")
    with torch.no_grad():
        assert not b.decode(y.requires_grad_()).requires_grad
    b.requires_grad_(False)
    assert not b.decode(y.detach()).requires_grad
    z = y.detach().requires_grad_()
    b.decode(z).sum().backward()
    assert z.grad is not None
    assert all(p.grad is None for p in b.parameters())
    b.requires_grad_(True)
    b.decode(y.detach()).sum().backward()
    assert b.g.layers[0].linear.weight.grad.abs().max() > 0


def test_the_transposed_equation_is_solved_sample_by_sample():
    g = TanhNet(contraction(4, 0.95))
    x = torch.cat([torch.zeros(3, 4), torch.full((3, 4), 20.0)]).double()
    J = g.linearize(x)[1]
    right = torch.randn(6, 4, dtype=torch.float64)
    solution = solve(_Transposed(J), right, Anderson())
    assert solution.steps[:3].min() > solution.steps[3:].max()
    matrix = torch.eye(4) + (1 - torch.tanh(x) ** 2)[:, :, None] * g.A.T  # I + J'
    torch.testing.assert_close(solution.value, torch.linalg.solve(matrix, right), rtol=0, atol=1e-10)


def test_an_inverse_that_fails_raises():
    b, y = block("dense", Anderson(max_steps=1)), points("dense")
    with pytest.raises(ConvergenceError, match="max_steps"):
        b.decode(y)
    assert not b.solve(y, ready(b, y), raises=False)[0].converged.any()
    with pytest.raises(ConvergenceError, match="max_steps"):
        b.solve(y, ready(b, y))


def test_the_solutions_of_a_stack_are_the_points_between_its_blocks():
    b, x = block("dense", blocks=3, actnorm=True), points("dense")
    call = ready(b, x)
    y, between = x, []
    with torch.no_grad():
        for k in range(3):
            between.append(y)
            y = b.norm.affine(y + b.g(y, k), b.norm.log_scale[k], b.norm.shift[k])
        torch.testing.assert_close(b.encode(x), y, rtol=0, atol=1e-12)
    solutions = b.solve(y, call)
    assert len(solutions) == 3
    for solution, right in zip(solutions, between, strict=True):
        assert solution.converged.all()
        torch.testing.assert_close(solution.value, right, rtol=0, atol=1e-9)
