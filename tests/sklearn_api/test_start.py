"""Where fits start: a mixture that held-out rows choose, and a logistic regression."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from idensenet.errors import OptionError
from idensenet.sklearn import FlowClassifier, FlowDensity
from idensenet.sklearn.defaults import SMALL, settings_for
from idensenet.training import clock
from idensenet.training.clock import Clock

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SHORT = {"max_iter": 10, "blocks": 2, "folds": 1, "random_state": 0}


def clusters(n=240, seed=0):
    random = np.random.default_rng(seed)
    centres = np.array([[-3, 0, 1], [3, 0, 1], [0, 4, -1]])
    return (centres[random.integers(0, 3, n)] + 0.3 * random.normal(size=(n, 3))) * [1, 10, 1]


def gaussian(n=240, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 3)) @ [[1, 2, 0], [0, 1, 0], [0, 0, 3]]


@pytest.mark.parametrize("folds", [1, 3])
def test_held_out_rows_choose_the_mixture_that_a_small_table_starts_from(folds):
    options = {**SHORT, "folds": folds}
    model = FlowDensity(**options).fit(clusters())
    one = FlowDensity(**options, components=1).fit(clusters())
    new = clusters(2000, 1)
    gain = model.score_samples(new) - one.score_samples(new)
    assert model.settings_.components >= 3
    assert model.flow_.base.components == model.flow_.config.model.components == model.settings_.components
    assert gain.mean() > 10 * gain.std() / len(gain) ** 0.5
    assert one.flow_.base is None
    assert FlowDensity(**options).fit(gaussian(seed=1)).settings_.components == 1  # the control
    assert model.certificate_.contractive
    drawn = model.sample(500, random_state=0)
    assert (np.abs(drawn[:, 0] / 3).round() * 3 - np.abs(drawn[:, 0])).std() < 0.6  # it draws from the clusters


def test_large_tables_start_from_the_gaussian_and_a_number_of_components_can_be_given():
    assert (settings_for(SMALL - 1, 3).components, settings_for(SMALL, 3).components) == (None, 1)
    large = FlowDensity(**SHORT).fit(clusters(SMALL))
    assert large.settings_.components == 1
    assert large.flow_.base is None
    given = FlowDensity(**SHORT, components=5, warm_start=True).fit(clusters())
    assert given.flow_.base.components == 5
    assert given.fit(clusters()).flow_.base.components == 5
    assert FlowDensity(**SHORT, components=2, early_stopping=False).fit(clusters()).flow_.base.components == 2
    with pytest.raises(OptionError, match="components=3 is for densities without a context"):
        FlowDensity(**SHORT, components=3).fit(clusters(), context=clusters()[:, 0])
    with pytest.raises(OptionError, match="components=0 must be a positive integer"):
        FlowDensity(components=0).fit(clusters())
    assert FlowDensity(**SHORT).fit(clusters(), context=clusters()[:, 0]).flow_.base is None


def test_weights_count_in_the_mixture_and_a_warm_start_keeps_it():
    X = np.concatenate([clusters(200), clusters(200, 1) + np.array([0, 0, 40])])
    model = FlowDensity(**SHORT, warm_start=True).fit(X, sample_weight=np.repeat([1.0, 1e-6], 200))
    assert (model.sample(300, random_state=0)[:, 2] < 20).all()
    before = model.settings_.components
    assert model.fit(X, sample_weight=np.repeat([1.0, 1e-6], 200)).settings_.components == before


def test_the_time_for_all_folds_and_the_last_fit_is_the_time_that_was_given(monkeypatch):
    seconds = []

    class Watched(Clock):
        def __init__(self, steps, limit=None):
            seconds.append(limit)
            super().__init__(steps, limit)

    ticks = iter(range(10**6))
    monkeypatch.setattr(clock, "now", lambda: next(ticks) * 1e-3)
    monkeypatch.setattr("idensenet.training.fitting.Clock", Watched)
    FlowDensity(**{**SHORT, "folds": 3}, max_time=40.0).fit(clusters())
    FlowDensity(**SHORT, max_time=40.0).fit(clusters())
    assert seconds[0] == pytest.approx(30, abs=0.5)
    assert seconds[1] == pytest.approx(40, abs=0.5)


# The classifier


def line(n, seed):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 3)) @ [[1, 0.9, 0], [0, 0.3, 0], [0, 0, 20]]
    return X, (X @ [1, -1, 0.02] + 0.7 * random.normal(size=n) > 0).astype(int)


def corners(n, seed):
    X = np.random.default_rng(seed).normal(size=(n, 2))
    return X, (X[:, 0] * X[:, 1] > 0).astype(int)


def log_loss(model, X, y):
    return -np.log(model.predict_proba(X)[np.arange(len(y)), y])


def test_a_classifier_starts_as_a_logistic_regression_and_stays_one_where_that_is_all_there_is():
    (X, y), (new, right) = line(400, 0), line(2000, 1)
    model = FlowClassifier(**SHORT).fit(X, y)
    plain = make_pipeline(StandardScaler(), LogisticRegression(C=model._strength, max_iter=1000)).fit(X, y)
    assert model.head_share_ == 0
    np.testing.assert_allclose(model.predict_proba(new), plain.predict_proba(new), atol=1e-3)
    three = np.digitize(X[:, 0] + np.random.default_rng(2).normal(size=400), [-0.7, 0.7])
    model = FlowClassifier(**SHORT).fit(X, three)
    plain = make_pipeline(StandardScaler(), LogisticRegression(C=model._strength, max_iter=1000)).fit(X, three)
    np.testing.assert_allclose(model.predict_proba(new), plain.predict_proba(new), atol=1e-3)
    assert log_loss(model, X, three).mean() < 1
    assert np.isfinite(log_loss(FlowClassifier(**SHORT, early_stopping=False).fit(X, y), new, right)).all()


def test_a_classifier_keeps_what_the_flow_adds_where_held_out_rows_gain_from_it():
    (X, y), (new, right) = corners(600, 0), corners(2000, 1)
    model = FlowClassifier(max_iter=120, blocks=2, folds=1, random_state=0).fit(X, y)
    assert model.head_share_ > 0
    plain = LogisticRegression().fit(X, y)
    gain = log_loss(plain, new, right) - log_loss(model, new, right)
    assert gain.mean() > 0.3
    p = model.predict_proba(new)[:, 1]
    inside = p > 0.5
    error = np.sqrt((p[inside] * (1 - p[inside])).sum()) / inside.sum()
    assert abs(right[inside].mean() - p[inside].mean()) < 4 * error + 0.03  # calibrated
    assert isinstance(model.flow_.classifier.direct, torch.nn.Linear)
