"""Flows of monotone and implicit blocks: by name, hybrid, conditional, frozen, saved, certified, in bfloat16."""

import pytest
import torch

import idensenet as idn
from flows import images, points, small_images, train
from idensenet.bijections import Invert, MonotoneBlock, ResidualBlock
from idensenet.errors import OptionError
from idensenet.lipschitz import DenseBlock, ResidualNet
from idensenet.precision import Precision
from idensenet.solve import Picard

SMALL = {"blocks": (2,), "growth": 4, "depth": 2, "width": 8}


@pytest.mark.parametrize(
    ("block", "net"), [("monotone", DenseBlock), ("monotone-residual", ResidualNet), ("monotone-extended", ResidualNet)]
)
def test_blocks_by_name_have_their_network_and_as_many_parameters_as_residual_ones(block, net):
    flow = idn.build("toy-idensenet", **SMALL, block=block)
    other = idn.build("toy-idensenet", **SMALL, block={"monotone": "dense"}.get(block, block.removeprefix("monotone-")))
    (stack,), (plain,) = flow.stacks(), other.stacks()
    assert type(stack) is MonotoneBlock
    assert type(plain) is ResidualBlock
    assert type(stack.g) is type(plain.g) is net
    assert flow.num_parameters == other.num_parameters
    assert [name for name, _, _ in flow.named_blocks()] == ["1.1", "1.2"]


def test_the_density_integrates_to_one_and_training_lowers_the_score():
    flow = idn.build("toy-monotone", **SMALL)
    grid = torch.linspace(-9, 9, 181)
    plane = torch.cartesian_prod(grid, grid)
    before = float(-flow.log_prob(points(500)).mean().detach())
    train(flow, 40, 200, lr=1e-2)
    with torch.no_grad():
        assert float(flow.log_prob(plane).exp().sum()) * 0.1**2 == pytest.approx(1, abs=0.01)
        assert float(-flow.log_prob(points(500)).mean()) < before - 0.05
    assert flow.certify().contractive


def test_hybrid_images_are_classified_scored_and_sampled():
    flow = small_images(block="monotone", classes=10, preprocess="normalize", mean=(0.3,), std=(0.37,), head_width=8).train()
    x = images(flow, 4)
    log_prob, logits = flow.log_prob_and_logits(x, torch.Generator().manual_seed(0))
    (log_prob.mean() + logits.square().mean()).backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in flow.parameters() if p.requires_grad)
    flow.eval()
    assert flow.sample(2).shape == (2, 1, 8, 8)
    with torch.no_grad():
        z, _ = flow(x)
        torch.testing.assert_close(flow.inverse(z)[0], flow.dequantize(x), rtol=0, atol=1e-2)
        torch.testing.assert_close(flow.classify(x), flow.log_prob_and_logits(x)[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block", ["monotone", "monotone-residual", "implicit"])
def test_conditional_flows(block):
    flow = idn.build("toy-idensenet", **SMALL, block=block, context=2, context_width=8, context_features=4).double()
    x, c = torch.randn(6, 2, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    with torch.no_grad():
        z, log_det = flow(x, context=c)
        back, inverse_log_det = flow.inverse(z, context=c)
    torch.testing.assert_close(back, x, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(inverse_log_det, -log_det, rtol=1e-9, atol=1e-9)
    with pytest.raises(OptionError, match="needs vectors without levels, and one of dense"):
        idn.build("toy-idensenet", block="coupling", context=2)


def test_a_frozen_flow_has_the_same_numbers_and_cannot_be_exported():
    flow, x = idn.build("toy-monotone", **SMALL), points(5)
    frozen = flow.frozen()
    with torch.no_grad():
        assert torch.equal(frozen.log_prob(x), flow.log_prob(x))
    with pytest.raises(OptionError, match="Monotone blocks solve an equation"):
        frozen.export("log_prob")
    with pytest.raises(OptionError, match="Monotone blocks solve an equation"):
        flow.frozen(compile=True)


@pytest.mark.parametrize("name", ["toy-monotone", "toy-implicit"])
def test_saved_flows_have_the_same_numbers(name, tmp_path):
    flow, x = idn.build(name, blocks=(2,)), points(5)
    idn.save(flow, tmp_path / "model")
    with torch.no_grad():
        assert torch.equal(idn.load(tmp_path / "model").log_prob(x), flow.log_prob(x))


def test_bfloat16_changes_nothing_since_solvers_are_never_rounded():
    flow, x = idn.build("toy-monotone", **SMALL).train(), points(5)
    rounded = flow.prepare(Precision.of("bf16-mixed"))
    assert torch.equal(flow.log_prob(x, prepared=rounded), flow.log_prob(x))


@pytest.mark.parametrize("options", [{"block": "monotone"}, {"block": "implicit", "blocks": (1,)}])
def test_the_error_of_the_inverse_is_bounded(options):
    flow = idn.build("toy-idensenet-clipswish", **{**SMALL, "shape": (3,), "actnorm": True, **options}).double()
    flow.initialize(torch.randn(50, 3, dtype=torch.float64))
    z = torch.randn(20, 3, dtype=torch.float64)
    with torch.no_grad():
        right = flow.inverse(z)[0]
        for stack in flow.stacks():
            stack.solver = Picard(1e-2)
        error = (flow.inverse(z)[0] - right).norm(dim=1)
    bound = flow.inverse_error(z)
    assert float(error.max()) > 1e-5
    assert bool((bound >= error).all())
    assert bool(torch.isfinite(bound).all())


def test_an_implicit_block_solves_its_equation():
    flow = idn.build("toy-implicit", blocks=(1,)).double()
    there, back = flow.stacks()
    x = torch.randn(7, 2, dtype=torch.float64)
    with torch.no_grad():
        z, log_det = flow(x)
        torch.testing.assert_close(z + back.g(z), x + there.g(x), rtol=1e-9, atol=1e-9)
        right = there(x)[1] - back(z)[1]
        torch.testing.assert_close(log_det, right, rtol=1e-9, atol=1e-9)
    assert sum(isinstance(m, Invert) for m in flow.modules()) == 1
    assert idn.build("toy-implicit").num_parameters == idn.build("toy-idensenet-clipswish").num_parameters
