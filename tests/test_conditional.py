"""Conditional flows: a density, an inverse and a certificate for every context, against brute force."""

import math
import pickle

import pytest
import torch
from torch.func import jacrev, vmap

import idensenet as idn
from idensenet.bijections import Chain, Invert, ResidualBlock
from idensenet.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from idensenet.lipschitz import LipschitzLinear, OperatorNorms, ResidualNet, refresh_norms
from idensenet.lipschitz.conditional import ConditionalNetwork, Embedding, Given
from idensenet.solve import Anderson, Newton, Picard


def flow(block="dense", dims=3, context=2, norm=2.0, memory="keep", blocks=2, actnorm=True, **logdet):
    torch.manual_seed(0)
    made = idn.build(
        "toy-idensenet",
        shape=(dims,),
        block=block,
        blocks=(blocks,),
        growth=6,
        width=8,
        depth=2,
        activation="clipswish" if block == "dense" else "lipswish",
        context=context,
        context_width=7,
        context_features=4,
        actnorm=actnorm,
        norm=norm,
        logdet={"eval_method": "exact", **logdet},
        train={"memory": memory},
    ).double()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn_like(p))
    made.initialize(torch.randn(50, dims).double(), torch.randn(50, context).double())
    made.context_scale.fit(3 + 2 * torch.randn(40, context).double())
    return made.eval()


def data(n=5, dims=3, context=2):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, dims, generator=generator).double(), 3 + 2 * torch.randn(n, context, generator=generator).double()


def given(made, k, c):
    """The k-th branch at contexts in the units of the model."""
    stack = made.stacks()[0]
    return Given(stack.prepare()[k], stack.g.embedded(c)[k])


def jacobians(made, x, c):
    return vmap(jacrev(lambda x, c: made.body.encode(x[None], context=made.context_scale.encode(c[None]))[0]))(x, c)


STACKS = {"one block": (1, False), "three blocks": (3, False), "three blocks, ActNorm": (3, True)}
stacks = pytest.mark.parametrize(("blocks", "actnorm"), STACKS.values(), ids=STACKS)


@stacks
@pytest.mark.parametrize("block", ["dense", "residual"])
def test_the_log_density_is_that_of_the_whole_jacobian(block, blocks, actnorm):
    made, (x, c) = flow(block, blocks=blocks, actnorm=actnorm), data()
    J = jacobians(made, x, c)
    z = made.body.encode(x, context=made.context_scale.encode(c))
    right = -0.5 * (z.square().sum(1) + 3 * math.log(2 * math.pi)) + torch.linalg.slogdet(J)[1]
    torch.testing.assert_close(made.log_prob(x, context=c), right, rtol=0, atol=1e-10)
    other = made.log_prob(x, context=c.flip(0))
    assert (other - right).abs().max() > 0.1  # the context matters


@stacks
@pytest.mark.parametrize("memory", ["keep", "save"])
def test_the_gradient_in_weights_data_and_context_is_that_of_brute_force(memory, blocks, actnorm):
    made, (x, c) = flow(memory=memory, blocks=blocks, actnorm=actnorm), data()
    assert [stack.save for stack in made.stacks()] == [memory == "save"]
    made.train()
    x.requires_grad_()
    c.requires_grad_()
    wanted = [p for p in made.parameters() if p.requires_grad]
    value = made.log_prob(x, context=c)
    loss = (value * torch.arange(1, 6)).sum()
    found, again = (torch.autograd.grad(loss, [x, c, *wanted], allow_unused=True, retain_graph=True) for _ in range(2))
    assert all((a is None and b is None) or torch.equal(a, b) for a, b in zip(found, again, strict=True))
    z = made.body.encode(x, context=made.context_scale.encode(c))
    J = torch.stack([torch.autograd.grad(z[:, i].sum(), x, create_graph=True)[0] for i in range(3)], 1)
    right_value = -0.5 * (z.square().sum(1) + 3 * math.log(2 * math.pi)) + torch.linalg.slogdet(J)[1]
    right = torch.autograd.grad((right_value * torch.arange(1, 6)).sum(), [x, c, *wanted], allow_unused=True)
    for a, b in zip(found, right, strict=True):
        a, b = (torch.zeros(()) if t is None else t for t in (a, b))
        torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=1e-8)
    assert right[1].abs().max() > 1e-2


