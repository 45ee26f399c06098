"""Normalised linear layers: the norm in use always belongs to the weights in use."""

import copy
import io
import math
import pickle
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from new_map import CircularConv1d, dense_matrix
from torch import nn

from brute import convolve, jacobians, operator_matrix, plain_network, scrambled
from flows import points, small_toy
from idensenet.errors import NonFiniteError, OptionError, ShapeError
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
    convolution,
    dense_block,
    norms,
    refresh_norms,
)
from idensenet.lipschitz.bounds import operator_bounds
from idensenet.lipschitz.fingerprint import fingerprints, sketch
from idensenet.precision import EXACT, Precision, for_norms

COEFF = 0.9
KINDS = {
    "matrix": lambda norm=2.0, blocks=1: LipschitzLinear(5, 4, COEFF, norm, blocks),
    "1x1": lambda norm=2.0, blocks=1: LipschitzConv2d(3, 4, 1, (4, 5), COEFF, norm, blocks),
    "3x3": lambda norm=2.0, blocks=1: LipschitzConv2d(3, 4, 3, (4, 5), COEFF, norm, blocks),
    "5x5": lambda norm=2.0, blocks=1: LipschitzConv2d(3, 2, 5, (4, 3), COEFF, norm, blocks),
    "a new map": lambda norm=2.0, blocks=1: CircularConv1d(3, 4, 3, 6, COEFF, norm, blocks),
}
SPECTRAL = list(KINDS)
several = pytest.mark.parametrize("blocks", [1, 3])


def layer_of(kind, norm=2.0, gain=4.0, blocks=1):
    """A layer whose norms are well above coeff, and differ."""
    layer = KINDS[kind](norm, blocks)
    with torch.no_grad():
        for k, weight in enumerate(layer.weight):
            weight.mul_(gain * (1 + 0.4 * k))
    return layer


def event_of(layer):
    if isinstance(layer, LipschitzLinear):
        return (layer.inputs,)
    return (layer.inputs, *layer.size) if isinstance(layer, LipschitzConv2d) else (layer.inputs, layer.length)


def batch_for(layer, batch=2):
    return torch.randn(batch, *event_of(layer), dtype=layer.weight.dtype)


def matrix_of(layer, weight):
    """The dense operator of one block's weight; differentiable."""
    if isinstance(layer, LipschitzLinear):
        return weight
    if isinstance(layer, LipschitzConv2d):
        return operator_matrix(lambda x: convolve(x, weight), event_of(layer))
    return dense_matrix(weight, layer.length)


def true_norms(layer, weights, norm=2.0):
    return [float(torch.linalg.matrix_norm(matrix_of(layer, weight), norm)) for weight in weights.detach().double()]


def exact_norm(layer):
    return not isinstance(layer, LipschitzConv2d) or not layer.iterated


def assert_fresh(layer, rounded=False):
    """sigma is the norm of this weight, and what the layer does with its input has norm coeff at most.

    It checks the layer as the last use left it: nothing here refreshes norms. `rounded` is for singular vectors that were
    float32 before.
    """
    rounding = 1e-5 if layer.weight.dtype == torch.float32 else 1e-6 if rounded else 1e-12
    tolerance = rounding if exact_norm(layer) else 1e-3
    truths = true_norms(layer, layer.weight, layer.norm)
    in_use = true_norms(layer, layer.normalized(), layer.norm)
    for sigma, truth, used in zip(layer.sigma.tolist(), truths, in_use, strict=True):
        assert sigma == pytest.approx(truth, rel=tolerance)
        assert sigma <= truth * (1 + rounding)
        assert used <= layer.coeff * (1 + tolerance)


def use_forward(layer):
    return layer(batch_for(layer), layer.blocks - 1)


def use_normalized_weight(layer):
    return layer.normalized_weight()


def use_without_gradient(layer):
    with torch.no_grad():
        return layer(batch_for(layer))


def use_in_inference_mode(layer):
    with torch.inference_mode():
        return layer(batch_for(layer))


USES = {
    "forward": use_forward,
    "normalized_weight": use_normalized_weight,
    "no_grad": use_without_gradient,
    "inference_mode": use_in_inference_mode,
}


