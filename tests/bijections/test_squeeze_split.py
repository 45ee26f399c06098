import pytest
import torch

from idensenet.bijections import ActNorm, Chain, Flatten, Split, Squeeze
from idensenet.errors import ShapeError, UninitializedError


def test_a_squeeze_makes_channels_of_every_patch():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    y, log_det = Squeeze()(x)
    assert y[0, :, 0, 0].tolist() == [0, 1, 4, 5]
    assert y[0, :, 1, 1].tolist() == [10, 11, 14, 15]
    assert log_det.tolist() == [0]


def test_a_squeeze_is_that_of_torch():
    x = torch.randn(2, 3, 4, 6)
    assert torch.equal(Squeeze()(x)[0], torch.nn.functional.pixel_unshuffle(x, 2))


@pytest.mark.parametrize("shape", [(1, 1, 3, 4), (1, 1, 4, 3), (1, 4, 4)])
def test_a_squeeze_refuses_odd_sides(shape):
    with pytest.raises(ShapeError, match=r"must be even; the shape is"):
        Squeeze()(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(1, 6, 2, 2), (1, 4)])
def test_a_squeeze_is_undone_on_multiples_of_four_channels_only(shape):
    with pytest.raises(ShapeError, match=r"4 divides; the shape is"):
        Squeeze().inverse(torch.zeros(shape))


def test_flatten_and_split_refuse_other_shapes():
    with pytest.raises(ShapeError, match=r"\(batch, 2, 3\), not \(1, 3, 2\)"):
        Flatten((2, 3))(torch.zeros(1, 3, 2))
    with pytest.raises(ShapeError, match=r"\(batch, 6\), not \(1, 7\)"):
        Flatten((2, 3)).inverse(torch.zeros(1, 7))
    with pytest.raises(ShapeError, match=r"\(batch, 4\), not \(1, 5\)"):
        Split((4,), Chain([]))(torch.zeros(1, 5))
    with pytest.raises(ShapeError, match=r"\(batch, 4\), not \(1, 5\)"):
        Split((4,), Chain([])).inverse(torch.zeros(1, 5))
    with pytest.raises(ShapeError, match=r"cannot be factored out of 1"):
        Split((1, 4, 4), Chain([]))


def test_a_split_leaves_the_first_half_alone():
    x = torch.randn(3, 5, 2, 2)
    norm = ActNorm(3)
    split = Split((5, 2, 2), norm)
    y = split.initialize(x)
    assert torch.equal(y[:, :8], x[:, :2].flatten(1))
    assert torch.equal(y[:, 8:], norm(x[:, 2:])[0].flatten(1))
    assert not torch.equal(y[:, 8:], x[:, 2:].flatten(1))


def test_a_split_that_has_seen_no_data_says_so_also_backwards():
    with pytest.raises(UninitializedError, match=r"flow\.initialize"):
        Split((2,), ActNorm(1)).inverse(torch.zeros(1, 2))


def test_a_split_finds_the_way_back_before_it_ever_went_forward():
    split = Split((2, 2, 2), Squeeze())
    y = torch.randn(3, 8)
    torch.testing.assert_close(split(split.inverse(y)[0])[0], y)