@pytest.mark.parametrize("block", ["dense", "residual"])
def test_products_with_the_jacobian_in_x_are_those_of_autograd(block):
    made, (x, c) = flow(block), data()
    g = given(made, 1, c)
    y, J = g.linearize(x)
    matrix = torch.autograd.functional.jacobian(lambda x: g(x), x).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    v = torch.randn(2, 5, 3).double()
    torch.testing.assert_close(y, g(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(J.matvec(v), torch.einsum("nij,pnj->pni", matrix, v), rtol=0, atol=1e-12)
    torch.testing.assert_close(J.rmatvec(v), torch.einsum("nij,pni->pnj", matrix, v), rtol=0, atol=1e-12)
    torch.testing.assert_close(g.push(x, v)[1], J.matvec(v), rtol=0, atol=1e-12)
    index = torch.tensor([4, 1])
    torch.testing.assert_close(J.take(index).matvec(v[:, index]), J.matvec(v)[:, index], rtol=0, atol=1e-12)
    torch.testing.assert_close(g.take(index)(x[index]), y[index], rtol=0, atol=1e-12)


def test_a_roulette_that_saves_memory_has_the_gradient_of_the_one_that_keeps_all():
    found = []
    for memory in ("keep", "save"):
        made, (x, c) = flow(method="roulette", memory=memory), data()
        c.requires_grad_()
        value = made.train().log_prob(x, torch.Generator().manual_seed(3), context=c).sum()
        found.append(torch.autograd.grad(value, [c, *[p for p in made.parameters() if p.requires_grad]], allow_unused=True))
    assert found[0][0].abs().max() > 1e-2
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(*(torch.zeros(()).double() if t is None else t for t in (a, b)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("solver", [Picard(), Anderson(), Newton()])
def test_every_context_has_its_inverse(solver):
    made, (x, c) = flow(), data(20)
    for stack in made.stacks():
        stack.solver = solver
    z, log_det = made(x, context=c)
    back, inverse = made.inverse(z, context=c)
    torch.testing.assert_close(back, x, rtol=0, atol=1e-9)
    torch.testing.assert_close(inverse, -log_det, rtol=0, atol=1e-8)
    assert (made.inverse(z, context=c.flip(0))[0] - x).abs().max() > 0.1


def test_the_gradient_through_the_inverse_is_that_of_the_inverse_jacobian():
    made, (z, c) = flow(), data()
    z.requires_grad_()
    c.requires_grad_()
    x, _ = made.inverse(z, context=c)
    weight = torch.randn_like(x)
    dz, dc = torch.autograd.grad((x * weight).sum(), [z, c])
    fixed = x.detach()
    J = jacobians(made, fixed, c.detach())
    w = torch.linalg.solve(J.mT, weight[:, :, None])[:, :, 0]
    torch.testing.assert_close(dz, w, rtol=0, atol=1e-8)
    (right,) = torch.autograd.grad(made.body.encode(fixed, context=made.context_scale.encode(c)), [c], -w)
    torch.testing.assert_close(dc, right, rtol=0, atol=1e-8)


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_the_certificate_holds_for_every_context_even_absurd_ones(norm):
    made = flow(norm=norm)
    certificate = made.certify()
    assert all(row.L < 1 for row in certificate.blocks)
    order = {1.0: 1, 2.0: 2, math.inf: math.inf}[norm]
    x, y = torch.randn(400, 3).double(), torch.randn(400, 3).double() * torch.logspace(-4, 1, 400).double()[:, None]
    worst = 0.0
    for scale in (0.1, 1, 100):
        c = scale * torch.randn(400, 2).double()
        for k, row in enumerate(certificate.blocks):
            g = given(made, k, c)
            ratio = torch.linalg.vector_norm(g(x + y) - g(x), order, 1) / torch.linalg.vector_norm(y, order, 1)
            worst = max(worst, float(ratio.max() / row.L))
    assert worst <= 1
    c = torch.randn(400, 2).double()
    moved = given(made, 1, c + 1)(x) - given(made, 1, c)(x)
    assert moved.abs().max() > 0.05  # while the context is free


def test_samples_follow_their_context_and_carry_its_density():
    made = flow(dims=2, context=1)
    one = torch.tensor([0.5]).double()
    x, log_prob = made.sample_and_log_prob(7, torch.Generator().manual_seed(0), one)
    torch.testing.assert_close(log_prob, made.log_prob(x, context=one), rtol=0, atol=1e-8)
    many = one.expand(7, 1).contiguous()
    torch.testing.assert_close(made.sample(7, torch.Generator().manual_seed(0), context=many), x.detach(), rtol=0, atol=1e-9)
    side = torch.linspace(-60, 60, 500).double()
    grid = torch.cartesian_prod(side, side)
    mass = made.log_prob(grid, context=one).exp().sum() * (side[1] - side[0]) ** 2
    assert abs(float(mass.detach()) - 1) < 0.02


def test_a_conditional_flow_is_saved_loaded_and_pickled(tmp_path):
    made, (x, c) = flow(), data()
    idn.save(made, tmp_path / "flow")
    for other in (idn.load(tmp_path / "flow"), pickle.loads(pickle.dumps(made))):
        torch.testing.assert_close(other.log_prob(x, context=c), made.log_prob(x, context=c), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("context", "error", "text"),
    [
        (None, OptionError, "is conditional: give it a context of 2 numbers"),
        (torch.zeros(5, 3).double(), ShapeError, r"context must have the shape \(batch, 2\)"),
        (torch.zeros(4, 2).double(), ShapeError, "5 samples but 4 contexts"),
        (torch.zeros(5, 2), DtypeError, "context is torch.float32"),
        (torch.full((5, 2), math.nan).double(), NonFiniteError, "context has NaN"),
    ],
)
def test_a_context_that_does_not_fit_is_named(context, error, text):
    with pytest.raises(error, match=text):
        flow().log_prob(data()[0], context=context)


def test_a_flow_without_context_takes_none():
    made = idn.build("toy-idensenet").double()
    with pytest.raises(OptionError, match="takes no context"):
        made.log_prob(torch.zeros(1, 2).double(), context=torch.zeros(1, 1).double())
    with pytest.raises(match="needs vectors"):
        idn.build("digits-idensenet", context=2)


def test_a_conditional_block_backwards_takes_the_context_too():
    made, (x, c) = flow(), data()
    block = made.named_blocks()[0][1]
    backwards = Chain([Invert(block)])
    backwards.initialize(x, c)
    y, log_det = backwards(x, None, c)
    for found, right in zip((y, log_det), block.inverse(x, None, c), strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-10)
    torch.testing.assert_close(backwards.inverse(y, None, c)[0], x, rtol=0, atol=1e-10)
    torch.testing.assert_close(backwards.decode(backwards.encode(x, c), c), x, rtol=0, atol=1e-10)


def test_the_bound_is_reached_where_nothing_is_lost():
    """For a linear g whose context has no weight, the certificate is the constant itself, and no less would do."""
    linear = LipschitzLinear(3 + 4, 3, 0.98).double()
    with torch.no_grad():
        linear.weight.copy_(torch.cat([-0.9 * torch.eye(3), torch.zeros(3, 4)], 1)[None])
    g = ConditionalNetwork(ResidualNet([linear]), Embedding(2, 5, 4).double(), 3)
    refresh_norms(g)
    (bound,) = ResidualBlock(g).lipschitz(OperatorNorms(2.0))
    (x, c), y = data(), torch.randn(5, 3).double()
    at = Given(g.prepared()[0], g.embedded(c)[0])
    ratio = (at(x + y) - at(x)).norm(dim=1) / y.norm(dim=1)
    assert bool((ratio <= bound).all())
    torch.testing.assert_close(ratio, torch.full_like(ratio, bound), rtol=1e-6, atol=0)
