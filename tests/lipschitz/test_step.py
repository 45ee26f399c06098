"""The dense layer as one node of the graph, against the same layer left to autograd. (Compiled: test_fused.py.)"""

import pytest
import torch

from idensenet.lipschitz import step
from idensenet.lipschitz.activations import activation
from idensenet.lipschitz.block import apply, grow


@pytest.fixture(autouse=True)
def plain_functions(monkeypatch):
    monkeypatch.setattr(step, "fused", lambda function, wanted: function)


def layer(maps: bool, probes: int, name: str):
    torch.manual_seed(0)
    side = [5, 5] if maps else []
    rows = torch.randn(3 * (1 + probes), 4, *side, dtype=torch.float64)
    weight = torch.randn(6, 4, *([3, 3] if maps else []), dtype=torch.float64) / 4
    bias = torch.randn(6, dtype=torch.float64)
    phi = activation(name).double()
    return [t.requires_grad_() for t in (rows, weight, bias)], phi


@pytest.mark.parametrize("name", ["clipswish", "leakylipswish", "tanh"])
@pytest.mark.parametrize(("maps", "probes"), [(True, 1), (True, 3), (False, 2)])
def test_value_slopes_and_gradient_are_those_of_the_parts(name, maps, probes):
    (rows, weight, bias), phi = layer(maps, probes, name)
    right, right_slopes = grow(rows, apply(rows, weight), bias, phi, 3)
    wide, slopes = step.dense_step(rows, weight, bias, phi, 3)
    torch.testing.assert_close(wide, right, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(slopes, right_slopes, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-12, atol=1e-12)
        assert not mine.requires_grad
    inputs, back = [rows, weight, bias, *phi.parameters()], torch.randn_like(wide)
    found, wanted = torch.autograd.grad(wide, inputs, back), torch.autograd.grad(right, inputs, back)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-11)
        assert float(theirs.abs().max()) > 1e-3


def test_what_is_frozen_gets_no_gradient():
    (rows, weight, bias), phi = layer(True, 1, "clipswish")
    rows.requires_grad_(False)
    step.dense_step(rows, weight, bias, phi, 3)[0].sum().backward()
    assert rows.grad is None
    assert weight.grad is not None
    (rows, weight, bias), phi = layer(False, 1, "clipswish")
    weight.requires_grad_(False)
    step.dense_step(rows, weight, bias, phi, 3)[0].sum().backward()
    assert weight.grad is None
    assert rows.grad is not None


def test_the_gradient_that_came_in_is_left_alone():
    (rows, weight, bias), phi = layer(True, 1, "clipswish")
    wide, _ = step.dense_step(rows, weight, bias, phi, 3)
    back = torch.ones_like(wide)
    torch.autograd.grad(wide, rows, back)
    assert bool((back == 1).all())


def test_a_second_derivative_is_refused():
    (rows, weight, bias), phi = layer(False, 1, "clipswish")
    wide, _ = step.dense_step(rows, weight, bias, phi, 3)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(wide.sum(), rows, create_graph=True)
