"""Series with products in bfloat16: the rounding is there, it is small, and nothing else is rounded."""

import pytest
import torch
from oracles import gradient, inputs, network

import idensenet as idn
from idensenet.draws import GeneratorDraws, KeyedDraws
from idensenet.errors import OptionError
from idensenet.logdet import ExactLogDet, RouletteLogDet, SeriesLogDet

networks = pytest.mark.parametrize("name", ["dense-3", "residual-3", "dense-conv"])


@networks
@pytest.mark.parametrize("recompute", [False, True, "input"])
def test_products_with_the_jacobian_are_rounded_and_values_are_not(name, recompute):
    g, x = network(name).float(), inputs(name).float()
    outcomes, of_values = [], []
    for low in (False, True):
        gx, estimate = SeriesLogDet(6, bfloat16=low)(g, x, KeyedDraws.of(x), recompute)
        outcomes.append((gx, estimate.value, gradient(gx.sin().sum() + estimate.value.sum(), g, x)))
        gx, _ = SeriesLogDet(6, bfloat16=low)(g, x, KeyedDraws.of(x), recompute)
        of_values.append(gradient(gx.sin().sum(), g, x))
    (gx, value, grad), (gx_low, value_low, grad_low) = outcomes
    torch.testing.assert_close(gx, gx_low, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(*of_values, rtol=1e-5, atol=1e-6)
    assert 0 < float((value - value_low).detach().abs().max()) < 2**-8 * x[0].numel()  # v'v, that is
    assert 0 < float((grad - grad_low).norm()) < 2e-2 * float(grad.norm())


def test_the_mean_gradient_is_the_exact_one_within_its_standard_error():
    name, runs = "dense-3", 300
    g, x = network(name).float(), inputs(name).float()
    right = gradient(ExactLogDet()(g, x, KeyedDraws.of(x))[1].value.sum(), g, x)

    def worst(estimator) -> float:
        """The largest deviation of a mean from the exact gradient, in standard errors."""
        draws = [GeneratorDraws(torch.Generator().manual_seed(seed)) for seed in range(runs)]
        found = torch.stack([gradient(estimator(g, x, each)[1].value.sum(), g, x) for each in draws])
        error = found.std(0) / runs**0.5
        large = error > 1e-7
        return float(((found.mean(0) - right).abs() / error)[large].max())

    assert worst(RouletteLogDet(bfloat16=True)) < 4.5
    assert worst(SeriesLogDet(1, bfloat16=True)) > 6  # the control: what is cut off is seen


def test_it_is_an_option_of_training_and_not_of_evaluation():
    flow = idn.build("toy-idensenet", logdet={"method": "roulette", "bfloat16": True, "eval_method": "roulette"})
    block = next(iter(flow.named_blocks()))[1]
    assert block.log_det.bfloat16
    assert not block.eval_log_det.bfloat16
    with pytest.raises(OptionError, match="series and roulette"):
        idn.build("toy-idensenet", logdet={"method": "exact", "bfloat16": True})
