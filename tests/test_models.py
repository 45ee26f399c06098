import math

import pytest
import torch

import idensenet as idn
from brute import jacobians, log_abs_det
from flows import data, images
from idensenet.bijections import Coupling, InvertibleConv1x1
from idensenet.blocks import BLOCKS, register_block
from idensenet.config import Config, LogDetConfig, SolverConfig, recipe
from idensenet.errors import OptionError, ShapeError
from idensenet.lipschitz import ACTIVATIONS, LipschitzMap, dense_block
from idensenet.logdet import AdaptiveLogDet, ExactLogDet, Geometric, Poisson, RouletteLogDet, SeriesLogDet
from idensenet.methods import make_log_det, make_solver
from idensenet.models import NEAR, build_config
from idensenet.solve import Anderson, Newton, Picard

PARAMETERS = {
    "cifar10-idensenet": 24_894_586,
    "imagenet32-idensenet": 46_980_874,
    "cifar10-idensenet-small": 8_695_126,
    "cifar10-idensenet-small-depth2": 8_763_478,
    "cifar10-idensenet-small-depth4": 8_724_270,
    "cifar10-idensenet-small-depth5": 8_839_054,
    "cifar10-idensenet-small-lipswish": 8_761_342,
    "cifar10-idensenet-small-leaky": 8_761_390,
    "cifar10-resflow": 25_174_129,
    "imagenet32-resflow": 47_099_089,
    "cifar10-resflow-small": 8_730_409,
    "cifar10-resflow-small-leaky": 8_730_456,
    "cifar10-resflow-small-clipswish": 8_723_799,
    "cifar10-idensenet-hybrid": 25_153_412,
    "toy-idensenet": 10_230,
    "toy-idensenet-fixed": 10_170,
    "toy-idensenet-clipswish": 5_670,
    "toy-resflow": 501_830,
}


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_the_number_of_parameters_is_that_of_the_paper_to_the_unit(name, parameters):
    flow = idn.build(name)
    assert flow.num_parameters == recipe(name).parameters == parameters
    assert all(p.requires_grad for p in flow.parameters())


def test_the_extended_residual_flow_has_about_nineteen_million_parameters():
    assert round(idn.build("cifar10-resflow-small-extended").num_parameters / 1e6, 1) == 19.1


@pytest.mark.parametrize("name", [n for n in idn.recipes() if n not in PARAMETERS])
def test_all_other_recipes_build_too(name):
    flow = idn.build(name)
    assert flow.num_parameters == recipe(name).parameters > 0
    assert not flow.training
    assert math.prod(flow.latent_shape) == flow.dims


def test_building_draws_from_the_seed_only():
    torch.manual_seed(3)
    first = idn.build("toy-idensenet").state_dict()
    torch.manual_seed(3)
    again = idn.build("toy-idensenet").state_dict()
    assert all(torch.equal(first[k], again[k]) for k in first)


def test_scales_are_three_and_end_in_fully_connected_blocks():
    flow = idn.build("cifar10-idensenet-small")
    names = [name for name, _, _ in flow.named_blocks()]
    assert names == [f"{i}.{j}" for i in range(1, 5) for j in range(1, 5)]
    assert flow.latent_shape == (48, 8, 8)
    assert flow.dims == 3072


def test_the_extended_toy_flow_has_the_widths_of_the_dense_one():
    (block,) = idn.build("toy-resflow-extended").stacks()
    assert [m.outputs for m in block.g.modules() if isinstance(m, LipschitzMap)] == [18, 34, 50, 2]


def test_the_extended_image_flow_has_the_widths_of_the_dense_one():
    flow = idn.build("cifar10-resflow-small-extended", blocks=(1, 1, 1), fc_blocks=1)
    blocks = {name: stack for name, stack, _ in flow.named_blocks()}
    shapes = [(m.outputs, m.kernel) for m in blocks["2.1"].g.modules() if isinstance(m, LipschitzMap)]
    assert shapes == [(12 + 124, 3), (12 + 248, 3), (12 + 372, 3), (12, 1)]
    assert [m.outputs for m in blocks["4.1"].g.modules() if isinstance(m, LipschitzMap)] == [64, 96, 128, 160, 3072]


