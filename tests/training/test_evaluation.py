import math

import numpy as np
import pytest
import torch

import idensenet as idn
from idensenet.data.source import Split
from idensenet.errors import DataError, OptionError
from idensenet.training.evaluation import calibration_error, first_rows, mean_and_error, score_rows, summary

HYBRID = {"shape": (3, 8, 8), "blocks": (1, 1), "growth": 8, "head_width": 4, "fc_blocks": 0, "classes": 3}


def test_calibration_is_the_gap_between_confidence_and_accuracy():
    right = torch.tensor([True] * 9 + [False])
    assert calibration_error(torch.full((10,), 0.9, dtype=torch.float64), right) == pytest.approx(0.0, abs=1e-12)
    assert calibration_error(torch.full((10,), 0.5, dtype=torch.float64), right) == pytest.approx(0.4)
    both = torch.cat([right, ~right])
    confidence = torch.tensor([0.9] * 10 + [0.3] * 10, dtype=torch.float64)
    assert calibration_error(confidence, both) == pytest.approx(0.5 * 0.0 + 0.5 * 0.2)
    assert calibration_error(torch.ones(4), torch.ones(4, dtype=torch.bool)) == 0


def test_mean_and_standard_error():
    values = torch.tensor([1.0, 2.0, 3.0, 6.0])
    mean, error = mean_and_error(values)
    assert mean == 3.0
    assert error == pytest.approx(np.std(values.numpy(), ddof=1) / 2)
    assert math.isnan(mean_and_error(torch.ones(1))[1])


def test_a_hybrid_is_scored_by_density_accuracy_and_calibration():
    flow = idn.build("cifar10-idensenet-hybrid", **HYBRID)
    x = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8)
    y = torch.arange(20) % 3
    flow.initialize(x)
    seen = []
    split = Split(x.numpy(), y.numpy())
    scores = score_rows(flow, split, first_rows(split, 12), batch=5, report=seen.append)
    assert seen == [5, 10, 12]
    with torch.no_grad():
        torch.testing.assert_close(scores["log_prob"], flow.log_prob(x[:12]))
        guess = flow.classify(x[:12]).argmax(1)
    found = summary(flow, scores)
    assert found["accuracy"] == pytest.approx(float((guess == y[:12]).double().mean()))
    assert 0 <= found["calibration_error"] <= 1
    unlabelled = score_rows(flow, Split(x.numpy()), first_rows(split, 12))
    torch.testing.assert_close(unlabelled["probabilities"], scores["probabilities"])
    assert "accuracy" not in summary(flow, unlabelled)
    assert found["bits_per_dim"] == pytest.approx(-float(scores["log_prob"].mean()) / (192 * math.log(2)), rel=1e-5)


def test_evaluation_in_training_mode_or_of_nothing_is_refused():
    flow = idn.build("toy-idensenet", blocks=(1,))
    split = Split(np.zeros((3, 2), np.float32))
    with pytest.raises(OptionError, match=r"flow\.eval"):
        score_rows(flow.train(), split, first_rows(split))
    with pytest.raises(OptionError, match="no sample"):
        score_rows(flow.eval(), split, first_rows(split, 0))


@pytest.mark.parametrize("preprocess", ["standardize", "whiten"])
def test_rows_that_rounding_to_the_type_of_the_model_would_change_are_refused(preprocess):
    x = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for offset in (1e3, 1e9):
        rows = x + torch.tensor([offset, 0])
        flow = idn.build("toy-idensenet", blocks=(1,), preprocess=preprocess).double()
        flow.standardize(rows)
        flow.initialize(rows)
        split = Split(rows.numpy())
        right = score_rows(flow, split, first_rows(split))["log_prob"]
        if offset == 1e3:
            torch.testing.assert_close(
                score_rows(flow.float(), split, first_rows(split))["log_prob"].double(), right, atol=0.01, rtol=0
            )
        else:
            with pytest.raises(DataError, match="rows of x lose digits that matter in float32; use a model in float64"):
                score_rows(flow.float(), split, first_rows(split))


def test_contexts_that_rounding_would_change_are_refused():
    generator = torch.Generator().manual_seed(0)
    x, c = torch.randn(50, 2, generator=generator), 1e9 + torch.randn(50, 1, dtype=torch.float64, generator=generator)
    flow = idn.build("toy-idensenet", blocks=(1,), preprocess="standardize", context=1).double()
    flow.standardize(x.double(), c)
    flow.initialize(x.double(), c)
    split = Split(x.numpy(), context=c.numpy())
    assert torch.isfinite(score_rows(flow, split, first_rows(split))["log_prob"]).all()
    with pytest.raises(DataError, match="rows of the context lose digits"):
        score_rows(flow.float(), split, first_rows(split))
