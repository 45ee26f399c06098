"""Normalised linear layers: the norm in use is always that of the weights in use."""

import copy
import io
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from brute import operator_matrix
from idensenet.errors import NonFiniteError, OptionError, ShapeError
from idensenet.lipschitz import (
    LipschitzConv2d,
    LipschitzLinear,
    Pieces,
    dense_block,
    fresh_norms,
    norms,
    operator_bound,
    refresh_norms,
)
from idensenet.lipschitz import scope as scopes
from idensenet.lipschitz.fingerprint import sketch
from idensenet.lipschitz.linear import LipschitzMap, fingerprints
from idensenet.lipschitz.linearmap import convolve
from idensenet.lipschitz.scope import norms_settled

COEFF = 0.9
KINDS = {
    "matrix": lambda norm=2.0: LipschitzLinear(5, 4, COEFF, norm),
    "1x1": lambda norm=2.0: LipschitzConv2d(3, 4, 1, (4, 5), COEFF, norm),
    "3x3": lambda norm=2.0: LipschitzConv2d(3, 4, 3, (4, 5), COEFF, norm),
    "5x5": lambda norm=2.0: LipschitzConv2d(3, 2, 5, (4, 3), COEFF, norm),
}
SPECTRAL = list(KINDS)


def layer_of(kind, norm=2.0, gain=4.0):
    """A layer whose norm is well above coeff."""
    layer = KINDS[kind](norm)
    layer.weight.data.mul_(gain)
    return layer


def batch_for(layer, batch=2):
    event = layer.weight.shape[1:2] if layer.size is None else (layer.weight.shape[1], *layer.size)
    return torch.randn(batch, *event, dtype=layer.weight.dtype)


def true_norm(weight, size, norm=2.0):
    if size is None:
        return float(torch.linalg.matrix_norm(weight.detach().double(), norm))
    matrix = operator_matrix(lambda x: convolve(x, weight.detach().double()), (weight.shape[1], *size))
    return float(torch.linalg.matrix_norm(matrix, norm))


def assert_fresh(layer):
    """sigma is the norm of this weight, and what the layer does with its input has norm coeff at most."""
    exact = layer.as_matrix or layer.norm != 2
    rounding = 1e-5 if layer.weight.dtype == torch.float32 else 1e-12
    tolerance = rounding if exact else 1e-3
    truth = true_norm(layer.weight, layer.size, layer.norm)
    assert float(layer.sigma) == pytest.approx(truth, rel=tolerance)
    assert float(layer.sigma) <= truth * (1 + rounding)
    assert true_norm(layer.normalized_weight(), layer.size, layer.norm) <= layer.coeff * (1 + tolerance)


def use_forward(layer):
    return layer(batch_for(layer))


def use_linearize(layer):
    return layer.linearize(batch_for(layer))[0]


def use_without_gradient(layer):
    with torch.no_grad():
        return layer(batch_for(layer))


USES = {"forward": use_forward, "linearize": use_linearize, "no_grad": use_without_gradient}


