import math

import pytest
import torch

from idensenet.bijections import Coupling, InvertibleConv1x1, channel_mask, checkerboard_mask, coupling_net
from idensenet.errors import NonInvertibleError, OptionError, ShapeError
from idensenet.lipschitz import OperatorNorms


def test_masks_of_a_pair_cover_everything_once():
    for mask, shape in ((channel_mask, (3, 2, 2)), (checkerboard_mask, (2, 3, 4))):
        assert torch.equal(mask(shape, False) + mask(shape, True), torch.ones(shape))


def test_the_checkerboard_alternates_in_both_directions():
    assert checkerboard_mask((1, 2, 3), False).tolist() == [[[1, 0, 1], [0, 1, 0]]]


def test_channels_are_halved_the_odd_one_passes_first():
    assert channel_mask((3,), False).tolist() == [1, 1, 0]
    assert channel_mask((3,), True).tolist() == [0, 0, 1]


def test_masks_that_cannot_be_are_refused():
    with pytest.raises(OptionError, match=r"at least two of them; the shape is \(1, 4, 4\)"):
        channel_mask((1, 4, 4), False)
    with pytest.raises(OptionError, match=r"needs images.*\(4,\)"):
        checkerboard_mask((4,), False)


@pytest.mark.parametrize("shape", [(4,), (2, 4, 4)])
def test_a_new_coupling_scales_by_the_sigmoid_of_two_and_shifts_by_nothing(shape):
    mask = channel_mask(shape, False)
    x = torch.randn(3, *shape)
    y, log_det = Coupling(coupling_net(shape, 8), mask)(x)
    scale = 1 / (1 + math.exp(-2))
    torch.testing.assert_close(y, torch.where(mask.bool(), x, scale * x))
    assert log_det.tolist() == pytest.approx([math.log(scale) * float((1 - mask).sum())] * 3)


def test_what_the_mask_lets_through_does_not_change():
    mask = checkerboard_mask((2, 4, 4), True)
    coupling = Coupling(coupling_net((2, 4, 4), 8), mask)
    torch.nn.init.normal_(coupling.net[-1].weight)
    x = torch.randn(3, 2, 4, 4)
    y = coupling(x)[0]
    assert torch.equal((y * mask), (x * mask))
    assert float((y - x).detach().abs()[:, mask == 0].min()) > 0
    assert coupling.bi_lipschitz(OperatorNorms(2.0)) == (0.0, math.inf)


def test_a_coupling_refuses_other_shapes():
    coupling = Coupling(coupling_net((4,), 8), channel_mask((4,), False))
    with pytest.raises(ShapeError, match=r"\(batch, 4\), not \(1, 5\)"):
        coupling(torch.zeros(1, 5))


def test_a_new_1x1_convolution_is_a_rotation():
    conv = InvertibleConv1x1(6).double()
    torch.testing.assert_close(conv.weight @ conv.weight.T, torch.eye(6, dtype=torch.float64), atol=1e-6, rtol=0)


def test_a_1x1_convolution_refuses_other_widths():
    with pytest.raises(ShapeError, match=r"takes 3 channels, not a tensor of shape \(1, 4, 2, 2\)"):
        InvertibleConv1x1(3)(torch.zeros(1, 4, 2, 2))


def test_a_singular_matrix_is_an_error_at_the_inverse_and_no_bound_in_the_certificate():
    conv = InvertibleConv1x1(2)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([[1.0, 2.0], [2.0, 4.0]]))
    with pytest.raises(NonInvertibleError, match=r"singular; go back to an earlier checkpoint"):
        conv.inverse(torch.zeros(1, 2))
    lower, upper = conv.bi_lipschitz(OperatorNorms(2.0))
    assert lower == 0
    assert upper == pytest.approx(5)


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_the_constants_of_a_1x1_convolution_are_those_of_the_chosen_norm(norm):
    conv = InvertibleConv1x1(3).double()
    torch.nn.init.uniform_(conv.weight, -0.3, 0.3)
    with torch.no_grad():
        conv.weight.diagonal().add_(1)
    lower, upper = conv.bi_lipschitz(OperatorNorms(norm))
    x = torch.randn(4000, 3, dtype=torch.float64)
    ratio = torch.linalg.vector_norm(conv.encode(x).detach(), norm, 1) / torch.linalg.vector_norm(x, norm, 1)
    assert lower <= float(ratio.min()) <= 1.3 * lower
    assert upper / 1.3 <= float(ratio.max()) <= upper


def correlated(n=200, channels=4):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(channels, channels, generator=generator, dtype=torch.float64)
    x = torch.randn(n, channels, 3, 3, generator=generator, dtype=torch.float64)
    return torch.einsum("ij,njhw->nihw", mixing, x) + 5


def covariance(y):
    return torch.cov(y.transpose(0, 1).flatten(1), correction=0)


def test_a_whitening_1x1_convolution_starts_with_uncorrelated_channels_of_deviation_one():
    conv, x = InvertibleConv1x1(4, whiten=True).double(), correlated()
    assert float((covariance(x) - torch.eye(4)).abs().max()) > 0.5
    y = conv.initialize(x)
    torch.testing.assert_close(covariance(y.detach()), torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(conv.weight, conv.weight.mT)  # the smallest change that does it
    plain = InvertibleConv1x1(4).double()
    before = plain.weight.detach().clone()
    plain.initialize(x)
    assert torch.equal(plain.weight, before)


def test_it_looks_at_data_once_also_after_loading():
    conv, x = InvertibleConv1x1(4, whiten=True).double(), correlated()
    conv.initialize(x)
    other = InvertibleConv1x1(4, whiten=True).double()
    other.load_state_dict(conv.state_dict())
    other.initialize(10 * x)
    assert torch.equal(other.weight, conv.weight)


def test_channels_that_say_the_same_keep_a_finite_scale():
    x = correlated(channels=2).repeat(1, 2, 1, 1)
    conv = InvertibleConv1x1(4, whiten=True).double()
    y = conv.initialize(x)
    torch.testing.assert_close(conv.inverse(y)[0], x, atol=1e-6, rtol=0)
