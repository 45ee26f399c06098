"""The networks g: their linearisation against autograd, their bounds against an adversarial search."""

import math

import pytest
import torch
from adversary import largest_ratio
from hypothesis import given
from hypothesis import strategies as st

from brute import jacobians
from idensenet.errors import OptionError, ShapeError
from idensenet.lipschitz import (
    DenseBlock,
    LipschitzLinear,
    LipschitzMap,
    Network,
    OperatorNorms,
    Pieces,
    ResidualNet,
    activation,
    dense_block,
    residual_net,
)
from idensenet.lipschitz.scope import norms_settled

VECTOR, MAPS = (4,), (2, 3, 4)
NETWORKS = {
    "dense vectors": (lambda act: dense_block(VECTOR, 2, 6, Pieces(act)), VECTOR),
    "dense maps": (lambda act: dense_block(MAPS, 2, 4, Pieces(act)), MAPS),
    "dense behind a linear map": (lambda act: dense_block(VECTOR, 2, 4, Pieces(act), first=3), VECTOR),
    "dense maps behind a linear map": (lambda act: dense_block(MAPS, 1, 4, Pieces(act), first=3), MAPS),
    "fixed concatenation": (lambda act: dense_block(VECTOR, 2, 4, Pieces(act, learnable=False)), VECTOR),
    "residual vectors": (lambda act: residual_net(VECTOR, [6, 6], [1, 1, 1], Pieces(act)), VECTOR),
    "residual maps": (lambda act: residual_net(MAPS, [6, 6], [3, 1, 3], Pieces(act)), MAPS),
    "no first activation": (lambda act: residual_net(MAPS, [6, 6], [3, 1, 3], Pieces(act), activate_first=False), MAPS),
    "extended": (lambda act: residual_net(MAPS, [4, 6, 8], [3, 3, 3, 1], Pieces(act)), MAPS),
    "small last": (lambda act: residual_net(VECTOR, [8, 8], [1, 1, 1], Pieces(act), small_last=True), VECTOR),
}
ACTS = ["clipswish", "lipswish", "leakylipswish", "elu", "crelu", "tanh"]


def maps_of(net):
    return [m for m in net.modules() if isinstance(m, LipschitzMap)]