def stepped(make):
    def write(layer):
        optimizer = make(layer.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            x = batch_for(layer)
            (layer(x).square().sum() - 50 * layer(x).sum()).backward()
            optimizer.step()

    return write


def write_data(layer):
    layer.weight.data[0] = 3 * torch.randn_like(layer.weight[0])


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


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", SPECTRAL)
def test_the_first_use_after_a_write_sees_the_norm_of_the_new_weight(kind, write, use):
    layer = layer_of(kind)
    use_without_gradient(layer)
    assert_fresh(layer)
    before = float(layer.sigma)
    WRITES[write](layer)
    USES[use](layer)
    with norms_settled():  # as the use left it
        assert_fresh(layer)
    if write != "float64":
        assert float(layer.sigma) != before


@pytest.mark.parametrize("norm", [1.0, math.inf])
@pytest.mark.parametrize("write", ["adam fused", "data", "float64"])
@pytest.mark.parametrize("kind", SPECTRAL)
def test_other_norms_follow_the_weights_too(kind, write, norm):
    layer = layer_of(kind, norm)
    use_without_gradient(layer)
    WRITES[write](layer)
    use_forward(layer)
    with norms_settled():
        assert_fresh(layer)


def test_a_stale_norm_is_what_the_tests_above_would_catch():
    layer = layer_of("3x3")
    use_forward(layer)
    with norms_settled():
        layer.weight.data.mul_(2)
        use_forward(layer)
        with pytest.raises(AssertionError):
            assert_fresh(layer)


def networks():
    return {
        "vector": (lambda: dense_block([3], 2, 6, Pieces("clipswish", COEFF)), (3,)),
        "maps": (lambda: dense_block([2, 4, 4], 2, 6, Pieces("clipswish", COEFF)), (2, 4, 4)),
    }


def scaled_network(name, gain=6.0):
    make, shape = networks()[name]
    net = make()
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, LipschitzMap):
                m.weight.mul_(gain)
    return net, shape


def layers_of(net):
    return [m for m in net.modules() if isinstance(m, LipschitzMap)]


@pytest.mark.parametrize("optimizer", ["plain", "foreach", "fused"])
@pytest.mark.parametrize("name", networks())
def test_every_layer_of_a_network_follows_an_optimiser(name, optimizer):
    net, shape = scaled_network(name)
    adam = torch.optim.Adam(net.parameters(), lr=0.1, **({} if optimizer == "plain" else {optimizer: True}))
    x = torch.randn(4, *shape)
    for _ in range(3):
        adam.zero_grad()
        net(x).square().sum().backward()
        adam.step()
    net.linearize(x)
    with norms_settled():
        for layer in layers_of(net):
            assert_fresh(layer)


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("name", networks())
def test_averaged_weights_get_their_own_norms(name, use_buffers):
    net, shape = scaled_network(name)
    x = torch.randn(4, *shape)
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
        with norms_settled():
            for layer in layers_of(averaged.module):
                assert_fresh(layer)


def test_swapping_averaged_weights_in_and_out_brings_the_old_output_back():
    net, shape = scaled_network("maps")
    x = torch.randn(4, *shape)
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


class Spy:
    """Counts the computations of norms."""

    def __init__(self, monkeypatch):
        self.calls = 0
        for name in ("matrix_norms", "convolution_norms", "induced_norm"):
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
    net.linearize(x)
    with torch.no_grad():
        net(x)
    net.layers[-1].normalized_weight()
    assert refresh_norms(net) == 0
    assert spy.calls == 0
    net.layers[-1].weight.data.mul_(1.5)
    assert refresh_norms(net) == 1
    assert spy.calls == 1


