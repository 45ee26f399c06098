"""The norm of all gradients, and what it does to them, against torch's own."""

import copy

import pytest
import torch

from idensenet.training.clipping import clip


@pytest.mark.parametrize("limit", [0.1, 1e6, None])
def test_norm_and_gradients_are_those_of_torch(limit):
    net = torch.nn.Linear(4, 3).double()
    net(torch.randn(5, 4, dtype=torch.float64)).square().sum().backward()
    net.register_parameter("unused", torch.nn.Parameter(torch.zeros(2)))
    other = copy.deepcopy(net)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        theirs.grad = None if mine.grad is None else mine.grad.clone()
    want = torch.nn.utils.clip_grad_norm_(other.parameters(), limit if limit is not None else float("inf"))
    torch.testing.assert_close(clip(net.parameters(), limit), want)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad)
    assert clip([]) == 0
