"""Every recipe: it is there, it inverts, it is certified before and after training."""

import pytest
import torch

import idensenet as idn
from flows import coarse_norms, data, train
from idensenet.bijections import Invert, monotone, residual
from idensenet.config import recipe

NAMES = [
    "bsds300-idensenet",
    "cifar10-best",
    "cifar10-best-tiny",
    "cifar10-coupling-hybrid",
    "cifar10-coupling-tiny-hybrid",
    "cifar10-glow-hybrid",
    "cifar10-glow-tiny-hybrid",
    "cifar10-idensenet",
    "cifar10-idensenet-hybrid",
    "cifar10-idensenet-small",
    "cifar10-idensenet-small-depth2",
    "cifar10-idensenet-small-depth4",
    "cifar10-idensenet-small-depth5",
    "cifar10-idensenet-small-leaky",
    "cifar10-idensenet-small-lipswish",
    "cifar10-idensenet-tiny",
    "cifar10-idensenet-tiny-depth2",
    "cifar10-idensenet-tiny-depth4",
    "cifar10-idensenet-tiny-depth5",
    "cifar10-idensenet-tiny-hybrid",
    "cifar10-idensenet-tiny-leaky",
    "cifar10-idensenet-tiny-lipswish",
    "cifar10-iresnet",
    "cifar10-resflow",
    "cifar10-resflow-hybrid",
    "cifar10-resflow-small",
    "cifar10-resflow-small-clipswish",
    "cifar10-resflow-small-extended",
    "cifar10-resflow-small-leaky",
    "cifar10-resflow-tiny",
    "cifar10-resflow-tiny-clipswish",
    "cifar10-resflow-tiny-extended",
    "cifar10-resflow-tiny-hybrid",
    "cifar10-resflow-tiny-leaky",
    "digits-idensenet",
    "imagenet32-idensenet",
    "imagenet32-resflow",
    "images64-idensenet",
    "mnist-best",
    "mnist-idensenet",
    "toy-best",
    "toy-best-monotone",
    "toy-idensenet",
    "toy-idensenet-clipswish",
    "toy-idensenet-fixed",
    "toy-implicit",
    "toy-monotone",
    "toy-resflow",
    "toy-resflow-extended",
]
TOY = [name for name in NAMES if name.startswith("toy-")]
FAST = [*TOY, "bsds300-idensenet", "digits-idensenet", "mnist-idensenet"]
LARGE = [name for name in NAMES if name not in FAST]
OVER_10M = [name for name in LARGE if "tiny" not in name and "best" not in name and ("small" not in name or "extended" in name)]


EVERY = [pytest.param(name, marks=pytest.mark.slow if name in OVER_10M else []) for name in NAMES]


def test_the_recipes_are_those_of_the_design():
    assert idn.recipes() == NAMES


@pytest.mark.parametrize("name", [name for name in NAMES if "tiny" in name and "extended" not in name and "best" not in name])
def test_tiny_models_have_the_same_size(name):
    """0.30M parameters within 2 %, and all else as the tiny i-DenseNet: data, order, steps."""
    assert abs(idn.build(name).num_parameters / 300_000 - 1) < 0.02
    base, other = recipe("cifar10-idensenet-tiny").config, recipe(name).config
    if "hybrid" not in name:
        assert (base.data, base.logdet, base.train) == (other.data, other.logdet, other.train)


def test_the_best_toy_model_is_no_larger_and_no_longer_than_the_papers():
    best, papers = recipe("toy-best").config, recipe("toy-idensenet").config
    assert idn.build("toy-best").num_parameters <= idn.build("toy-idensenet").num_parameters == 10_230
    assert best.model.blocks == papers.model.blocks == (10,)
    assert best.train.max_steps <= papers.train.max_steps == 50_000
    assert best.train.batch_size == papers.train.batch_size == 500


def test_the_best_tiny_model_stays_within_its_budget():
    best = recipe("cifar10-best-tiny").config.train
    assert idn.build("cifar10-best-tiny").num_parameters <= 330_000
    assert (best.max_steps, best.batch_size, best.accumulate) == (1200, 16, 1)


def test_growth_per_scale():
    flow = idn.build("digits-idensenet", blocks=(1, 2), growth=(4, 8), fc_blocks=0)
    widths = [stack.g.layers[0].linear.outputs for _, stack, _ in flow.named_blocks()]
    assert widths == [2, 4, 4]  # CLipSwish makes two channels of one
    with pytest.raises(idn.errors.OptionError, match="one for each of the 2 scales"):
        idn.build("digits-idensenet", growth=(4, 8, 8))