def test_layers_of_equal_shape_are_done_together(spy):
    stack = nn.ModuleList([LipschitzConv2d(2, 3, 3, (5, 5)) for _ in range(4)] + [LipschitzLinear(3, 2) for _ in range(3)])
    assert refresh_norms(stack) == 7
    assert spy.calls == 2
    for layer in stack:
        with norms_settled():
            assert_fresh(layer)
    assert refresh_norms(nn.ReLU()) == 0


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
    want = net(x)
    with torch.no_grad():
        quiet = net(x)
    again = RELOADS[reload](net, networks()[name][0])
    spy.calls = 0
    found = again(x)
    assert torch.equal(found, want)
    with torch.no_grad():
        assert torch.equal(again(x), quiet)
    assert spy.calls == 0
    grads = torch.autograd.grad(found.square().sum(), list(again.parameters()))
    wanted = torch.autograd.grad(want.square().sum(), list(net.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


@pytest.mark.parametrize("kind", SPECTRAL)
@pytest.mark.parametrize("assign", [False, True])
def test_a_load_over_a_layer_in_use_leaves_nothing_of_the_old_weight(kind, assign, spy):
    old, new = layer_of(kind), layer_of(kind, gain=9.0)
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
    old, new = layer_of(kind), layer_of(kind, gain=9.0)
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
def test_caches_are_not_saved(kind):
    layer = layer_of(kind)
    refresh_norms(layer)
    small = len(pickle.dumps(layer))
    use_forward(layer).sum().backward()
    use_without_gradient(layer)
    layer.zero_grad()
    assert len(pickle.dumps(layer)) == small
    assert set(layer.state_dict()) - {"sketch"} == {"weight", "bias", "left", "right", "sigma", "fingerprint"}


def test_a_load_of_weights_without_norms_computes_them():
    old, new = layer_of("3x3"), layer_of("3x3", gain=9.0)
    use_forward(old)
    old.load_state_dict({"weight": new.weight, "bias": new.bias}, strict=False)
    use_forward(old)
    with norms_settled():
        assert_fresh(old)


def test_state_can_be_loaded_before_any_forward():
    new = layer_of("3x3")
    layer = KINDS["3x3"]()
    layer.load_state_dict(new.state_dict())
    use_forward(layer)
    with norms_settled():
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
    layer = KINDS[kind](norm)
    layer.weight.data.mul_(0.5 * COEFF / true_norm(layer.weight, layer.size, norm))
    assert torch.equal(layer.normalized_weight(), layer.weight)
    with torch.no_grad():
        assert torch.equal(layer.normalized_weight(), layer.weight)
    (gradient,) = torch.autograd.grad(layer.normalized_weight().sum(), layer.weight)
    assert torch.equal(gradient, torch.ones_like(gradient))


def plain_normalized(weight, size, norm, coeff):
    """weight / max(1, sigma / coeff) with a dense operator's norm, all of it differentiable."""
    if size is None:
        sigma = torch.linalg.matrix_norm(weight, norm)
    else:
        sigma = torch.linalg.matrix_norm(operator_matrix(lambda x: convolve(x, weight), (weight.shape[1], *size)), norm)
    return weight / torch.clamp(sigma / coeff, min=1)


@pytest.mark.parametrize("kind", SPECTRAL)
@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("ratio", [3.0, 0.5])
def test_gradient_through_the_normalisation_is_that_of_the_true_norm(kind, norm, ratio):
    layer = KINDS[kind](norm).double()
    layer.tolerance = 1e-12
    layer.weight.data.mul_(ratio * COEFF / true_norm(layer.weight, layer.size, norm))
    probe = torch.randn_like(layer.weight)
    want = plain_normalized(layer.weight, layer.size, norm, COEFF)
    torch.testing.assert_close(layer.normalized_weight(), want, rtol=1e-10, atol=1e-12)
    (expected,) = torch.autograd.grad((want * probe).sum(), layer.weight)
    (found,) = torch.autograd.grad((layer.normalized_weight() * probe).sum(), layer.weight)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    constant = probe / max(1.0, ratio)  # sigma taken as a constant
    assert torch.allclose(found, constant) is (ratio < 1)


@pytest.mark.parametrize("kind", SPECTRAL)
def test_two_backward_passes_agree(kind):
    layer = layer_of(kind)
    loss = layer(batch_for(layer)).square().sum()
    first = torch.autograd.grad(loss, layer.weight, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, layer.weight, retain_graph=True)[0])
    x = batch_for(layer)
    for _ in range(2):  # and a graph of its own for each use
        layer(x).square().sum().backward()


@pytest.mark.parametrize("kind", SPECTRAL)
def test_the_normalised_weight_is_kept_only_where_no_gradient_is_recorded(kind):
    layer = layer_of(kind)
    with torch.no_grad():
        kept = layer.normalized_weight()
        assert layer.normalized_weight() is kept
    assert not kept.requires_grad
    with_graph = layer.normalized_weight()
    assert with_graph.requires_grad
    assert with_graph is not layer.normalized_weight()
    with torch.no_grad():
        assert layer.normalized_weight() is kept
        layer.weight.data.mul_(2)
        assert layer.normalized_weight() is not kept
    layer.requires_grad_(False)
    assert layer.normalized_weight() is layer.normalized_weight()


def test_what_inference_mode_cached_does_not_break_a_later_gradient():
    layer = layer_of("matrix").requires_grad_(False)
    x = batch_for(layer)
    with torch.inference_mode():
        want = layer(x)
    x.requires_grad_()
    found = layer(x)
    torch.testing.assert_close(found.detach(), want.clone())
    found.sum().backward()
    torch.testing.assert_close(x.grad, layer.normalized_weight().sum(0).expand(2, -1))


@pytest.mark.parametrize("kind", SPECTRAL)
def test_forward_and_linearize_are_the_affine_map(kind):
    layer = layer_of(kind).double()
    x = batch_for(layer)
    weight = layer.normalized_weight()
    bias = layer.bias if layer.size is None else layer.bias[:, None, None]
    want = (x @ weight.T if layer.size is None else convolve(x, weight)) + bias
    torch.testing.assert_close(layer(x), want)
    value, jacobian = layer.linearize(x)
    torch.testing.assert_close(value, want)
    v = torch.randn_like(x)
    torch.testing.assert_close(jacobian.matvec(v), layer(x + v) - layer(x))


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


def test_norms_are_not_looked_at_again_inside_a_scope(spy):
    layer = layer_of("3x3")
    with fresh_norms(layer):
        spy.calls = 0
        layer.weight.data.mul_(2)
        use_forward(layer)
        assert spy.calls == 0
    use_forward(layer)
    assert spy.calls == 1


def test_a_scope_ends_with_an_error_inside():
    layer = layer_of("matrix")
    with pytest.raises(RuntimeError), fresh_norms(layer):
        raise RuntimeError
    layer.weight.data.mul_(2)
    use_forward(layer)
    with norms_settled():
        assert_fresh(layer)


@pytest.mark.parametrize("kind", SPECTRAL)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_weight_is_reported(kind, bad):
    layer = layer_of(kind)
    layer.weight.data.flatten()[1] = bad
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
    for use in ("forward", "linearize"):
        with pytest.raises(ShapeError, match=r"3 numbers.*\(7, 4\)"):
            getattr(linear, use)(torch.zeros(7, 4))
        for shape in ((7, 3, 5, 4), (7, 2, 4, 5), (7, 3)):
            with pytest.raises(ShapeError, match=r"\(3, 4, 5\)"):
                getattr(conv, use)(torch.zeros(shape))


def test_a_part_of_the_weight_that_the_last_vector_does_not_see_may_grow():
    layer = LipschitzConv2d(2, 2, 3, (5, 5))
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[0, 0] = torch.randn(3, 3)
    for _ in range(20):
        layer.weight.data.mul_(1.001)
        use_forward(layer)
    layer.weight.data[1, 1].normal_().mul_(10)
    use_forward(layer)
    assert operator_bound(layer) <= layer.coeff * 1.002


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("training", [True, False])
def test_a_channel_may_come_on_while_the_length_of_the_weight_hardly_changes(seed, training):
    torch.manual_seed(seed)
    layer = LipschitzConv2d(12, 12, 3, (8, 8)).train(training)
    x = torch.randn(2, 12, 8, 8)
    with torch.no_grad():
        layer.weight.mul_(4)
        layer.weight[:, 0] *= 1e-3
        layer(x)
        before = float(layer.weight.norm())
        layer.weight[:, 0] = 0.3 * torch.randn(12, 1, 1)
        assert float(layer.weight.norm()) < 1.15 * before
        layer(x)
    assert operator_bound(layer) <= layer.coeff * 1.002


def test_a_drift_of_many_small_steps_is_noticed():
    """Each moves the weight by a little; all together into a direction that the first singular vectors have no part of.

    Unnoticed, it would end at more than five times the constant.
    """
    torch.manual_seed(0)
    layer = LipschitzConv2d(12, 12, 3, (8, 8)).train()
    x = torch.randn(2, 12, 8, 8)
    with torch.no_grad():
        layer.weight.mul_(4)
        layer.weight[:, 0], layer.weight[0] = 0, 0
        layer(x)
        for _ in range(60):
            layer.weight[0, 0] += 0.05
            layer(x)
            assert operator_bound(layer) <= layer.coeff * 1.4
        layer.eval()
        for _ in range(3):
            layer.weight[0, 0] += 0.05
            layer(x)
            assert operator_bound(layer) <= layer.coeff * 1.002


def test_another_number_type_takes_no_climb(monkeypatch):
    layer = LipschitzConv2d(12, 12, 3, (8, 8)).eval()
    layer.weight.data.mul_(4)
    use_forward(layer)
    monkeypatch.setattr(norms, "climb", None)
    layer.double()
    use_forward(layer)
    assert operator_bound(layer) <= layer.coeff * 1.002
    layer.weight.data[0, 0] += 1e-3
    with pytest.raises(TypeError):
        use_forward(layer)


@pytest.mark.parametrize("shape", [(3, 5), (40, 7, 3, 3), (64, 64, 3, 3)])
def test_sketches_tell_how_far_a_weight_has_moved(shape):
    torch.manual_seed(0)
    weight = torch.randn(shape)
    ratios = []
    for _ in range(50):
        step = 0.1 * torch.randn(shape[0], 1, *shape[2:]) * torch.randn(1, shape[1], *shape[2:])  # of low rank
        ratios.append(float((sketch(weight + step) - sketch(weight)).norm() / step.norm()))
    error = math.sqrt(2 / 64 / 50)  # of the mean square, for sums of random signs
    assert abs(sum(r * r for r in ratios) / 50 - 1) < 4 * error
    assert min(ratios) > 0.5
    assert max(ratios) < 1.5
    assert float((sketch(2 * weight) - sketch(weight)).norm()) == pytest.approx(float(sketch(weight).norm()), rel=1e-5)


def test_state_with_the_length_alone_is_loaded_and_looked_at_anew():
    old = layer_of("3x3")
    use_forward(old)
    state = {name: value for name, value in old.state_dict().items() if name != "sketch"} | {"length": old.weight.norm()}
    layer = layer_of("3x3").train()
    layer.load_state_dict(state)
    assert torch.equal(layer.sigma, old.sigma)
    layer.weight.data.mul_(1.01)
    use_forward(layer)
    assert_fresh(layer)
    torch.testing.assert_close(layer.sketch, sketch(layer.weight).expand(2, -1))


def test_autocast_has_no_part_in_norms():
    torch.manual_seed(0)
    layer = LipschitzLinear(256, 256)
    layer.weight.data.mul_(8)
    with torch.autocast("cpu", torch.bfloat16):
        use_forward(layer)
    assert operator_bound(layer) <= layer.coeff * (1 + 1e-5)


@pytest.mark.parametrize("kind", SPECTRAL)
@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_training_goes_on_after_a_use_in_inference_mode(kind, norm):
    layer = layer_of(kind, norm)
    x = batch_for(layer)
    with torch.inference_mode():
        layer(x)
    layer(x).square().sum().backward()
    assert layer.weight.grad is not None


def test_convolutions_on_cuda_have_all_digits_inside_and_what_they_had_outside(monkeypatch):
    monkeypatch.setattr(scopes, "_cuda", lambda: True)
    switch = torch.backends.cudnn.conv
    before = switch.fp32_precision
    with norms_settled():
        assert switch.fp32_precision == "ieee"
        with norms_settled():
            pass
        assert switch.fp32_precision == "ieee"
    assert switch.fp32_precision == before
    with pytest.raises(RuntimeError), norms_settled():
        raise RuntimeError
    assert switch.fp32_precision == before
