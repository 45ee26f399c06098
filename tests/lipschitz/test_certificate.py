"""Certified bounds: never below the true norm, and close to it."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brute import convolve, operator_matrix
from idensenet.errors import NonFiniteError
from idensenet.lipschitz import (
    BlockCertificate,
    Certificate,
    LipschitzConv2d,
    LipschitzLinear,
    OperatorNorms,
    norms,
    refresh_norms,
)
from idensenet.lipschitz import bounds as certified
from idensenet.lipschitz.bounds import convolution_bound, gram_matrix


def toeplitz(weight, size):
    return operator_matrix(lambda x: convolve(x, weight.detach().double()), (weight.shape[1], *size))


def true_norms(layer, norm=2.0):
    """The norm of the map in use, for each block."""
    weights = layer.normalized_weight().detach().double()
    matrices = weights if weights.ndim == 3 else [toeplitz(weight, layer.size) for weight in weights]
    return [float(torch.linalg.matrix_norm(matrix, norm)) for matrix in matrices]


def exact_norm(layer):
    return not isinstance(layer, LipschitzConv2d) or layer.kernel == 1


LAYERS = {
    "matrix": lambda norm=2.0, blocks=1: LipschitzLinear(7, 5, 0.9, norm, blocks),
    "1x1": lambda norm=2.0, blocks=1: LipschitzConv2d(3, 5, 1, (4, 4), 0.9, norm, blocks),
    "3x3": lambda norm=2.0, blocks=1: LipschitzConv2d(3, 5, 3, (6, 5), 0.9, norm, blocks),
    "3x3 narrow": lambda norm=2.0, blocks=1: LipschitzConv2d(5, 2, 3, (8, 8), 0.9, norm, blocks),
    "5x5": lambda norm=2.0, blocks=1: LipschitzConv2d(3, 3, 5, (6, 6), 0.9, norm, blocks),
    "5x5 on a small map": lambda norm=2.0, blocks=1: LipschitzConv2d(3, 4, 5, (2, 3), 0.9, norm, blocks),
}
several = pytest.mark.parametrize("blocks", [1, 3])


def spread(layer, *gains):
    """Each block's weight times its gain."""
    with torch.no_grad():
        for weight, gain in zip(layer.weight, gains, strict=True):
            weight.mul_(gain)
    return layer


PATHS = {  # limits of the eigenvalues and of the dense matrix, and how loose the bound may be
    "eigenvalues": (1200, 6000, 1 + 1e-6),
    "cholesky": (0, 6000, 1 + 5e-3),
    "circular": (0, 0, 2.5),
}


@pytest.fixture
def take_path(monkeypatch):
    def take(path):
        eigen, dense, looseness = PATHS[path]
        monkeypatch.setattr(certified, "EIGEN_LIMIT", eigen)
        monkeypatch.setattr(certified, "DENSE_LIMIT", dense)
        return looseness

    return take


