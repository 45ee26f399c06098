import torch

import idensenet as idn
from idensenet.training.averaging import Average


def test_the_average_is_the_recursion_with_a_rising_decay():
    flow = idn.build("toy-idensenet", blocks=(1,))
    average = Average(flow, 0.5)
    name, parameter = next(iter(flow.named_parameters()))
    expected = parameter.detach().clone()
    for step in range(12):
        with torch.no_grad():
            parameter.add_(torch.randn_like(parameter))
        average.update(list(flow.parameters()), step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * parameter.detach()
    torch.testing.assert_close(average.weights[name], expected)


def test_swapping_in_gives_the_averaged_model_and_leaves_the_state_as_it_was_bit_for_bit():
    flow = idn.build("digits-idensenet", blocks=(1, 1), fc_blocks=0)
    x = torch.randint(0, 17, (8, 1, 8, 8), dtype=torch.uint8)
    flow.initialize(x)
    average = Average(flow, 0.999)
    before_training = flow.log_prob(x)
    with torch.no_grad():
        for p in flow.parameters():
            p.add_(0.1 * torch.randn_like(p))
    trained = flow.log_prob(x)
    state = {k: v.clone() for k, v in flow.state_dict().items()}
    with average.swapped_in(flow):
        torch.testing.assert_close(flow.log_prob(x), before_training, rtol=1e-4, atol=1e-3)
        assert flow.certify().contractive
    assert all(torch.equal(v, state[k]) for k, v in flow.state_dict().items())
    assert torch.equal(flow.log_prob(x), trained)


def test_no_averaging_evaluates_the_trained_weights():
    flow = idn.build("toy-idensenet", blocks=(1,))
    average = Average(flow, 0.0)
    with torch.no_grad():
        next(iter(flow.parameters())).add_(1.0)
    now = flow.log_prob(torch.zeros(1, 2))
    state = {k: v.clone() for k, v in flow.state_dict().items()}
    with average.swapped_in(flow):
        assert torch.equal(flow.log_prob(torch.zeros(1, 2)), now)
        for buffer in flow.buffers():
            buffer.zero_()
    assert all(torch.equal(v, state[k]) for k, v in flow.state_dict().items())
