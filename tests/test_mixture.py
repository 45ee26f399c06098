"""The mixture under a flow against torch's own mixtures, repeated rows and integrals."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

import idensenet as idn
from flows import points
from idensenet.distributions import FlowDistribution
from idensenet.errors import OptionError
from idensenet.mixture import Mixture, _maximised
from idensenet.structure import describe, restore


def random_mixture(components=3, dims=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mixture = Mixture(components, dims).double()
    with torch.no_grad():
        for parameter in mixture.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return mixture


def reference(mixture):
    P = torch.linalg.inv(mixture.precision()).tril()
    means = (P @ mixture.shift[:, :, None])[:, :, 0]
    return MixtureSameFamily(Categorical(logits=mixture.logits), MultivariateNormal(means, scale_tril=P))


def test_log_densities_and_their_gradients_are_those_of_torch():
    mixture, z = random_mixture(4, 3), torch.randn(20, 3, dtype=torch.float64, requires_grad=True)
    wanted = [z, *mixture.parameters()]
    right, found = reference(mixture).log_prob(z), mixture.log_prob(z)
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    weights = torch.randn(20, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad((weights * found).sum(), wanted),
        torch.autograd.grad((weights * right).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


def test_samples_have_the_moments_of_the_mixture_and_temperature_shrinks_components_only():
    mixture, n = random_mixture(3, 2, seed=1), 20_000
    generator = torch.Generator().manual_seed(0)
    drawn, law = mixture.sample(n, generator), reference(mixture)
    error = drawn.std(0) / math.sqrt(n)
    assert ((drawn.mean(0) - law.mean).abs() < 5 * error).all()
    assert ((drawn.var(0) - law.variance).abs() < 0.15 * law.variance).all()
    assert ((drawn.mean(0) - law.mean - 0.5).abs() > 5 * error).all()  # the control: this many would see a shift
    drawn.sum().backward()
    assert float(mixture.shift.grad.norm()) > 0
    means = torch.linalg.solve(mixture.precision(), mixture.shift[:, :, None])[:, :, 0]
    cold = mixture.sample(50, generator, temperature=1e-9)
    assert float(torch.cdist(cold, means).min(1).values.max()) < 1e-6
    assert mixture.sample(0).shape == (0, 2)


def test_a_fit_finds_three_clusters_and_improves_with_every_component():
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[-2.0, 0], [2, 0], [0, 2.5]], dtype=torch.float64)

    def draw(n):
        return centres[torch.randint(3, (n,), generator=generator)] + 0.4 * torch.randn(n, 2, generator=generator).double()

    rows, new = draw(600), draw(5000)
    law = MixtureSameFamily(
        Categorical(torch.ones(3)), MultivariateNormal(centres, 0.16 * torch.eye(2, dtype=torch.float64).expand(3, 2, 2))
    )
    scores = []
    for components in (1, 3):
        mixture = Mixture(components, 2)
        train = mixture.fit(rows, generator=generator)
        with torch.no_grad():
            assert train == pytest.approx(float(mixture.log_prob(rows.float()).mean()), abs=1e-4)
            scores.append(float(mixture.double().log_prob(new).mean()))
    assert scores[0] < scores[1] - 0.5
    assert scores[1] == pytest.approx(float(law.log_prob(new).mean()), abs=0.03)
    with pytest.raises(OptionError, match="2 rows are too few for 3 components"):
        Mixture(3, 2).fit(rows[:2])


def test_a_row_of_weight_two_counts_as_two_equal_rows_in_a_maximisation_step():
    x, counts = torch.randn(30, 3, dtype=torch.float64), torch.randint(1, 4, (30,))
    chances = torch.rand(2, 30, dtype=torch.float64)
    weighted = _maximised(x, chances * counts, 3.0)
    repeated = _maximised(x.repeat_interleave(counts, 0), chances.repeat_interleave(counts, 1), 3.0)
    for ours, theirs in zip(weighted, repeated, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_covariances_are_pooled_as_far_as_asked():
    x = torch.cat([torch.randn(200, 2, dtype=torch.float64), 5 + 3 * torch.randn(200, 2, dtype=torch.float64)])
    inside = torch.zeros(2, 400, dtype=torch.float64)
    inside[0, :200] = inside[1, 200:] = 1
    apart, tied = (_maximised(x, inside, strength)[1] for strength in (0.0, 1e12))
    torch.testing.assert_close(tied[0], tied[1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        torch.linalg.inv(apart[1].T @ apart[1]), torch.cov(x[200:].T, correction=0), rtol=1e-4, atol=1e-4
    )


@pytest.fixture(scope="module")
def flow():
    torch.manual_seed(0)
    made = idn.build("toy-idensenet", blocks=(2,), preprocess="whiten", components=5).double()
    made.standardize(points(400).double())
    return made


def test_a_flow_over_a_mixture_integrates_to_one_and_samples_from_its_density(flow):
    side = torch.linspace(-6, 6, 400, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    with torch.no_grad():
        density = flow.log_prob(grid).exp()
        drawn = flow.sample(4000, torch.Generator().manual_seed(0))
        scores = flow.log_prob(drawn)
    cell = float(side[1] - side[0]) ** 2
    assert float(density.sum() * cell) == pytest.approx(1, abs=0.01)
    entropy = -float((density * density.clamp(min=1e-300).log()).sum() * cell)
    assert float(scores.mean()) == pytest.approx(-entropy, abs=5 * float(scores.std()) / 4000**0.5)
    assert float(scores.mean()) > -math.log(2 * math.pi * math.e * 2) + 0.5  # a Gaussian of the ring has no more
    x, log_p = flow.sample_and_log_prob(5)
    torch.testing.assert_close(log_p, flow.log_prob(x), rtol=1e-6, atol=1e-6)
    p = FlowDistribution(flow)
    assert float(p.log_prob(p.sample((2000,))).detach().mean()) == pytest.approx(-entropy, abs=0.2)
    assert flow.certify().contractive


def test_it_is_saved_with_its_mixture(flow, tmp_path):
    x = points(20, 1).double()
    idn.save(flow, tmp_path / "built")
    by_hand = idn.Flow(flow.body, flow.shape, preprocess=flow.preprocess, base=flow.base).to(torch.float64)
    idn.save(by_hand, tmp_path / "assembled")
    for name in ("built", "assembled"):
        assert torch.equal(idn.load(tmp_path / name).log_prob(x), flow.log_prob(x))
    assert restore(describe(flow.base)).components == 5
    np.testing.assert_array_equal(flow.frozen().log_prob(x), flow.log_prob(x).detach())


def test_components_are_for_densities_of_tables():
    for options in ({"components": 0}, {"components": 3}, {"components": 3, "preprocess": "whiten", "classes": 2}):
        with pytest.raises(OptionError, match=r"components=\d must be positive, and 1 unless"):
            idn.build("toy-idensenet", **options)
    with pytest.raises(OptionError, match="components=0 must be a positive"):
        Mixture(0, 2)
