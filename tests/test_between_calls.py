"""What happens around a call: modes, other models, number types, and weights that change before the backward pass."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import idensenet as idn
from brute import convolve, operator_matrix
from flows import data, images, points, small_images, small_toy, train
from idensenet.bijections import Chain, Invert, Logit
from idensenet.errors import NonInvertibleError
from idensenet.flow import Flow
from idensenet.lipschitz import LipschitzConv2d, LipschitzMap, refresh_norms
from idensenet.logdet import LOG_ONE_PLUS, ExactLogDet, exact
from idensenet.precision import EXACT, Precision


@pytest.mark.parametrize(("blocks", "block"), [(1, 0), (3, 1)])
def test_norms_that_were_warm_started_in_training_are_computed_afresh_outside_of_it(blocks, block):
    """A part of one kernel of a stack that the singular vector does not see has grown, by less than training notices."""
    torch.manual_seed(0)
    layer = LipschitzConv2d(2, 2, 3, (6, 6), blocks=blocks).double()
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:, 0, 0, 1, 1] = 1.0
        layer.weight[:, 1, 1, 1, 1] = 0.95
    layer.train()
    refresh_norms(layer)
    with torch.no_grad():
        layer.weight[block, 1, 1, 1, 1] = 1.05  # orthogonal to the singular vector
    refresh_norms(layer)

    def truth(k):
        weight = layer.weight[k].detach()
        return float(torch.linalg.matrix_norm(operator_matrix(lambda x: convolve(x, weight), (2, 6, 6)), 2))

    assert float(layer.sigma[block]) < truth(block) - 0.04  # the control: training has not seen it
    layer.eval()
    assert refresh_norms(layer) == 1
    assert layer.sigma.tolist() == pytest.approx([truth(k) for k in range(blocks)], rel=1e-3)
    assert refresh_norms(layer) == 0


@pytest.mark.parametrize("decay", [0.9, 0.0])
def test_a_model_that_is_saved_between_evaluations_has_the_norms_of_evaluation(tmp_path, decay):
    from idensenet.checkpoints import Progress
    from idensenet.training.averaging import Average
    from idensenet.training.checkpoint import Checkpoints

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
        if isinstance(layer, LipschitzConv2d) and layer.iterated:
            assert layer.sketch[0].equal(layer.sketch[1])


def scaled(flow, factor):
    """The weights times a factor, written past autograd and without telling anybody."""
    for p in flow.parameters():
        p.data.mul_(factor)


def test_another_model_used_inside_a_call_has_norms_for_its_own_weights():
    first, second = small_toy(), small_toy()
    x = points(20)
    scaled(second, 4)
    want = second.log_prob(x)
    scaled(second, 1 / 4)
    before = second.log_prob(x)
    assert not torch.equal(want, before)

    class Meddling(Logit):
        """In the middle of a call of the first flow, changes the second and uses it."""

        def push(self, x, call):
            scaled(second, 4)
            seen.append(second.log_prob(y))
            scaled(second, 1 / 4)
            return super().push(x, call)

    seen, y = [], x
    meddled = Flow(Chain([first.stacks()[0], Invert(Logit(0.0)), Meddling(0.0), first.stacks()[0]]), (2,)).eval()
    plain = Flow(Chain([first.stacks()[0], Invert(Logit(0.0)), Logit(0.0), first.stacks()[0]]), (2,)).eval()
    assert torch.equal(meddled.log_prob(x), plain.log_prob(x))
    assert torch.equal(seen[0], want)
    assert torch.equal(second.log_prob(x), before)


def gradient(loss, flow):
    return torch.autograd.grad(loss, list(flow.parameters()))


def assert_same(found, right):
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))


@pytest.mark.parametrize("memory", ["keep", "save"])
@pytest.mark.parametrize("method", ["exact", "roulette"])
def test_calls_of_two_flows_may_be_interleaved(method, memory):
    """Forward of one, forward of the other, backward of one, a sample of it, backward of the other."""
    options = {"logdet": {"method": method}, "train": {"memory": memory}}
    first, second = small_toy(**options).train(), small_toy(**options).train()
    scaled(second, 1.5)
    x = points(8)

    def loss(flow):
        return flow.log_prob(x, torch.Generator().manual_seed(0)).sum()

    alone = [(loss(flow), gradient(loss(flow), flow)) for flow in (first, second)]
    assert not torch.equal(alone[0][0], alone[1][0])
    one, other = loss(first), loss(second)
    assert_same(gradient(one, first), alone[0][1])
    first.sample(4)
    scaled(first, 3)
    loss(first)
    scaled(first, 1 / 3)
    assert torch.equal(other, alone[1][0])
    assert_same(gradient(other, second), alone[1][1])


@pytest.mark.parametrize("memory", ["keep", "save"])
@pytest.mark.parametrize("way", ["log_prob", "inverse"])
def test_a_call_inside_the_backward_pass_of_another_changes_neither(way, memory):
    """Also if it is the same flow, with other weights in the meantime."""
    flow, x = small_toy(blocks=(3,), train={"memory": memory}), points(8)

    def loss():
        return flow.log_prob(x).sum() if way == "log_prob" else flow.inverse(x)[0].square().sum()

    right = gradient(loss(), flow)
    scaled(flow, 2)
    want = flow.log_prob(x)
    scaled(flow, 0.5)
    inside = []

    def visit(grad):
        scaled(flow, 2)
        with torch.enable_grad():
            value = flow.log_prob(x)
            inside.append((value.detach(), gradient(value.sum(), flow)))
        scaled(flow, 0.5)
        return grad

    start = x.clone().requires_grad_()
    z = flow(start)[0] if way == "log_prob" else flow.inverse(start)[0]
    z.register_hook(visit)
    total = loss() + 0 * z.sum()
    assert_same(gradient(total, flow), right)
    ((value, grads),) = inside
    assert torch.equal(value, want)
    assert any(not torch.equal(a, b) for a, b in zip(grads, right, strict=True))


def test_threads_that_train_their_own_flows_do_what_they_do_alone():
    def run(seed):
        torch.manual_seed(0)
        flow = built[seed]
        train(flow, 6, 16, lr=1e-2, seed=seed)
        return flow.log_prob(points(5)).detach()

    built = {seed: small_toy() for seed in range(4)}
    alone = [run(seed) for seed in range(4)]
    built = {seed: small_toy() for seed in range(4)}
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(4)))
    assert_same(together, alone)
    assert not torch.equal(alone[0], alone[1])


def test_threads_may_share_a_flow():
    flow = small_toy()
    flow.log_prob(points(5))
    want = [(flow.log_prob(points(5, i)), flow.sample(3, torch.Generator().manual_seed(i))) for i in range(8)]

    def run(i):
        with torch.inference_mode(i % 2 == 1):
            return flow.log_prob(points(5, i)).clone(), flow.sample(3, torch.Generator().manual_seed(i)).clone()

    with ThreadPoolExecutor(4) as pool:
        for found, right in zip(pool.map(run, range(8)), want, strict=True):
            assert_same(found, right)


# What a call works with, given by the caller

FLOWS = {
    "vectors": lambda: small_toy(actnorm=True),
    "conditional": lambda: small_toy(actnorm=True, context=2),
    "images": lambda: small_images(factor_out=True),
    "hybrid": lambda: idn.build("digits-idensenet", blocks=(1, 1), growth=4, classes=3, head_width=4),
}


@pytest.mark.parametrize("make", FLOWS.values(), ids=FLOWS)
@pytest.mark.parametrize("training", [False, True])
def test_a_call_that_is_given_what_is_prepared_returns_the_same_bits(make, training):
    flow = make()
    x = data(flow, 16)
    c = torch.randn(16, 2) if flow.context else None
    flow.initialize(x, c)
    flow.train(training)

    def calls(prepared):
        def generator():
            return torch.Generator().manual_seed(0) if training else None

        value = flow.log_prob(x, generator(), context=c, prepared=prepared)
        grads = torch.autograd.grad(value.sum(), list(flow.parameters()), allow_unused=True)
        z, log_det = flow(x, generator(), context=c, prepared=prepared)
        back, inverse_log_det = flow.inverse(z.detach(), generator(), context=c, prepared=prepared)
        sampled = flow.sample(16, torch.Generator().manual_seed(1), context=c, prepared=prepared)
        found = [value, *[g for g in grads if g is not None], z, log_det, back, inverse_log_det, sampled]
        if hasattr(flow, "classifier"):
            found += [flow.classify(x, generator(), prepared=prepared)]
            found += [*flow.log_prob_and_logits(x, generator(), prepared=prepared)]
        return found

    right = calls(None)
    assert_same(calls(flow.prepare()), right)
    assert all(bool(torch.isfinite(each.float()).all()) for each in right)


def test_what_was_prepared_stays_as_it_was_and_asks_for_no_fingerprint(monkeypatch):
    flow, x = small_toy(), points(6)
    with torch.no_grad():
        prepared, want = flow.prepare(), flow.log_prob(x)
        for m in flow.modules():
            if isinstance(m, LipschitzMap):
                m.weight.data.mul_(3)
        other = flow.log_prob(x)
        with monkeypatch.context() as patch:
            patch.setattr("idensenet.lipschitz.linear.fingerprints", lambda *_: pytest.fail("asked for a fingerprint"))
            assert torch.equal(flow.log_prob(x, prepared=prepared), want)
    assert not torch.equal(other, want)


def test_every_public_call_asks_for_fingerprints_once(monkeypatch):
    flow, x = small_images(), None
    x = images(flow, 2)
    z = flow(x)[0].detach()
    from idensenet.lipschitz import linear

    real, asked = linear.fingerprints, []
    monkeypatch.setattr(linear, "fingerprints", lambda weights: asked.append(len(weights)) or real(weights))
    maps = sum(isinstance(m, LipschitzMap) for m in flow.modules())
    for call in (
        lambda: flow.log_prob(x),
        lambda: flow(x),
        lambda: flow.inverse(z),
        lambda: flow.sample(2),
        lambda: flow.sample_and_log_prob(2),
        lambda: flow.log_prob_terms(x),
        lambda: flow.bits_per_dim(x),
        lambda: flow.body.encode(flow.preprocess.encode(flow.dequantize(x))),
    ):
        asked.clear()
        call()
        assert asked == [maps]


def test_prepared_once_and_used_with_and_without_gradients():
    flow, x = small_toy(), points(6)
    right = gradient(flow.log_prob(x).sum(), flow)
    prepared = flow.prepare()
    with torch.no_grad():
        flow.log_prob(x, prepared=prepared)
        flow.sample(3, prepared=prepared)
    assert_same(gradient(flow.log_prob(x, prepared=prepared).sum(), flow), right)


def test_rounded_products_are_a_choice_of_what_is_prepared_and_touch_nothing_else():
    flow, x = small_toy(), points(50)
    exact = flow.log_prob(x)
    rounded = flow.log_prob(x, prepared=flow.prepare(Precision(bfloat16=True)))
    assert rounded.dtype == torch.float32
    assert 1e-5 < float((rounded - exact).detach().abs().max()) < 0.1
    assert torch.equal(flow.log_prob(x), exact)
    assert torch.equal(flow.log_prob(x, prepared=flow.prepare(EXACT)), exact)


@pytest.mark.parametrize("memory", ["keep", "save"])
def test_weights_that_were_away_between_forward_and_backward_change_no_gradient(memory):
    flow = small_images(fc_blocks=0, blocks=(2, 1), logdet={"method": "series"}, train={"memory": memory}).train()
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
    assert error < 1e-6  # a call keeps what it has prepared


def test_a_gradient_through_the_inverse_after_such_a_visit():
    flow = small_toy()
    z = points(10)

    def gradients(visit):
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

    torch.testing.assert_close(gradients(True), gradients(False), rtol=1e-6, atol=1e-6)


def test_autocast_has_no_part_in_anything_a_flow_computes():
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
        train_loss = flow.train().log_prob(z).sum()
    right_loss = flow.log_prob(z).sum()
    assert_same(gradient(train_loss, flow), gradient(right_loss, flow))
    torch.testing.assert_close(x, want_x)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(of_image, want_image)
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


@pytest.mark.parametrize("dims", [2, 3])
def test_a_lost_inverse_in_compiled_code_is_not_a_number_and_neither_is_its_gradient(dims, monkeypatch):
    diagonals = torch.tensor([[0.1, 0.2, 0.3], [-1.5, 0.2, 0.1], [0.3, 0.1, 0.2]])[:, :dims]
    J = torch.diag_embed(diagonals).requires_grad_()
    found = exact.determinants(J, LOG_ONE_PLUS) if dims == 2 else J
    with pytest.raises(NonInvertibleError, match="sample 1"):
        ExactLogDet().total(torch.stack([0 * found, found]) if dims == 3 else found[None], LOG_ONE_PLUS)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    value = ExactLogDet().total(found[None], LOG_ONE_PLUS).value
    assert value.isnan().tolist() == [False, True, False]
    value.sum().backward()
    assert J.grad.isnan().flatten(1).any(1).tolist() == [False, True, False]


def test_no_probe_at_all_passes_through_a_block():
    flow = idn.build("toy-idensenet", block="residual", blocks=(1,), shape=(2,), width=8, activation="clipswish")
    _, J = flow.stacks()[0].prepare()[0].linearize(points(4))
    assert J.matvec(points(4)[None][:0]).shape == (0, 4, 2)
    assert J.rmatvec(points(4)[None][:0]).shape == (0, 4, 2)
