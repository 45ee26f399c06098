"""Norms of matrices and of zero-padded convolutions, against dense operators."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from brute import convolve, operator_matrix
from idensenet.errors import OptionError
from idensenet.lipschitz import LipschitzConv2d, LipschitzLinear, norms


def toeplitz(weight, size):
    return operator_matrix(lambda x: convolve(x, weight.double()), (weight.shape[1], *size))


def spectral(weight, size):
    return float(torch.linalg.matrix_norm(toeplitz(weight, size), 2))


@given(layers=st.integers(1, 3), rows=st.integers(1, 7), columns=st.integers(1, 7), scale=st.sampled_from([1.0, 1e-150, 1e150]))
@example(layers=2, rows=1, columns=7, scale=1.0)
@example(layers=2, rows=7, columns=1, scale=1.0)
def test_matrix_norms_are_the_largest_singular_values(layers, rows, columns, scale):
    weight = scale * torch.randn(layers, rows, columns, dtype=torch.float64)
    sigma, u, v = norms.matrix_norms(weight)
    torch.testing.assert_close(sigma / scale, torch.linalg.svd(weight).S[:, 0] / scale, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.einsum("lr,lrc,lc->l", u, weight, v) / scale, sigma / scale, rtol=1e-12, atol=0)
    torch.testing.assert_close(u.norm(dim=1), torch.ones(layers, dtype=torch.float64))
    torch.testing.assert_close(v.norm(dim=1), torch.ones(layers, dtype=torch.float64))


def with_singular_values(values, rows, columns):
    """A float64 matrix that has them."""
    left, right = (torch.linalg.qr(torch.randn(n, len(values), dtype=torch.float64))[0] for n in (rows, columns))
    return left * values @ right.mT


SPECTRA = {  # and whether all eigenvectors have to be computed
    "few large": (0.5 ** torch.arange(130.0), False),
    "the first two nearly alike": (torch.cat([torch.tensor([1.0, 1 - 1e-6]), torch.full((128,), 0.1)]), False),
    "seventeen alike, more than columns": (torch.cat([torch.ones(17), torch.full((113,), 0.1)]), False),
    "slowly falling": (torch.linspace(1, 0.5, 130), True),
    "of rank one": (torch.eye(130)[0], False),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_large_matrices_have_their_largest_singular_value_to_rounding(name, monkeypatch):
    values, all_needed = SPECTRA[name]
    weight = torch.stack([with_singular_values(scale * values.double(), 130, 140) for scale in (1.0, 7.0)])
    whole, eigh = [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda a: (whole.append(len(a)) if a.shape[-1] == 130 else None, eigh(a))[1])
    sigma, u, v = norms.matrix_norms(weight.float())
    assert whole == ([2] if all_needed else [])
    torch.testing.assert_close(sigma.double(), torch.tensor([1.0, 7.0], dtype=torch.float64), rtol=2e-6, atol=0)
    torch.testing.assert_close(torch.einsum("lr,lrc,lc->l", u, weight.float(), v), sigma, rtol=2e-6, atol=0)
    exact = torch.linalg.svdvals(weight)[:, 0]
    torch.testing.assert_close(norms.matrix_norms(weight)[0], exact, rtol=1e-12, atol=0)


def test_of_several_large_matrices_only_those_that_need_it_are_decomposed(monkeypatch):
    easy, hard = (with_singular_values(SPECTRA[name][0].double(), 130, 130) for name in ("few large", "slowly falling"))
    weight, whole, eigh = torch.stack([easy, hard, 2 * easy]).float(), [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda a: (whole.append(len(a)) if a.shape[-1] == 130 else None, eigh(a))[1])
    torch.testing.assert_close(norms.matrix_norms(weight)[0], torch.tensor([1.0, 1.0, 2.0]), rtol=2e-6, atol=0)
    assert whole == [1]


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 5, 3), (1, 1, 1)])
def test_zero_matrices_have_norm_zero_beside_others(shape):
    weight = torch.zeros(shape)
    weight[0, 0, 0] = 2.0
    sigma, u, v = norms.matrix_norms(weight)
    assert sigma.tolist() == [2.0] + [0.0] * (shape[0] - 1)
    assert bool(torch.isfinite(torch.cat([u.flatten(), v.flatten()])).all())
    assert norms.matrix_norms(torch.zeros(shape))[0].tolist() == [0.0] * shape[0]


def test_matrix_norms_keep_float32_accuracy_though_a_gram_matrix_is_squared():
    left, right = (torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64)).Q for _ in range(2))
    weight = left @ torch.diag(torch.logspace(0, -5, 40, dtype=torch.float64)) @ right
    assert float(norms.matrix_norms(weight.float()[None])[0]) == pytest.approx(1.0, rel=1e-6)


CONVOLUTIONS = [  # outputs, inputs, kernel, size
    (3, 2, 3, (5, 5)),
    (2, 4, 3, (3, 6)),
    (4, 4, 3, (2, 2)),
    (3, 3, 3, (1, 1)),
    (2, 3, 5, (6, 4)),
    (3, 2, 5, (2, 3)),
    (2, 2, 5, (1, 4)),
    (1, 1, 7, (3, 3)),
]


@pytest.mark.parametrize(("outputs", "inputs", "k", "size"), CONVOLUTIONS)
def test_convolution_norms_against_the_dense_operator(outputs, inputs, k, size):
    weight = torch.randn(3, outputs, inputs, k, k, dtype=torch.float64)
    sigma, u, v = norms.convolution_norms(weight, torch.randn(3, inputs, *size, dtype=torch.float64), 1e-9)
    want = [spectral(w, size) for w in weight]
    assert sigma.tolist() == pytest.approx(want, rel=1e-8)
    assert bool((sigma <= torch.tensor(want, dtype=torch.float64) * (1 + 1e-12)).all())
    for w, s, left, right in zip(weight, sigma, u, v, strict=True):
        assert float(left.flatten() @ toeplitz(w, size) @ right.flatten()) == pytest.approx(float(s), rel=1e-12)


def test_the_tolerance_holds_for_sigma_itself():
    # Close singular values are what a test on the growth of sigma alone stops too early on. From a random start a few of
    # these end at a second singular value just below the first; none of them far below.
    ratios = []
    for outputs, inputs, k, size in CONVOLUTIONS:
        start, weights = torch.randn(1, inputs, *size), torch.randn(12, outputs, inputs, k, k)
        found = norms.convolution_norms(weights, start.expand(12, -1, -1, -1), 1e-3)[0]
        ratios += [float(sigma) / spectral(weight, size) for sigma, weight in zip(found, weights, strict=True)]
    ratio = torch.tensor(ratios, dtype=torch.float64)
    assert float(ratio.max()) <= 1 + 1e-6
    assert float(ratio.min()) >= 1 - 1e-2
    assert float((ratio < 1 - 1e-3).double().mean()) <= 0.04


def test_the_norm_is_that_of_the_operator_and_not_of_the_reshaped_kernel():
    weight = torch.ones(1, 1, 3, 3, dtype=torch.float64)
    start = torch.randn(1, 1, 16, 16, dtype=torch.float64)
    sigma = float(norms.convolution_norms(weight[None], start, 1e-9)[0])
    reshaped = float(torch.linalg.matrix_norm(weight.flatten(1), 2))
    assert sigma == pytest.approx(spectral(weight, (16, 16)), rel=1e-8)
    assert sigma > 2 * reshaped


def test_zero_convolutions_have_norm_zero_beside_others():
    weight = torch.zeros(2, 3, 2, 3, 3)
    weight[1] = torch.randn(3, 2, 3, 3)
    sigma, u, v = norms.convolution_norms(weight, torch.randn(2, 2, 4, 4), 1e-4)
    assert sigma[0] == 0
    assert float(sigma[1]) == pytest.approx(spectral(weight[1], (4, 4)), rel=1e-3)
    assert bool(torch.isfinite(torch.cat([u.flatten(), v.flatten()])).all())


def test_a_start_in_the_wrong_subspace_is_left():
    weight = torch.zeros(1, 2, 2, 3, 3)
    weight[0, 0, 0], weight[0, 1, 1] = torch.randn(2, 3, 3) * torch.tensor([1.0, 10.0])[:, None, None]
    only_first = torch.zeros(1, 2, 5, 5)
    only_first[0, 0] = norms.convolution_norms(weight[:, :1, :1], torch.randn(1, 1, 5, 5), 1e-6)[2][0, 0]
    for start in (only_first, torch.zeros(1, 2, 5, 5)):
        assert float(norms.convolution_norms(weight, start, 1e-3)[0]) == pytest.approx(spectral(weight[0], (5, 5)), rel=2e-3)


def test_a_good_start_saves_steps(monkeypatch):
    calls = []
    real = norms.Convolutions.__call__
    monkeypatch.setattr(norms.Convolutions, "__call__", lambda *a, **k: calls.append(1) or real(*a, **k))
    weight = torch.randn(1, 8, 8, 3, 3)
    sigma, _, v = norms.convolution_norms(weight, torch.randn(1, 8, 6, 6), 1e-3)
    cold = len(calls)
    norms.convolution_norms(weight * 1.01, v, 1e-3, sigma)
    assert len(calls) - cold < cold / 2


def test_a_cluster_of_singular_values_on_a_large_map_does_not_cost_hundreds_of_steps(monkeypatch):
    calls = []
    real = norms.Convolutions.__call__
    monkeypatch.setattr(norms.Convolutions, "__call__", lambda *a, **k: calls.append(1) or real(*a, **k))
    weight = torch.empty(1, 89, 181, 3, 3).uniform_(-1, 1) / math.sqrt(181 * 9)
    norms.convolution_norms(weight, torch.randn(1, 181, 32, 32), 1e-3)
    assert len(calls) < 160  # two for each step


@given(k=st.sampled_from([1, 3, 5]), height=st.integers(1, 5), width=st.integers(1, 5))
def test_convolution_norm_gradient_is_that_of_autograd(k, height, width):
    weight = torch.randn(3, 2, k, k, dtype=torch.float64, requires_grad=True)
    u, v = (torch.randn(c, height, width, dtype=torch.float64) for c in (3, 2))
    value = (u * convolve(v[None], weight)[0]).sum()
    (want,) = torch.autograd.grad(value, weight)
    found = norms.convolution_norm_gradient(u, v, k)
    assert found.is_contiguous()
    torch.testing.assert_close(found, want)
    torch.testing.assert_close((found * weight).sum(), value)


@given(
    norm=st.sampled_from([1.0, math.inf]),
    k=st.sampled_from([1, 3, 5]),
    height=st.integers(1, 4),
    width=st.integers(1, 4),
    outputs=st.integers(1, 3),
    inputs=st.integers(1, 3),
)
def test_induced_norms_of_convolutions_are_exact(norm, k, height, width, outputs, inputs):
    weight = torch.randn(3, outputs, inputs, k, k, dtype=torch.float64)
    want = torch.stack([torch.linalg.matrix_norm(toeplitz(each, (height, width)), norm) for each in weight])
    torch.testing.assert_close(norms.induced_norms(weight, norm, (height, width)), want)


@given(norm=st.sampled_from([1.0, math.inf]), rows=st.integers(1, 5), columns=st.integers(1, 5))
def test_induced_norms_of_matrices_are_exact(norm, rows, columns):
    weight = torch.randn(3, rows, columns, dtype=torch.float64)
    torch.testing.assert_close(norms.induced_norms(weight, norm, None), torch.linalg.matrix_norm(weight, norm))


@pytest.mark.parametrize("norm", [0, 0.5, 1.5, 3, -1, math.nan])
def test_any_other_norm_raises(norm):
    with pytest.raises(OptionError, match=f"norm={norm}"):
        norms.checked_norm(norm)
    with pytest.raises(OptionError, match="1, 2 or infinity"):
        LipschitzLinear(2, 2, norm=norm)
    with pytest.raises(OptionError, match="1, 2 or infinity"):
        LipschitzConv2d(2, 2, 3, (4, 4), norm=norm)


def test_each_layer_acts_on_its_own_vector_and_back_is_the_transpose():
    weight = torch.randn(3, 4, 2, 3, 3, dtype=torch.float64)
    x, y = torch.randn(3, 2, 5, 6, dtype=torch.float64), torch.randn(3, 4, 5, 6, dtype=torch.float64)
    for n in ([0, 1, 2], [2, 0]):
        W = norms.Convolutions(weight).take(torch.tensor(n))
        right = torch.cat([torch.nn.functional.conv2d(x[i : i + 1], weight[i], padding=1) for i in n])
        torch.testing.assert_close(W(x[n]), right)
        torch.testing.assert_close(W.transposed()(x[n], transposed=True), right)
        torch.testing.assert_close((W(x[n]) * y[n]).sum(), (x[n] * W(y[n], transposed=True)).sum())


def test_a_layer_that_has_converged_is_left_alone_while_others_climb():
    """Many layers of one shape: every one is as good as on its own, and they do not wait for each other for ever."""
    weight = torch.randn(12, 6, 5, 3, 3)
    weight[0] = 0
    weight[0, 0, 0, 1, 1] = 1.0  # there at once
    start = torch.randn(12, 5, 8, 8)
    calls = []
    real = norms.Convolutions.__call__
    sigma = norms.convolution_norms(weight, start, 1e-3)[0]
    try:
        norms.Convolutions.__call__ = lambda *a, **k: calls.append(1) or real(*a, **k)
        norms.convolution_norms(weight, start, 1e-3)
    finally:
        norms.Convolutions.__call__ = real
    assert len(calls) < 200
    for i in range(12):
        assert float(sigma[i]) == pytest.approx(spectral(weight[i], (8, 8)), rel=2e-3)


def test_the_norm_is_the_same_from_the_side_with_fewer_channels():
    weight, size = torch.randn(2, 3, 7, 3, 3, dtype=torch.float64), (5, 6)
    right, left = torch.randn(2, 7, *size, dtype=torch.float64), torch.randn(2, 3, *size, dtype=torch.float64)
    sigma, u, v = norms.convolution_norms(weight, right, 1e-9, None, left)
    for i in range(2):
        assert float(sigma[i]) == pytest.approx(spectral(weight[i], size), rel=1e-8)
        moved = torch.nn.functional.conv2d(v[i][None], weight[i], padding=1)[0]
        torch.testing.assert_close(moved, sigma[i] * u[i], rtol=0, atol=1e-3 * float(sigma[i]))
    assert u.shape == left.shape
    assert v.shape == right.shape


def test_half_a_step_is_enough_where_the_vectors_fit(monkeypatch):
    """Weights that move a little: one product a call, alternately from either side, and sigma stays within the tolerance."""
    weight, size = torch.randn(2, 6, 9, 3, 3, dtype=torch.float64) / 9, (7, 6)
    right, left = torch.randn(2, 9, *size, dtype=torch.float64), torch.randn(2, 6, *size, dtype=torch.float64)
    sigma, u, v = norms.convolution_norms(weight, right, 1e-3, None, left)
    calls = []
    real = norms.Convolutions.__call__
    monkeypatch.setattr(norms.Convolutions, "__call__", lambda *a, **k: calls.append(1) or real(*a, **k))
    generator = torch.Generator().manual_seed(0)
    rounds = 200
    for i in range(rounds):
        weight = weight + 2e-4 * torch.randn(weight.shape, dtype=torch.float64, generator=generator) / 9
        sigma, u, v = norms.convolution_norms(weight, v, 1e-3, sigma, u, bool(i % 2))
    assert len(calls) < 1.2 * rounds
    for i in range(2):
        assert float(sigma[i]) == pytest.approx(spectral(weight[i], size), rel=1e-3)
        assert float(sigma[i]) <= spectral(weight[i], size) * (1 + 1e-12)


def test_half_a_step_is_not_enough_where_they_do_not_fit():
    """The vectors of other weights: the layer that moved climbs, the one next to it that did not is left with half a step."""
    weight, size = torch.randn(2, 4, 5, 3, 3, dtype=torch.float64), (6, 6)
    right, left = torch.randn(2, 5, *size, dtype=torch.float64), torch.randn(2, 4, *size, dtype=torch.float64)
    sigma, u, v = norms.convolution_norms(weight, right, 1e-6, None, left)
    other = weight.clone()
    other[1] += 0.3 * torch.randn(4, 5, 3, 3, dtype=torch.float64)
    for back in (False, True):
        found = norms.convolution_norms(other, v, 1e-3, sigma, u, back)[0]
        assert float(found[0]) == pytest.approx(float(sigma[0]), rel=1e-5)
        assert float(found[1]) == pytest.approx(spectral(other[1], size), rel=2e-2)
        assert abs(float(found[1]) / float(sigma[1]) - 1) > 1e-2  # it has moved


@pytest.mark.parametrize(
    ("outputs", "inputs", "k", "size"), [(3, 2, 3, (1, 1)), (3, 3, 3, (1, 1)), (4, 1, 3, (1, 2)), (3, 2, 7, (1, 1))]
)
def test_spaces_of_a_few_numbers_have_their_norm_whatever_the_weight(outputs, inputs, k, size):
    torch.manual_seed(0)
    weight = 3 * torch.randn(60, outputs, inputs, k, k)
    start, before = torch.randn(60, inputs, *size), torch.zeros(60, outputs, *size)
    sigma, u, v = norms.convolution_norms(weight, start, 1e-3, torch.full((60,), math.inf), u=before)
    for w, s, left, right in zip(weight.double(), sigma, u.double(), v.double(), strict=True):
        assert float(s) == pytest.approx(spectral(w, size), rel=1e-5)
        assert float(left.flatten() @ toeplitz(w, size) @ right.flatten()) == pytest.approx(float(s), rel=1e-5)
