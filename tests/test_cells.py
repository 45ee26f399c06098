"""Columns of whole numbers in a flow: probabilities of cells against exact ones, each with a control."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import idensenet as idn
from idensenet.bijections import Affine, Chain, Whiten
from idensenet.config import Config
from idensenet.distributions import FlowDistribution
from idensenet.errors import OptionError
from idensenet.flow import Flow
from idensenet.models import build_config

NEAR = torch.arange(-12, 15, dtype=torch.float64)


def gaussian(scale=0.4, loc=1.3):
    """One column, N(loc, scale): nearly all of it in two or three cells."""
    affine = Affine(torch.tensor([loc]), torch.tensor([scale]))
    return Flow(Chain([]), (1,), None, Chain([affine]), integers=(0,)).double().eval()


def mass(scale=0.4, loc=1.3):
    law = stats.norm(np.float32(loc).astype(float), np.float32(scale).astype(float))
    return law.cdf(NEAR.numpy() + 1) - law.cdf(NEAR.numpy())


def toy(**more):
    """A trained-looking flow of a real and a whole column."""
    torch.manual_seed(0)
    options = {"shape": (2,), "integers": (1,), "preprocess": "whiten", "blocks": (3,), "actnorm": False, **more}
    flow = build_config(Config().replace(**options)).double()
    real = torch.randn(500, dtype=torch.float64)
    context = torch.randn(500, flow.context, dtype=torch.float64) if flow.context else None
    flow.standardize(torch.stack([real, (real + torch.randint(0, 3, (500,))).round()], 1), context)
    return flow


@pytest.mark.parametrize("scale", [0.15, 0.4, 3.0])
def test_the_mass_of_a_cell_is_the_exact_one_to_the_accuracy_of_its_points(scale):
    flow, right = gaussian(scale), mass(scale)
    for points, error in ((16, 5e-3), (256, 5e-5)):
        flow.points = points
        found = flow.log_prob(NEAR[:, None]).exp().numpy()
        np.testing.assert_allclose(found, right, rtol=0, atol=error)
        assert found.sum() == pytest.approx(1, abs=error)
    centre = flow.log_prob(NEAR[:, None] + 0.5, dequantized=True).exp().numpy()
    if scale < 1:  # the control: a density is no mass
        assert np.abs(centre - right).max() > 0.1


def test_one_random_point_is_unbiased_and_its_logarithm_is_a_lower_bound():
    flow, right = gaussian(), mass()
    flow.points = 1
    cells = NEAR[(right > 1e-3).nonzero()[0], None]
    drawn = flow.log_prob(cells.repeat(4000, 1), torch.Generator().manual_seed(0)).reshape(4000, -1).numpy()
    error = np.exp(drawn).std(0) / len(drawn) ** 0.5
    right = right[right > 1e-3]
    assert (np.abs(np.exp(drawn).mean(0) - right) < 4 * error).all()
    assert (drawn.mean(0) < np.log(right)).all()
    low = np.exp(flow.log_prob(cells, dequantized=True).numpy())  # the control: the corner of a cell
    assert (np.abs(low - right) > 4 * error).any()


@pytest.mark.parametrize(("columns", "sixteen", "one"), [(1, 0.0004, 0.08), (5, 0.003, 0.22), (10, 0.013, 0.44)])
def test_how_far_scores_are_below_exact_probabilities_on_average(columns, sixteen, one):
    affine = Affine(torch.zeros(columns), torch.ones(columns))
    flow = Flow(Chain([]), (columns,), None, Chain([affine]), integers=range(columns)).double().eval()
    k = flow.sample(4000, torch.Generator().manual_seed(0))
    exact = np.log(stats.norm.cdf(k + 1) - stats.norm.cdf(k)).sum(1)
    for points, below in ((16, sixteen), (1, one)):
        flow.points = points
        gap = exact - flow.log_prob(k).numpy()
        assert gap.mean() == pytest.approx(below, abs=4 * gap.std() / len(gap) ** 0.5 + 0.02 * columns / points)


def test_masses_of_two_columns_are_the_probabilities_of_rectangles():
    flow = Flow(Chain([]), (2,), None, Chain([Whiten(2)]), integers=(0, 1)).double().eval()
    covariance = np.array([[1.0, 0.8], [0.8, 1.5]])
    (whiten,) = flow.preprocess
    values, vectors = np.linalg.eigh(covariance)
    whiten.weight.copy_(torch.from_numpy(vectors / values**0.5 @ vectors.T))
    cells = torch.cartesian_prod(NEAR[5:20], NEAR[5:20])
    law = stats.multivariate_normal([0, 0], covariance)
    right = np.array([law.cdf([x + 1, y + 1], lower_limit=[x, y]) for x, y in cells.numpy()])
    found = flow.log_prob(cells).exp().numpy()
    assert found.sum() == pytest.approx(1, abs=5e-3)
    large = right > 0.01
    np.testing.assert_allclose(found[large], right[large], rtol=0.2)
    flow.points = 1024
    np.testing.assert_allclose(flow.log_prob(cells).exp().numpy()[large], right[large], rtol=2e-3)


def test_a_density_times_a_mass_adds_up_to_one():
    flow = toy()
    side = torch.linspace(-6, 6, 41, dtype=torch.float64)
    cells = torch.cartesian_prod(side, torch.arange(-8, 12, dtype=torch.float64))
    with torch.no_grad():
        found = flow.log_prob(cells)
        assert float(found.exp().sum() * (side[1] - side[0])) == pytest.approx(1, abs=2e-3)
        terms = flow.log_prob_terms(cells)
        torch.testing.assert_close(sum(terms.values()), found)
        assert (terms["levels"] <= 1e-12).all()
        flow.points = 1
        corner = flow.log_prob(cells, dequantized=True)  # the control: the density at a corner of each cell
        assert float((found - corner).exp().sub(1).abs().max()) > 0.2


def test_it_is_a_function_of_the_row_and_so_is_its_gradient():
    flow = toy(actnorm=True)
    x = torch.tensor([[0.3, 1.0], [-1.0, 0.0], [2.0, 5.0]], dtype=torch.float64)
    flow.initialize(x)
    once = flow.log_prob(x)
    torch.testing.assert_close(flow.log_prob(x[[2, 0, 1]])[[1, 2, 0]], once, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([flow.log_prob(row[None]) for row in x]), once, rtol=1e-12, atol=1e-12)
    flow.seed = 1
    assert not torch.allclose(flow.log_prob(x), once, rtol=1e-12)
    shift = next(p for name, p in flow.named_parameters() if name.endswith("shift"))
    (found,) = torch.autograd.grad(flow.log_prob(x).sum(), shift)
    with torch.no_grad():
        for i in range(2):
            sides = []
            for step in (1e-5, -1e-5):
                shift[0, i] += step
                sides.append(float(flow.log_prob(x).sum()))
                shift[0, i] -= step
            assert float(found[0, i]) == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-5)


def test_samples_are_whole_and_as_frequent_as_their_mass():
    flow, right = gaussian(), mass()
    drawn = flow.sample(20_000, torch.Generator().manual_seed(0))[:, 0]
    assert (drawn == drawn.floor()).all()
    share = np.array([(drawn == k).double().mean() for k in NEAR])
    error = np.sqrt(right * (1 - right) / 20_000)
    assert (np.abs(share - right) < 4 * error + 1e-4).all()
    rounded = np.array([(flow.inverse(flow._latent(20_000, None, 1.0))[0][:, 0].round() == k).double().mean() for k in NEAR])
    assert (np.abs(rounded - right) > 10 * error + 1e-4).any()  # the control: rounding is another cell than [k, k + 1)


def test_noise_stays_strictly_inside_of_the_cells_in_float32_too():
    flow = gaussian().float()
    x = torch.tensor([[0.0], [1000.0], [123456.0]])
    for u in (0.0, 1 - 2**-24, 1.0):
        spread = flow.cells.spread(x, torch.full_like(x, u))
        assert ((spread > x) & (spread < x + 1)).all()
    bounded = toy(bounds=((None, None), (0, 3))).float()
    cells = torch.cartesian_prod(torch.zeros(1), torch.arange(-2.0, 6.0))
    assert torch.isneginf(bounded.log_prob(cells)).tolist() == [True] * 2 + [False] * 3 + [True] * 3
    assert set(bounded.sample(500)[:, 1].tolist()) == {0.0, 1.0, 2.0}


def test_numbers_between_are_impossible_and_training_draws_one_point():
    flow = gaussian()
    assert torch.isneginf(flow.log_prob(torch.tensor([[0.5]], dtype=torch.float64)))
    x = torch.zeros(2000, 1, dtype=torch.float64)
    flow.train()
    drawn = flow.log_prob(x, torch.Generator().manual_seed(0))
    assert len(drawn.unique()) == 2000
    right = np.log(mass()[NEAR == 0])[0]
    assert float(drawn.mean()) < right < float(torch.logsumexp(drawn, 0)) - math.log(2000) + 0.2


def test_it_is_saved_frozen_and_refused_where_only_real_numbers_fit(tmp_path):
    flow, x = toy(), torch.tensor([[0.3, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    for each in (flow, Flow(Chain([]), (2,), integers=(1,)).double().eval()):
        idn.save(each, tmp_path / "model")
        torch.testing.assert_close(idn.load(tmp_path / "model").log_prob(x), each.log_prob(x), rtol=0, atol=0)
    torch.testing.assert_close(flow.frozen().log_prob(x), flow.log_prob(x), rtol=0, atol=0)
    with pytest.raises(OptionError, match="whole numbers cannot be exported"):
        flow.frozen().export("log_prob")
    with pytest.raises(OptionError, match="whole numbers"):
        FlowDistribution(flow)
    with pytest.raises(OptionError, match="must be numbers of columns"):
        toy(integers=(2,))


def test_a_classifier_averages_over_the_cell_by_its_density():
    flow = toy(classes=3, context=2)
    torch.manual_seed(1)
    torch.nn.init.normal_(flow.classifier.linear.weight)
    x, c = torch.tensor([[0.3, 1.0], [-1.0, 0.0]], dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    flow.points = 512
    found = flow.classify(x, context=c).softmax(1).detach()
    torch.testing.assert_close(found, flow.log_prob_and_logits(x, context=c)[1].softmax(1))
    plain = toy(classes=3, context=2, integers=())
    plain.load_state_dict(flow.state_dict())
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    for i in range(2):
        rows = torch.stack([x[i, 0].expand(4000), x[i, 1] + u], 1)
        with torch.no_grad():
            log_prob, logits = plain.log_prob_and_logits(rows, context=c[i])
        right = (log_prob.softmax(0)[:, None] * logits.softmax(1)).sum(0)
        torch.testing.assert_close(found[i], right, rtol=1e-3, atol=1e-5)
        assert float((logits.softmax(1).mean(0) - right).abs().max()) > 1e-4  # the control: all points the same
    with torch.no_grad():
        assert float((flow.classify(x, context=c) - flow.classify(x, context=-c)).abs().max()) > 0.1  # it reads the context
