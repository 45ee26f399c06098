"""Training with products in bfloat16: the rounding is there, it is small, and nothing else is rounded."""

import pytest
import torch
from oracles import gradient, inputs, network, run_stack

import idensenet as idn
from flows import points, small_toy
from idensenet.draws import GeneratorDraws, KeyedDraws
from idensenet.logdet import ExactLogDet, RouletteLogDet, SeriesLogDet
from idensenet.precision import EXACT, Precision

LOW = Precision(bfloat16=True)
stacks = pytest.mark.parametrize(("name", "blocks"), [("dense-3", 1), ("residual-3", 3), ("dense-conv", 2)])
ULP = 2.0**-8  # relative rounding of bfloat16


def float_stack(name, blocks):
    return network(name, blocks).float(), inputs(name, 16).detach().float().requires_grad_()


@stacks
def test_values_and_tangents_are_rounded_a_little_and_stay_float32(name, blocks):
    g, x = float_stack(name, blocks)
    v = torch.randn(2, *x.shape)
    full, low = g.prepare(), g.prepare(LOW)
    for k in range(blocks):
        assert all(tensor.dtype == torch.bfloat16 for tensor in low[k].tensors())
        assert all(tensor.dtype == torch.float32 for tensor in full[k].tensors())
        wanted, found = full[k].push(x, v), low[k].push(x, v)
        pairs = [*zip(found[:2], wanted[:2], strict=True)]
        pairs += [(found[2].matvec(v), wanted[2].matvec(v)), (found[2].rmatvec(v), wanted[2].rmatvec(v))]
        pairs += [(low[k](x), full[k](x))]
        for mine, right in pairs:
            assert mine.dtype == torch.float32
            error = float((mine - right).norm() / right.norm())
            assert 0 < error < 4 * ULP


@stacks
@pytest.mark.parametrize("save", [False, True])
def test_gradients_are_those_of_float32_within_the_rounding_and_weights_are_not_rounded(name, blocks, save):
    g, x = float_stack(name, blocks)
    before = {n: p.detach().clone() for n, p in g.state_dict().items()}
    found = []
    for precision in (EXACT, LOW):
        y, estimate = run_stack(SeriesLogDet(6), g, x, KeyedDraws.of(x), save=save, prepared=g.prepare(precision))
        loss = y.sin().sum() + (estimate.value * torch.linspace(-1, 2, len(x))).sum()
        found.append((y, estimate.value, gradient(loss, g, x, retain_graph=True)))
        assert torch.equal(found[-1][2], gradient(loss, g, x))  # a second backward
        assert all(each.dtype == torch.float32 for each in found[-1])
    for mine, right in zip(found[1], found[0], strict=True):
        assert 0 < float((mine - right).norm() / right.norm()) < 2e-2
    for name_, value in g.state_dict().items():  # norms are known: float32 ones, which the rounded products share
        assert value.dtype == before[name_].dtype
        if "fingerprint" not in name_ and "sigma" not in name_ and "left" not in name_ and "right" not in name_:
            assert torch.equal(value, before[name_]) or "sketch" in name_


def test_norms_are_those_of_the_unrounded_weights():
    g, _ = float_stack("dense-3", 2)
    g.prepare()
    want = [m.sigma.clone() for m in g.modules() if hasattr(m, "sigma")]
    again, _ = float_stack("dense-3", 2)
    again.load_state_dict(dict(g.named_parameters()), strict=False)
    again.prepare(LOW)
    assert all(torch.equal(a, b) for a, b in zip(want, [m.sigma for m in again.modules() if hasattr(m, "sigma")], strict=True))


def test_float64_is_not_rounded():
    g, x = network("dense-3", 2), inputs("dense-3")
    assert torch.equal(g.prepare(LOW)[1](x), g.prepare()[1](x))


def test_the_mean_gradient_is_the_exact_one_within_its_standard_error():
    name, runs = "dense-3", 300
    g = network(name, 2).float()
    x = inputs(name, 3).detach().float().requires_grad_()
    right = gradient(run_stack(ExactLogDet(), g, x, KeyedDraws.of(x))[1].value.sum(), g, x)

    def worst(method) -> float:
        """The largest deviation of a mean from the exact gradient, in standard errors."""
        prepared = g.prepare(LOW)
        draws = [GeneratorDraws(torch.Generator().manual_seed(seed)) for seed in range(runs)]
        losses = [run_stack(method, g, x, each, prepared=prepared)[1].value.sum() for each in draws]
        found = torch.stack([gradient(loss, g, x, retain_graph=True) for loss in losses])
        error = found.std(0) / runs**0.5
        # what rounding alone moves is no spread of the draws, so a mean may be off by it too
        excess = ((found.mean(0) - right).abs() - ULP * right.abs().max()).clamp(min=0)
        large = error > 1e-7
        return float((excess / error)[large].max())

    assert worst(RouletteLogDet()) < 4.5
    assert worst(SeriesLogDet(1)) > 6  # the control: what is cut off is seen


def test_the_log_determinant_is_unbiased_within_rounding():
    g = network("dense-3", 3).float()
    x = inputs("dense-3", 4).detach().float()
    with torch.no_grad():
        right = run_stack(ExactLogDet(), g, x, KeyedDraws.of(x))[1].value
        draws = GeneratorDraws(torch.Generator().manual_seed(1))
        method = RouletteLogDet(probes=2000)
        estimate = run_stack(method, g, x, draws, prepared=g.prepare(LOW))[1]
        short = run_stack(SeriesLogDet(1, 2000), g, x, draws, prepared=g.prepare(LOW))[1]
    assert estimate.value.dtype == torch.float32
    rounding = ULP * 3 * 3  # of three blocks of three dimensions
    assert ((estimate.value - right).abs() < 4 * estimate.standard_error + rounding).all()
    assert ((short.value - right).abs() > 4 * short.standard_error + rounding).any()  # the control


def test_evaluation_solvers_and_certificates_are_never_rounded():
    flow, x = small_toy(blocks=(3,), logdet={"method": "roulette", "eval_method": "exact"}), points(20)
    want = flow.eval().log_prob(x), flow.inverse(x)[0], flow.certify()
    flow.train()
    rounded = flow.log_prob(x, torch.Generator().manual_seed(0), prepared=flow.prepare(LOW))
    plain = flow.log_prob(x, torch.Generator().manual_seed(0))
    assert 0 < (rounded - plain).abs().max() < 0.2
    rounded.sum().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in flow.parameters() if p.grad is not None)
    flow.eval()
    assert torch.equal(flow.log_prob(x), want[0])
    assert torch.equal(flow.inverse(x)[0], want[1])
    assert flow.certify() == want[2]


def test_it_is_not_an_option_of_log_determinants():
    with pytest.raises(Exception, match="bfloat16"):
        idn.build("toy-idensenet", logdet={"method": "roulette", "bfloat16": True})