def test_only_the_very_first_residual_network_on_images_starts_without_an_activation():
    flow = idn.build("cifar10-resflow-small", blocks=(3, 1, 1), fc_blocks=1, width=8)
    starts = [isinstance(stack.g.layers[0], LipschitzMap) for _, stack, _ in flow.named_blocks()]
    assert starts == [True, False, False, False, False, False]
    assert [stack.blocks for stack in flow.stacks()] == [1, 2, 1, 1, 1]  # the very first one is a stack of its own


def test_the_blocks_of_a_scale_are_one_stack():
    flow = idn.build("digits-idensenet", blocks=(3, 2), growth=4, fc_blocks=4)
    assert [stack.blocks for stack in flow.stacks()] == [3, 2, 4]
    assert [name for name, _, _ in flow.named_blocks()] == ["1.1", "1.2", "1.3", "2.1", "2.2", "3.1", "3.2", "3.3", "3.4"]
    assert all(p.shape[0] == stack.blocks for stack in flow.stacks() for p in stack.parameters())


def test_glow_adds_a_1x1_convolution_before_every_coupling():
    small = {"shape": (3, 8, 8), "blocks": (2, 2), "width": 4, "head_width": 4, "fc_blocks": 0}
    coupling, glow = (idn.build(f"cifar10-{kind}-hybrid", **small) for kind in ("coupling", "glow"))
    count = [
        sum(isinstance(m, kind) for m in flow.modules()) for flow in (coupling, glow) for kind in (Coupling, InvertibleConv1x1)
    ]
    assert count == [4, 0, 4, 4]
    masks = [m.mask for m in coupling.modules() if isinstance(m, Coupling)]
    assert torch.equal(masks[0] + masks[1], torch.ones(3, 8, 8))  # the two halves take turns
    assert torch.equal(masks[2] + masks[3], torch.ones(12, 4, 4))


def test_coupling_works_on_vectors_too():
    flow = idn.build("toy-idensenet", shape=(5,), block="glow", blocks=(2,), width=8, actnorm=True).double()
    x = torch.randn(64, 5, dtype=torch.float64)
    flow.initialize(x)
    torch.testing.assert_close(flow.inverse(flow(x)[0])[0], x, rtol=1e-10, atol=1e-10)


# A kind of block of one's own


def mixed(builder, shape, count, scale):
    """A rotation of the channels in front of every dense block."""
    parts = []
    for _ in range(count):
        g = dense_block(shape, builder.model.depth, builder.growth(scale), builder.pieces)
        parts += [InvertibleConv1x1(shape[0]), builder.stack(g, shape[0])]
    return parts


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(BLOCKS, "_known", dict(BLOCKS._known))
    register_block("mixed", mixed)


@pytest.mark.parametrize(
    ("name", "options"),
    [("toy-idensenet", {"blocks": (3,)}), ("digits-idensenet", {"blocks": (2, 1), "growth": 4, "fc_blocks": 1})],
)
def test_a_registered_block_is_built_by_its_name_like_any_other(name, options, registered):
    flow = idn.build(name, block="mixed", **options, logdet={"eval_method": "exact"}).double()
    x = data(flow, 16)
    flow.initialize(x)
    count = sum(options["blocks"]) + options.get("fc_blocks", 0)
    assert sum(isinstance(m, InvertibleConv1x1) for m in flow.modules()) == len(flow.stacks()) == count
    assert len(flow.certify().blocks) == count
    assert flow.certify().contractive
    assert flow.config.model.block == "mixed"
    with torch.no_grad():
        y = flow.preprocess.encode(flow.dequantize(x[:2]))
        torch.testing.assert_close(flow.body.decode(flow.body.encode(y)), y, rtol=1e-9, atol=1e-9)
    if flow.levels is None:
        torch.testing.assert_close(flow(x[:2])[1], log_abs_det(lambda a: flow(a)[0], x[:2]), rtol=1e-9, atol=1e-9)
    flow.train().log_prob(x[:4]).sum().backward()
    assert all(p.grad is not None and float(p.grad.abs().max()) > 0 for p in flow.parameters())


