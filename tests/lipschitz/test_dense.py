"""The weighted concatenation."""

import math

import pytest
import torch
import torch.nn.functional as F
from adversary import largest_ratio
from hypothesis import given
from hypothesis import strategies as st

from brute import plain_layer
from idensenet.errors import OptionError
from idensenet.lipschitz import DenseBlock, DenseLayer, LipschitzConv2d, LipschitzLinear, activation, refresh_norms
from idensenet.lipschitz.dense import p_norm

LIP = 0.98


def linear(inputs, outputs, shape, norm=2.0, blocks=1, kernel=3):
    if len(shape) == 1:
        return LipschitzLinear(inputs, outputs, 0.9, norm, blocks)
    return LipschitzConv2d(inputs, outputs, kernel, shape[1:], 0.9, norm, blocks)


def dense(act="lipswish", norm=2.0, shape=(3,), learnable=True, gain=8.0, lip=LIP, blocks=1):
    inner = linear(3, 4, shape, norm, blocks)
    inner.weight.data.mul_(gain)
    return DenseLayer(inner, activation(act, blocks, norm), learnable, lip).double()


def block(layer, shape=(3,), outputs=2):
    """The layer and a closing map, which is what computes it."""
    width = 3 + 4 * layer.activation.expansion
    closing = linear(width, outputs, shape, layer.linear.norm, layer.linear.blocks, kernel=1)
    return DenseBlock([layer, closing.double()])