@pytest.fixture
def solutions(monkeypatch):
    """Every solution that a block finds, with the goal its residual had to meet."""
    found = []
    real = residual.solve

    def spy(g, y, solver):
        solution = real(g, y, solver)
        tol = solver.tol or (1e-12 if y.dtype == torch.float64 else 1e-6)
        size = y.flatten(1).norm(dim=1)
        goal = torch.clamp(4 * torch.finfo(y.dtype).eps * size, min=tol * (y[0].numel() ** 0.5))
        found.append((solution, goal))
        return solution

    monkeypatch.setattr(residual, "solve", spy)
    monkeypatch.setattr(monotone, "solve", spy)
    return found


def round_trips(flow, batch, tolerance, solutions, record_property):
    """x -> z -> x in units of [0, 1] for images, and z -> x -> z after the preprocessing, in units of the largest |z|."""
    x = data(flow, 16 if flow.levels is None else batch)
    with torch.no_grad():
        smooth = flow.dequantize(x)
        z = flow.body.encode(flow.preprocess.encode(smooth))
        latent = torch.randn_like(z)
        back, drawn = flow.body.decode(torch.cat([z, latent])).split(len(z))  # both together: a solver's steps cost the same
        back, again = flow.preprocess.decode(back), flow.body.encode(drawn)
    there = float((back - smooth).abs().max()) / (flow.levels or 1)
    again = float((again - latent).abs().max() / latent.abs().max())
    assert float((z - flow.preprocess.encode(smooth).view_as(z)).abs().max()) > 1e-3  # it does something
    assert there < tolerance
    assert again < tolerance
    blocks = flow.named_blocks()
    # a block that is inverted is solved in both calls of encode, and not in decode
    inverted = len([x for x in flow.modules() if isinstance(x, Invert) and isinstance(x.inner, residual.ResidualBlock)])
    assert len(solutions) == len(blocks) + inverted  # monotone blocks of few dimensions encode by Newton steps of their own
    for solution, goal in solutions:
        assert bool(solution.converged.all())
        assert bool((solution.residual <= goal).all())
    if blocks:
        record_property("residual", max(float(solution.residual.max()) for solution, _ in solutions))
    record_property("round_trip", (there, again))


# the norms of the large recipes need not be exact to a permille to be inverted
@pytest.mark.parametrize("name", EVERY)
def test_round_trips_in_float32_and_float64(name, solutions, record_property):
    flow = coarse_norms(idn.build(name))
    # ActNorm per dimension: from very few images it takes scales of thousands, which no float32 can undo
    flow.initialize(data(flow, 16, seed=1))
    solutions.clear()
    round_trips(flow, 1, 1e-5, solutions, record_property)
    solutions.clear()
    round_trips(flow.double(), 1, 1e-10, solutions, record_property)


def test_a_sloppy_solver_fails_the_round_trip(solutions, record_property):
    flow = idn.build("toy-idensenet", solver={"method": "picard", "tol": 1e-3})
    with pytest.raises(AssertionError):
        round_trips(flow, 2, 1e-5, solutions, record_property)


def certified(flow):
    certificate = flow.certify()
    assert certificate.contractive, str(certificate)
    assert len(certificate.blocks) == len(flow.named_blocks())
    assert 0 < certificate.L < 1
    return certificate


@pytest.mark.parametrize("name", [*TOY, "digits-idensenet", pytest.param("mnist-idensenet", marks=pytest.mark.slow)])
def test_certified_at_initialisation_and_after_fifty_steps(name):
    flow = idn.build(name)
    flow.initialize(data(flow, 4 if flow.levels else 64))
    before = certified(flow)
    train(flow, 50, 4 if flow.levels else 64)
    after = certified(flow)
    assert before.L != after.L


RESIDUAL = [name for name in LARGE if "coupling" not in name and "glow" not in name]


@pytest.mark.slow
@pytest.mark.parametrize("name", RESIDUAL)
def test_large_recipes_are_certified_at_initialisation_and_after_fifty_steps(name):
    flow = idn.build(name, logdet={"method": "series", "terms": 1})  # the cheapest gradient; the weights move all the same
    flow.initialize(data(flow, 16))
    before = certified(flow)
    train(flow, 50, 1, warmup=1000)  # as the recipes do
    after = certified(flow)
    assert before.L != after.L


@pytest.mark.parametrize("name", ["cifar10-coupling-hybrid", "cifar10-glow-hybrid"])
def test_couplings_have_no_certificate_and_claim_none(name):
    certificate = idn.build(name, blocks=(1, 1, 1), fc_blocks=1).certify()
    assert certificate.blocks == ()
    assert certificate.lower == 0
    assert certificate.upper == float("inf")
