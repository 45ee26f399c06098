"""Bijections and flows in torch.distributions, Pyro and zuko, against the flow itself and against exact answers."""

import math
import pickle

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, TransformedDistribution, constraints

import idensenet as idn
from idensenet.bijections import ResidualBlock
from idensenet.distributions import BijectionTransform, FlowDistribution
from idensenet.errors import OptionError, ShapeError
from idensenet.lipschitz import Pieces, dense_block


def flow(context=0):
    torch.manual_seed(0)
    made = idn.build("toy-idensenet", blocks=(2,), growth=6, context=context, activation="clipswish").double().eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return made


def standard(*batch):
    return Independent(Normal(torch.zeros(*batch, 2).double(), torch.ones(*batch, 2).double()), 1)


# The transform


def test_the_transform_is_the_bijection_for_any_batch_shape():
    made = flow()
    t = BijectionTransform(made.body, (2,))
    x = torch.randn(3, 4, 2).double()
    y = t(x)
    right, log_det = made.body(x.view(-1, 2))
    torch.testing.assert_close(y.view(-1, 2), right)
    torch.testing.assert_close(t.log_abs_det_jacobian(x, y).view(-1), log_det)
    torch.testing.assert_close(t.inv(y.clone()), x, rtol=0, atol=1e-9)
    torch.testing.assert_close(t.inv.log_abs_det_jacobian(y, x), -t.log_abs_det_jacobian(x, y), rtol=0, atol=1e-9)
    assert t.domain.event_dim == t.codomain.event_dim == 1
    assert t.inv.inv is t
    assert t.forward_shape((5, 2)) == (5, 2) == t.inverse_shape((5, 2))
    assert t == BijectionTransform(made.body, (2,))
    assert t != BijectionTransform(flow().body, (2,))


def test_value_and_log_determinant_come_from_one_pass_where_there_is_a_cache():
    block, calls = flow().named_blocks()[0][1], []
    block.register_forward_hook(lambda *args: calls.append(1))
    x = torch.randn(5, 2).double()
    for size, passes in ((1, 1), (0, 2)):
        t = BijectionTransform(block, (2,)).with_cache(size)
        calls.clear()
        y = t(x)
        t.log_abs_det_jacobian(x, y)
        assert len(calls) == passes
    cached = BijectionTransform(block, (2,), cache_size=1)
    y = cached(x)
    assert cached.inv(y) is x  # nothing is solved


def test_a_stale_cache_is_not_used_for_other_tensors():
    t, x = BijectionTransform(flow().body, (2,), cache_size=1), torch.randn(5, 2).double()
    y = t(x)
    assert pickle.loads(pickle.dumps(t))._last is None
    other = x + 1
    z = BijectionTransform(t.bijection, (2,))(other)
    assert (t.log_abs_det_jacobian(other, z) - t.log_abs_det_jacobian(x, y)).abs().max() > 1e-3