def test_names_of_blocks_are_unique_and_suggested(registered):
    with pytest.raises(OptionError, match="'mixed'"):
        idn.build("toy-idensenet", block="mixd")
    with pytest.raises(OptionError, match=r"block 'dense' exists already; choose another name"):
        register_block("dense", mixed)
    register_block("mixed", mixed)  # the same again is no mistake


# Starting near the identity


@pytest.mark.parametrize("block", ["dense", "residual", "extended"])
@pytest.mark.parametrize("actnorm", [False, True])
def test_starting_near_the_identity_shrinks_the_closing_maps_and_nothing_else(block, actnorm):
    options = {"block": block, "blocks": (3,), "actnorm": actnorm, "width": 8}
    torch.manual_seed(4)
    usual = idn.build("toy-idensenet", **options)
    torch.manual_seed(4)
    near = idn.build("toy-idensenet", start="identity", **options)
    (g,), (other,) = ([stack.g for stack in flow.stacks()] for flow in (near, usual))
    assert NEAR == 0.05
    torch.testing.assert_close(g.layers[-1].weight, 0.05 * other.layers[-1].weight)
    assert not bool(g.layers[-1].bias.any())
    closing = {id(p) for net in (g, other) for p in net.layers[-1].parameters()}
    for a, b in zip(near.parameters(), usual.parameters(), strict=True):
        assert id(a) in closing or torch.equal(a, b)
    x = torch.randn(200, 2)
    with torch.no_grad():
        moves = [(flow.stacks()[0].prepare()[k](x)).norm(dim=1).mean() for flow in (near, usual) for k in range(3)]
    assert max(moves[:3]) < 0.05
    assert block != "dense" or min(moves[3:]) > 0.1  # the others begin with a small closing map anyway


def test_a_flow_that_starts_near_the_identity_is_near_its_preprocessing():
    distances = {}
    for start in ("identity", "random"):
        torch.manual_seed(0)
        flow = idn.build("toy-idensenet", blocks=(5,), preprocess="standardize", start=start)
        x = torch.tensor([[30.0, 0.01]]) * data(flow, 200)
        flow.standardize(x)
        z, log_det = flow(x)
        y, before = flow.preprocess(x)
        distances[start] = float((z - y).detach().abs().max()), float((log_det - before).detach().abs().max())
    assert max(distances["identity"]) < 0.05
    assert all(near < 0.2 * usual for near, usual in zip(distances["identity"], distances["random"], strict=True))


def test_conditional_and_image_models_start_near_the_identity_too():
    flow = idn.build("toy-idensenet", context=2, start="identity", blocks=(4,))
    x, c = torch.randn(100, 2), torch.randn(100, 2)
    assert float((flow(x, context=c)[0] - x).detach().abs().max()) < 0.1
    images_flow = idn.build("digits-idensenet", blocks=(2, 2), growth=8, fc_blocks=1, actnorm=False, start="identity")
    x = images_flow.preprocess.encode(images_flow.dequantize(images(images_flow, 8)))
    z = images_flow.body.encode(x).detach()
    squeezed = torch.nn.functional.pixel_unshuffle(x, 2)
    assert float((z - squeezed).norm() / squeezed.norm()) < 0.05


def test_no_other_start_is_taken():
    with pytest.raises(OptionError, match=r"start='zero' is not known; use 'random' or 'identity'"):
        idn.build("toy-idensenet", start="zero")


# Estimators and solvers by name


