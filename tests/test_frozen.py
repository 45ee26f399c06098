"""Flows prepared for serving: the same numbers, nothing checked again, and programs for export."""

import io

import pytest
import torch

import idensenet as idn
from flows import small_images, small_toy
from idensenet.errors import OptionError, UninitializedError


def test_a_frozen_flow_returns_the_numbers_of_the_flow():
    flow = idn.load("moons")
    frozen = flow.frozen()
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(frozen.log_prob(x), flow.log_prob(x))
    z, log_det = flow(x)
    assert torch.equal(frozen(x)[0], z)
    assert torch.equal(frozen(x)[1], log_det)
    torch.testing.assert_close(frozen.encode(x), z)
    torch.testing.assert_close(frozen.decode(z.detach()), x, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(frozen.inverse(z.detach())[0], x, atol=1e-5, rtol=1e-5)
    seeds = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert torch.equal(frozen.sample(5, seeds[0]), flow.sample(5, seeds[1]))


def test_images_too_and_no_gradient_is_recorded():
    flow = idn.load("digits")
    x = torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = flow.frozen().log_prob(x)
    assert torch.equal(found, flow.log_prob(x))
    assert not found.requires_grad


def test_a_frozen_flow_does_not_follow_later_changes():
    flow, x = small_toy().eval(), torch.randn(4, 2)
    frozen, before = flow.frozen(), flow.log_prob(x)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.mul_(1.5)
    assert torch.equal(frozen.log_prob(x), before)
    assert not torch.equal(flow.log_prob(x), before)


def test_a_flow_that_has_seen_no_data_cannot_be_frozen():
    with pytest.raises(UninitializedError, match="initialize"):
        idn.build("digits-idensenet").frozen()


def test_a_context_goes_through():
    flow = small_toy(context=3).eval()
    x, c = torch.randn(4, 2), torch.randn(4, 3)
    assert torch.equal(flow.frozen().log_prob(x, c), flow.log_prob(x, context=c))


@pytest.mark.parametrize("shape", [(2,), (3,)])
def test_exported_densities_of_vectors_are_the_same_for_any_batch(shape):
    torch.manual_seed(0)
    flow = small_toy(shape=shape).eval()
    file = io.BytesIO()
    torch.export.save(flow.frozen().export("log_prob"), file)
    file.seek(0)
    run = torch.export.load(file).module()
    for n in (2, 7):
        x = torch.randn(n, *shape)
        torch.testing.assert_close(run(x), flow.log_prob(x), atol=1e-5, rtol=1e-5)
    one = flow.frozen().export("log_prob", batch=1).module()
    x = torch.randn(1, *shape)
    torch.testing.assert_close(one(x), flow.log_prob(x), atol=1e-5, rtol=1e-5)


def test_the_exported_map_of_vectors_and_of_images_is_the_same():
    flow = idn.load("digits")
    run = flow.frozen().export("encode").module()
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 17
    with torch.no_grad():
        torch.testing.assert_close(run(x), flow(x, dequantized=True)[0], atol=1e-4, rtol=1e-4)
    toy, points = small_toy().eval(), torch.randn(5, 2)
    with torch.no_grad():
        torch.testing.assert_close(toy.frozen().export("encode").module()(points), toy(points)[0], atol=1e-5, rtol=1e-5)


def test_what_cannot_be_exported_is_said():
    with pytest.raises(OptionError, match="log_prob of images cannot be exported"):
        idn.load("digits").frozen().export("log_prob")
    with pytest.raises(OptionError, match="Only an exact log-determinant"):
        small_toy(logdet={"eval_method": "adaptive"}).frozen().export("log_prob")
    with pytest.raises(OptionError, match="conditional"):
        small_toy(context=3).frozen().export("log_prob")
    with pytest.raises(OptionError, match="use 'log_prob' or 'encode'"):
        small_images(fc_blocks=0).frozen().export("inverse")