def test_the_density_follows_the_weights_and_one_batch_is_trained_on_again_and_again():
    made, x = flow(), torch.randn(6, 2).double()
    p = TransformedDistribution(standard(), BijectionTransform(made.body, made.shape).inv)
    optimizer = torch.optim.Adam(made.parameters(), 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        loss = -p.log_prob(x).mean()
        loss.backward()
        torch.testing.assert_close(loss, -made.log_prob(x).mean(), rtol=0, atol=1e-9)
        optimizer.step()


def test_a_transformed_distribution_has_the_density_and_the_samples_of_the_flow():
    made = flow()
    p = TransformedDistribution(standard(), BijectionTransform(made.body, made.shape).inv)
    x = torch.randn(6, 2).double()
    torch.testing.assert_close(p.log_prob(x), made.log_prob(x), rtol=0, atol=1e-9)
    drawn = p.rsample((7,))
    assert drawn.requires_grad
    assert p.event_shape == (2,)
    assert p.batch_shape == ()
    torch.testing.assert_close(p.log_prob(drawn), made.log_prob(drawn), rtol=0, atol=1e-8)
    batched = TransformedDistribution(standard(3), BijectionTransform(made.body, made.shape).inv)
    assert batched.log_prob(x[:3]).shape == (3,)
    assert batched.expand((4, 3)).sample().shape == (4, 3, 2)


def test_it_mixes_with_the_transforms_of_torch():
    made = flow()
    parts = [torch.distributions.AffineTransform(1.0, 2.0, event_dim=1), BijectionTransform(made.body, (2,)).inv]
    p = TransformedDistribution(standard(), parts)
    x = torch.randn(6, 2).double()
    z, log_det = made.body(x)
    right = standard().log_prob((z - 1) / 2) - 2 * math.log(2) + log_det
    torch.testing.assert_close(p.log_prob(x), right, rtol=0, atol=1e-9)


def test_a_shape_or_a_context_that_does_not_fit_is_named():
    t = BijectionTransform(flow().body, (2,))
    with pytest.raises(ShapeError, match=r"events of shape \(2,\) got a tensor of shape \(4, 3\)"):
        t(torch.zeros(4, 3).double())
    with pytest.raises(OptionError, match="give it a context"):
        BijectionTransform(flow(context=3).body, (2,))(torch.zeros(4, 2).double())
    one = ResidualBlock(dense_block([1], 1, 4, Pieces()))
    assert BijectionTransform(one, (1,)).sign == 1
    with pytest.raises(NotImplementedError):
        _ = t.sign


# The distribution


def test_the_distribution_is_that_of_the_flow():
    made = flow()
    p = FlowDistribution(made)
    x = torch.randn(3, 4, 2).double()
    torch.testing.assert_close(p.log_prob(x).view(-1), made.log_prob(x.view(-1, 2)))
    assert p.expand((5, 4)).log_prob(x[0]).shape == (5, 4)
    assert p.expand((5,)).sample((2,)).shape == (2, 5, 2)
    assert isinstance(p.support, constraints.independent)
    torch.manual_seed(1)
    drawn = p.sample((2000,))
    torch.manual_seed(1)
    again = FlowDistribution(made).sample((2000,))
    assert torch.equal(drawn, again)
    assert not drawn.requires_grad


def test_entropy_by_samples_agrees_with_a_grid():
    p = FlowDistribution(flow())
    torch.manual_seed(0)
    values = -p.log_prob(p.sample((4000,))).detach()
    side = torch.linspace(-30, 30, 600).double()
    with torch.no_grad():
        logs = p.log_prob(torch.cartesian_prod(side, side))
    area = (side[1] - side[0]) ** 2
    right = float(-(logs.exp() * logs).sum() * area)
    assert abs(float(logs.exp().sum() * area) - 1) < 0.01
    assert abs(float(values.mean()) - right) < 5 * float(values.std()) / 4000**0.5 + 0.01


def test_rsample_has_the_gradient_of_a_finite_difference():
    made = flow()
    weight = next(p for p in made.parameters() if p.ndim == 2)

    def mean_square(_=None):
        torch.manual_seed(0)
        return FlowDistribution(made).rsample((50,)).square().mean()

    (found,) = torch.autograd.grad(mean_square(), weight)
    direction = torch.randn_like(weight)
    values = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            weight.add_(step * direction)
            values.append(float(mean_square()))
            weight.add_(-step * direction)
    right = (values[0] - values[1]) / 2e-5
    assert float((found * direction).sum()) == pytest.approx(right, rel=1e-4, abs=1e-7)
    assert abs(right) > 1e-5


def test_contexts_make_a_batch_of_distributions():
    made = flow(context=3)
    c = torch.randn(4, 3).double().requires_grad_()
    p = FlowDistribution(made, c)
    assert p.batch_shape == (4,)
    x = torch.randn(5, 4, 2).double()
    found = p.log_prob(x)
    for i in range(4):
        torch.testing.assert_close(found[:, i], made.log_prob(x[:, i], context=c[i]), rtol=0, atol=1e-10)
    (grad,) = torch.autograd.grad(p.rsample((6,)).sum(), c)
    assert grad.abs().min() > 0
    assert p.expand((2, 4)).log_prob(x[:2]).shape == (2, 4)
    with pytest.raises(ValueError, match="within the support"):
        FlowDistribution(made, c, validate_args=True).log_prob(torch.full((4, 2), math.nan).double())
    with pytest.raises(OptionError, match="takes a context of 3 numbers"):
        FlowDistribution(made)
    with pytest.raises(OptionError, match="takes no context"):
        FlowDistribution(flow(), c)
    with pytest.raises(ShapeError, match="3 numbers in its last dimension"):
        FlowDistribution(made, c[:, :2])
    with pytest.raises(OptionError, match="integer levels"):
        FlowDistribution(idn.build("digits-idensenet"))


# Other libraries


def test_a_bijection_is_a_transform_of_zuko():
    zuko = pytest.importorskip("zuko")
    from idensenet.zuko import LazyBijection

    made = flow()
    base = zuko.lazy.UnconditionalDistribution(
        zuko.distributions.DiagNormal, torch.zeros(2).double(), torch.ones(2).double(), buffer=True
    )
    theirs = zuko.flows.Flow([LazyBijection(made.body, (2,))], base)
    x = torch.randn(6, 2).double()
    torch.testing.assert_close(theirs().log_prob(x), made.log_prob(x), rtol=0, atol=1e-9)
    drawn = theirs().rsample((5,))
    torch.testing.assert_close(theirs().log_prob(drawn), made.log_prob(drawn), rtol=0, atol=1e-8)
    assert {id(p) for p in made.body.parameters()} <= {id(p) for p in theirs.parameters()}
    conditional = flow(context=3)
    theirs = zuko.flows.Flow([LazyBijection(conditional.body, (2,))], base)
    c = torch.randn(6, 3).double()
    torch.testing.assert_close(theirs(c).log_prob(x), conditional.log_prob(x, context=c), rtol=0, atol=1e-9)


def test_a_flow_is_a_guide_in_pyro():
    """The posterior of a Gaussian mean is known; the flow finds it by stochastic variational inference."""
    pyro = pytest.importorskip("pyro")
    from idensenet.pyro import FlowDistribution as PyroFlow

    pyro.clear_param_store()
    torch.manual_seed(0)
    pyro.set_rng_seed(0)
    covariance = torch.tensor([[1.0, 0.7], [0.7, 1.0]])
    data = MultivariateNormal(torch.tensor([1.0, -1.0]), covariance).sample((5,))
    made = idn.build("toy-idensenet", blocks=(3,), growth=8, activation="clipswish").train()

    def model():
        mean = pyro.sample("mean", pyro.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2)))
        with pyro.plate("data", len(data)):
            pyro.sample("x", pyro.distributions.MultivariateNormal(mean, covariance), obs=data)

    def guide():
        pyro.module("flow", made)
        pyro.sample("mean", PyroFlow(made))

    loss = pyro.infer.Trace_ELBO(num_particles=64, vectorize_particles=True)
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 2e-2}), loss)
    steps = [svi.step() for _ in range(120)]
    precision = torch.eye(2) + len(data) * torch.linalg.inv(covariance)
    posterior = torch.linalg.inv(precision)
    mean = posterior @ (torch.linalg.inv(covariance) @ data.sum(0))
    with torch.no_grad():
        drawn = made.eval().sample(4000, torch.Generator().manual_seed(0))
        evidence = MultivariateNormal(
            torch.zeros(10), torch.kron(torch.ones(5, 5), torch.eye(2)) + torch.kron(torch.eye(5), covariance)
        ).log_prob(data.flatten())
    assert (drawn.mean(0) - mean).abs().max() < 0.1
    assert (drawn.T.cov() - posterior).abs().max() < 0.03
    tail = torch.tensor(steps[-20:])
    assert float(tail.mean()) > -float(evidence) - 0.1  # no bound is above the evidence
    assert float(tail.mean()) < -float(evidence) + 0.5
