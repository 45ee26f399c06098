"""Activations: derivatives, Lipschitz constants, and how much of a signal they keep."""

import math

import new_activation
import pytest
import torch

from brute import jacobians, plain_activation, plain_network, scrambled
from idensenet.errors import InputError, OptionError, UnknownNameError
from idensenet.lipschitz import Pieces, dense_block, register_activation, residual_net
from idensenet.lipschitz.activations import ACTIVATIONS, SWISH_SLOPE, activation

BETAS = (-3.0, 0.0, 0.5, 2.0, 10.0)


def act(name, beta=None, alpha=None, norm=2.0):
    made = activation(name, 1, norm).double()
    with torch.no_grad():
        if beta is not None:
            made.beta.fill_(beta)
        if alpha is not None:
            made.alpha.fill_(alpha)
    return made


def slopes(made, x):
    """The derivatives of every output with respect to its number, [outputs, points], by autograd."""
    x = x.clone().requires_grad_()
    y = made(x[:, None])
    return torch.stack([torch.autograd.grad(y[:, i].sum(), x, retain_graph=True)[0] for i in range(y.shape[1])])


def largest_slope(made, norm):
    """sup over x of the norm of the derivatives: the best of a grid, then golden-section search around it."""
    size = lambda x: torch.linalg.vector_norm(slopes(made, x), norm, dim=0)  # noqa: E731
    grid = torch.linspace(-80, 80, 40001, dtype=torch.float64)
    best = float(grid[size(grid).argmax()])
    low, high = best - 0.01, best + 0.01
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(40):
        a, b = high - golden * (high - low), low + golden * (high - low)
        first, second = size(torch.tensor([a, b], dtype=torch.float64)).tolist()
        low, high = (low, b) if first >= second else (a, high)
    return float(size(torch.tensor([low, best], dtype=torch.float64)).max())


def stack_of(name, blocks):
    """K activations of one kind, every parameter different."""
    made = activation(name, blocks).double()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p))
    return made


NAMES = sorted(ACTIVATIONS)  # the table of checks; the last registration is new_activation's
blocks = pytest.mark.parametrize("blocks", [1, 3])


