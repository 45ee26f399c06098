"""The weighted concatenation."""

import math

import pytest
import torch
import torch.nn.functional as F
from adversary import largest_ratio
from hypothesis import given
from hypothesis import strategies as st

from idensenet.lipschitz import DenseLayer, LipschitzConv2d, LipschitzLinear, activation, operator_bound
from idensenet.lipschitz.dense import p_norm

LIP = 0.98


def dense(act="lipswish", norm=2.0, shape=(3,), learnable=True, gain=8.0, lip=LIP):
    linear = LipschitzLinear(3, 4, 0.9, norm) if len(shape) == 1 else LipschitzConv2d(3, 4, 3, shape[1:], 0.9, norm)
    linear.weight.data.mul_(gain)
    return DenseLayer(linear, activation(act, norm), learnable, lip).double()


SHAPES = {"vectors": (3,), "maps": (3, 4, 4)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("act", ["lipswish", "clipswish"])
@pytest.mark.parametrize("use", ["forward", "linearize"])
def test_forward_is_the_formula_of_the_paper(shape, act, use):
    layer = dense(act, shape=shape)
    with torch.no_grad():
        layer.k.copy_(torch.tensor([0.3, -0.8]))
    x = torch.randn(5, *shape, dtype=torch.float64)
    eta1, eta2 = (math.log1p(math.exp(k)) + 0.1 for k in layer.k.tolist())
    size = math.sqrt(eta1**2 + eta2**2)
    weight, bias = layer.linear.normalized_weight(), layer.linear.bias
    pre = F.linear(x, weight, bias) if len(shape) == 1 else F.conv2d(x, weight, bias, padding=1)
    want = LIP * torch.cat([eta1 / size * x, eta2 / size * layer.activation(pre)], 1)
    found = layer(x) if use == "forward" else layer.linearize(x)[0]
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("learnable", [True, False])
def test_equal_weights_are_the_root_of_a_half_and_this_is_the_start(learnable):
    layer = dense(learnable=learnable)
    assert layer.k.tolist() == [1.0, 1.0]
    assert layer.eta().tolist() == pytest.approx([math.sqrt(2) / 2] * 2, abs=1e-15)


@given(
    norm=st.sampled_from([1.0, 2.0, math.inf]),
    k=st.tuples(st.floats(-30, 30), st.floats(-30, 30)),
)
def test_the_pair_of_weights_has_unit_norm(norm, k):
    layer = dense(norm=norm)
    with torch.no_grad():
        layer.k.copy_(torch.tensor(k))
    eta, raw = layer.eta().detach(), F.softplus(layer.k.detach()) + 0.1
    assert bool((eta > 0).all())
    assert float(torch.linalg.vector_norm(eta, norm)) == pytest.approx(1.0, abs=1e-14)
    assert float(eta[0] / eta[1]) == pytest.approx(float(raw[0] / raw[1]), rel=1e-12)


@pytest.mark.parametrize(("norm", "weight"), [(1.0, 0.5), (2.0, math.sqrt(0.5)), (math.inf, 1.0)])
def test_equal_weights_in_each_norm(norm, weight):
    layer = dense(norm=norm)
    assert layer.eta().tolist() == pytest.approx([weight] * 2, abs=1e-15)


def test_a_learnable_concatenation_has_a_gradient():
    layer = dense()
    layer(torch.randn(5, 3, dtype=torch.float64)).square().sum().backward()
    assert layer.k.grad is not None
    assert float(layer.k.grad.abs().min()) > 0


def test_a_frozen_concatenation_has_no_gradient_and_stays_until_it_learns():
    layer = dense()
    x = torch.randn(5, 3, dtype=torch.float64)
    layer(x).square().sum().backward()
    layer.learn(False)
    assert layer.k.grad is None
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, weight_decay=0.1)
    for on in (False, True):
        layer.learn(on)
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        assert (layer.k.grad is not None) is on
        optimizer.step()
        assert (layer.k.tolist() != [1.0, 1.0]) is on


def test_a_fixed_concatenation_has_no_parameter_and_never_learns():
    layer = dense(learnable=False)
    assert "k" not in dict(layer.named_parameters())
    assert "k" in layer.state_dict()
    layer.learn()
    layer(torch.randn(5, 3, dtype=torch.float64)).sum().backward()
    assert layer.k.grad is None
    assert not layer.k.requires_grad
    assert sum(p.numel() for p in dense().parameters()) - sum(p.numel() for p in layer.parameters()) == 2


@given(norm=st.sampled_from([1.0, 2.0, math.inf]), pair=st.tuples(st.floats(0, 2), st.floats(0, 2)))
def test_p_norm_of_a_pair(norm, pair):
    want = float(torch.linalg.vector_norm(torch.tensor(pair, dtype=torch.float64), norm))
    assert p_norm(pair, norm) == pytest.approx(want, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("act", ["lipswish", "clipswish"])
@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_no_pair_of_points_beats_the_bound(shape, act, norm):
    layer = dense(act, norm, shape)
    with torch.no_grad():
        layer.k.copy_(torch.tensor([-1.0, 2.0]))
    bound = layer.lipschitz(operator_bound(layer.linear))
    found = largest_ratio(layer.requires_grad_(False), shape, norm)
    assert found <= bound <= LIP
    assert found > 0.6 * bound  # the search does find something


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_the_bound_is_that_of_the_appendix(norm):
    layer = dense("identity", norm)
    layer.lip = 1.0
    with torch.no_grad():
        layer.k.copy_(torch.tensor([0.5, -0.5]))
    a, b = layer.eta().tolist()
    assert layer.lipschitz(0.7) == pytest.approx(p_norm((a, 0.7 * b), norm), rel=1e-14)
    assert layer.lipschitz(1.0) == pytest.approx(1.0, rel=1e-14)
