"""Blocks prepared together: the Jacobian of autograd, the numbers of a block alone, and nothing that is out of date."""

import copy
import math

import pytest
import torch

from brute import jacobians
from idensenet.errors import ShapeError
from idensenet.lipschitz import DenseBlock, Pieces, activation, dense_block, fresh_norms, residual_net
from idensenet.lipschitz.packed import Plan, packed, value_and_jacobian
from idensenet.lipschitz.scope import scope


def block(act="clipswish", norm=2.0, dims=3, first=None, learnable=True):
    g = dense_block([dims], 2, 6, Pieces(act, norm=norm, learnable=learnable), first).double()
    with torch.no_grad():
        for p in g.parameters():
            p.add_(0.3 * torch.randn_like(p))  # all betas and concatenations differ
            if p.ndim > 1:
                p.mul_(4)
    return g


def found(g, x):
    plan, row = packed(g, x)
    return value_and_jacobian(x, plan, row)


@pytest.mark.parametrize("act", ["clipswish", "lipswish", "leakylipswish", "crelu", "tanh"])
@pytest.mark.parametrize(("norm", "first", "learnable"), [(2, None, True), (1, 4, True), (math.inf, None, False)])
def test_value_and_jacobian_are_those_of_autograd(act, norm, first, learnable):
    g = block(act, norm, first=first, learnable=learnable)
    x = torch.randn(5, 3, dtype=torch.float64)
    value, J = found(g, x)
    torch.testing.assert_close(value, g(x), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(J, jacobians(g, x), rtol=1e-11, atol=1e-12)


def test_the_gradient_is_that_of_the_plain_computation():
    g, weight = block(), torch.randn(4, 3, 3, dtype=torch.float64)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    value, J = found(g, x)
    other, matrix = g.linearize(x)
    columns = torch.stack([matrix.matvec(unit.expand(4, 3)) for unit in torch.eye(3, dtype=torch.float64)], 2)
    wanted = [x, *g.parameters()]
    ours = torch.autograd.grad((weight * J).sum() + value.sin().sum(), wanted)
    right = torch.autograd.grad((weight * columns).sum() + other.sin().sum(), wanted)
    torch.testing.assert_close(ours, right, rtol=1e-10, atol=1e-11)
    assert all(float(part.abs().max()) > 1e-6 for part in right)  # nothing is right because it is zero


def test_blocks_of_a_model_are_prepared_together_and_each_gets_its_own():
    model = torch.nn.ModuleList([block(), block(dims=2), block(), residual_net([3], [4], [1, 1], Pieces()).double()])
    x = torch.randn(5, 3, dtype=torch.float64)
    alone = [found(g, x) for g in (model[0], model[2])]
    assert not scope.packs
    with fresh_norms(model):
        for g, (value, J) in zip((model[0], model[2]), alone, strict=True):
            together = found(g, x)
            torch.testing.assert_close(together, (value, J), rtol=1e-12, atol=1e-13)
            assert len(scope.packs) == 2  # the second was prepared with the first
        assert packed(model[3], x) is None
        assert packed(model[0], x)[1].requires_grad
        with torch.no_grad():
            assert not packed(model[0], x)[1].requires_grad
    assert not scope.packs


def test_a_row_follows_weights_layers_and_constants():
    g, x = block(), torch.randn(4, 3, dtype=torch.float64)
    before = found(g, x)[0]

    def changed():
        value, J = found(g, x)
        torch.testing.assert_close(value, g(x), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(J, jacobians(g, x), rtol=1e-11, atol=1e-12)
        return float((value - before).detach().abs().max()) > 1e-4

    with torch.no_grad():
        g.layers[0].linear.weight.add_(0.5)
    assert changed()
    g.layers[1].activation = activation("crelu").double()
    assert changed()
    g.layers[0].lip = 0.5
    g.layers[-1].coeff = 0.4
    plan = Plan.of(g)
    assert (plan.steps[0].lip, plan.steps[-1].coeff) == (0.5, 0.4)
    assert changed()
    again = copy.deepcopy(g)
    torch.testing.assert_close(found(again, x), found(g, x), rtol=0, atol=0)


def test_what_cannot_be_packed():
    class Other(DenseBlock):
        pass

    x = torch.zeros(2, 3, dtype=torch.float64)
    assert packed(dense_block([2, 4, 4], 1, 4, Pieces()), torch.zeros(1, 2, 4, 4)) is None
    assert packed(Other(list(block().layers)), x) is None
    with pytest.raises(ShapeError, match="vectors of 3 numbers"):
        packed(block(), torch.zeros(2, 5, dtype=torch.float64))