@pytest.mark.parametrize("name", NAMES)
@blocks
def test_linearize_gives_the_definition_and_its_derivative(name, blocks):
    made = stack_of(name, blocks)
    x = 3 * torch.randn(4, 3, 2, 2, dtype=torch.float64)
    for k in range(blocks):
        values, derivatives = made.linearize(x, k)
        assert len(values) == len(derivatives) == made.expansion
        value = torch.cat(values, 1)
        torch.testing.assert_close(value, plain_activation(made, x, k), rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(made(x, k), value, rtol=0, atol=0)
        v = torch.randn_like(x)
        _, product = torch.autograd.functional.jvp(lambda a, k=k: plain_activation(made, a, k), x, v)
        mine = torch.cat([slope * v for slope in derivatives], 1)
        torch.testing.assert_close(mine, product, rtol=1e-12, atol=1e-13)
    if blocks > 1 and list(made.parameters()):
        assert (made(x, 0) - made(x, 1)).abs().max() > 1e-3  # blocks differ


@pytest.mark.parametrize("name", [name for name in NAMES if list(activation(name).parameters())])
@blocks
def test_parameters_get_the_gradient_of_the_definition_and_only_in_their_block(name, blocks):
    made = stack_of(name, blocks)
    x = torch.randn(5, 3, dtype=torch.float64)
    parameters = list(made.parameters())
    for k in range(blocks):
        loss = made(x, k).square().sum() + sum(s.sin().sum() for s in made.linearize(x, k)[1])
        found = torch.autograd.grad(loss, parameters)

        def slope(k=k):
            a = x.clone().requires_grad_()
            return [
                torch.autograd.grad(part.sum(), a, create_graph=True)[0]
                for part in plain_activation(made, a, k).chunk(made.expansion, 1)
            ]

        right = plain_activation(made, x, k).square().sum() + sum(s.sin().sum() for s in slope())
        torch.testing.assert_close(found, torch.autograd.grad(right, parameters), rtol=1e-10, atol=1e-12)
        for gradient in found:
            assert [i for i in range(blocks) if gradient[i] != 0] == [k]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beta", [-200.0, -20.0, 0.5, 20.0])
def test_factors_in_front_and_behind_make_the_same_activation(name, beta):
    made = activation(name, 2)
    if hasattr(made, "beta"):
        with torch.no_grad():
            made.beta.copy_(torch.tensor([beta, 0.7]))
    x = torch.tensor([[-30.0, -1.0, 0.0, 1e-3, 2.0, 40.0]])
    folded = made.folded()
    for k in range(2):
        inner = 1.0 if folded.inner is None else folded.inner[k]
        values, _ = made.curves(inner * x, *[own[k] for own in folded.own])
        found = torch.cat(folded.unfolded(values, k), 1)
        torch.testing.assert_close(found, plain_activation(made, x, k), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["relu", "crelu", "elu"])
def test_at_the_kink_the_slope_is_that_of_autograd(name):
    made = activation(name)
    x = torch.zeros(1, 1)
    want = torch.autograd.functional.jvp(made, x, torch.ones(1, 1))[1]
    torch.testing.assert_close(torch.cat(made.linearize(x)[1], 1).abs(), want.abs())


@pytest.mark.parametrize("beta", BETAS)
def test_lipswish_has_the_constant_of_the_paper_at_every_beta(beta):
    found = largest_slope(act("lipswish", beta), 2)
    assert found == pytest.approx(1.0998393 / 1.1, abs=1e-7)
    for norm in (1, 2, math.inf):
        assert found <= act("lipswish", beta).lipschitz(norm) <= found + 1e-6


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("alpha", [-8.0, -3.0, 0.0, 4.0])
def test_leakylipswish_stays_within_one(beta, alpha):
    made = act("leakylipswish", beta, alpha)
    found = largest_slope(made, 2)
    assert 0.9998 < found <= 1.0
    assert found <= made.lipschitz(2) <= found + 2e-4


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_clipswish_constant_is_the_supremum_in_its_norm(beta, norm):
    made = act("clipswish", beta, norm=norm)
    found = largest_slope(made, norm)
    assert found <= made.lipschitz(norm) <= found + 1e-4
    assert 0.999 < found <= 1.0


@pytest.mark.parametrize("beta", BETAS)
def test_clipswish_has_the_constant_of_the_paper(beta):
    assert largest_slope(act("clipswish", beta), 2) == pytest.approx(1.00397 / 1.004, abs=1e-5)


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_cpila_constant_is_the_supremum_in_its_norm(norm):
    made = act("cpila", norm=norm)
    found = largest_slope(made, norm)
    assert found <= made.lipschitz(norm) <= found + 1e-6
    assert 0.998 < made.lipschitz(norm) <= 1.0


def test_cpila_hardly_attenuates():
    """Before the division by 1.06 the norm of its derivative lies between 1 and 1.05882, which it has at +-0.6."""
    size = 1.06 * slopes(act("cpila"), torch.linspace(-20, 20, 400_001, dtype=torch.float64)).norm(dim=0)
    assert float(size.min()) == pytest.approx(1.0, abs=1e-6)
    assert float(size.max()) == pytest.approx(1.05882, abs=1e-5)
    at = slopes(act("cpila"), torch.tensor([-0.6, 0.6], dtype=torch.float64)).norm(dim=0) * 1.06
    torch.testing.assert_close(at, size.max().expand(2), rtol=1e-9, atol=0)


def test_cpila_has_two_derivatives_at_its_seams():
    made, step = act("cpila"), 1e-6
    for seam in (-0.2, 0.2):
        x = torch.tensor([seam - step, seam, seam + step], dtype=torch.float64).requires_grad_()
        derivatives = torch.cat(made.linearize(x[:, None])[1], 1)
        second = torch.stack([torch.autograd.grad(d.sum(), x, retain_graph=True)[0] for d in derivatives.T])
        for each, limit in ((derivatives.detach().T, 1e-5), (second, 1e-3)):
            assert float((each - each[:, 1:2]).abs().max()) < limit
        torch.testing.assert_close(slopes(made, x.detach()), derivatives.detach().T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_sine_constant_is_the_supremum_in_its_norm_and_in_the_euclidean_one_it_is_everywhere(beta, norm):
    made = act("sine", beta, norm=norm)
    found = largest_slope(made, norm)
    assert made.lipschitz(norm) == pytest.approx(1.0, abs=1e-12)
    assert 0.999 < found <= made.lipschitz(norm) + 1e-12
    size = slopes(act("sine", beta), torch.linspace(-9, 9, 1001, dtype=torch.float64)).norm(dim=0)
    torch.testing.assert_close(size, torch.ones_like(size), rtol=1e-12, atol=0)


def test_clipswish_made_for_one_norm_knows_its_constant_in_another():
    made = act("clipswish", 0.5, norm=2)
    for norm in (1, 2, math.inf):
        found = largest_slope(made, norm)
        assert found <= made.lipschitz(norm) <= found + 1e-4
    assert made.lipschitz(1) > 1  # so the Euclidean divisor would not do for the 1-norm


def test_the_slope_of_swish_is_rounded_up_and_tight():
    found = 1.1 * largest_slope(act("lipswish", 0.0), 2)
    assert found < SWISH_SLOPE < found + 1e-6


@pytest.mark.parametrize("name", ["crelu", "relu", "elu", "tanh", "sigmoid", "identity", new_activation.NAME])
@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_constants_of_the_other_activations_are_reached_and_not_passed(name, norm):
    made = activation(name, 1, norm).double()
    assert largest_slope(made, norm) == pytest.approx(made.lipschitz(norm), abs=1e-6)
    x, y = 2 * torch.randn(2, 2000, 1, dtype=torch.float64)
    change = torch.linalg.vector_norm(made(x) - made(y), norm, dim=1)
    assert bool((change <= made.lipschitz(norm) * (x - y).abs()[:, 0] * (1 + 1e-12)).all())


def test_clipswish_is_lipswish_of_both_signs():
    x = torch.randn(6, 3, dtype=torch.float64)
    plain, pair = act("lipswish"), act("clipswish")
    torch.testing.assert_close(pair(x), torch.cat([plain(x), plain(-x)], 1) / 1.004, rtol=1e-12, atol=1e-14)


def test_starting_values_are_those_of_the_paper():
    leaky = activation("leakylipswish")
    assert leaky.beta.item() == 0.5
    assert leaky.alpha.item() == -3.0
    assert [activation(name).expansion for name in ("clipswish", "crelu", "lipswish", "relu")] == [2, 2, 1, 1]


RATIOS = {  # activation: mean and maximum for D = 1, 128, 1024
    "sigmoid": ((0.22, 0.25), (0.21, 0.22), (0.21, 0.21)),
    "lipswish": ((0.46, 1.0), (0.51, 0.64), (0.51, 0.55)),
    "clipswish": ((0.72, 1.0), (0.71, 0.77), (0.71, 0.73)),
    "identity": ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0)),
}


