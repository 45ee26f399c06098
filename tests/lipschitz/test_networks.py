"""The networks g: one function of a block against the layers one by one and autograd, bounds against an adversarial search."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from adversary import largest_ratio
from hypothesis import given
from hypothesis import strategies as st

from brute import jacobians, plain_network, scrambled
from idensenet.errors import OptionError, ShapeError
from idensenet.lipschitz import (
    DenseBlock,
    DenseLayer,
    LipschitzConv2d,
    LipschitzLinear,
    LipschitzMap,
    OperatorNorms,
    Pieces,
    ResidualNet,
    activation,
    dense_block,
    refresh_norms,
    residual_net,
)
from idensenet.lipschitz import branch as branches

VECTOR, MAPS = (4,), (2, 2, 3)
NETWORKS = {
    "dense vectors": (lambda act, k: dense_block(VECTOR, 2, 6, Pieces(act), blocks=k), VECTOR),
    "dense maps": (lambda act, k: dense_block(MAPS, 2, 4, Pieces(act), blocks=k), MAPS),
    "dense behind a linear map": (lambda act, k: dense_block(VECTOR, 2, 4, Pieces(act), first=3, blocks=k), VECTOR),
    "dense maps behind a linear map": (lambda act, k: dense_block(MAPS, 1, 4, Pieces(act), first=3, blocks=k), MAPS),
    "fixed concatenation": (lambda act, k: dense_block(VECTOR, 2, 4, Pieces(act, learnable=False), blocks=k), VECTOR),
    "1-norm": (lambda act, k: dense_block(VECTOR, 2, 4, Pieces(act, norm=1), blocks=k), VECTOR),
    "maximum norm": (lambda act, k: dense_block(MAPS, 1, 4, Pieces(act, norm=math.inf), blocks=k), MAPS),
    "residual vectors": (lambda act, k: residual_net(VECTOR, [6, 6], [1, 1, 1], Pieces(act), blocks=k), VECTOR),
    "residual maps": (lambda act, k: residual_net(MAPS, [6, 6], [3, 1, 3], Pieces(act), blocks=k), MAPS),
    "no first activation": (lambda act, k: residual_net(MAPS, [6, 6], [3, 1, 3], Pieces(act), False, blocks=k), MAPS),
    "extended": (lambda act, k: residual_net(MAPS, [4, 6, 8], [3, 3, 3, 1], Pieces(act), blocks=k), MAPS),
    "small last": (lambda act, k: residual_net(VECTOR, [8, 8], [1, 1, 1], Pieces(act), small_last=True, blocks=k), VECTOR),
}
ACTS = ["clipswish", "lipswish", "leakylipswish", "elu", "crelu", "tanh"]
several = pytest.mark.parametrize("blocks", [1, 3])


def maps_of(net):
    return [m for m in net.modules() if isinstance(m, LipschitzMap)]


def network(name, act="clipswish", gain=4.0, blocks=1):
    """Float64, with other weights, concatenations and parameters of activations in every block."""
    make, shape = NETWORKS[name]
    net = make(act, blocks).double()
    if name == "small last":
        with torch.no_grad():
            for m in maps_of(net):
                m.weight.mul_(gain)
    else:
        scrambled(net, gain)
    return net, shape


def graph_jacobians(f, x):
    """[batch, D, D] with a graph to x and the parameters of f."""
    y = f(x).flatten(1)
    rows = [torch.autograd.grad(y[:, i].sum(), x, create_graph=True)[0].flatten(1) for i in range(y.shape[1])]
    return torch.stack(rows, 1)


@pytest.mark.parametrize(("act", "blocks"), [*[(act, 3) for act in ACTS], ("clipswish", 1)])
@pytest.mark.parametrize("name", NETWORKS)
def test_values_and_products_are_those_of_autograd(name, act, blocks):
    net, shape = network(name, act, blocks=blocks)
    x = torch.randn(3, *shape, dtype=torch.float64)
    v, u = torch.randn(2, 2, 3, *shape, dtype=torch.float64)  # two probes each
    index, values = torch.tensor([2, 0]), []
    with torch.no_grad():
        stack = net.prepare()
    assert len(stack.branches) == blocks

    def close(a, b):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)

    for k in range(blocks):
        g = stack[k]
        want = graph_jacobians(lambda a, k=k: plain_network(net, a, k, refresh=False), x.clone().requires_grad_()).detach()
        value, J = g.linearize(x)
        forth = torch.einsum("bij,pbj->pbi", want, v.flatten(2)).view_as(v)
        back = torch.einsum("bij,pbi->pbj", want, u.flatten(2)).view_as(u)
        plain = plain_network(net, x, k, refresh=False).detach()
        for found in (value, g(x), net(x, k).detach(), g.push(x, v)[0]):
            close(found, plain)
        close(g.push(x, v)[1], forth)
        close(J.matvec(v), forth)
        close(J.rmatvec(u), back)
        close(J.matvec(v[0]), forth[0])
        close(J.rmatvec(u[0]), back[0])
        close(J.take(index).matvec(v[:, index]), forth[:, index])
        close(J.take(index).rmatvec(u[0, index]), back[0, index])
        values.append(value)
    assert all((values[0] - other).abs().max() > 1e-6 for other in values[1:])  # blocks are different


def test_the_jacobians_of_the_tests_are_those_of_each_sample_on_its_own():
    net, shape = network("dense maps", blocks=2)
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    together = graph_jacobians(lambda a: plain_network(net, a, 1), x)
    torch.testing.assert_close(together.detach(), jacobians(lambda a: plain_network(net, a, 1), x.detach()))


@pytest.mark.parametrize(("act", "blocks"), [("clipswish", 3), ("leakylipswish", 2), ("elu", 1)])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_values_and_products_are_those_of_a_double_backward(name, act, blocks):
    """Each with weights per sample, for x and all parameters; and every block gets only its own."""
    net, shape = network(name, act, blocks=blocks)
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    v, u, w = torch.randn(3, 2, *x.shape, dtype=torch.float64)
    names, parameters = zip(*net.named_parameters(), strict=True)
    found, right = [], []
    stack = net.prepare()
    for k in range(blocks):
        value, product, J = stack[k].push(x, v)
        alone, J_alone = stack[k].linearize(x)
        mine = [
            value,
            product,
            J.matvec(w),
            J.rmatvec(u),
            J_alone.matvec(v),
            alone,
            J.take(torch.tensor([2, 0])).rmatvec(u[:, [2, 0]]),
        ]
        plain = plain_network(net, x, k, refresh=False)
        matrix = graph_jacobians(lambda a, k=k: plain_network(net, a, k, refresh=False), x)
        forth = lambda p: torch.einsum("bij,pbj->pbi", matrix, p.flatten(2)).view_as(p)  # noqa: E731, B023
        back = torch.einsum("bij,pbi->pbj", matrix, u.flatten(2)).view_as(u)
        theirs = [plain, forth(v), forth(w), back, forth(v), plain, back[:, [2, 0]]]
        weights = [(1 + 0.5 * k) * torch.randn_like(each) for each in mine]
        found.append([(a * b).sum() for a, b in zip(mine, weights, strict=True)])
        right.append([(a * b).sum() for a, b in zip(theirs, weights, strict=True)])
    for mine, theirs in zip(zip(*found, strict=True), zip(*right, strict=True), strict=True):
        a, b = (
            torch.autograd.grad(sum(each), [x, *parameters], retain_graph=True, materialize_grads=True)
            for each in (mine, theirs)
        )
        assert float(b[0].abs().max()) > 0
        for label, one, other in zip(["x", *names], a, b, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10, msg=lambda m, label=label: f"{label}: {m}")
    only = torch.autograd.grad(found[-1][1], parameters, materialize_grads=True)
    for gradient in only:
        assert float(gradient[:-1].abs().sum()) == 0
    assert max(float(gradient[-1].abs().max()) for gradient in only) > 1e-6


@pytest.mark.parametrize("name", ["dense vectors", "dense maps", "residual maps"])
def test_a_second_backward_through_one_preparation_equals_the_first(name):
    net, shape = network(name, blocks=2)
    x = torch.randn(3, *shape, dtype=torch.float64)
    stack = net.prepare()
    loss = stack[1].push(x, x[None])[1].square().sum() + stack[0](x).square().sum()
    first = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    for _ in range(2):
        again = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_without_gradients_there_is_no_graph(name):
    net, shape = network(name, blocks=2)
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        g = net.prepare()[1]
        value, J = g.linearize(x)
        results = [value, J.matvec(x), J.rmatvec(x), J.take(torch.tensor([1])).matvec(x[[1]]), net(x, 1), *g.tensors()]
    assert not any(result.requires_grad for result in results)
    again = net.prepare()[1].linearize(x)
    assert again[0].requires_grad
    torch.testing.assert_close(again[0].detach(), value)
    detached = net.prepare().detached()
    assert not any(tensor.requires_grad for g in detached.branches for tensor in g.tensors())
    torch.testing.assert_close(detached[1](x.detach()), value)


def single(net, k, make):
    """Block k of a stack as a stack of one."""
    one = make().double()
    state = {}
    for name, value in net.state_dict().items():
        if not name.endswith("fingerprint"):
            state[name] = value[:, k : k + 1] if name.endswith("sketch") else value[k : k + 1]
    one.load_state_dict(state, strict=False)
    return one


@pytest.mark.parametrize("name", ["dense vectors", "dense maps", "residual maps", "1-norm"])
def test_a_block_of_a_stack_is_the_block_alone(name):
    """Its norms, its bound, its value, its products and its gradient."""
    net, shape = network(name, blocks=3)
    for m in maps_of(net):
        m.tolerance = 1e-12
    bounds = net.lipschitz(lambda m: (refresh_norms(m), m.bounds())[1])
    x = torch.randn(4, *shape, dtype=torch.float64, requires_grad=True)
    v = torch.randn(1, *x.shape, dtype=torch.float64)
    stack = net.prepare()
    for k in range(3):
        one = single(net, k, lambda: NETWORKS[name][0]("clipswish", 1))
        for m in maps_of(one):
            m.tolerance = 1e-12
        value, product, _ = one.prepare()[0].push(x, v)
        mine, my_product, _ = stack[k].push(x, v)
        torch.testing.assert_close((mine, my_product), (value, product), rtol=1e-7, atol=1e-9)
        for together, alone in zip(maps_of(net), maps_of(one), strict=True):
            assert float(together.sigma[k]) == pytest.approx(float(alone.sigma[0]), rel=1e-9)
        assert bounds[k] == pytest.approx(one.lipschitz(OperatorNorms(2.0))[0], rel=1e-6)
        grads = torch.autograd.grad(
            my_product.square().sum() + mine.sin().sum(), list(net.parameters()), retain_graph=True, materialize_grads=True
        )
        others = torch.autograd.grad(product.square().sum() + value.sin().sum(), list(one.parameters()), materialize_grads=True)
        for a, b in zip(grads, others, strict=True):
            torch.testing.assert_close(a[k : k + 1], b, rtol=1e-5, atol=1e-7)


def test_a_preparation_follows_weights_and_constants_and_a_copy_is_its_own():
    net, shape = network("dense vectors", blocks=2)
    x = torch.randn(4, *shape, dtype=torch.float64)
    before = net(x, 1)

    def changed():
        value = net(x, 1)
        torch.testing.assert_close(value, plain_network(net, x, 1), rtol=1e-12, atol=1e-13)
        return float((value - before).detach().abs().max()) > 1e-4

    assert not changed()
    with torch.no_grad():
        net.layers[0].linear.weight.add_(0.5)
    assert changed()
    before = net(x, 1)
    net.layers[0].lip = 0.5
    assert changed()
    before = net(x, 1)
    net.layers[-1].coeff = 0.4
    assert changed()
    again = copy.deepcopy(net)
    assert torch.equal(again(x, 1), net(x, 1))
    with torch.no_grad():
        again.layers[0].activation.beta.add_(1)
    assert (again(x, 1) - net(x, 1)).abs().max() > 1e-4  # nothing is shared
    torch.testing.assert_close(again(x, 1), plain_network(again, x, 1), rtol=1e-12, atol=1e-13)


@given(
    shape=st.one_of(st.tuples(st.integers(1, 5)), st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))),
    depth=st.integers(1, 3),
    growth=st.sampled_from([2, 4]),
    act=st.sampled_from(ACTS),
    first=st.sampled_from([None, 1, 3]),
    batch=st.integers(1, 3),
    blocks=st.integers(1, 3),
)
def test_dense_blocks_of_every_shape_keep_it_and_linearize(shape, depth, growth, act, first, batch, blocks):
    net = dense_block(shape, depth, growth, Pieces(act), first=first, blocks=blocks).double()
    assert sum(isinstance(layer, DenseLayer) for layer in net.layers) == depth
    x, v, u = torch.randn(3, batch, *shape, dtype=torch.float64)
    value, J = net.prepare()[blocks - 1].linearize(x)
    assert value.shape == x.shape
    _, product = torch.autograd.functional.jvp(lambda a: plain_network(net, a, blocks - 1, refresh=False), x, v)
    torch.testing.assert_close(J.matvec(v), product, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close((J.rmatvec(u) * v).sum(), (u * product).sum(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "nominal"),
    [
        (lambda act: dense_block((3, 4, 4), 3, 4, Pieces(act), blocks=2), 0.98**4),
        (lambda act: dense_block((8,), 3, 4, Pieces(act), first=4, blocks=2), 0.98**5),
        (lambda act: dense_block((2,), 3, 16, Pieces(act, 0.9), blocks=2), 0.98**3 * 0.9),
    ],
    ids=["convolutional", "fully connected", "toy"],
)
def test_nominal_bounds(make, nominal):
    net = make("identity").double()
    inner = {layer.linear for layer in net.layers if isinstance(layer, DenseLayer)}
    found = net.lipschitz(lambda layer: [1.0 if layer in inner else layer.coeff] * 2)
    assert found == pytest.approx([nominal] * 2, rel=1e-12)
    for act in ("identity", "clipswish", "lipswish"):  # with every map at its coeff, a little below
        for found in make(act).double().lipschitz(lambda layer: [layer.coeff] * 2):
            assert 0.8 * nominal < found < nominal


@pytest.mark.parametrize("name", [name for name in NETWORKS if "norm" not in name])
@pytest.mark.parametrize(("act", "block"), [("clipswish", 0), ("leakylipswish", 2)])
def test_no_pair_of_points_beats_the_certified_bound(name, act, block):
    net, shape = network(name, act, blocks=block + 1)
    g = net.prepare().detached()[block]
    bound = net.lipschitz(OperatorNorms(2.0))[block]
    assert bound < 1
    found = largest_ratio(g, shape, steps=60, pairs=8)
    assert found <= bound
    assert found > 0.02 * bound  # random layers in a row stretch little; trained ones below do more


@pytest.mark.parametrize("name", ["dense vectors", "dense maps", "residual maps"])
def test_the_bound_holds_after_training_that_stretches(name):
    make, shape = NETWORKS[name]
    net = make("clipswish", 2).double()
    x, y = torch.randn(2, 16, *shape, dtype=torch.float64)
    refresh_norms(net)
    start = net.lipschitz(OperatorNorms(2.0))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(20):  # towards the largest stretch it can get
        optimizer.zero_grad()
        (-sum((g(x) - g(y)).square().sum() for g in net.prepare().branches)).backward()
        optimizer.step()
    stack = net.prepare().detached()
    bounds = net.lipschitz(OperatorNorms(2.0))
    for k in range(2):
        assert start[k] < bounds[k] < 1
        found = largest_ratio(stack[k], shape, steps=60)
        assert found <= bounds[k]
        assert found > 0.3 * bounds[k]


def test_without_normalisation_the_search_would_pass_the_bound():
    net, shape = network("dense vectors")
    refresh_norms(net)
    bound = net.lipschitz(OperatorNorms(2.0))[0]
    for m in maps_of(net):
        m.coeff = 50.0  # leaves every weight alone
    assert largest_ratio(net.prepare().detached()[0], shape, steps=60) > bound


@pytest.mark.parametrize("norm", [1.0, math.inf])
@pytest.mark.parametrize("act", ["clipswish", "lipswish"])
@pytest.mark.parametrize("shape", [VECTOR, MAPS], ids=["vectors", "maps"])
def test_bounds_in_other_norms(norm, act, shape):
    net = dense_block(shape, 2, 4, Pieces(act, 0.9, norm=norm), blocks=2).double()
    for m in maps_of(net):
        m.weight.data.mul_(10)
    assert net.norm == norm
    g = net.prepare().detached()[1]
    bound = net.lipschitz(OperatorNorms(norm))[1]
    assert bound <= 0.98**2 * 0.9 * (1 + 1e-6)
    found = largest_ratio(g, shape, norm, steps=60)
    assert 0.1 * bound < found <= bound


def test_the_layers_of_a_network_belong_together():
    with pytest.raises(OptionError, match=r"\[1.0, 2.0\]"):
        DenseBlock([LipschitzLinear(2, 2, norm=1.0), LipschitzLinear(2, 2)])
    with pytest.raises(OptionError, match=r"number of blocks, not \[1, 2\]"):
        DenseBlock([LipschitzLinear(2, 2), LipschitzLinear(2, 2, blocks=2)])
    with pytest.raises(OptionError, match=r"number of blocks, not \[2, 3\]"):
        ResidualNet([activation("relu", 3), LipschitzLinear(2, 2, blocks=2)])
    with pytest.raises(OptionError, match="all be matrices or all convolutions"):
        DenseBlock([LipschitzLinear(2, 2), LipschitzConv2d(2, 2, 1, (2, 2))])
    for layers in ([LipschitzLinear(2, 2)] * 2, [LipschitzLinear(2, 2), activation("relu")]):
        with pytest.raises(OptionError, match="take turns"):
            ResidualNet(layers)


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
    with pytest.raises(ShapeError, match="vectors of 3 numbers"):  # behind an activation that makes two of one
        residual_net((3,), [4], [1, 1], Pieces())(torch.zeros(2, 6))


@several
def test_structure_of_the_networks(blocks):
    def shapes(net):
        found = [tuple(m.weight.shape) for m in maps_of(net)]
        assert {shape[0] for shape in found} == {blocks}
        assert all(p.shape[0] == blocks for p in net.parameters())
        return [shape[1:] for shape in found]

    dense = dense_block((3, 4, 4), 3, 8, Pieces(), blocks=blocks)
    assert isinstance(dense, DenseBlock)
    assert shapes(dense) == [(4, 3, 3, 3), (4, 11, 3, 3), (4, 19, 3, 3), (3, 27, 1, 1)]
    assert shapes(dense_block((30,), 2, 8, Pieces(), first=10, blocks=blocks)) == [(10, 30), (4, 10), (4, 18), (30, 26)]
    assert shapes(dense_block((3,), 1, 8, Pieces(), outputs=5, blocks=blocks)) == [(4, 3), (5, 11)]
    residual = residual_net((3, 4, 4), [8, 8], [3, 1, 3], Pieces("lipswish"), blocks=blocks)
    assert isinstance(residual, ResidualNet)
    assert shapes(residual) == [(8, 3, 3, 3), (8, 8, 1, 1), (3, 8, 3, 3)]
    assert len(residual.layers) == 6
    first = residual_net((3, 4, 4), [8, 8], [3, 1, 3], Pieces("lipswish"), activate_first=False, blocks=blocks)
    assert len(first.layers) == 5
    assert shapes(residual_net((3,), [8], [1, 1], Pieces("clipswish"), blocks=blocks)) == [(4, 6), (3, 8)]
    small = residual_net((3,), [8], [1, 1], Pieces(), small_last=True, blocks=blocks)
    assert bool((small.layers[-1].weight == 1e-3).all())


def test_values_of_many_samples_come_in_parts_and_are_the_same(monkeypatch):
    net, shape = network("dense maps", blocks=2)
    x = torch.randn(7, *shape, dtype=torch.float64)
    with torch.no_grad():
        g, sizes = net.prepare()[1], []
        whole = g(x)
        plan = replace(g.plan, push=lambda *args: sizes.append(len(args[2])) or branches.push(*args))
        watched = branches.Branch(plan, g.parts)
        monkeypatch.setattr(branches, "AT_ONCE", 3 * 10 * 6 * 8)  # ten channels of 2 x 3
        torch.testing.assert_close(watched(x), whole, rtol=1e-13, atol=1e-14)
    assert sizes == [3, 3, 1]
    watched(x)  # with a graph there is one
    assert sizes == [3, 3, 1, 7]


@pytest.mark.parametrize("name", ["clipswish", "lipswish", "leakylipswish", "crelu", "elu"])
@pytest.mark.parametrize("shape", [[3], [2, 5, 4]])
def test_values_without_gradients_are_the_same_and_stay(name, shape):
    """What a call returned is not in memory that the next call uses again."""
    net = dense_block(shape, depth=3, growth=4, pieces=Pieces(name), blocks=2).double()
    x = torch.randn(3, 6, *shape, dtype=torch.float64)
    want = [net(each, 1).detach() for each in x]
    with torch.no_grad():
        g = net.prepare()[1]
        found = [g(each) for each in (x[0], x[1][:4], x[2])]
    torch.testing.assert_close(found[0], want[0])
    torch.testing.assert_close(found[1], want[1][:4])
    torch.testing.assert_close(found[2], want[2])


def test_no_sample_and_no_probe_at_all_pass_through():
    for name in ("dense vectors", "residual maps"):
        net, shape = network(name)
        g = net.prepare()[0]
        assert g(torch.zeros(0, *shape, dtype=torch.float64)).shape == (0, *shape)
        _, J = g.linearize(torch.zeros(4, *shape, dtype=torch.float64))
        nothing = torch.zeros(0, 4, *shape, dtype=torch.float64)
        assert J.matvec(nothing).shape == J.rmatvec(nothing).shape == (0, 4, *shape)