def test_every_estimator_is_made_as_asked():
    assert isinstance(make_log_det(LogDetConfig()), ExactLogDet)
    series = make_log_det(LogDetConfig(method="series", terms=7, probes=2, probe="gaussian"))
    assert isinstance(series, SeriesLogDet)
    assert (series.terms, series.probes, series.probe) == (7, 2, "gaussian")
    config = LogDetConfig(
        method="roulette", exact_terms=3, law="geometric", law_parameter=0.4, eval_method="roulette", eval_probes=5
    )
    roulette, evaluation = make_log_det(config), make_log_det(config, evaluation=True)
    assert isinstance(roulette, RouletteLogDet)
    assert isinstance(roulette.law, Geometric)
    assert (roulette.law.p, roulette.exact_terms, roulette.probes) == (0.4, 3, 1)
    assert (evaluation.exact_terms, evaluation.probes) == (20, 5)
    assert isinstance(make_log_det(LogDetConfig(method="roulette")).law, Poisson)
    adaptive = make_log_det(LogDetConfig(method="adaptive", tolerance=1e-3))
    assert isinstance(adaptive, AdaptiveLogDet)
    assert adaptive.tolerance == 1e-3


@pytest.mark.parametrize(("method", "kind"), [("picard", Picard), ("anderson", Anderson), ("newton", Newton)])
def test_every_solver_is_made_as_asked(method, kind):
    solver = make_solver(SolverConfig(method=method, tol=1e-4, max_steps=17))
    assert type(solver) is kind
    assert (solver.tol, solver.max_steps) == (1e-4, 17)


@pytest.mark.parametrize("memory", ["keep", "save"])
@pytest.mark.parametrize("method", ["exact", "series", "roulette", "adaptive", "krylov"])
def test_a_flow_trains_and_evaluates_with_every_estimator(method, memory):
    torch.manual_seed(0)
    logdet = {
        "method": method,
        "eval_method": method,
        "eval_terms": 30,
        "tolerance": 1e-7,
        "eval_probes": 50,
    }
    options = {"shape": (4,), "blocks": (2,), "depth": 1, "growth": 4, "logdet": logdet, "train": {"memory": memory}}
    flow = idn.build("toy-idensenet", **options).double()
    torch.manual_seed(0)
    exact = idn.build("toy-idensenet", shape=(4,), blocks=(2,), depth=1, growth=4).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(flow.log_prob(x), exact.log_prob(x), rtol=0, atol=0.3)
    flow.train().log_prob(x).sum().backward()
    assert all(p.grad is not None for p in flow.parameters())
    assert [stack.save for stack in flow.stacks()] == [memory == "save"]
    flow.save_memory(memory == "keep")
    assert [stack.save for stack in flow.stacks()] == [memory == "keep"]


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("block", ["dense", "residual"])
def test_every_activation_makes_a_contractive_flow(name, block):
    torch.manual_seed(0)
    flow = idn.build("toy-idensenet", activation=name, block=block, blocks=(2,), depth=2, growth=4, width=8).double()
    assert flow.certify().contractive
    x = torch.randn(4, 2, dtype=torch.float64)
    torch.testing.assert_close(flow.inverse(flow(x)[0])[0], x, rtol=1e-10, atol=1e-10)


# Other norms


@pytest.mark.parametrize("norm", [1, 2, math.inf, "inf"])
@pytest.mark.parametrize("name", ["toy-idensenet", "toy-idensenet-clipswish", "toy-resflow", "digits-idensenet"])
def test_concatenation_in_other_norms_is_certified_and_inverts(name, norm):
    torch.manual_seed(0)
    small = {"blocks": (1, 1), "growth": 8, "fc_blocks": 1} if name.startswith("digits") else {"blocks": (2,), "width": 8}
    flow = idn.build(name, norm=norm, **small).double()
    with torch.no_grad():
        for m in flow.modules():
            if isinstance(m, LipschitzMap):
                torch.nn.init.normal_(m.weight)  # so that the normalisation has something to do
    x = data(flow, 8)
    flow.initialize(x)
    certificate = flow.certify()
    assert certificate.norm == float(norm)
    assert certificate.contractive
    assert f"{norm}-norm" in str(certificate)
    with torch.no_grad():
        y = flow.preprocess.encode(flow.dequantize(x[:2]))
        torch.testing.assert_close(flow.body.decode(flow.body.encode(y)), y, rtol=1e-9, atol=1e-9)
    shape = (2,) if flow.levels is None else (1, 8, 8)
    near = torch.randn(16, *shape, dtype=torch.float64)
    for row, (_, stack, k) in list(zip(certificate.blocks, flow.named_blocks(), strict=True))[: 1 if flow.levels else 2]:
        with torch.no_grad():
            g = stack.prepare()[k]
        assert 1e-4 < float(torch.linalg.matrix_norm(jacobians(g, near), float(norm)).max()) <= row.L


