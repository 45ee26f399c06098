import pytest
import torch

import idensenet as idn
from idensenet.precision import EXACT, Precision
from idensenet.training.averaging import Average
from idensenet.training.clipping import clip
from idensenet.training.step import skipped, training_step


def toy():
    torch.manual_seed(0)
    flow = idn.build("toy-idensenet", blocks=(2,)).train()
    return flow, torch.optim.Adam(flow.parameters(), 1e-2, fused=True), torch.randn(20, 2)


def test_a_step_is_forward_backward_clipping_optimiser_and_average_bit_for_bit():
    flow, optimizer, x = toy()
    average = Average(flow, 0.9)
    other, again, _ = toy()
    theirs = Average(other, 0.9)
    for number in range(3):
        norm = training_step(
            flow,
            [lambda prepared: -flow.log_prob(x, prepared=prepared).mean()],
            optimizer,
            limit=0.01,
            average=average,
            number=number,
        )
        again.zero_grad()
        (-other.log_prob(x).mean()).backward()
        expected = clip(other.parameters(), 0.01)
        again.step()
        theirs.update(list(other.parameters()), number)
        assert torch.equal(norm, expected)
    assert norm > 0.01
    for a, b in zip(flow.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(average.weights.values(), theirs.weights.values(), strict=True):
        assert torch.equal(a, b)


def test_gradients_of_several_losses_add_up_and_are_shared_before_they_are_clipped():
    flow, optimizer, x = toy()
    seen = []

    def share(parameters):
        seen.extend(p.grad.clone() for p in parameters)
        for p in parameters:
            p.grad.mul_(0)

    before = [p.detach().clone() for p in flow.parameters()]
    parts = [lambda prepared, part=part: -flow.log_prob(part, prepared=prepared).mean() / 2 for part in x.chunk(2)]
    norm = training_step(flow, parts, optimizer, limit=1.0, share=share)
    assert float(norm) == 0.0
    assert all(torch.equal(p, q) for p, q in zip(flow.parameters(), before, strict=True))
    other, _, _ = toy()
    (-other.log_prob(x).mean()).backward()
    for found, p in zip(seen, other.parameters(), strict=True):
        torch.testing.assert_close(found, p.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_leaves_weights_and_moments_as_they_are(bad):
    flow, optimizer, x = toy()
    training_step(flow, [lambda prepared: -flow.log_prob(x, prepared=prepared).mean()], optimizer)
    before = [p.detach().clone() for p in flow.parameters()]
    moments = [{name: value.clone() for name, value in optimizer.state[p].items()} for p in flow.parameters()]
    norm = training_step(flow, [lambda prepared: bad * flow.log_prob(x, prepared=prepared).mean()], optimizer, limit=1.0)
    assert float(skipped(norm)) == 1.0
    for p, q, kept in zip(flow.parameters(), before, moments, strict=True):
        assert torch.equal(p, q)
        assert all(torch.equal(optimizer.state[p][name], value) for name, value in kept.items())


@pytest.mark.parametrize("precision", [EXACT, Precision(bfloat16=True)])
def test_weights_are_prepared_once_for_each_loss_under_the_policy_whatever_autocast_says(precision, monkeypatch):
    flow, optimizer, x = toy()
    made = []
    prepare = type(flow).prepare

    def counted(flow, *arguments):
        made.append(prepare(flow, *arguments))
        return made[-1]

    monkeypatch.setattr(type(flow), "prepare", counted)
    with torch.autocast("cpu", torch.bfloat16):
        training_step(flow, [lambda prepared: -flow.log_prob(x, prepared=prepared).mean()] * 2, optimizer, precision=precision)
    assert [each.precision for each in made] == [precision] * 2
    weight = made[0].body[0][0].steps[-1][0]
    assert weight.dtype == (torch.bfloat16 if precision.bfloat16 else torch.float32)
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in flow.parameters())