@pytest.mark.parametrize("gains", [(6.0,), (0.3, 6.0, 9.0)], ids=["one block", "below and above coeff"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("path", PATHS)
def test_power_iteration_is_below_the_true_norm_and_the_certified_bound_above(path, kind, gains, take_path):
    looseness, blocks = take_path(path), len(gains)
    layer = spread(LAYERS[kind](blocks=blocks), *gains)
    truths = true_norms(layer)
    bounds = layer.bounds()
    assert len(bounds) == len(truths) == blocks
    for truth, sigma, bound in zip(truths, layer.sigma.tolist(), bounds, strict=True):
        estimate = sigma / max(1.0, sigma / layer.coeff)
        assert estimate <= truth * (1 + 1e-6)
        assert truth <= bound
        assert bound <= truth * (1 + 1e-6 if exact_norm(layer) else looseness)


@pytest.mark.parametrize("kind", LAYERS)
def test_the_bound_is_above_the_norm_after_training_steps(kind):
    blocks = 2 if kind in ("matrix", "3x3") else 1
    layer = LAYERS[kind](blocks=blocks)
    shape = (7,) if layer.weight.ndim == 3 else (layer.inputs, *layer.size)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (-sum(layer(torch.randn(4, *shape), k).square().sum() for k in range(blocks))).backward()
        optimizer.step()
        for truth, bound in zip(true_norms(layer), layer.bounds(), strict=True):
            assert truth <= bound <= 0.9 * 1.01


@given(
    k=st.sampled_from([1, 3, 5]),
    outputs=st.integers(1, 3),
    inputs=st.integers(1, 3),
    height=st.integers(1, 5),
    width=st.integers(1, 5),
)
def test_gram_matrix_is_that_of_the_dense_operator(k, outputs, inputs, height, width):
    weight = torch.randn(outputs, inputs, k, k, dtype=torch.float64)
    dense = toeplitz(weight, (height, width)).view(outputs, height * width, -1).transpose(0, 1).flatten(0, 1)
    torch.testing.assert_close(gram_matrix(weight, (height, width)), dense @ dense.T, rtol=1e-12, atol=1e-12)


@given(
    path=st.sampled_from(sorted(PATHS)),
    k=st.sampled_from([3, 5]),
    outputs=st.integers(1, 4),
    inputs=st.integers(1, 4),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
)
def test_convolution_bounds_hold_for_every_shape(path, k, outputs, inputs, height, width):
    weight = torch.randn(outputs, inputs, k, k, dtype=torch.float64)
    size = (height, width)
    sigma = float(norms.convolution_norms(weight[None], torch.ones(1, inputs, *size, dtype=torch.float64), 1e-3)[0])
    truth = float(torch.linalg.matrix_norm(toeplitz(weight, size), 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certified, "EIGEN_LIMIT", PATHS[path][0])
        patch.setattr(certified, "DENSE_LIMIT", PATHS[path][1])
        assert truth <= convolution_bound(weight, size, sigma) * (1 + 1e-9)


@pytest.mark.parametrize("share", [1.0, 0.9, 0.5, 0.1, 1e-6])
def test_a_guess_that_is_too_low_gives_a_looser_bound_and_never_a_wrong_one(share, take_path):
    take_path("cholesky")
    weight = torch.randn(3, 4, 3, 3, dtype=torch.float64)
    dense = toeplitz(weight, (5, 5))
    truth = float(torch.linalg.matrix_norm(dense, 2))
    bound = convolution_bound(weight, (5, 5), share * truth)
    assert truth <= bound <= float(dense.norm()) * (1 + 1e-9)


def test_the_circular_bound_nears_the_norm_on_larger_maps(take_path):
    take_path("circular")
    weight = torch.randn(3, 3, 3, 3, dtype=torch.float64)
    loose = []
    for n in (2, 4, 8, 16):
        start = torch.ones(1, 3, n, n, dtype=torch.float64)
        sigma = float(norms.convolution_norms(weight[None], start, 1e-8)[0])
        loose.append(convolution_bound(weight, (n, n), sigma) / sigma)
    assert min(loose) >= 1
    assert loose == sorted(loose, reverse=True)
    assert loose[-1] < 1.1


@pytest.mark.parametrize("path", PATHS)
def test_a_kernel_whose_worst_frequency_is_not_on_the_grid_of_the_map(path, take_path):
    # A central difference: the circular convolution on 6 x 6 itself has norm 2 sin(pi / 3), which is below the truth.
    take_path(path)
    weight = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    weight[0, 0, 1] = torch.tensor([1.0, 0.0, -1.0])
    truth = 2 * math.cos(math.pi / 7)
    assert truth * (1 - 1e-12) <= convolution_bound(weight, (6, 6), truth) <= 2 * (1 + 1e-9)


@pytest.mark.parametrize("path", PATHS)
def test_a_zero_convolution_has_bound_zero_next_to_others(path, take_path):
    take_path(path)
    layer = LAYERS["3x3"](blocks=2)
    layer.weight.data[0].zero_()
    refresh_norms(layer)
    zero, other = layer.bounds()
    assert zero == 0
    assert other > 0.1


@pytest.mark.parametrize("norm", [1.0, math.inf])
@pytest.mark.parametrize("kind", LAYERS)
def test_other_norms_are_exact(kind, norm):
    layer = spread(LAYERS[kind](norm, 3), 6, 8, 10)
    for truth, bound in zip(true_norms(layer, norm), layer.bounds(), strict=True):
        assert truth <= bound <= truth * (1 + 1e-6)
        assert truth == pytest.approx(0.9, rel=1e-5)


@pytest.mark.parametrize("kind", ["matrix", "3x3"])
@several
def test_a_broken_weight_certifies_nothing(kind, blocks):
    layer = LAYERS[kind](blocks=blocks)
    layer.weight.data.flatten()[-1] = math.nan
    with pytest.raises(NonFiniteError, match="checkpoint"):
        refresh_norms(layer)
    with pytest.raises(NonFiniteError, match="certified"):
        layer.bounds()


def test_operator_norms_are_computed_once_and_for_the_weights_of_now(monkeypatch):
    layer = LAYERS["3x3"](blocks=2)
    refresh_norms(layer)
    calls = []
    real = LipschitzConv2d.bounds
    monkeypatch.setattr(LipschitzConv2d, "bounds", lambda each: calls.append(each) or real(each))
    found = OperatorNorms(2.0)
    assert found(layer) == found(layer)
    assert len(calls) == 1
    before = found(layer)
    layer.weight.data.mul_(0.1)
    layer.weight.data[:, 0].mul_(100)
    refresh_norms(layer)
    after = OperatorNorms(2.0)(layer)
    assert after != before
    assert all(truth <= bound for truth, bound in zip(true_norms(layer), after, strict=True))


def test_a_certificate_reports_the_largest_bound_and_whoever_fails():
    good = BlockCertificate("1.1", 0.9, (("a", 0.98), ("b", 0.95)))
    bad = BlockCertificate("1.2", 1.0, (("a", 1.2),))
    assert good.contractive
    assert not bad.contractive
    whole = Certificate(2.0, (good, bad), 0.5, 3.25)
    assert whole.L == 1.0
    assert not whole.contractive
    text = str(whole)
    assert "2-norm" in text
    assert "NOT CERTIFIED" in text
    assert "not contractive: 1.2" in text
    assert "0.9000" in text
    assert "0.980 0.950" in text
    assert "0.5 and 3.25" in text
    fine = Certificate(math.inf, (good,), 0.5, 2.0)
    assert fine.contractive
    assert "inf-norm" in str(fine)
    assert "every block is contractive" in str(fine)
    assert "NOT CERTIFIED" not in str(fine)
    empty = Certificate(2.0, (), 1.0, 1.0)
    assert empty.L == 0.0
    assert empty.contractive
    with pytest.raises(dataclasses.FrozenInstanceError):
        good.L = 0.1


@pytest.mark.parametrize(
    "make", [lambda: LipschitzLinear(4, 3), lambda: LipschitzConv2d(2, 3, 3, (4, 4))], ids=["matrix", "kernel"]
)
def test_a_bound_belongs_to_the_weights_as_they_are_now(make):
    """Also for a single layer whose weights were written without a call in between."""
    layer = make().eval()
    OperatorNorms(2.0)(layer)
    with torch.no_grad():
        layer.weight.mul_(5)
    (bound,), (true,) = OperatorNorms(2.0)(layer), true_norms(layer)
    assert true <= bound <= 0.99
