import math

import pytest
import torch

import idensenet as idn
from brute import jacobians
from flows import data, images
from idensenet.bijections import Coupling, InvertibleConv1x1, ResidualBlock
from idensenet.config import Config, LogDetConfig, SolverConfig
from idensenet.errors import OptionError
from idensenet.lipschitz import ACTIVATIONS, LipschitzMap
from idensenet.logdet import AdaptiveLogDet, ExactLogDet, Geometric, Poisson, RouletteLogDet, SeriesLogDet
from idensenet.models import build_config, make_log_det, make_solver
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
    assert flow.num_parameters == parameters
    assert all(p.requires_grad for p in flow.parameters())


def test_the_extended_residual_flow_has_about_nineteen_million_parameters():
    assert round(idn.build("cifar10-resflow-small-extended").num_parameters / 1e6, 1) == 19.1


@pytest.mark.parametrize("name", [n for n in idn.recipes() if n not in PARAMETERS])
def test_all_other_recipes_build_too(name):
    flow = idn.build(name)
    assert flow.num_parameters > 0
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
    names = [name for name, _ in flow.named_blocks()]
    assert names == [f"{i}.{j}" for i in range(1, 5) for j in range(1, 5)]
    assert flow.latent_shape == (48, 8, 8)
    assert flow.dims == 3072


def test_the_extended_toy_flow_has_the_widths_of_the_dense_one():
    _, block = idn.build("toy-resflow-extended").named_blocks()[0]
    assert [m.weight.shape[0] for m in block.g.modules() if isinstance(m, LipschitzMap)] == [18, 34, 50, 2]


def test_the_extended_image_flow_has_the_widths_of_the_dense_one():
    blocks = dict(idn.build("cifar10-resflow-small-extended", blocks=(1, 1, 1), fc_blocks=1).named_blocks())
    shapes = [tuple(m.weight.shape[::2]) for m in blocks["2.1"].g.modules() if isinstance(m, LipschitzMap)]
    assert shapes == [(12 + 124, 3), (12 + 248, 3), (12 + 372, 3), (12, 1)]
    assert [m.weight.shape[0] for m in blocks["4.1"].g.modules() if isinstance(m, LipschitzMap)] == [64, 96, 128, 160, 3072]


def test_only_the_very_first_residual_network_on_images_starts_without_an_activation():
    blocks = [b for _, b in idn.build("cifar10-resflow-small", blocks=(2, 1, 1), fc_blocks=1, width=8).named_blocks()]
    starts = [isinstance(b.g.layers[0], LipschitzMap) for b in blocks]
    assert starts == [True, False, False, False, False]


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


@pytest.mark.parametrize("recompute", [True, "input"])
@pytest.mark.parametrize("method", ["exact", "series", "roulette", "adaptive"])
def test_a_flow_trains_and_evaluates_with_every_estimator(method, recompute):
    torch.manual_seed(0)
    logdet = {
        "method": method,
        "eval_method": method,
        "eval_terms": 30,
        "tolerance": 1e-7,
        "eval_probes": 50,
        "recompute": recompute,
    }
    flow = idn.build("toy-idensenet", shape=(4,), blocks=(2,), depth=1, growth=4, logdet=logdet).double()
    torch.manual_seed(0)
    exact = idn.build("toy-idensenet", shape=(4,), blocks=(2,), depth=1, growth=4).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(flow.log_prob(x), exact.log_prob(x), rtol=0, atol=0.3)
    flow.train().log_prob(x).sum().backward()
    assert all(p.grad is not None for p in flow.parameters())
    blocks = [m for m in flow.modules() if isinstance(m, ResidualBlock)]
    assert all(b.recompute == recompute for b in blocks)


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
    name, block = flow.named_blocks()[0]
    shape = (2,) if flow.levels is None else (1, 8, 8)
    largest = torch.linalg.matrix_norm(jacobians(block.g, torch.randn(16, *shape, dtype=torch.float64)), float(norm)).max()
    assert 1e-4 < float(largest) <= certificate.blocks[0].L


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
        betas = [float(p.detach()) for n, p in idn.build(name, beta=wanted).named_parameters() if n.endswith("beta")]
        assert betas
        assert set(betas) == {wanted}
