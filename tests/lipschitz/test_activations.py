"""Activations: derivatives, Lipschitz constants, and how much of a signal they keep."""

import math

import pytest
import torch

from idensenet.errors import InputError, UnknownNameError
from idensenet.lipschitz.activations import ACTIVATIONS, SWISH_SLOPE, activation

BETAS = (-3.0, 0.0, 0.5, 2.0, 10.0)


def act(name, beta=None, alpha=None, norm=2.0):
    made = activation(name, norm).double()
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


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_linearize_gives_the_forward_value_and_the_derivative(name):
    made = activation(name).double()
    x = 3 * torch.randn(4, 3, 2, 2, dtype=torch.float64)
    value, jacobian = made.linearize(x)
    torch.testing.assert_close(value, made(x), rtol=1e-14, atol=1e-15)
    assert value.shape[1] == made.expansion * x.shape[1]
    v, u = torch.randn_like(x), torch.randn_like(value)
    want, product = torch.autograd.functional.jvp(made, x, v)
    torch.testing.assert_close(jacobian.matvec(v), product, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(jacobian.rmatvec(u), torch.autograd.functional.vjp(made, x, u)[1], rtol=1e-12, atol=1e-13)
    assert want.shape == value.shape


@pytest.mark.parametrize("name", ["lipswish", "leakylipswish", "clipswish"])
def test_parameters_get_the_same_gradient_through_forward_and_linearize(name):
    made = act(name, beta=0.7)
    x = torch.randn(5, 3, dtype=torch.float64)
    parameters = list(made.parameters())
    direct = torch.autograd.grad(made(x).square().sum(), parameters)
    other = torch.autograd.grad(made.linearize(x)[0].square().sum(), parameters)
    torch.testing.assert_close(direct, other)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("beta", [-200.0, -20.0, 0.5, 20.0])
def test_factors_in_front_and_behind_make_the_same_activation(name, beta):
    made = activation(name)
    if hasattr(made, "beta"):
        made = act(name, beta).float()
    x = torch.tensor([[-30.0, -1.0, 0.0, 1e-3, 2.0, 40.0]])
    inner, outer = made.factors()
    values = [outer * part for part in made.core(inner * x)]
    torch.testing.assert_close(torch.cat(values, 1), made(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["relu", "crelu", "elu"])
def test_at_the_kink_the_slope_is_that_of_autograd(name):
    made = activation(name)
    x = torch.zeros(1, 1)
    want = torch.autograd.functional.jvp(made, x, torch.ones(1, 1))[1]
    torch.testing.assert_close(made.linearize(x)[1].matvec(torch.ones(1, 1)).abs(), want.abs())


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


def test_clipswish_made_for_one_norm_knows_its_constant_in_another():
    made = act("clipswish", 0.5, norm=2)
    for norm in (1, 2, math.inf):
        found = largest_slope(made, norm)
        assert found <= made.lipschitz(norm) <= found + 1e-4
    assert made.lipschitz(1) > 1  # so the Euclidean divisor would not do for the 1-norm


def test_the_slope_of_swish_is_rounded_up_and_tight():
    found = 1.1 * largest_slope(act("lipswish", 0.0), 2)
    assert found < SWISH_SLOPE < found + 1e-6


@pytest.mark.parametrize("name", ["crelu", "relu", "elu", "tanh", "sigmoid", "identity"])
@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_constants_of_the_other_activations_are_reached_and_not_passed(name, norm):
    made = activation(name, norm).double()
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
    chunk = (100_000, 2_000, 250)[place]
    ratios = {name: [] for name in RATIOS}
    with torch.no_grad():
        for _ in range(100_000 // chunk):
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