@pytest.mark.parametrize("name", ["toy-idensenet", "toy-idensenet-clipswish", "digits-idensenet", "cifar10-coupling-hybrid"])
@pytest.mark.parametrize("norm", [3, 0, -1, 1.5])
def test_no_other_norm_is_taken(name, norm):
    with pytest.raises(OptionError, match=rf"norm={norm}.* use 1, 2 or infinity"):
        idn.build(name, norm=norm)


def test_a_configuration_of_its_own_builds_a_flow():
    flow = build_config(Config().replace(shape=(3,), blocks=(1,), growth=4))
    x = torch.randn(16, 3)
    flow.initialize(x)
    assert flow.log_prob(x).shape == (16,)


def test_normalize_and_logit_are_what_the_recipe_says():
    flow = idn.build("cifar10-idensenet-hybrid", shape=(3, 8, 8), blocks=(1,), growth=4, fc_blocks=0, head_width=4)
    x = images(flow, 2)
    smooth = flow.dequantize(x) / 256
    expected = (smooth - torch.tensor(flow.config.model.mean)[:, None, None]) / torch.tensor(flow.config.model.std)[
        :, None, None
    ]
    torch.testing.assert_close(flow.preprocess.encode(flow.dequantize(x)), expected)
    flow = idn.build("cifar10-idensenet", shape=(3, 8, 8), blocks=(1,), growth=4, fc_blocks=0)
    expected = torch.logit(0.05 + 0.9 * smooth)
    torch.testing.assert_close(flow.preprocess.encode(flow.dequantize(x)), expected)


@pytest.mark.parametrize("name", ["toy-idensenet", "toy-resflow", "digits-idensenet"])
def test_beta_starts_where_it_is_told(name):
    for wanted in (0.5, 4.0):
        flow = idn.build(name, beta=wanted)
        betas = [b for n, p in flow.named_parameters() if n.endswith("beta") for b in p.tolist()]
        assert betas
        assert set(betas) == {wanted}


def test_squeezes_and_whitening_in_front_of_the_scales():
    flow = idn.build("digits-idensenet", blocks=(1, 2), growth=4, fc_blocks=0, squeezes=1, mix="whiten")
    shapes = [stack.g.layers[0].linear.inputs for stack in flow.stacks()]
    assert shapes == [4, 16]
    mixing = [m for m in flow.modules() if isinstance(m, InvertibleConv1x1)]
    assert [m.channels for m in mixing] == [4, 16]
    x = torch.randint(0, 17, (64, 1, 8, 8), dtype=torch.uint8)
    flow.initialize(x)
    assert all(bool(m.initialized) for m in mixing)
    assert flow.certify().contractive
    with torch.no_grad():
        smooth = flow.preprocess.encode(flow.dequantize(x))
        back = flow.body.decode(flow.body.encode(smooth))
    torch.testing.assert_close(back, smooth, atol=1e-4, rtol=1e-4)


def test_options_of_squeezes_and_mixing_that_cannot_be():
    with pytest.raises(OptionError, match="use 'none' or 'whiten'"):
        idn.build("digits-idensenet", mix="blend")
    with pytest.raises(ShapeError, match=r"3 squeezes and 2 scales halve the image 4 times.*multiples of 16"):
        idn.build("digits-idensenet", squeezes=3)
    with pytest.raises(ShapeError, match="squeezes"):
        idn.build("toy-idensenet", squeezes=1)
    with pytest.raises(OptionError, match="squeezes=-1 must not be negative"):
        idn.build("digits-idensenet", squeezes=-1)
