import copy
import math

import pytest
import torch

import idensenet as idn
from flows import images
from idensenet.bijections import ActNorm
from idensenet.errors import UninitializedError
from idensenet.flow import Flow
from idensenet.hybrid import Classifier, Head, HybridFlow

NAMES = ["cifar10-idensenet-hybrid", "cifar10-resflow-hybrid", "cifar10-coupling-hybrid", "cifar10-glow-hybrid"]


def small(name, **overrides):
    torch.manual_seed(0)
    options = {"shape": (3, 8, 8), "blocks": (1, 1, 1), "growth": 8, "width": 8, "head_width": 8, "fc_blocks": 2, "fc_width": 8}
    return idn.build(name, **{**options, **overrides})


@pytest.fixture(scope="module", params=NAMES)
def hybrid(request):
    flow = small(request.param)
    flow.initialize(images(flow, 16))
    for name, p in flow.named_parameters():  # couplings end at zero, where the gradient of what stands before is zero too
        if ".net.4." in name:
            torch.nn.init.normal_(p, std=0.05)
    return flow


def test_a_hybrid_recipe_builds_a_hybrid_flow(hybrid):
    assert isinstance(hybrid, HybridFlow)
    assert list(hybrid.classifier.heads) == ["0", "1", "3"]  # the last one comes after the fully connected blocks
    assert hybrid.classifier.linear.in_features == 24


def test_classify_gives_the_logits_of_the_joint_pass(hybrid):
    x = images(hybrid, 4)
    log_prob, logits = hybrid.log_prob_and_logits(x)
    assert logits.shape == (4, 10)
    torch.testing.assert_close(hybrid.classify(x), logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(log_prob, hybrid.log_prob(x), rtol=1e-6, atol=1e-3)
    torch.testing.assert_close(log_prob, Flow.log_prob(hybrid, x), rtol=1e-6, atol=1e-3)
    other = hybrid.classify(images(hybrid, 4, seed=1))
    assert float((other - logits).abs().max()) > 1e-3


def test_a_generator_decides_all_noise_of_the_joint_pass(hybrid):
    flow, x = copy.deepcopy(hybrid).train(), images(hybrid, 4)
    once, again, other = (flow.log_prob_and_logits(x, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(once[0], again[0])
    assert torch.equal(once[1], again[1])
    assert not torch.equal(once[0], other[0])
    assert not torch.equal(once[1], other[1])


def test_gradients_of_the_hybrid_loss_reach_every_parameter(hybrid):
    flow, x = copy.deepcopy(hybrid).train(), images(hybrid, 8)
    labels = torch.arange(8)
    log_prob, logits = flow.log_prob_and_logits(x)
    loss = -log_prob.mean() / (flow.dims * math.log(2)) + torch.nn.functional.cross_entropy(logits, labels) / math.log(2)
    loss.backward()
    for name, p in flow.named_parameters():
        assert p.grad is not None, name
        assert bool(torch.isfinite(p.grad).all()), name
        assert float(p.grad.abs().max()) > 0, name


def test_the_classifier_alone_teaches_the_flow_too(hybrid):
    flow, x = copy.deepcopy(hybrid).train(), images(hybrid, 8)
    torch.nn.functional.cross_entropy(flow.classify(x), torch.arange(8)).backward()
    assert all(p.grad is not None and float(p.grad.abs().max()) > 0 for p in flow.classifier.parameters())
    assert any(p.grad is not None and float(p.grad.abs().max()) > 0 for p in flow.body.parts[0].parameters())


def test_round_trip_of_a_hybrid_flow(hybrid):
    x = images(hybrid, 2)
    with torch.no_grad():
        smooth = hybrid.dequantize(x)
        z = hybrid.body.encode(hybrid.preprocess.encode(smooth))
        back = hybrid.preprocess.decode(hybrid.body.decode(z))
    assert float((back - smooth).abs().max()) / hybrid.levels < 1e-5
    assert hybrid.sample(2).shape == (2, 3, 8, 8)


def test_a_head_is_its_formula():
    head = Head(2, 3)
    x = torch.randn(4, 2, 5, 5)
    features = head.norm.initialize(head.conv(x))
    torch.testing.assert_close(head(x), features.clamp(min=0).mean((2, 3)))
    classifier = Classifier({0: head}, 7)
    torch.testing.assert_close(classifier([x]), classifier.linear(head(x)))
    assert classifier.wants(0)
    assert not classifier.wants(1)


def test_an_uninitialised_head_says_so():
    flow = small(NAMES[0])
    with pytest.raises(UninitializedError, match=r"flow\.initialize"):
        flow.classify(images(flow, 1))


def test_initialize_reaches_the_heads_and_happens_once():
    flow = small(NAMES[0])
    flow.initialize(images(flow, 16))
    assert all(bool(m.initialized.all()) for m in flow.modules() if isinstance(m, ActNorm))
    before = copy.deepcopy(flow.state_dict())
    flow.initialize(images(flow, 16, seed=3))
    assert all(torch.equal(before[k], v) for k, v in flow.state_dict().items())


def test_without_fully_connected_blocks_the_last_head_follows_the_last_scale():
    flow = small(NAMES[0], fc_blocks=0)
    assert list(flow.classifier.heads) == ["0", "1", "2"]


def test_a_saved_hybrid_model_loads_to_the_same_bits(tmp_path, hybrid):
    x = images(hybrid, 3)
    expected = hybrid.log_prob_and_logits(x)
    other = idn.load(idn.save(hybrid, tmp_path))
    assert isinstance(other, HybridFlow)
    for a, b in zip(other.log_prob_and_logits(x), expected, strict=True):
        assert torch.equal(a, b)
