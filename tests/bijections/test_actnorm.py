import copy
import pickle

import pytest
import torch

from idensenet.bijections import ActNorm, Chain, ResidualBlock, Split
from idensenet.errors import OptionError, ShapeError, UninitializedError
from idensenet.lipschitz import Pieces, dense_block


def batch(*shape):
    return torch.randn(*shape, dtype=torch.float64) * 3 + 2


@pytest.mark.parametrize("way", ["forward", "inverse", "encode", "decode"])
def test_before_any_data_both_directions_raise_and_name_the_remedy(way):
    with pytest.raises(UninitializedError, match=r"call flow\.initialize\(batch\)"):
        getattr(ActNorm(3), way)(torch.zeros(2, 3))


@pytest.mark.parametrize("shape", [(64, 3), (16, 3, 4, 2)])
def test_initialisation_standardises_the_batch_per_channel(shape):
    norm, x = ActNorm(3).double(), batch(*shape)
    y = norm.initialize(x)
    assert torch.equal(y, norm(x)[0])
    channels = y.transpose(0, 1).flatten(1)
    torch.testing.assert_close(channels.mean(1), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(channels.std(1, unbiased=False), torch.ones(3, dtype=torch.float64), atol=1e-12, rtol=0)


def test_a_second_initialisation_changes_nothing():
    norm = ActNorm(3).double()
    norm.initialize(batch(64, 3))
    before = copy.deepcopy(norm.state_dict())
    other = 100 * batch(64, 3)
    y = norm.initialize(other)
    assert torch.equal(y, norm(other)[0])
    assert all(torch.equal(before[k], v) for k, v in norm.state_dict().items())


def through_state_dict(norm):
    other = ActNorm(3).double()
    other.load_state_dict(norm.state_dict())
    return other


@pytest.mark.parametrize("copied", [through_state_dict, lambda n: pickle.loads(pickle.dumps(n)), copy.deepcopy])
def test_a_loaded_one_is_never_initialised_again(copied):
    norm, x = ActNorm(3).double(), batch(64, 3)
    expected = norm.initialize(x)
    other = copied(norm)
    assert bool(other.initialized.all())
    assert torch.equal(other.initialize(x), expected)
    other.initialize(100 * x)
    assert torch.equal(other(x)[0], expected)


def test_loading_an_uninitialised_state_makes_it_uninitialised():
    norm = ActNorm(3)
    norm.initialize(torch.randn(8, 3))
    norm(torch.randn(1, 3))
    norm.load_state_dict(ActNorm(3).state_dict())
    with pytest.raises(UninitializedError):
        norm(torch.randn(1, 3))


def test_a_constant_channel_is_only_shifted():
    norm, x = ActNorm(2).double(), batch(32, 2)
    x[:, 1] = 7
    y = norm.initialize(x)
    assert float(norm.log_scale.detach()[0, 1]) == 0
    assert torch.equal(y[:, 1], torch.zeros(32, dtype=torch.float64))
    torch.testing.assert_close(norm.inverse(y)[0], x)


def test_a_single_vector_is_only_shifted():
    norm, x = ActNorm(2).double(), batch(1, 2)
    assert torch.equal(norm.initialize(x), torch.zeros(1, 2, dtype=torch.float64))


def test_it_cannot_be_initialised_from_nothing():
    norm = ActNorm(2)
    with pytest.raises(ShapeError, match=r"empty batch"):
        norm.initialize(torch.zeros(0, 2))
    assert not bool(norm.initialized.any())


def test_data_of_the_wrong_width_are_refused_before_anything_is_set():
    norm = ActNorm(3)
    with pytest.raises(ShapeError, match=r"takes 3 channels, not a tensor of shape \(4, 1\)"):
        norm.initialize(torch.randn(4, 1))
    assert not bool(norm.initialized.any())
    norm.initialize(torch.randn(8, 3))
    with pytest.raises(ShapeError, match=r"\(4, 2\)"):
        norm(torch.randn(4, 2))


def test_a_chain_initialises_each_part_on_what_reaches_it():
    first, second = ActNorm(4), ActNorm(2)
    chain = Chain([first, Split((4,), second)]).double()
    x = batch(64, 4)
    y = chain.initialize(x)
    assert torch.equal(y, chain(x)[0])
    torch.testing.assert_close(second.log_scale.detach(), torch.zeros(1, 2, dtype=torch.float64), atol=1e-12, rtol=0)


def test_a_stack_initialises_the_actnorm_behind_each_block_on_what_reaches_it():
    norm = ActNorm(3, 4)
    stack = ResidualBlock(dense_block([3], 2, 4, Pieces(), blocks=4), norm=norm).double()
    x = batch(64, 3)
    with pytest.raises(UninitializedError, match=r"flow\.initialize"):
        stack(x)
    y = stack.initialize(x)
    assert norm.initialized.tolist() == [True] * 4
    with torch.no_grad():
        torch.testing.assert_close(stack(x)[0], y, rtol=1e-12, atol=1e-12)
        for k in range(4):
            x = norm.affine(x + stack.g(x, k), norm.log_scale[k], norm.shift[k])
            torch.testing.assert_close(x.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
            torch.testing.assert_close(x.std(0, unbiased=False), torch.ones(3, dtype=torch.float64), atol=1e-12, rtol=0)
    before = copy.deepcopy(norm.state_dict())
    stack.initialize(100 * batch(64, 3))
    assert all(torch.equal(before[k], v) for k, v in norm.state_dict().items())


def test_one_block_that_has_seen_no_data_is_enough_to_say_so():
    norm = ActNorm(2, 3)
    norm.initialized[:2] = True
    with pytest.raises(UninitializedError, match=r"flow\.initialize"):
        ResidualBlock(dense_block([2], 1, 4, Pieces(), blocks=3), norm=norm)(torch.zeros(1, 2))


def test_as_many_actnorms_as_blocks():
    with pytest.raises(OptionError, match=r"ActNorm has 2 blocks but g has 3"):
        ResidualBlock(dense_block([2], 1, 4, Pieces(), blocks=3), norm=ActNorm(2, 2))


def test_training_moves_scale_and_shift():
    norm = ActNorm(2)
    norm.initialize(torch.randn(8, 2))
    y, log_det = norm(torch.randn(4, 2))
    (y.square().sum() - log_det.sum()).backward()
    assert norm.log_scale.grad.abs().min() > 0
    assert norm.shift.grad.abs().min() > 0