def stepped(make):
    def write(layer):
        optimizer = make(layer.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            x = batch_for(layer)
            sum(layer(x, k).square().sum() - 50 * layer(x, k).sum() for k in range(layer.blocks)).backward()
            optimizer.step()

    return write


def write_data(layer):
    layer.weight.data[-1, 0] = 3 * torch.randn_like(layer.weight[-1, 0])  # one block only


def double_data(layer):
    layer.weight.data.mul_(2)


def negate_and_double_data(layer):
    layer.weight.data.mul_(-2)


def zero_then_fill(layer):
    layer.weight.data.zero_()
    use_forward(layer)
    layer.weight.data.normal_()


WRITES = {
    "adam": stepped(lambda p: torch.optim.Adam(p, lr=0.3)),
    "adam foreach": stepped(lambda p: torch.optim.Adam(p, lr=0.3, foreach=True)),
    "adam fused": stepped(lambda p: torch.optim.Adam(p, lr=0.3, fused=True)),
    "sgd": stepped(lambda p: torch.optim.SGD(p, lr=0.05)),
    "data": write_data,
    "data times 2": double_data,
    "data times -2": negate_and_double_data,
    "zero and back": zero_then_fill,
    "copy_": lambda layer: layer.weight.data.copy_(torch.randn_like(layer.weight)),
    "float64": lambda layer: layer.to(torch.float64),
}


CASES = [(write, use, blocks) for write in WRITES for use, blocks in (("forward", 3), ("normalized_weight", 3), ("no_grad", 1))]
CASES += [(write, "inference_mode", 2) for write in ("adam fused", "data", "float64")]


@pytest.mark.parametrize(("write", "use", "blocks"), CASES)
@pytest.mark.parametrize("kind", SPECTRAL)
def test_the_first_use_after_a_write_sees_the_norm_of_the_new_weight(kind, write, use, blocks):
    layer = layer_of(kind, blocks=blocks)
    use_without_gradient(layer)
    before = layer.sigma.tolist()
    WRITES[write](layer)
    USES[use](layer)
    assert_fresh(layer, rounded=write == "float64")
    if write != "float64":
        assert layer.sigma[-1] != before[-1]


@pytest.mark.parametrize("norm", [1.0, math.inf])
@pytest.mark.parametrize("write", ["adam fused", "data", "float64"])
@pytest.mark.parametrize("kind", SPECTRAL)
def test_other_norms_follow_the_weights_too(kind, write, norm):
    layer = layer_of(kind, norm, blocks=2)
    use_without_gradient(layer)
    WRITES[write](layer)
    use_forward(layer)
    assert_fresh(layer, rounded=write == "float64")


@pytest.mark.parametrize("kind", SPECTRAL)
def test_a_stale_norm_is_what_the_tests_above_would_catch(kind):
    layer = layer_of(kind, blocks=3)
    use_forward(layer)
    assert_fresh(layer)
    layer.weight.data[1].mul_(2)  # and nothing refreshes
    with pytest.raises(AssertionError):
        assert_fresh(layer)


def networks():
    return {
        "vector": (lambda: dense_block([3], 2, 6, Pieces("clipswish", COEFF), blocks=3), (3,)),
        "maps": (lambda: dense_block([2, 4, 4], 2, 6, Pieces("clipswish", COEFF), blocks=2), (2, 4, 4)),
        "one block": (lambda: dense_block([2, 4, 4], 1, 6, Pieces("clipswish", COEFF)), (2, 4, 4)),
    }


def scaled_network(name, gain=6.0):
    make, shape = networks()[name]
    net = make()
    with torch.no_grad():
        for m in layers_of(net):
            m.weight.mul_(gain)
    return net, shape


def layers_of(net):
    return [m for m in net.modules() if isinstance(m, LipschitzMap)]


class Sum(nn.Module):
    """All blocks of a network, so that every weight has a gradient."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return torch.stack([g(x) for g in self.net.prepare().branches])


@pytest.mark.parametrize("optimizer", ["plain", "foreach", "fused"])
@pytest.mark.parametrize("name", networks())
def test_every_layer_of_a_network_follows_an_optimiser(name, optimizer):
    net, shape = scaled_network(name)
    adam = torch.optim.Adam(net.parameters(), lr=0.1, **({} if optimizer == "plain" else {optimizer: True}))
    x = torch.randn(4, *shape)
    for _ in range(3):
        adam.zero_grad()
        Sum(net)(x).square().sum().backward()
        adam.step()
    net(x)
    for layer in layers_of(net):
        assert_fresh(layer)


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("name", networks())
def test_averaged_weights_get_their_own_norms(name, use_buffers):
    net, shape = scaled_network(name)
    net, x = Sum(net), torch.randn(4, *shape)
    averaged = torch.optim.swa_utils.AveragedModel(net, use_buffers=use_buffers)
    with torch.no_grad():
        averaged(x)
    adam = torch.optim.Adam(net.parameters(), lr=0.2)
    for step in range(3):
        adam.zero_grad()
        net(x).square().sum().backward()
        adam.step()
        averaged.update_parameters(net)
        with torch.no_grad():
            result = averaged(x)
        if step == 0:  # the first update copies everything, norms included
            torch.testing.assert_close(result, net(x).detach(), rtol=2e-3, atol=2e-3)
        for layer in layers_of(averaged.module):
            assert_fresh(layer)


def test_swapping_averaged_weights_in_and_out_brings_the_old_output_back():
    net, shape = scaled_network("maps")
    net, x = Sum(net), torch.randn(4, *shape)
    other = copy.deepcopy(net)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.3 * torch.randn_like(p))
        want, apart = net(x), other(x)
        saved = [p.clone() for p in net.parameters()]
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            p.data.copy_(q)
        torch.testing.assert_close(net(x), apart, rtol=5e-3, atol=5e-3)
        for p, q in zip(net.parameters(), saved, strict=True):
            p.data.copy_(q)
        torch.testing.assert_close(net(x), want, rtol=5e-3, atol=5e-3)


def write_flow(flow):
    flow.log_prob(points(20)).sum().backward()
    torch.optim.Adam(flow.parameters(), lr=0.1, fused=True).step()


FLOW_WRITES = {
    "fused adam": write_flow,
    "data": lambda flow: [p.data.mul_(3) for p in flow.parameters()],
    "new data": lambda flow: [setattr(p, "data", -2 * p.data) for p in flow.parameters()],
    "load_state_dict": lambda flow: flow.load_state_dict({n: 3 * p for n, p in flow.named_parameters()}, strict=False),
}


@pytest.mark.parametrize("write", FLOW_WRITES)
@pytest.mark.parametrize("use", ["log_prob", "sample", "inverse", "certify", "forward", "inverse_error"])
def test_every_public_call_of_a_flow_sees_the_weights_as_they_are(write, use):
    flow = small_toy(blocks=(3,))
    x = points(8)
    flow.log_prob(x)
    FLOW_WRITES[write](flow)
    {
        "log_prob": lambda: flow.log_prob(x),
        "sample": lambda: flow.sample(3),
        "inverse": lambda: flow.inverse(x),
        "certify": lambda: flow.certify(),
        "forward": lambda: flow(x),
        "inverse_error": lambda: flow.inverse_error(x),
    }[use]()
    assert len(layers_of(flow)) > 1
    for layer in layers_of(flow):
        assert_fresh(layer)


def test_threads_that_use_one_flow_get_the_numbers_of_one_thread():
    """Nothing is ambient: calls of several threads, some of them in inference mode, do not see each other."""
    flow, other = small_toy(blocks=(3,)).eval(), small_toy(blocks=(2,)).eval()
    batches = [points(16, seed) for seed in range(8)]
    with torch.no_grad():
        want = [flow.log_prob(x) for x in batches]
        wanted_other = [other.log_prob(x) for x in batches]
    found, errors = {}, []

    def work(i):
        try:
            with torch.inference_mode(i % 2 == 0), torch.set_grad_enabled(i % 3 == 0):
                for _ in range(3):
                    found[i] = flow.log_prob(batches[i]).detach().clone(), other.log_prob(batches[i]).detach().clone()
        except Exception as error:  # a thread that fails must fail the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for i in range(8):
        torch.testing.assert_close(found[i], (want[i], wanted_other[i]), rtol=1e-5, atol=1e-5)


class Spy:
    """Counts the computations of norms."""

    def __init__(self, monkeypatch):
        self.calls = 0
        for name in ("matrix_norms", "convolution_norms", "induced_norms"):
            monkeypatch.setattr(norms, name, self.counting(getattr(norms, name)))

    def counting(self, real):
        def wrapped(*args, **kwargs):
            self.calls += 1
            return real(*args, **kwargs)

        return wrapped


@pytest.fixture
def spy(monkeypatch):
    return Spy(monkeypatch)


@pytest.mark.parametrize("name", networks())
def test_nothing_is_computed_while_the_weights_stay(name, spy):
    net, shape = scaled_network(name)
    x = torch.randn(4, *shape)
    net(x)
    assert spy.calls > 0
    spy.calls = 0
    net(x)
    net.prepare()[0].linearize(x)
    with torch.no_grad():
        net(x)
    net.layers[-1].normalized_weight()
    assert refresh_norms(net) == 0
    assert spy.calls == 0
    net.layers[-1].weight.data.mul_(1.5)
    assert refresh_norms(net) == 1
    assert spy.calls == 1


def test_the_blocks_of_a_stack_are_done_together(spy):
    stack = nn.ModuleList([LipschitzConv2d(2, 3, 3, (5, 5), blocks=4), LipschitzLinear(3, 2, blocks=3)])
    assert refresh_norms(stack) == 2
    assert spy.calls == 2
    for layer in stack:
        assert_fresh(layer)
    assert refresh_norms(nn.ReLU()) == 0


def test_singular_vectors_come_in_parts_where_they_are_large(spy, monkeypatch):
    whole = LipschitzConv2d(2, 3, 3, (5, 5), blocks=5)
    parts = copy.deepcopy(whole)
    refresh_norms(whole)
    assert spy.calls == 1
    monkeypatch.setattr(convolution, "AT_ONCE", 2 * 5 * 25 * 4 + 1)  # two blocks of (2 + 3) channels of 5 x 5
    refresh_norms(parts)
    assert spy.calls == 1 + 3
    torch.testing.assert_close(parts.sigma, whole.sigma, rtol=1e-3, atol=0)
    assert_fresh(parts)


RELOADS = {
    "state dict": lambda net, make: _loaded(net, make),
    "saved state dict": lambda net, make: _loaded(net, make, through_file=True),
    "assign": lambda net, make: _loaded(net, make, assign=True),
    "deepcopy": lambda net, make: copy.deepcopy(net),
    "pickle": lambda net, make: pickle.loads(pickle.dumps(net)),
}


def _loaded(net, make, through_file=False, assign=False):
    state = net.state_dict()
    if through_file:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file)
    made = make()
    made.load_state_dict(state, assign=assign)
    return made


@pytest.mark.parametrize("reload", RELOADS)
@pytest.mark.parametrize("name", networks())
def test_a_reload_does_not_iterate_and_gives_the_same_bits(name, reload, spy):
    net, shape = scaled_network(name)
    x = torch.randn(4, *shape)
    want = Sum(net)(x)
    with torch.no_grad():
        quiet = Sum(net)(x)
    again = RELOADS[reload](net, networks()[name][0])
    spy.calls = 0
    found = Sum(again)(x)
    assert torch.equal(found, want)
    with torch.no_grad():
        assert torch.equal(Sum(again)(x), quiet)
    assert spy.calls == 0
    grads = torch.autograd.grad(found.square().sum(), list(again.parameters()))
    wanted = torch.autograd.grad(want.square().sum(), list(net.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


@pytest.mark.parametrize("kind", SPECTRAL)
@pytest.mark.parametrize("assign", [False, True])
def test_a_load_over_a_layer_in_use_leaves_nothing_of_the_old_weight(kind, assign, spy):
    old, new = layer_of(kind, blocks=2), layer_of(kind, gain=9.0, blocks=2)
    x = batch_for(old)
    with torch.no_grad():
        old(x)
        want = new(x)
    expected = torch.autograd.grad(new(x).square().sum(), new.weight)[0]
    old(x).sum().backward()
    spy.calls = 0
    old.load_state_dict(new.state_dict(), assign=assign)
    with torch.no_grad():
        assert torch.equal(old(x), want)
    assert torch.equal(torch.autograd.grad(old(x).square().sum(), old.weight)[0], expected)
    assert spy.calls == 0


@pytest.mark.parametrize("kind", SPECTRAL)
def test_a_copy_of_all_tensors_leaves_nothing_of_the_old_weight(kind):
    old, new = layer_of(kind, blocks=2), layer_of(kind, gain=9.0, blocks=2)
    x = batch_for(old)
    with torch.no_grad():
        old(x)
        want = new(x)
        for mine, theirs in zip([*old.parameters(), *old.buffers()], [*new.parameters(), *new.buffers()], strict=True):
            mine.data.copy_(theirs)
        assert torch.equal(old(x), want)


def test_a_load_brings_its_norm_also_for_a_weight_that_was_there_already():
    old = layer_of("3x3")
    new = copy.deepcopy(old)
    new.right.copy_(torch.randn_like(new.right))  # another start ends at another sigma, within the tolerance
    x = batch_for(old)
    with torch.no_grad():
        before, want = old(x), new(x)
        assert not torch.equal(before, want)
        old.load_state_dict(new.state_dict())
        assert torch.equal(old(x), want)


@pytest.mark.parametrize("kind", SPECTRAL)
def test_a_use_leaves_nothing_behind_but_norms(kind):
    layer = layer_of(kind, blocks=2)
    refresh_norms(layer)
    small, names = len(pickle.dumps(layer)), set(layer.__dict__)
    use_forward(layer).sum().backward()
    use_without_gradient(layer)
    layer.zero_grad()
    assert len(pickle.dumps(layer)) == small
    assert set(layer.__dict__) == names
    assert set(layer.state_dict()) - {"sketch"} == {"weight", "bias", "left", "right", "sigma", "fingerprint"}


def test_a_load_of_weights_without_norms_computes_them():
    old, new = layer_of("3x3", blocks=2), layer_of("3x3", gain=9.0, blocks=2)
    use_forward(old)
    old.load_state_dict({"weight": new.weight, "bias": new.bias}, strict=False)
    use_forward(old)
    assert_fresh(old)


def test_state_can_be_loaded_before_any_forward():
    new = layer_of("3x3")
    layer = KINDS["3x3"]()
    layer.load_state_dict(new.state_dict())
    use_forward(layer)
    assert_fresh(layer)


@pytest.mark.parametrize("kind", SPECTRAL)
def test_construction_and_refresh_draw_from_no_generator_but_for_the_weights(kind):
    layer = KINDS[kind]()
    state = torch.get_rng_state()
    refresh_norms(layer)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("kind", SPECTRAL)
@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_weights_below_coeff_are_left_alone(kind, norm):
    layer = KINDS[kind](norm, 2)
    for weight, truth in zip(layer.weight.data, true_norms(layer, layer.weight, norm), strict=True):
        weight.mul_(0.5 * COEFF / truth)
    assert torch.equal(layer.normalized_weight(), layer.weight)
    with torch.no_grad():
        assert torch.equal(layer.normalized_weight(), layer.weight)
    (gradient,) = torch.autograd.grad(layer.normalized_weight().sum(), layer.weight)
    assert torch.equal(gradient, torch.ones_like(gradient))


def plain_normalized(layer, norm):
    """weight / max(1, sigma / coeff) with a dense operator's norm, all of it differentiable."""
    sigma = [torch.linalg.matrix_norm(matrix_of(layer, weight), norm) for weight in layer.weight]
    return torch.stack([w / torch.clamp(s / layer.coeff, min=1) for w, s in zip(layer.weight, sigma, strict=True)])


@pytest.mark.parametrize("kind", SPECTRAL)
@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("ratios", [(3.0,), (0.5,), (2.0, 0.5, 3.0)], ids=["above", "below", "several"])
def test_gradient_through_the_normalisation_is_that_of_the_true_norm(kind, norm, ratios):
    layer = KINDS[kind](norm, len(ratios)).double()
    layer.tolerance = 1e-12
    for weight, ratio, truth in zip(layer.weight.data, ratios, true_norms(layer, layer.weight, norm), strict=True):
        weight.mul_(ratio * COEFF / truth)
    probe = torch.randn_like(layer.weight)
    want = plain_normalized(layer, norm)
    torch.testing.assert_close(layer.normalized_weight(), want, rtol=1e-10, atol=1e-12)
    (expected,) = torch.autograd.grad((want * probe).sum(), layer.weight)
    (found,) = torch.autograd.grad((layer.normalized_weight() * probe).sum(), layer.weight)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    for mine, each, ratio in zip(found, probe, ratios, strict=True):
        constant = each / max(1.0, ratio)  # sigma taken as a constant
        assert torch.allclose(mine, constant) is (ratio < 1)


@pytest.mark.parametrize("kind", SPECTRAL)
def test_factors_of_columns_and_rows_go_into_the_normalised_weight(kind):
    layer = layer_of(kind, blocks=2).double()
    refresh_norms(layer)
    columns, rows = torch.randn(2, layer.inputs, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    sides = [1] * (layer.weight.ndim - 3)
    want = layer.normalized() * columns.view(2, 1, -1, *sides) * rows.view(2, 1, 1, *sides)
    torch.testing.assert_close(layer.normalized(columns, rows), want)
    torch.testing.assert_close(layer.normalized(columns[:, :1]), layer.normalized() * columns[:, :1].view(2, 1, 1, *sides))


@pytest.mark.parametrize("kind", SPECTRAL)
@several
def test_two_backward_passes_agree(kind, blocks):
    layer = layer_of(kind, blocks=blocks)
    loss = use_forward(layer).square().sum()
    first = torch.autograd.grad(loss, layer.weight, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, layer.weight, retain_graph=True)[0])
    x = batch_for(layer)
    for _ in range(2):  # and a graph of its own for each use
        layer(x).square().sum().backward()


@pytest.mark.parametrize("kind", SPECTRAL)
def test_the_normalised_weight_has_a_graph_only_where_gradients_are_recorded(kind):
    layer = layer_of(kind)
    with torch.no_grad():
        without = layer.normalized_weight()
    assert not without.requires_grad
    assert layer.normalized_weight().requires_grad
    assert not layer.requires_grad_(False).normalized_weight().requires_grad
    torch.testing.assert_close(layer.normalized_weight(), without)


def test_what_inference_mode_computed_does_not_break_a_later_gradient():
    layer = layer_of("matrix").requires_grad_(False)
    x = batch_for(layer)
    with torch.inference_mode():
        want = layer(x)
    x.requires_grad_()
    found = layer(x)
    torch.testing.assert_close(found.detach(), want.clone())
    found.sum().backward()
    torch.testing.assert_close(x.grad, layer.normalized_weight()[0].sum(0).expand(2, -1))


@pytest.mark.parametrize("kind", SPECTRAL)
def test_forward_is_the_affine_map_of_its_block(kind):
    layer = layer_of(kind, blocks=3).double()
    x = batch_for(layer)
    for k in range(3):
        matrix, bias = matrix_of(layer, layer.normalized_weight()[k]), layer.bias[k]
        moved = (x.flatten(1) @ matrix.T).view(len(x), layer.outputs, *x.shape[2:])
        torch.testing.assert_close(layer(x, k), moved + bias.view(-1, *[1] * (x.ndim - 2)))


@pytest.mark.parametrize("kind", SPECTRAL)
def test_the_product_back_is_that_of_the_transposed_operator(kind):
    layer = layer_of(kind, blocks=2).double()
    weight, matrix = layer.weight[1].detach(), matrix_of(layer, layer.weight[1].detach())
    out = torch.randn(2, layer.outputs, *event_of(layer)[1:], dtype=torch.float64)
    rows = layer.product_back(layer.enter(out), weight)
    torch.testing.assert_close(layer.leave(rows, out.shape[:1]).flatten(1), out.flatten(1) @ matrix)


@pytest.mark.parametrize("kind", SPECTRAL)
def test_samples_and_probes_enter_as_rows_and_leave_as_they_were(kind):
    layer = layer_of(kind)
    x, v = batch_for(layer, 4), torch.stack([batch_for(layer, 4) for _ in range(3)])
    assert torch.equal(layer.laid_out(x), x)
    for each in (x, v, layer.laid_out(x)):
        rows = layer.enter(each)
        assert rows.shape[layer.channels] == layer.inputs
        assert (
            rows.shape[layer.samples] == each[..., 0].numel() // (each.shape[-2] if layer.event == 2 else 1) or layer.event == 3
        )
        assert torch.equal(layer.leave(rows, each.shape[: -layer.event]), each)
    assert torch.equal(layer.enter(v).unflatten(layer.samples, (3, 4)).select(layer.samples, 1), layer.enter(v[1]))


def signals(kind, blocks):
    """Networks made of the new map alone."""

    def made(i, o, kernel):
        return CircularConv1d(i, o, kernel, 5, COEFF, blocks=blocks)

    if kind == "dense":
        layers = [DenseLayer(made(2, 3, 3), activation("clipswish", blocks)), made(8, 2, 1)]
        return scrambled(DenseBlock(layers).double())
    layers = [activation("lipswish", blocks), made(2, 4, 3), activation("lipswish", blocks), made(4, 2, 3)]
    return scrambled(ResidualNet(layers).double())


@several
@pytest.mark.parametrize("kind", ["dense", "residual"])
def test_networks_are_made_of_a_new_map(kind, blocks):
    net = signals(kind, blocks)
    x = torch.randn(3, 2, 5, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, 3, 2, 5, dtype=torch.float64)
    stack = net.prepare()
    bounds = net.lipschitz(OperatorNorms(2.0))
    for k in range(blocks):
        value, product, J = stack[k].push(x, v)
        matrix = jacobians(lambda a, k=k: plain_network(net, a, k), x.detach())
        torch.testing.assert_close(value, plain_network(net, x, k), rtol=1e-12, atol=1e-13)
        for found, want in (
            (product, torch.einsum("bij,pbj->pbi", matrix, v.flatten(2))),
            (J.rmatvec(v), torch.einsum("bij,pbi->pbj", matrix, v.flatten(2))),
            (J.take(torch.tensor([2, 0])).matvec(v[:, [2, 0]]), torch.einsum("bij,pbj->pbi", matrix, v.flatten(2))[:, [2, 0]]),
        ):
            torch.testing.assert_close(found.flatten(2), want, rtol=1e-11, atol=1e-12)
        assert float(torch.linalg.matrix_norm(matrix, 2).max()) <= bounds[k] < 1
        mine = torch.autograd.grad(
            product.sin().sum() + value.sum(), [x, *net.parameters()], retain_graph=True, materialize_grads=True
        )
        want = torch.func.vmap(lambda t, k=k: torch.func.jvp(lambda a: plain_network(net, a, k, refresh=False), (x,), (t,))[1])(
            v
        )
        loss = want.sin().sum() + plain_network(net, x, k).sum()
        right = torch.autograd.grad(loss, [x, *net.parameters()], materialize_grads=True)
        torch.testing.assert_close(mine, right, rtol=1e-9, atol=1e-11)


@given(
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    count=st.sampled_from([1, 7, 64, 16384, 16385, 40000]),
    data=st.data(),
)
def test_changing_any_one_number_changes_the_fingerprint(dtype, count, data):
    weight = torch.randn(count).to(dtype)
    before = fingerprints([weight])
    place = data.draw(st.sampled_from(sorted({0, count // 2, count - 1, data.draw(st.integers(0, count - 1))})))
    changes = [
        torch.nextafter(weight[place], weight[place] + 1) if dtype.itemsize > 2 else weight[place] * 1.5,
        -weight[place],
        weight[place] * 2,
        weight[place] + 1,
    ]
    for value in changes:
        other = weight.clone()
        other[place] = value
        assert not torch.equal(other, weight)
        assert fingerprints([other]) != before
    assert fingerprints([weight.clone()]) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [8, 64, 1024, 1 << 14, 1 << 15])
def test_changing_every_number_alike_changes_the_fingerprint(count, dtype):
    # Doubling and negating touch only the highest bits, where a sum of products in wrapping integers is blind.
    for _ in range(20):
        weight = torch.randn(count, dtype=dtype)
        others = [weight, 2 * weight, -weight, weight / 2, 4 * weight, weight.flip(0), weight.roll(1)]
        others += [weight.roll(count // 2), 0 * weight]
        assert len(set(fingerprints(others).tolist())) == len(others)


@given(sizes=st.lists(st.sampled_from([1, 5, 300, 16384, 20000, 33000]), min_size=1, max_size=5))
def test_a_fingerprint_is_the_same_alone_and_in_company(sizes):
    weights = [torch.randn(n) for n in sizes]
    together = fingerprints(weights).tolist()
    assert together == [int(fingerprints([w])) for w in weights]
    assert together == fingerprints([w.reshape(1, -1) for w in weights]).tolist()


def test_a_fingerprint_reads_the_values_whatever_the_strides():
    weight = torch.randn(30, 20)
    assert fingerprints([weight.T]) == fingerprints([weight.T.contiguous()])
    assert fingerprints([weight.T]) != fingerprints([weight])


@pytest.mark.parametrize("kind", SPECTRAL)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_weight_is_reported(kind, bad):
    layer = layer_of(kind, blocks=2)
    layer.weight.data.flatten()[-1] = bad
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        use_forward(layer)


@pytest.mark.parametrize("coeff", [1.0, 1.5, 0.0, -0.1, math.nan])
def test_coeff_outside_its_range_raises(coeff):
    with pytest.raises(OptionError, match=f"coeff={coeff}"):
        LipschitzLinear(2, 2, coeff)
    with pytest.raises(OptionError, match=f"coeff={coeff}"):
        LipschitzConv2d(2, 2, 3, (4, 4), coeff)


@pytest.mark.parametrize("kernel", [2, 4])
def test_an_even_kernel_raises(kernel):
    with pytest.raises(OptionError, match=f"kernel={kernel}"):
        LipschitzConv2d(2, 2, kernel, (4, 4))


def test_a_wrong_input_shape_raises():
    linear, conv = LipschitzLinear(3, 2), LipschitzConv2d(3, 2, 3, (4, 5))
    with pytest.raises(ShapeError, match=r"3 numbers.*\(7, 4\)"):
        linear(torch.zeros(7, 4))
    for shape in ((7, 3, 5, 4), (7, 2, 4, 5), (7, 3)):
        with pytest.raises(ShapeError, match=r"\(3, 4, 5\)"):
            conv(torch.zeros(shape))


def worst(layer):
    """The largest guaranteed bound of any block, of the layer as the last use left it."""
    return max(layer.bounds())


def test_a_part_of_the_weight_that_the_last_vector_does_not_see_may_grow():
    layer = LipschitzConv2d(2, 2, 3, (5, 5), blocks=2)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:, 0, 0] = torch.randn(2, 3, 3)
    for _ in range(20):
        layer.weight.data.mul_(1.001)
        use_forward(layer)
    layer.weight.data[1, 1, 1].normal_().mul_(10)  # in one block of two
    use_forward(layer)
    assert worst(layer) <= layer.coeff * 1.002


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("training", [True, False])
def test_a_channel_may_come_on_while_the_length_of_the_weight_hardly_changes(seed, training):
    torch.manual_seed(seed)
    layer = LipschitzConv2d(12, 12, 3, (5, 5), blocks=2).train(training)
    x = torch.randn(2, 12, 5, 5)
    with torch.no_grad():
        layer.weight.mul_(4)
        layer.weight[1, :, 0] *= 1e-3
        layer(x)
        before = float(layer.weight[1].norm())
        layer.weight[1, :, 0] = 0.3 * torch.randn(12, 1, 1)
        assert float(layer.weight[1].norm()) < 1.17 * before
        layer(x)
    assert worst(layer) <= layer.coeff * 1.002


def test_a_drift_of_many_small_steps_is_noticed():
    """Each moves the weight by a little; all together into a direction that the first singular vectors have no part of.

    Unnoticed, it would end at more than five times the constant.
    """

    def moving(layer):
        """The guaranteed bound of the block that drifts."""
        return operator_bounds(layer.normalized()[:1], layer.size, 2.0, layer.sigma[:1].clamp(max=layer.coeff))[0]

    torch.manual_seed(0)
    layer = LipschitzConv2d(12, 12, 3, (5, 5), blocks=2).train()
    x = torch.randn(2, 12, 5, 5)
    with torch.no_grad():
        layer.weight.mul_(4)
        layer.weight[0, :, 0], layer.weight[0, 0] = 0, 0
        layer(x)
        for _ in range(60):
            layer.weight[0, 0, 0] += 0.05
            layer(x)
            assert moving(layer) <= layer.coeff * 1.4
        layer.eval()
        for _ in range(3):
            layer.weight[0, 0, 0] += 0.05
            layer(x)
            assert moving(layer) <= layer.coeff * 1.002


def test_another_number_type_takes_no_climb(monkeypatch):
    layer = LipschitzConv2d(12, 12, 3, (5, 5), blocks=2).eval()
    layer.weight.data.mul_(4)
    use_forward(layer)
    monkeypatch.setattr(norms, "climb", None)
    layer.double()
    use_forward(layer)
    assert worst(layer) <= layer.coeff * 1.002
    layer.weight.data[1, 0, 0] += 1e-3
    with pytest.raises(TypeError):
        use_forward(layer)


@pytest.mark.parametrize("shape", [(3, 5), (40, 7, 3, 3), (64, 64, 3, 3)])
def test_sketches_tell_how_far_each_weight_has_moved(shape):
    torch.manual_seed(0)
    weight = torch.randn(2, *shape)
    ratios = []
    for _ in range(50):
        step = 0.1 * torch.randn(shape[0], 1, *shape[2:]) * torch.randn(1, shape[1], *shape[2:])  # of low rank
        moved = weight.clone()
        moved[1] += step
        change = (sketch(moved) - sketch(weight)).norm(dim=1)
        assert change[0] == 0
        ratios.append(float(change[1] / step.norm()))
    error = math.sqrt(2 / 64 / 50)  # of the mean square, for sums of random signs
    assert abs(sum(r * r for r in ratios) / 50 - 1) < 4 * error
    assert min(ratios) > 0.5
    assert max(ratios) < 1.5
    assert float((sketch(2 * weight) - sketch(weight)).norm()) == pytest.approx(float(sketch(weight).norm()), rel=1e-5)


def test_norms_from_training_are_searched_again_in_evaluation():
    """A part of one kernel that the singular vector does not see has grown, by less than training notices."""
    layer = LipschitzConv2d(2, 2, 3, (6, 6), blocks=2).double()
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:, 0, 0, 1, 1] = 1.0
        layer.weight[:, 1, 1, 1, 1] = 0.95
    layer.train()
    refresh_norms(layer)
    with torch.no_grad():
        layer.weight[1, 1, 1, 1, 1] = 1.05  # orthogonal to the warm start
    refresh_norms(layer)
    assert float(layer.sigma[1]) < true_norms(layer, layer.weight)[1] - 0.04  # the control: training has not seen it
    layer.eval()
    assert refresh_norms(layer) == 1
    assert layer.sigma.tolist() == pytest.approx(true_norms(layer, layer.weight), rel=1e-3)
    assert refresh_norms(layer) == 0


def test_autocast_has_no_part_in_norms():
    torch.manual_seed(0)
    layer = LipschitzLinear(256, 256, blocks=2)
    layer.weight.data.mul_(8)
    with torch.autocast("cpu", torch.bfloat16):
        use_forward(layer)
    assert worst(layer) <= layer.coeff * (1 + 1e-5)


def test_autocast_has_no_part_in_a_flow():
    flow, x = small_toy(blocks=(3,)), points(20)
    want, wanted = flow.log_prob(x), flow.inverse(x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        found, inverse = flow.log_prob(x), flow.inverse(x)[0]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(inverse, wanted)


@pytest.mark.parametrize("kind", SPECTRAL)
@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_training_goes_on_after_a_use_in_inference_mode(kind, norm):
    layer = layer_of(kind, norm, blocks=2)
    x = batch_for(layer)
    with torch.inference_mode():
        layer(x)
    layer(x).square().sum().backward()
    assert layer.weight.grad is not None


def test_products_on_cuda_are_as_the_policy_says_inside_and_as_they_were_outside():
    switches = [torch.backends.cudnn.conv, torch.backends.cuda.matmul]
    before, cuda = [switch.fp32_precision for switch in switches], torch.device("cuda")

    def now():
        return [switch.fp32_precision for switch in switches]

    with EXACT.products(cuda):
        assert now() == ["ieee"] * 2
        with Precision(tf32=True).products(cuda):
            assert now() == ["tf32"] * 2
            with EXACT.products(cuda):
                assert now() == ["ieee"] * 2
            assert now() == ["tf32"] * 2
        assert now() == ["ieee"] * 2
    assert now() == before
    with pytest.raises(RuntimeError, match="inside"), EXACT.products(cuda):
        raise RuntimeError("inside")
    assert now() == before


def test_norms_are_computed_without_autocast_inference_mode_or_a_graph():
    weight = torch.zeros(2)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), for_norms(weight):
        assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
    with for_norms(weight):
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_precisions_have_names():
    assert Precision.of("32-true") == Precision.of("64-true") == EXACT
    assert Precision.of("bf16-mixed", tf32=True) == Precision(bfloat16=True, tf32=True)
    with pytest.raises(OptionError, match=r"'16-mixed'.*bf16-mixed"):
        Precision.of("16-mixed")