@pytest.mark.parametrize("place", [0, 1, 2], ids=["D=1", "D=128", "D=1024"])
def test_signal_preservation_table_of_the_paper(place):
    dims = (1, 128, 1024)[place]
    generator = torch.Generator().manual_seed(0)
    count, chunk = (100_000, 40_000, 20_000)[place], (100_000, 2_000, 250)[place]  # more dimensions have less spread
    ratios = {name: [] for name in RATIOS}
    with torch.no_grad():
        for _ in range(count // chunk):
            v, w = torch.randn(2, chunk, dims, generator=generator)
            length = (v - w).norm(dim=1)
            for name, found in ratios.items():
                made = activation(name)
                found.append((made(v) - made(w)).norm(dim=1) / length)
    for name, found in ratios.items():
        ratio = torch.cat(found)
        mean, maximum = RATIOS[name][place]
        assert float(ratio.mean()) == pytest.approx(mean, abs=0.01), name
        assert float(ratio.max()) == pytest.approx(maximum, abs=0.03), name


def test_an_unknown_activation_is_named_with_its_neighbours():
    with pytest.raises(UnknownNameError, match=r"'lipswich'.*'lipswish'") as caught:
        activation("lipswich")
    assert isinstance(caught.value, InputError)
    with pytest.raises(UnknownNameError, match=r"known are .*'elu'"):
        activation("???")


@blocks
@pytest.mark.parametrize("kind", ["dense", "residual"])
def test_a_new_activation_is_used_by_name(blocks, kind):
    pieces = Pieces(new_activation.NAME, 0.9)
    if kind == "dense":
        net = dense_block([3], 2, 4, pieces, blocks=blocks)
    else:
        net = residual_net([3], [6, 6], [1, 1, 1], pieces, blocks=blocks)
    net = scrambled(net.double())
    x, v = torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.randn(2, 4, 3, dtype=torch.float64)
    stack = net.prepare()
    for k in range(blocks):
        value, product, J = stack[k].push(x, v)
        matrix = jacobians(lambda a, k=k: plain_network(net, a, k), x.detach())
        torch.testing.assert_close(value, plain_network(net, x, k), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(product, torch.einsum("bij,pbj->pbi", matrix, v), rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(J.rmatvec(v), torch.einsum("bij,pbi->pbj", matrix, v), rtol=1e-11, atol=1e-12)
        assert float(torch.linalg.matrix_norm(matrix, 2).max()) <= net.lipschitz(lambda m: m.bounds())[k] < 1


def test_a_name_is_taken_once():
    register_activation(new_activation.NAME, new_activation.Wave)  # the same again changes nothing
    with pytest.raises(OptionError, match=f"The activation '{new_activation.NAME}' exists already"):
        register_activation(new_activation.NAME, new_activation.Other)
    assert new_activation.NAME in ACTIVATIONS
    assert len(ACTIVATIONS) == len(list(ACTIVATIONS))