SHAPES = {"vectors": (3,), "maps": (3, 4, 4)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("act", ["lipswish", "clipswish"])
@pytest.mark.parametrize("use", ["forward", "linearize"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_block_computes_the_formula_of_the_paper(shape, act, use, blocks):
    layer = dense(act, shape=shape, blocks=blocks)
    with torch.no_grad():
        layer.k.copy_(torch.tensor([[0.3, -0.8], [1.5, 0.2], [-2.0, 1.0]])[:blocks])
    net = block(layer, shape)
    x = torch.randn(5, *shape, dtype=torch.float64)
    for k in range(blocks):
        eta1, eta2 = (math.log1p(math.exp(each)) + 0.1 for each in layer.k[k].tolist())
        size = math.sqrt(eta1**2 + eta2**2)
        weight, bias = layer.linear.normalized_weight()[k], layer.linear.bias[k]
        pre = F.linear(x, weight, bias) if len(shape) == 1 else F.conv2d(x, weight, bias, padding=1)
        wide = LIP * torch.cat([eta1 / size * x, eta2 / size * layer.activation(pre, k)], 1)
        weight, bias = net.layers[1].normalized_weight()[k], net.layers[1].bias[k]
        want = F.linear(wide, weight, bias) if len(shape) == 1 else F.conv2d(wide, weight, bias)
        found = net(x, k) if use == "forward" else net.prepare()[k].linearize(x)[0]
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(plain_layer(layer, x, k), wide, rtol=1e-12, atol=1e-13)  # what other tests lean on


def test_a_dense_block_ends_with_a_linear_map():
    with pytest.raises(OptionError, match="closing linear map"):
        DenseBlock([dense()])
    with pytest.raises(OptionError, match="belongs into a layer"):
        DenseBlock([activation("relu"), LipschitzLinear(3, 3)])


@pytest.mark.parametrize("lip", [0.0, 1.0, math.nan])
def test_lip_outside_its_range_raises(lip):
    with pytest.raises(OptionError, match=f"lip={lip}"):
        dense(lip=lip)


@pytest.mark.parametrize("learnable", [True, False])
def test_equal_weights_are_the_root_of_a_half_and_this_is_the_start(learnable):
    layer = dense(learnable=learnable, blocks=2)
    assert layer.k.tolist() == [[1.0, 1.0]] * 2
    assert layer.eta().flatten().tolist() == pytest.approx([math.sqrt(2) / 2] * 4, abs=1e-15)


@given(
    norm=st.sampled_from([1.0, 2.0, math.inf]),
    ks=st.lists(st.tuples(st.floats(-30, 30), st.floats(-30, 30)), min_size=1, max_size=3),
)
def test_each_pair_of_weights_has_unit_norm(norm, ks):
    layer = dense(norm=norm, blocks=len(ks))
    with torch.no_grad():
        layer.k.copy_(torch.tensor(ks))
    for eta, raw in zip(layer.eta().detach(), F.softplus(layer.k.detach()) + 0.1, strict=True):
        assert bool((eta > 0).all())
        assert float(torch.linalg.vector_norm(eta, norm)) == pytest.approx(1.0, abs=1e-14)
        assert float(eta[0] / eta[1]) == pytest.approx(float(raw[0] / raw[1]), rel=1e-12)


@pytest.mark.parametrize(("norm", "weight"), [(1.0, 0.5), (2.0, math.sqrt(0.5)), (math.inf, 1.0)])
def test_equal_weights_in_each_norm(norm, weight):
    layer = dense(norm=norm)
    assert layer.eta()[0].tolist() == pytest.approx([weight] * 2, abs=1e-15)


def test_a_learnable_concatenation_has_a_gradient_in_every_block_that_is_used():
    layer = dense(blocks=3)
    net, x = block(layer), torch.randn(5, 3, dtype=torch.float64)
    (net(x, 0).square().sum() + net(x, 2).square().sum()).backward()
    assert layer.k.grad is not None
    assert float(layer.k.grad[[0, 2]].abs().min()) > 0
    assert float(layer.k.grad[1].abs().max()) == 0


def test_a_frozen_concatenation_has_no_gradient_and_stays_until_it_learns():
    layer = dense()
    net, x = block(layer), torch.randn(5, 3, dtype=torch.float64)
    net(x).square().sum().backward()
    layer.learn(False)
    assert layer.k.grad is None
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, weight_decay=0.1)
    for on in (False, True):
        layer.learn(on)
        optimizer.zero_grad()
        net(x).square().sum().backward()
        assert (layer.k.grad is not None) is on
        optimizer.step()
        assert (layer.k.tolist() != [[1.0, 1.0]]) is on


def test_a_fixed_concatenation_has_no_parameter_and_never_learns():
    layer = dense(learnable=False, blocks=2)
    assert "k" not in dict(layer.named_parameters())
    assert "k" in layer.state_dict()
    layer.learn()
    block(layer)(torch.randn(5, 3, dtype=torch.float64)).sum().backward()
    assert layer.k.grad is None
    assert not layer.k.requires_grad
    assert sum(p.numel() for p in dense(blocks=2).parameters()) - sum(p.numel() for p in layer.parameters()) == 4


@given(norm=st.sampled_from([1.0, 2.0, math.inf]), pair=st.tuples(st.floats(0, 2), st.floats(0, 2)))
def test_p_norm_of_a_pair(norm, pair):
    want = float(torch.linalg.vector_norm(torch.tensor(pair, dtype=torch.float64), norm))
    assert p_norm(pair, norm) == pytest.approx(want, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("act", ["lipswish", "clipswish"])
@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_no_pair_of_points_beats_the_bound(shape, act, norm):
    layer = dense(act, norm, shape, blocks=2)
    with torch.no_grad():
        layer.k.copy_(torch.tensor([[1.0, 0.0], [-1.0, 2.0]]))
    refresh_norms(layer)
    bounds = layer.lipschitz(layer.linear.bounds())
    found = largest_ratio(lambda x: plain_layer(layer.requires_grad_(False), x, 1), shape, norm)
    assert found <= bounds[1] <= LIP
    assert found > 0.6 * bounds[1]  # the search does find something
    assert bounds[0] != bounds[1]


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_the_bound_is_that_of_the_appendix(norm):
    layer = dense("identity", norm, blocks=2)
    layer.lip = 1.0
    with torch.no_grad():
        layer.k.copy_(torch.tensor([[0.5, -0.5], [0.1, 2.0]]))
    want = [p_norm((a, norm_of_map * b), norm) for (a, b), norm_of_map in zip(layer.eta().tolist(), (0.7, 0.4), strict=True)]
    assert layer.lipschitz([0.7, 0.4]) == pytest.approx(want, rel=1e-14)
    assert layer.lipschitz([1.0, 1.0]) == pytest.approx([1.0, 1.0], rel=1e-14)
