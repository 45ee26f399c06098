"""What happens around a call: modes, other models, number types, and weights that change before the backward pass."""

import pytest
import torch

import idensenet as idn
from brute import operator_matrix
from flows import images, points, small_images, small_toy, train
from idensenet.lipschitz import LipschitzConv2d, fresh_norms, refresh_norms
from idensenet.lipschitz.linearmap import convolve
from idensenet.logdet.exact import log_abs_det


def test_norms_that_were_followed_in_training_are_looked_for_outside_of_it():
    """A part of the kernel that the singular vector does not see has grown, by less than training looks at."""
    torch.manual_seed(0)
    layer = LipschitzConv2d(2, 2, 3, (6, 6)).double()
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[0, 0, 1, 1] = 1.0
        layer.weight[1, 1, 1, 1] = 0.95
    layer.train()
    refresh_norms(layer)
    with torch.no_grad():
        layer.weight[1, 1, 1, 1] = 1.05  # orthogonal to what is followed
    refresh_norms(layer)

    def truth():
        return float(torch.linalg.matrix_norm(operator_matrix(lambda x: convolve(x, layer.weight.detach()), (2, 6, 6)), 2))

    assert float(layer.sigma) < truth() - 0.04  # the control: training has not seen it
    layer.eval()
    assert refresh_norms(layer) == 1
    assert float(layer.sigma) == pytest.approx(truth(), rel=1e-3)
    assert refresh_norms(layer) == 0


@pytest.mark.parametrize("decay", [0.9, 0.0])
def test_a_model_that_is_saved_between_evaluations_has_the_norms_of_evaluation(tmp_path, decay):
    from idensenet.training.averaging import Average
    from idensenet.training.checkpoint import Checkpoints, Progress

    flow = small_images()
    average = Average(flow, decay)
    train(flow, 8, 16, lr=2e-3)
    average.update(list(flow.parameters()), 100)
    optimizer = torch.optim.Adam(flow.parameters())
    flow.train()
    Checkpoints(tmp_path).write(flow, average, optimizer, Progress(1))
    assert flow.training
    saved = idn.load(tmp_path / "checkpoints" / "step-00000001" / "model")
    assert refresh_norms(saved) == 0
    for layer in saved.modules():
        if isinstance(layer, LipschitzConv2d) and not layer.as_matrix:
            assert layer.sketch[0].equal(layer.sketch[1])


def test_another_model_used_inside_a_call_has_norms_for_its_own_weights():
    first, second = small_toy(), small_toy()
    x = points(20)
    second.log_prob(x)
    with torch.no_grad():
        for p in second.parameters():
            p.mul_(4)
    want = second.log_prob(x)
    with torch.no_grad():
        for p in second.parameters():
            p.div_(4)
    second.log_prob(x)
    with torch.no_grad():
        for p in second.parameters():
            p.mul_(4)
    with fresh_norms(first):
        first.log_prob(x)
        assert torch.equal(second.log_prob(x), want)


@pytest.mark.parametrize("recompute", [False, True, "input"])
def test_weights_that_were_away_between_forward_and_backward_change_no_gradient(recompute):
    flow = small_images(fc_blocks=0, logdet={"method": "series", "recompute": recompute}).train()
    x = images(flow, 8)
    away = {name: 3 * p.detach().clone() for name, p in flow.named_parameters() if name.endswith("weight")}

    def gradients(visit):
        flow.zero_grad()
        loss = flow.log_prob(x, torch.Generator().manual_seed(0)).sum()
        if visit:
            own = {name: p.data for name, p in flow.named_parameters()}
            for name, p in flow.named_parameters():
                p.data = away.get(name, p.data)
            flow.log_prob(x, torch.Generator().manual_seed(1))
            for name, p in flow.named_parameters():
                p.data = own[name]
        loss.backward()
        return torch.cat([p.grad.flatten() for p in flow.parameters() if p.grad is not None])

    want = gradients(False)
    error = (gradients(True) - want).norm() / want.norm()
    assert error < 2e-3  # norms of kernels are followed to 1e-3


def test_a_gradient_through_the_inverse_after_such_a_visit():
    flow = small_toy()
    z = points(10)

    def gradient(visit):
        flow.zero_grad()
        x, _ = flow.inverse(z)
        if visit:
            own = {name: p.data for name, p in flow.named_parameters()}
            for p in flow.parameters():
                p.data = 3 * p.data
            flow.log_prob(z)
            for name, p in flow.named_parameters():
                p.data = own[name]
        x.square().sum().backward()
        return torch.cat([p.grad.flatten() for p in flow.parameters() if p.grad is not None])

    torch.testing.assert_close(gradient(True), gradient(False), rtol=1e-3, atol=1e-5)


def test_autocast_has_no_part_in_inverses_and_exact_log_determinants():
    flow = small_toy()
    z = points(50)
    want_x, _ = flow.inverse(z)
    want = flow.log_prob(z)
    digits = small_images(fc_blocks=0, logdet={"eval_method": "exact"}).eval()
    image = images(digits, 2)
    want_image = digits.log_prob(image)
    with torch.autocast("cpu", torch.bfloat16):
        x, _ = flow.inverse(z)
        found, of_image = flow.log_prob(z), digits.log_prob(image)
    torch.testing.assert_close(x, want_x)
    torch.testing.assert_close(found, want)
    assert (of_image - want_image).abs().max() < 1.0  # of 64 dimensions; ActNorm and the rest are autocast's
    assert found.dtype == torch.float32


def test_a_model_made_in_inference_mode_can_be_used_there():
    with torch.inference_mode():
        flow = idn.load("moons").double()
        found = flow.log_prob(points(5).double())
        for norm in (1, 2):
            built = idn.build("toy-idensenet", blocks=(1,), norm=norm)
            assert built.log_prob(points(5)).isfinite().all()
    want = idn.load("moons").log_prob(points(5)).double()
    torch.testing.assert_close(found.clone(), want, rtol=1e-4, atol=1e-4)


def test_a_lost_inverse_in_compiled_code_is_not_a_number_and_neither_is_its_gradient(monkeypatch):
    matrix = torch.diag_embed(torch.tensor([[0.1, 0.2], [-1.5, 0.2], [0.3, 0.1]])).requires_grad_()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    value = log_abs_det(matrix)
    assert value.isnan().tolist() == [False, True, False]
    value.sum().backward()
    assert matrix.grad.isnan().flatten(1).any(1).tolist() == [False, True, False]


def test_no_probe_at_all_passes_through_a_block():
    flow = idn.build("toy-idensenet", block="residual", blocks=(1,), shape=(2,), width=8, activation="clipswish")
    (_, block), *_ = flow.named_blocks()
    with fresh_norms(flow):
        _, J = block.g.linearize(points(4))
        assert J.matvec(points(4)[None][:0]).shape == (0, 4, 2)
        assert J.rmatvec(points(4)[None][:0]).shape == (0, 4, 2)
