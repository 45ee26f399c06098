import math

import pytest
import torch

from idensenet.bijections import Affine, Logit, Whiten
from idensenet.errors import OptionError, ShapeError


def test_the_logit_is_its_formula():
    y, log_det = Logit(0.05)(torch.tensor([[0.25, 0.5]], dtype=torch.float64))
    s = [0.05 + 0.9 * 0.25, 0.5]
    assert y.tolist()[0] == pytest.approx([math.log(p / (1 - p)) for p in s])
    assert float(log_det) == pytest.approx(sum(math.log(0.9 / (p * (1 - p))) for p in s))


@pytest.mark.parametrize("alpha", [0.05, 1e-6])
def test_the_logit_stays_finite_on_the_whole_of_the_unit_interval_in_float32(alpha):
    x = torch.cat([torch.linspace(0, 1, 4097), torch.tensor([1 - 2**-24, 2**-30])])[:, None]
    y, log_det = Logit(alpha)(x)
    back, inverse_log_det = Logit(alpha).inverse(y)
    assert bool(torch.isfinite(y).all() and torch.isfinite(log_det).all())
    assert float((back - x).abs().max()) < 1e-6
    torch.testing.assert_close(inverse_log_det, -log_det, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("alpha", [-0.1, 0.5, math.nan])
def test_alpha_outside_its_range_is_refused(alpha):
    with pytest.raises(OptionError, match=r"alpha=.* must lie in \[0, 0\.5\)"):
        Logit(alpha)


def test_standardize_gives_mean_zero_and_deviation_one_and_only_shifts_what_is_constant():
    data = torch.randn(100, 3, dtype=torch.float64) * 5 + 3
    data[:, 2] = 4
    y, _ = Affine.standardize(data)(data)
    torch.testing.assert_close(y.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(y.std(0, unbiased=False), torch.tensor([1, 1, 0], dtype=torch.float64), atol=1e-12, rtol=0)


def test_a_constant_whose_mean_is_rounded_is_still_a_constant():
    data = torch.full((500, 1), 5.1)
    assert float(data.std(0, unbiased=False)) > 0
    assert Affine.standardize(data).scale.tolist() == [1]


def test_normalize_is_per_channel():
    x = torch.rand(2, 2, 3, 3)
    y, log_det = Affine.normalize([0.5, 0.25], [0.5, 2.0])(x)
    torch.testing.assert_close(y[:, 0], (x[:, 0] - 0.5) / 0.5)
    torch.testing.assert_close(y[:, 1], (x[:, 1] - 0.25) / 2)
    assert log_det.tolist() == pytest.approx([-9 * (math.log(0.5) + math.log(2))] * 2, abs=1e-6)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_that_is_not_positive_and_finite_is_refused(scale):
    with pytest.raises(OptionError, match=r"positive and finite"):
        Affine(torch.zeros(2), torch.tensor([1.0, scale]))


def test_a_scale_that_does_not_fit_is_refused():
    affine = Affine(torch.zeros(3), torch.ones(3))
    for way in (affine, affine.inverse):
        with pytest.raises(ShapeError, match=r"scale of shape \(3,\) does not fit data of shape \(5, 4\)"):
            way(torch.zeros(5, 4))


@pytest.mark.parametrize("n", [100, 100_000])
def test_whitening_only_shifts_what_is_constant(n):
    torch.manual_seed(0)
    data = torch.randn(n, 3)
    data[:, 1] = 0.1
    data[:, 2] += data[:, 0]
    whiten = Whiten(3)
    whiten.fit(data)
    torch.testing.assert_close(whiten.weight[1], torch.tensor([0.0, 1.0, 0.0]), atol=1e-6, rtol=0)
    rest = whiten(data)[0][:, [0, 2]]
    torch.testing.assert_close(rest.T @ rest / n, torch.eye(2), atol=0.1, rtol=0)


def test_standardising_counts_a_sample_of_weight_two_as_two():
    x, counts = torch.randn(30, 3, dtype=torch.float64), torch.randint(1, 4, (30,))
    weighted, repeated = Affine.standardize(x), Affine.standardize(x.repeat_interleave(counts, 0))
    weighted.fit(x, counts.double())
    torch.testing.assert_close((weighted.loc, weighted.scale), (repeated.loc, repeated.scale))
    assert not torch.allclose(weighted.loc, Affine.standardize(x).loc, rtol=1e-6)  # the control