def network(name, act="clipswish", gain=4.0, dtype=torch.float64):
    make, shape = NETWORKS[name]
    net = make(act)
    with torch.no_grad():
        for m in maps_of(net):
            m.weight.mul_(gain)
    return net.to(dtype), shape


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_linearize_is_the_jacobian_of_autograd(name, act):
    net, shape = network(name, act)
    x = torch.randn(3, *shape, dtype=torch.float64)
    value, jacobian = net.linearize(x)
    want = jacobians(net, x)
    torch.testing.assert_close(value, net(x), rtol=1e-12, atol=1e-13)
    v, u = torch.randn(2, 2, 3, *shape, dtype=torch.float64)  # two probes each
    forth = torch.einsum("bij,pbj->pbi", want, v.flatten(2)).view_as(v)
    back = torch.einsum("bij,pbi->pbj", want, u.flatten(2)).view_as(u)
    torch.testing.assert_close(jacobian.matvec(v), forth, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(jacobian.rmatvec(u), back, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(jacobian.matvec(v[0]), forth[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(jacobian.rmatvec(u[0]), back[0], rtol=1e-10, atol=1e-12)
    index = torch.tensor([2, 0])
    torch.testing.assert_close(jacobian.take(index).matvec(v[:, index]), forth[:, index], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(jacobian.take(index).rmatvec(u[0, index]), back[0, index], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("probes", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_value_and_product_together_are_those_apart_with_their_gradients(name, probes):
    """`push` and the folded weights of a dense block, against the layers one by one."""
    net, shape = network(name)
    with torch.no_grad():
        for layer in getattr(net, "dense_layers", []):
            if layer.k.requires_grad:
                layer.k.copy_(torch.randn(2))  # weights of the concatenation that differ
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    v, w = torch.randn(2, probes, *x.shape, dtype=torch.float64)
    found, expected = [], []
    value, product, J = net.push(x, v)
    found += [value, product, J.matvec(w), J.rmatvec(w), net(x), J.take(torch.tensor([2, 0])).rmatvec(w[:, [2, 0]])]
    apart = Network(net.layers)  # the same layers, each on its own
    value, J = apart.linearize(x)
    expected += [value, J.matvec(v), J.matvec(w), J.rmatvec(w), apart(x), J.rmatvec(w)[:, [2, 0]]]
    wanted = [x, *net.parameters()]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
        weight = torch.randn_like(a)
        grads = [torch.autograd.grad((weight * y).sum(), wanted, retain_graph=True, allow_unused=True) for y in (a, b)]
        for left, right in zip(*grads, strict=True):
            size = next((g for g in (left, right) if g is not None), torch.zeros(()))  # none is zero: a bias has no tangent
            a_side, b_side = (torch.zeros_like(size) if g is None else g for g in (left, right))
            torch.testing.assert_close(a_side, b_side, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_without_gradients_there_is_no_graph(name):
    net, shape = network(name)
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        value, jacobian = net.linearize(x)
        results = [value, jacobian.matvec(x), jacobian.rmatvec(x), jacobian.take(torch.tensor([1])).matvec(x[[1]]), net(x)]
    assert not any(result.requires_grad for result in results)
    again = net.linearize(x)
    assert again[0].requires_grad
    torch.testing.assert_close(again[0].detach(), value)


@pytest.mark.parametrize("act", ["clipswish", "leakylipswish", "elu"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_of_a_bilinear_form_is_that_of_a_double_backward(name, act):
    net, shape = network(name, act)
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    u, v = torch.randn(2, 3, *shape, dtype=torch.float64)
    names, parameters = zip(*net.named_parameters(), strict=True)
    inputs = [x, *parameters]
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)  # one per sample

    def gradients(a, b):
        form = ((a * b).flatten(1).sum(1) * weights).sum()
        return torch.autograd.grad(form, inputs, retain_graph=True, materialize_grads=True)

    (transposed,) = torch.autograd.grad((net(x) * u).sum(), x, create_graph=True)
    want = gradients(v, transposed)
    assert float(want[0].abs().max()) > 0
    jacobian = net.linearize(x)[1]
    for found in (gradients(u, jacobian.matvec(v)), gradients(jacobian.rmatvec(u), v)):
        for label, a, b in zip(["x", *names], found, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=lambda m, label=label: f"{label}: {m}")


@given(
    shape=st.one_of(st.tuples(st.integers(1, 5)), st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))),
    depth=st.integers(1, 3),
    growth=st.sampled_from([2, 4]),
    act=st.sampled_from(ACTS),
    first=st.sampled_from([None, 1, 3]),
    batch=st.integers(1, 3),
)
def test_dense_blocks_of_every_shape_keep_it_and_linearize(shape, depth, growth, act, first, batch):
    net = dense_block(shape, depth, growth, Pieces(act), first=first).double()
    assert len(net.dense_layers) == depth
    x, v, u = torch.randn(3, batch, *shape, dtype=torch.float64)
    value, jacobian = net.linearize(x)
    assert value.shape == x.shape
    _, product = torch.autograd.functional.jvp(net, x, v)
    torch.testing.assert_close(jacobian.matvec(v), product, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close((jacobian.rmatvec(u) * v).sum(), (u * product).sum(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "nominal"),
    [
        (lambda act: dense_block((3, 4, 4), 3, 4, Pieces(act)), 0.98**4),
        (lambda act: dense_block((8,), 3, 4, Pieces(act), first=4), 0.98**5),
        (lambda act: dense_block((2,), 3, 16, Pieces(act, 0.9)), 0.98**3 * 0.9),
    ],
    ids=["convolutional", "fully connected", "toy"],
)
def test_nominal_bounds(make, nominal):
    net = make("identity").double()
    inner = {layer.linear for layer in net.dense_layers}
    assert net.lipschitz(lambda layer: 1.0 if layer in inner else layer.coeff) == pytest.approx(nominal, rel=1e-12)
    for act in ("identity", "clipswish", "lipswish"):  # with every map at its coeff, a little below
        found = make(act).double().lipschitz(lambda layer: layer.coeff)
        assert 0.8 * nominal < found < nominal


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("act", ["clipswish", "leakylipswish"])
def test_no_pair_of_points_beats_the_certified_bound(name, act):
    net, shape = network(name, act)
    bound = net.lipschitz(OperatorNorms(2.0))
    assert bound < 1
    found = largest_ratio(net.requires_grad_(False), shape, steps=60, pairs=8)
    assert found <= bound
    assert found > 0.02 * bound  # random layers in a row stretch little; trained ones below do more


@pytest.mark.parametrize("name", ["dense vectors", "dense maps", "residual maps"])
def test_the_bound_holds_after_training_that_stretches(name):
    net, shape = network(name, gain=1.0)
    x, y = torch.randn(2, 16, *shape, dtype=torch.float64)
    start = net.lipschitz(OperatorNorms(2.0))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(20):  # towards the largest stretch it can get
        optimizer.zero_grad()
        (-(net(x) - net(y)).square().sum()).backward()
        optimizer.step()
    bound = net.lipschitz(OperatorNorms(2.0))
    assert start < bound < 1
    found = largest_ratio(net.requires_grad_(False), shape, steps=60)
    assert found <= bound
    assert found > 0.3 * bound


def test_without_normalisation_the_search_would_pass_the_bound():
    net, shape = network("dense vectors")
    bound = net.lipschitz(OperatorNorms(2.0))
    for m in maps_of(net):
        m.coeff = 50.0  # leaves every weight alone
        m._normalized = None
    assert largest_ratio(net.requires_grad_(False), shape, steps=60) > bound


@pytest.mark.parametrize("norm", [1.0, math.inf])
@pytest.mark.parametrize("act", ["clipswish", "lipswish"])
@pytest.mark.parametrize("shape", [VECTOR, MAPS], ids=["vectors", "maps"])
def test_bounds_in_other_norms(norm, act, shape):
    net = dense_block(shape, 2, 4, Pieces(act, 0.9, norm=norm)).double()
    for m in maps_of(net):
        m.weight.data.mul_(10)
    assert net.norm == norm
    bound = net.lipschitz(OperatorNorms(norm))
    assert bound <= 0.98**2 * 0.9 * (1 + 1e-6)
    found = largest_ratio(net.requires_grad_(False), shape, norm, steps=60)
    assert 0.1 * bound < found <= bound


def test_one_network_has_one_norm():
    with pytest.raises(OptionError, match=r"\[1.0, 2.0\]"):
        Network([LipschitzLinear(2, 2, norm=1.0), LipschitzLinear(2, 2)])
    with pytest.raises(OptionError, match="one norm"):
        Network([activation("relu")])


@pytest.mark.parametrize("act", ["clipswish", "crelu"])
def test_an_odd_width_with_a_concatenated_activation_raises(act):
    with pytest.raises(OptionError, match=r"growth=7.*even.*use 8"):
        dense_block((2,), 2, 7, Pieces(act))
    with pytest.raises(OptionError, match=r"width=5.*even.*use 6"):
        residual_net((2,), [4, 5], [1, 1, 1], Pieces(act))
    dense_block((2,), 2, 7, Pieces("lipswish"))
    residual_net((2,), [4, 5], [1, 1, 1], Pieces("lipswish"))


@pytest.mark.parametrize("depth", [0, -1])
def test_a_block_has_at_least_one_layer(depth):
    with pytest.raises(OptionError, match=f"depth={depth}"):
        dense_block((2,), depth, 4, Pieces())


def test_bad_options_reach_the_caller():
    with pytest.raises(OptionError, match=r"coeff=1\.0"):
        dense_block((2,), 2, 4, Pieces(coeff=1.0))
    with pytest.raises(OptionError, match="norm=3"):
        dense_block((2,), 2, 4, Pieces("lipswish", norm=3))
    with pytest.raises(ShapeError):
        dense_block((2,), 2, 4, Pieces())(torch.zeros(3, 5))


def test_structure_of_the_networks():
    dense = dense_block((3, 4, 4), 3, 8, Pieces())
    assert isinstance(dense, DenseBlock)
    assert [tuple(m.weight.shape) for m in maps_of(dense)] == [(4, 3, 3, 3), (4, 11, 3, 3), (4, 19, 3, 3), (3, 27, 1, 1)]
    connected = dense_block((30,), 2, 8, Pieces(), first=10)
    assert [tuple(m.weight.shape) for m in maps_of(connected)] == [(10, 30), (4, 10), (4, 18), (30, 26)]
    residual = residual_net((3, 4, 4), [8, 8], [3, 1, 3], Pieces("lipswish"))
    assert isinstance(residual, ResidualNet)
    assert [tuple(m.weight.shape) for m in maps_of(residual)] == [(8, 3, 3, 3), (8, 8, 1, 1), (3, 8, 3, 3)]
    assert len(residual.layers) == 6
    first = residual_net((3, 4, 4), [8, 8], [3, 1, 3], Pieces("lipswish"), activate_first=False)
    assert len(first.layers) == 5
    paired = residual_net((3,), [8], [1, 1], Pieces("clipswish"))
    assert [tuple(m.weight.shape) for m in maps_of(paired)] == [(4, 6), (3, 8)]
    assert bool((residual_net((3,), [8], [1, 1], Pieces(), small_last=True).layers[-1].weight == 1e-3).all())


def test_values_of_many_samples_come_in_parts_and_are_the_same(monkeypatch):
    net, shape = network("dense maps")
    x = torch.randn(7, *shape, dtype=torch.float64)
    with torch.no_grad():
        whole = net(x)
        sizes = []
        values = net._values
        monkeypatch.setattr(net, "_values", lambda part, parts: sizes.append(len(part)) or values(part, parts))
        monkeypatch.setattr("idensenet.lipschitz.networks.AT_ONCE", 3 * 10 * 12 * 8)  # ten channels of 3 x 4
        torch.testing.assert_close(net(x), whole, rtol=1e-13, atol=1e-14)
    assert sizes == [3, 3, 1]


@pytest.mark.parametrize("name", ["clipswish", "lipswish", "leakylipswish", "crelu", "elu"])
@pytest.mark.parametrize("shape", [[3], [2, 5, 4]])
def test_values_without_gradients_are_the_same_and_stay(name, shape):
    """Features go to memory that the next call uses again; what a call returned is not in it."""
    g = dense_block(shape, depth=3, growth=4, pieces=Pieces(name)).double()
    x = torch.randn(3, 6, *shape, dtype=torch.float64)
    want = [g(each).detach() for each in x]
    with torch.no_grad(), norms_settled(g):
        found = [g(each) for each in (x[0], x[1][:4], x[2])]
    torch.testing.assert_close(found[0], want[0])
    torch.testing.assert_close(found[1], want[1][:4])
    torch.testing.assert_close(found[2], want[2])
