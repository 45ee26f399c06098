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
def test_only_the_powers_are_rounded(name, recompute):
    g, x = network(name).float(), inputs(name).float()
    outcomes = []
    for low in (False, True):
        gx, estimate = SeriesLogDet(6, bfloat16=low)(g, x, KeyedDraws.of(x), recompute)
        outcomes.append((gx, estimate.value, gradient(gx.sin().sum() + estimate.value.sum(), g, x)))
        one_term = SeriesLogDet(1, bfloat16=low)(g, x, KeyedDraws.of(x))[1].value  # has no powers
        assert torch.equal(one_term, SeriesLogDet(1)(g, x, KeyedDraws.of(x))[1].value)
    (gx, value, grad), (gx_low, value_low, grad_low) = outcomes
    assert torch.equal(gx, gx_low)
    assert 0 < float((value - value_low).abs().max()) < 2e-2 * float(value.abs().max())
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
