"""Flows inside the sbi package, against the flow itself and against known posteriors."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

pytest.importorskip("sbi", reason="sbi is not installed")

from sbi.inference import NPE

from idensenet.sbi import FlowEstimator, density_estimator


@pytest.fixture(scope="module")
def estimator() -> FlowEstimator:
    """A flow with random weights: the density of two numbers given three."""
    generator = torch.Generator().manual_seed(0)
    theta, x = torch.randn(200, 2, generator=generator) * 3 + 1, torch.randn(200, 3, generator=generator)
    torch.manual_seed(0)
    found = density_estimator(blocks=3, growth=16)(theta, x)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return found.eval()


@torch.no_grad()
def test_batches_of_inputs_and_conditions_broadcast(estimator):
    theta, x = torch.randn(4, 5, 2), torch.randn(5, 3)
    wanted = torch.stack([estimator.net.log_prob(rows, context=x) for rows in theta])
    torch.testing.assert_close(estimator.log_prob(theta, x), wanted)
    torch.testing.assert_close(estimator.log_prob(theta, x.expand(4, 5, 3)), wanted)
    torch.testing.assert_close(estimator.log_prob(theta[0], x), wanted[:1])
    torch.testing.assert_close(estimator.loss(theta[0], x), -wanted[0])
    one = torch.stack([estimator.net.log_prob(rows, context=x[:1].expand(5, -1)) for rows in theta])
    torch.testing.assert_close(estimator.log_prob(theta, x[:1]), one)
    assert not torch.allclose(one, wanted)  # the condition matters


@torch.no_grad()
def test_samples_have_their_densities_and_follow_their_condition(estimator):
    x = torch.randn(2, 3) * 2
    theta, log_prob = estimator.sample_and_log_prob(torch.Size((3000,)), x)
    assert theta.shape == (3000, 2, 2)
    torch.testing.assert_close(log_prob, estimator.log_prob(theta, x), atol=1e-3, rtol=1e-3)
    again = estimator.sample(torch.Size((3000,)), x)
    error = (again.var(0) / 3000 + theta.var(0) / 3000).sqrt()
    assert bool(((again.mean(0) - theta.mean(0)).abs() < 4 * error).all())  # the same condition, within four errors
    assert not bool(((again.mean(0)[0] - theta.mean(0)[1]).abs() < 4 * error[0]).all())  # the control: another condition


@torch.no_grad()
def test_the_density_given_a_condition_integrates_to_one(estimator):
    side = torch.linspace(-24, 26, 300)
    grid = torch.cartesian_prod(side, side)
    x = torch.randn(1, 3, generator=torch.Generator().manual_seed(1))
    mass = estimator.log_prob(grid[:, None], x).exp().sum() * float(side[1] - side[0]) ** 2
    assert abs(float(mass) - 1) < 3e-3


def test_npe_finds_the_posterior_of_a_linear_gaussian(tmp_path, monkeypatch):
    """theta ~ N(0, 1), x = theta + N(0, 0.5^2): the posterior at x = 1 is N(0.8, 0.2)."""
    monkeypatch.chdir(tmp_path)  # sbi writes its logs there
    torch.manual_seed(0)
    prior = MultivariateNormal(torch.zeros(1), torch.eye(1))
    theta = prior.sample((1000,))
    x = theta + 0.5 * torch.randn(1000, 1)
    embedding = torch.nn.Linear(1, 2)
    inference = NPE(prior, density_estimator=density_estimator(blocks=2, growth=16, embedding_net=embedding))
    inference.append_simulations(theta, x)
    network = inference.train(learning_rate=1e-2, max_num_epochs=15, show_train_summary=False)
    assert isinstance(network, FlowEstimator)
    assert network.net.certify().contractive
    assert not torch.equal(network.embedding_net.weight, embedding.weight)  # a copy was trained with the flow
    at = torch.linspace(-1, 2.5, 50)[:, None]
    found = inference.build_posterior(network).log_prob(at, x=torch.ones(1, 1))
    exact = Normal(0.8, 0.2**0.5).log_prob(at[:, 0])
    weight = exact.exp() / exact.exp().sum()
    assert float((weight * (exact - found)).sum()) < 0.05  # the divergence in nats
    assert float((weight * (exact - prior.log_prob(at))).sum()) > 0.3  # the control: the prior itself
