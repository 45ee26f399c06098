"""The estimators against what they must be equal to: exact densities, their own flows, and themselves in other units."""

import math
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse, stats
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.datasets import load_iris, load_wine, make_moons
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import idensenet as idn
from idensenet.bijections.whiten import Whiten, shrinkage
from idensenet.errors import DataError, OptionError
from idensenet.logdet import AdaptiveLogDet, ExactLogDet, RouletteLogDet
from idensenet.sklearn import FlowClassifier, FlowDensity, FlowOutlierDetector
from idensenet.sklearn.defaults import held_out_rows, settings_for
from idensenet.training import fitting
from idensenet.training.clock import Clock, factor
from idensenet.training.rows import Rows, divided

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SHORT = {"max_iter": 40, "blocks": 2, "folds": 1, "components": 1, "random_state": 0}


def rows(n=300, seed=0):
    return make_moons(n, noise=0.1, random_state=seed)[0] * [1, 20] + [0, 100]


@pytest.fixture(scope="module")
def moons():
    return FlowDensity(max_iter=300, blocks=4, components=1, random_state=0).fit(rows(600))


# The density


def test_scores_are_the_log_densities_of_the_flow_and_integrate_to_one(moons):
    side = np.linspace(-4, 5, 300), np.linspace(20, 180, 300)
    grid = np.stack(np.meshgrid(*side, indexing="ij"), -1).reshape(-1, 2)
    scores = moons.score_samples(grid)
    cell = (side[0][1] - side[0][0]) * (side[1][1] - side[1][0])
    assert abs(np.exp(scores).sum() * cell - 1) < 0.01
    with torch.no_grad():
        right = moons.flow_.log_prob(torch.from_numpy(grid[:50])).numpy()
    np.testing.assert_allclose(scores[:50], right, rtol=0, atol=1e-12)
    assert moons.score(grid[:50]) == pytest.approx(right.mean(), abs=1e-12)


def test_it_is_better_than_the_gaussian_it_starts_from_on_new_rows(moons):
    new = rows(2000, 1)
    start = FlowDensity(max_iter=1, learning_rate=1e-12, components=1, random_state=0).fit(rows(600))
    gain = moons.score_samples(new) - start.score_samples(new)
    assert gain.mean() > 10 * gain.std() / len(gain) ** 0.5
    assert moons.history_[0][1] > min(score for _, score in moons.history_) + 0.1


def test_it_starts_as_a_gaussian_with_the_shrunk_covariance():
    X = np.random.default_rng(0).multivariate_normal([1, 2, 3], [[4, 1, 0], [1, 2, 0], [0, 0, 9]], 80)
    start = FlowDensity(max_iter=1, learning_rate=1e-300, components=1, random_state=0, lipschitz=1e-9).fit(X)
    scaled = (X - X.mean(0)) / X.std(0)
    weight = ledoit_wolf_shrinkage(scaled, assume_centered=True)
    assert float(shrinkage(torch.from_numpy(scaled))) == pytest.approx(weight, rel=1e-9)
    correlation = (1 - weight) * scaled.T @ scaled / len(X) + weight * np.eye(3)
    right = stats.multivariate_normal(X.mean(0), correlation * np.outer(X.std(0), X.std(0))).logpdf(X)
    np.testing.assert_allclose(start.score_samples(X), right, rtol=0, atol=1e-6)


def test_samples_have_the_moments_of_the_data(moons):
    drawn = moons.sample(4000, random_state=3)
    error = drawn.std(0) / len(drawn) ** 0.5
    assert (np.abs(drawn.mean(0) - rows(600).mean(0)) < 6 * error + 0.1 * rows(600).std(0)).all()
    assert np.abs(np.corrcoef(drawn.T) - np.corrcoef(rows(600).T))[0, 1] < 0.1
    np.testing.assert_array_equal(moons.sample(3, random_state=1), moons.sample(3, random_state=1))
    assert not np.array_equal(moons.sample(3, random_state=1), moons.sample(3, random_state=2))


def test_other_units_change_the_density_by_their_volume_only():
    X, D = rows(), 2
    plain = FlowDensity(**SHORT).fit(X).score_samples(X)
    for scale in (1e12, 1e-12):
        found = FlowDensity(**SHORT).fit(X * scale).score_samples(X * scale)
        np.testing.assert_allclose(found + D * math.log(scale), plain, rtol=0, atol=1e-4)


def test_the_certificate_and_the_error_of_the_inverse_are_attributes(moons):
    assert moons.certificate_.contractive
    assert moons.certificate_.L < 1
    x = torch.from_numpy(rows(200))
    with torch.no_grad():
        z, _ = moons.flow_(x)
        back, _ = moons.flow_.inverse(z)
        there = moons.flow_.preprocess.encode
        off = float((there(back) - there(x)).norm(dim=1).max())
    assert 0 <= off <= moons.inverse_error_bound_ + 1e-12
    assert moons.inverse_error_bound_ < 1e-2


# Options


def test_early_stopping_ends_with_the_best_weights_and_can_be_switched_off():
    model = FlowDensity(max_iter=2000, blocks=2, folds=1, components=1, n_iter_no_change=2, random_state=0).fit(rows(60))
    assert model.n_iter_ < 2000
    assert model.history_[-1][0] == model.n_iter_
    assert FlowDensity(**{**SHORT, "early_stopping": False}).fit(rows(60)).n_iter_ == 40


def split(n, seed=0):
    """The training and the held-out rows of a fit with one split."""
    drawn = int(np.random.RandomState(seed).randint(2**31 - 1))
    return divided(Rows(torch.from_numpy(rows(n))), 1, held_out_rows(n, None), drawn)[0]


def test_held_out_rows_play_no_part_in_the_gaussian_that_a_fit_starts_from():
    train, held_out = split(300)
    model = FlowDensity(**SHORT).fit(rows(300))
    (whiten,) = [part for part in model.flow_.preprocess.modules() if isinstance(part, Whiten)]
    torch.testing.assert_close(whiten.loc, train.x.mean(0), rtol=1e-12, atol=0)
    assert (whiten.loc - torch.from_numpy(rows(300)).mean(0)).abs().min() > 1e-4
    centred = (train.x - train.x.mean(0)) / train.x.std(0, unbiased=False)
    weight = shrinkage(centred)
    correlation = (1 - weight) * centred.T @ centred / len(centred) + weight * torch.eye(2)
    scale = train.x.std(0, unbiased=False)
    gaussian = stats.multivariate_normal(train.x.mean(0), correlation * scale[:, None] * scale)
    assert model.history_[0][1] == pytest.approx(-gaussian.logpdf(held_out.x).mean(), abs=0.02)  # it starts near the identity


def test_a_row_of_weight_two_counts_as_two_equal_rows():
    x, counts = torch.randn(40, 3, dtype=torch.float64) @ torch.randn(3, 3, dtype=torch.float64), torch.randint(1, 4, (40,))
    weighted, repeated = Whiten(3).double(), Whiten(3).double()
    weighted.fit(x, counts.double())
    repeated.fit(x.repeat_interleave(counts, 0))
    torch.testing.assert_close(weighted.loc, repeated.loc)
    torch.testing.assert_close(weighted.weight, repeated.weight)
    small = shrinkage(x, counts / 1000)  # weights that say nothing about how many rows there are
    assert 0.5 < float(small / shrinkage(x)) < 2
    losses, table = torch.randn(40, dtype=torch.float64), Rows(x, weight=counts.double())
    right = float(losses.repeat_interleave(counts).mean())
    assert table.mean(losses) == pytest.approx(right, rel=1e-12)
    flow, batch = FlowDensity(**SHORT).fit(x.numpy()).flow_, table.take(torch.arange(7))
    options = fitting.Options(1e-3, 0.0, 1, 7, 1, 0.0, 0)
    training = fitting.Training(flow, lambda flow, rows, generator, prepared: losses[: len(rows)], table, options)
    assert float(training.mean_loss(table, flow.prepare())) == pytest.approx(right, rel=1e-12)
    expected = float(
        (losses[:7] * counts[:7]).sum() / counts.double().mean() / 7
    )  # unbiased: the mean over all batches is right
    assert float(training.mean_loss(batch, flow.prepare())) == pytest.approx(expected, rel=1e-12)


def test_weights_move_the_density_and_rows_without_weight_do_not_count():
    X = np.concatenate([rows(200), rows(200) + np.array([50, 0])])
    first = np.repeat([1.0, 0.0], 200)
    model = FlowDensity(**SHORT).fit(X, sample_weight=first)
    np.testing.assert_array_equal(model.score_samples(rows(20)), FlowDensity(**SHORT).fit(rows(200)).score_samples(rows(20)))
    tilted = FlowDensity(**SHORT).fit(X, sample_weight=np.repeat([9.0, 1.0], 200)).sample(4000, random_state=0)
    even = FlowDensity(**SHORT).fit(X).sample(4000, random_state=0)
    assert (tilted[:, 0] > 25).mean() < 0.2 < 0.4 < (even[:, 0] > 25).mean()
    for bad, text in ((-first, "Negative"), (first[:3], "sample_weight"), (np.eye(400)[0], "two rows need a positive")):
        with pytest.raises(ValueError, match=text):
            FlowDensity(**SHORT).fit(X, sample_weight=bad)


def test_a_bounded_density_integrates_to_one_inside_is_zero_outside_and_so_are_samples():
    random = np.random.default_rng(0)
    X = np.column_stack(
        [random.beta(0.7, 2, 400), random.lognormal(0, 1, 400), -random.gamma(2, 3, 400), random.normal(5, 2, 400)]
    )
    for i, (pair, low, high) in enumerate([((0, 1), 0, 1), ((0, None), 0, 400), ((None, 0), -400, 0), ((None, None), -20, 30)]):
        model = FlowDensity(**SHORT, bounds={0: pair}).fit(X[:, i : i + 1])
        edges = low + (high - low) * np.linspace(0, 1, 200_001)
        middle = (edges[:-1] + edges[1:]) / 2
        assert np.exp(model.score_samples(middle[:, None])).sum() * (edges[1] - edges[0]) == pytest.approx(1, abs=0.01)
        drawn = model.sample(3000, random_state=0)[:, 0]
        assert ((drawn > low) | (pair[0] is None)).all()
        assert ((drawn < high) | (pair[1] is None)).all()
        outside = [[each] for each, end in ((low - 0.1, pair[0]), (high + 0.1, pair[1]), (low, pair[0])) if end is not None]
        if outside:
            assert np.isneginf(model.score_samples(outside)).all()
    whole = FlowDensity(**SHORT, bounds={0: (0, 1), 1: (0, None), 2: (None, 0)}).fit(X)
    free = FlowDensity(**SHORT).fit(X)
    assert (free.sample(3000, random_state=0)[:, 0] < 0).mean() > 0.02  # the control: a Gaussian knows no bounds
    drawn = whole.sample(3000, random_state=0)
    assert ((drawn[:, 0] > 0) & (drawn[:, 0] < 1) & (drawn[:, 1] > 0) & (drawn[:, 2] < 0)).all()
    assert whole.score(X) > free.score(X) + 0.2
    assert pickle.loads(pickle.dumps(whole)).score(X) == whole.score(X)


def test_bounds_name_columns_and_rows_that_do_not_fit():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows(), columns=["height", "weight"])
    for bounds, text in (
        ({"depth": (0, 1)}, "bounds has 'depth', which is no column; the columns are 'height', 'weight'"),
        ({"weight": (0, 100)}, r"Column 'weight' has .* in row \d+, which is not strictly between its bounds \(0, 100\)"),
        ({"weight": (900, 0)}, "Column 'weight' has"),
    ):
        with pytest.raises(ValueError, match=text):
            FlowDensity(**SHORT, bounds=bounds).fit(frame)
    with pytest.raises(OptionError, match="must be below the upper one"):
        idn.build("toy-idensenet", bounds=((0, 0), (None, None)))
    with pytest.raises(OptionError, match="a pair for each of the columns"):
        idn.build("toy-idensenet", bounds=((0, 1),))


def test_no_step_is_dropped_and_a_fit_that_ends_while_still_gaining_says_so():
    with pytest.warns(ConvergenceWarning, match="still falling when the fit ended after 25 steps .* use max_iter=50"):
        model = FlowDensity(**{**SHORT, "max_iter": 25, "learning_rate": 1e-2}).fit(rows())
    assert model.n_iter_ == 25
    assert [step for step, _ in model.history_] == [0, 10, 20, 25]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        done = FlowDensity(max_iter=2000, blocks=2, folds=1, components=1, n_iter_no_change=2, random_state=0).fit(rows(60))
    assert done.n_iter_ < 2000


def interrupted_at(monkeypatch, step):
    real, taken = fitting.training_step, []

    def interrupt(*words, **options):
        taken.append(1)
        if len(taken) == step:
            raise KeyboardInterrupt
        return real(*words, **options)

    monkeypatch.setattr(fitting, "training_step", interrupt)


@pytest.mark.parametrize("early_stopping", [True, False])
def test_an_interrupt_keeps_the_best_so_far_and_says_so(monkeypatch, early_stopping):
    options = {**SHORT, "max_iter": 60, "early_stopping": early_stopping}
    whole = FlowDensity(**options).fit(rows())
    interrupted_at(monkeypatch, 35)
    with pytest.warns(UserWarning, match=r"Interrupted after 3\d steps; the weights of step 3\d, the best so far, are kept"):
        model = FlowDensity(**options).fit(rows())
    if early_stopping:
        assert model.history_ == [entry for entry in whole.history_ if entry[0] <= 30]
        held_out = split(300)[1].x.numpy()
        assert -model.score(held_out) == pytest.approx(min(score for _, score in model.history_), abs=1e-4)
        assert abs(model.score(held_out) - whole.score(held_out)) > 1e-3
    assert model.score(rows()) > -math.inf


@pytest.mark.parametrize("folds", [1, 3])
def test_an_interrupt_before_anything_is_gained_leaves_it_as_it_was(monkeypatch, folds):
    model = FlowDensity(**{**SHORT, "folds": folds}, warm_start=True)
    with monkeypatch.context() as patch:
        interrupted_at(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            model.fit(rows())
    with pytest.raises(NotFittedError):
        model.score(rows())
    before = model.fit(rows()).score_samples(rows(20))
    interrupted_at(monkeypatch, 5)
    with pytest.raises(KeyboardInterrupt):
        model.fit(rows())
    np.testing.assert_array_equal(model.score_samples(rows(20)), before)
    monkeypatch.undo()
    reference = FlowDensity(**{**SHORT, "folds": folds}, warm_start=True).fit(rows()).fit(rows())
    np.testing.assert_array_equal(model.fit(rows()).score_samples(rows(20)), reference.score_samples(rows(20)))


def test_where_there_is_no_terminal_progress_is_a_line_for_each_evaluation(capsys):
    model = FlowDensity(**SHORT, verbose=True).fit(rows())
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"step {step} of 40: held-out loss {score:.4f}" for step, score in model.history_[1:]]


def test_with_folds_every_row_is_held_out_once_and_the_flow_is_fitted_to_all():
    parts = divided(Rows(torch.arange(23.0)[:, None]), 5, 0, 0)
    assert sorted(torch.cat([out.x[:, 0] for _, out in parts]).tolist()) == list(range(23))
    assert all(sorted([*a.x[:, 0].tolist(), *b.x[:, 0].tolist()]) == list(range(23)) for a, b in parts)
    options = {**SHORT, "folds": 3, "max_iter": 60, "dtype": "float64"}
    model = FlowDensity(**options).fit(rows(150))
    assert min(model.history_, key=lambda entry: entry[1])[0] == 60  # so the path to the best has all steps
    again = FlowDensity(**{**options, "early_stopping": False}).fit(rows(150))
    np.testing.assert_allclose(model.score_samples(rows(20)), again.score_samples(rows(20)), atol=1e-9)
    with pytest.raises(OptionError, match="folds=0 must be"):
        FlowDensity(folds=0).fit(rows())


def test_warm_start_goes_on_where_it_was():
    model = FlowDensity(**SHORT, warm_start=True).fit(rows())
    first = min(score for _, score in model.history_)
    model.fit(rows())
    assert model.history_[0][1] == pytest.approx(first, abs=1e-6)
    with pytest.raises(OptionError, match="stay the same"):
        model.set_params(blocks=3).fit(rows())


@pytest.mark.parametrize(("n", "folds"), [(450, None), (300, 1), (150, 3)])
def test_a_warm_start_holds_out_what_it_held_out_before_and_learns(n, folds):
    options = {"blocks": 2, "folds": folds, "components": 1, "learning_rate": 1e-2, "random_state": None}
    model = FlowDensity(**options, max_iter=20, warm_start=True).fit(rows(n))
    before, new = model.score(rows(2000, 1)), min(score for _, score in model.history_)
    model = pickle.loads(pickle.dumps(model))
    model.set_params(max_iter=100).fit(rows(n))
    assert model.history_[0][1] == pytest.approx(new, abs=1e-9)
    assert model.history_[-1][1] < new - 0.05
    assert model.score(rows(2000, 1)) > before + 0.05


def test_a_warm_start_on_other_rows_is_without_early_stopping():
    model = FlowDensity(**SHORT, warm_start=True).fit(rows())
    for other in (rows()[:-1], rows(seed=1)):
        with pytest.raises(OptionError, match="are not the same; use early_stopping=False"):
            model.fit(other)
    with pytest.raises(OptionError, match="are not the same"):
        model.set_params(folds=2).fit(rows())
    assert model.set_params(folds=1, early_stopping=False).fit(rows(seed=1)).n_iter_ == 40
    with pytest.raises(OptionError, match="are not the same"):  # it has now been trained on all rows
        model.set_params(early_stopping=True).fit(rows(seed=1))


def test_the_same_random_state_gives_the_same_fit_and_another_gives_another():
    fits = [FlowDensity(**{**SHORT, "random_state": seed}).fit(rows()).score(rows()) for seed in (0, 0, 1)]
    assert fits[0] == fits[1] != fits[2]


def test_many_columns_are_trained_with_estimates_and_scored_exactly_where_that_is_possible():
    normal = np.random.default_rng(0).normal(size=(300, 130))
    for columns, training, scoring in [
        (2, ExactLogDet, ExactLogDet),
        (13, RouletteLogDet, ExactLogDet),
        (130, RouletteLogDet, AdaptiveLogDet),
    ]:
        (stack,) = FlowDensity(**{**SHORT, "max_iter": 4}).fit(normal[:, :columns]).flow_.stacks()
        assert (type(stack.log_det), type(stack.eval_log_det)) == (training, scoring)
    estimated = FlowDensity(**SHORT, log_det="estimate").fit(rows())
    exact = FlowDensity(**SHORT).fit(rows())
    assert not np.allclose(estimated.score_samples(rows(20)), exact.score_samples(rows(20)), atol=1e-3)
    assert abs(estimated.score(rows(2000, 5)) - exact.score(rows(2000, 5))) < 0.2  # after as many steps they learned as much


def test_defaults_follow_the_table_and_what_is_given_stays():
    small, given = FlowDensity(max_iter=2).fit(rows(60)).settings_, FlowDensity(max_iter=2, growth=6).fit(rows(60)).settings_
    large = FlowDensity(max_iter=2).fit(rows(6000)).settings_
    assert (small.folds, large.folds) == (3, 1)
    assert small.blocks < large.blocks
    assert small.growth < large.growth
    assert (small.activation, large.activation) == ("clipswish", "sine")
    assert settings_for(5000, 40).activation == "clipswish"  # too few rows for so many columns
    assert given.growth == 6
    chosen = FlowDensity(max_iter=2, activation="lipswish", beta=1.0).fit(rows(60))
    assert (chosen.flow_.config.model.activation, chosen.flow_.config.model.beta) == ("lipswish", 1.0)
    assert held_out_rows(100_000, None) == 5000
    assert held_out_rows(100_000, 0.5) == 50_000


def test_training_is_in_float32_where_that_keeps_the_digits_and_the_flow_is_in_float64(monkeypatch):
    used, real = [], fitting.fit

    def watched(flow, *words):
        used.append(flow.dtype)
        return real(flow, *words)

    monkeypatch.setattr("idensenet.sklearn.base.fit", watched)
    near, far = rows(), rows() + np.array([0, 3e8])  # float32 has steps of 32 there
    scores = [FlowDensity(**SHORT).fit(x).score(x) for x in (near, far)]
    FlowDensity(**SHORT, dtype="float64").fit(near)
    assert used == [torch.float32, torch.float64, torch.float64]
    assert FlowDensity(**SHORT).fit(near).flow_.dtype == torch.float64
    assert scores[0] == pytest.approx(scores[1], abs=0.02)  # the same fit up to rounding


def test_a_time_limit_ends_the_schedule_in_time():
    model = FlowDensity(**{**SHORT, "max_iter": 100_000, "max_time": 1.5}).fit(rows())
    assert 0 < model.n_iter_ < 100_000
    clock = Clock(10, 1e-9)
    clock.tick()
    assert clock.over


def test_a_plateau_jumps_ahead_on_the_schedule_and_goes_back_to_the_best_weights():
    clock = Clock(100)
    factors = [clock.tick() for _ in range(20)]
    assert max(factors) == 1.0
    clock.jump()
    assert clock.tick() == pytest.approx(factor(0.5, 100))
    clock.jump()
    clock.jump()
    assert clock.over
    model = FlowDensity(max_iter=2000, blocks=2, folds=1, components=1, n_iter_no_change=2, random_state=0).fit(rows(60))
    best = min(score for _, score in model.history_)
    held_out = split(60)[1].x.numpy()
    assert -model.score(held_out) == pytest.approx(best, abs=1e-3)
    assert model.history_[-1][1] < max(score for _, score in model.history_[1:])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"blocks": 0}, "blocks=0 must be a positive integer"),
        ({"max_iter": 2.5}, "max_iter=2.5 must be a positive integer"),
        ({"lipschitz": 1.0}, "lipschitz=1.0 must be positive and below 1"),
        ({"learning_rate": -1}, "learning_rate=-1 must be positive"),
        ({"log_det": "approximate"}, "log_det='approximate' is not known"),
        ({"dtype": "float16"}, "dtype='float16' is not known"),
        ({"max_time": 0}, "max_time=0 must be positive"),
        ({"validation_fraction": 1.5}, "validation_fraction=1.5 must be positive and below 1"),
    ],
)
def test_options_out_of_range_are_named(options, text):
    with pytest.raises(OptionError, match=text):
        FlowDensity(**options).fit(rows())


# Tables without a density


def broken(column, value):
    X = rows()
    X[7, column] = value
    return X


TABLES = {
    "constant": (np.column_stack([rows(), np.full(300, 5.0)]), DataError, r"Column 2 is constant \(5\)"),
    "constants": (np.column_stack([rows(), np.zeros((300, 2))]), DataError, r"Columns 2, 3 are constant \(0\)"),
    "copy": (np.column_stack([rows(), rows()[:, 0]]), DataError, "Columns 0, 2 determine each other"),
    "combination": (np.column_stack([rows(), rows() @ [2.0, -1]]), DataError, "Columns 0, 1, 2 determine each other"),
    "NaN": (broken(0, np.nan), DataError, r"Column '\d' of X has NaN in row \d+, .*; drop or fill such rows"),
    "infinity": (broken(0, np.inf), DataError, r"Column '\d' of X has infinity in row \d+"),
    "strings": (
        np.array([["1", "b"], ["c", "d"]]),
        DataError,
        "Column '0' of X has 'c' in row 1, which is not a finite number",
    ),
    "sparse": (sparse.csr_matrix(rows()), TypeError, "[Ss]parse"),
    "one row": (rows()[:1], ValueError, "minimum of 2 is required"),
    "no row": (rows()[:0], ValueError, "minimum of 2 is required"),
    "too large": (rows() * 1e305, DataError, "too large for float64"),
}


@pytest.mark.parametrize(("X", "error", "text"), TABLES.values(), ids=TABLES)
def test_a_table_without_a_density_gets_one_sentence(X, error, text):
    with pytest.raises(error, match=text):
        FlowDensity(**SHORT).fit(X)


@pytest.mark.parametrize("shape", [(12, 20), (20, 19), (3, 5), (2, 1)])
def test_few_rows_are_fitted_and_stay_proper(shape):
    X = np.random.default_rng(0).normal(size=shape)
    if shape[0] < 10:
        with pytest.warns(UserWarning, match="too few to hold some out"):
            model = FlowDensity(**SHORT).fit(X)
    else:
        model = FlowDensity(**SHORT).fit(X)
    assert np.isfinite(model.score_samples(X)).all()
    assert np.isfinite(model.sample(3)).all()


@pytest.mark.filterwarnings("error::UserWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
def test_columns_are_called_by_their_names():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows(), columns=["height", "weight"])
    model = FlowDensity(**SHORT).fit(frame)
    drawn = model.sample(5, random_state=1)
    assert list(drawn.columns) == ["height", "weight"]
    np.testing.assert_array_equal(drawn.to_numpy(), FlowDensity(**SHORT).fit(rows()).sample(5, random_state=1))
    for bad, text in (
        (frame.astype(object).assign(city=["Bergen"] * 9 + ["Oslo"] * 291), "Column 'city' of X has 'Bergen' in row 0"),
        (frame.assign(age=[1.0, np.nan] * 150), "Column 'age' of X has NaN in row 1"),
    ):
        with pytest.raises(DataError, match=text):
            FlowDensity(**SHORT, categorical=None).fit(bad)
    with pytest.raises(DataError, match="Column 'age' of context has NaN in row 1"):
        FlowDensity(**SHORT).fit(frame, context=frame.assign(age=[1.0, np.nan] * 150))
    FlowOutlierDetector(**SHORT).fit(frame)
    assert list(model.feature_names_in_) == ["height", "weight"]
    with pytest.raises(ValueError, match="feature names"):
        model.score_samples(frame.rename(columns={"height": "depth"}))
    with pytest.raises(DataError, match="Column 'same' is constant"):
        FlowDensity(**SHORT).fit(frame.assign(same=1.0))


def test_a_column_that_rounding_to_float32_would_change_is_named():
    X = np.random.default_rng(0).normal(size=(500, 2)) * [10, 1] + [1.7e9, 0]
    entropy = math.log(2 * math.pi * math.e) + math.log(10)
    assert FlowDensity(**SHORT).fit(X).score(X) == pytest.approx(-entropy, abs=0.15)
    near = FlowDensity(**SHORT, dtype="float32").fit(X - [1.7e9, 0])
    assert near.score(X - [1.7e9, 0]) == pytest.approx(-entropy, abs=0.15)
    with pytest.raises(DataError, match=r"Column 0 \(mean 1.7e\+09, deviation .*\) loses digits that matter in float32"):
        FlowDensity(**SHORT, dtype="float32").fit(X)
    with pytest.raises(DataError, match="loses digits that matter in float32; compute in float64"):
        FlowDensity(**SHORT, dtype="float32").fit(X[:, 1:], context=X[:, 0])
    FlowDensity(**SHORT, dtype="float32").fit(X[:, 1:], context=np.full(500, 5.1))  # a constant has no digits to lose
    with pytest.raises(DataError, match="loses digits that matter in float64; subtract an offset"):
        FlowDensity(**SHORT).fit(X * [1e9, 1] + [1e23, 0])


# Among other tools


def test_it_works_in_pipelines_searches_clones_and_pickles():
    model = make_pipeline(StandardScaler(), FlowDensity(max_iter=20, blocks=2, folds=1, random_state=0))
    search = GridSearchCV(model, {"flowdensity__growth": [4, 8]}, cv=2, n_jobs=2).fit(rows(100))
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])
    fitted = search.best_estimator_
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.score_samples(rows(50)), fitted.score_samples(rows(50)))
    with pytest.raises(NotFittedError):
        clone(fitted).score_samples(rows(50))


def test_float32_rows_are_scored_like_float64_ones(moons):
    x = rows(50).astype(np.float32)
    np.testing.assert_array_equal(moons.score_samples(x), moons.score_samples(x.astype(np.float64)))


def test_the_package_is_imported_without_scikit_learn():
    code = "import sys, idensenet; print([m for m in ('sklearn', 'pandas', 'pyro', 'zuko', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# Contexts


def test_a_conditional_density_finds_the_posterior_of_a_linear_gaussian_model():
    random = np.random.default_rng(0)
    c = random.normal(size=(1500, 1))
    X = np.column_stack([2 * c[:, 0], -c[:, 0]]) + random.normal(size=(1500, 2)) * [0.5, 0.2]
    model = FlowDensity(max_iter=300, blocks=3, learning_rate=5e-3, random_state=0).fit(X, context=c)
    new = random.normal(size=(1000, 1))
    x = np.column_stack([2 * new[:, 0], -new[:, 0]]) + random.normal(size=(1000, 2)) * [0.5, 0.2]
    right = stats.norm(2 * new[:, 0], 0.5).logpdf(x[:, 0]) + stats.norm(-new[:, 0], 0.2).logpdf(x[:, 1])
    gap = right - model.score_samples(x, context=new)
    assert 0 - 3 * gap.std() / len(gap) ** 0.5 < gap.mean() < 0.08
    blind = FlowDensity(max_iter=40, blocks=3, components=1, random_state=0).fit(X)
    assert model.score(x, context=new) > blind.score(x) + 0.5
    drawn = model.sample(2000, random_state=0, context=[1.0])
    assert np.abs(drawn.mean(0) - [2, -1]).max() < 0.1
    assert np.abs(drawn.std(0) - [0.5, 0.2]).max() < 0.06
    with pytest.raises(ValueError, match="inconsistent"):
        model.score_samples(x, context=new[:-1])
    with pytest.raises(OptionError, match="conditional"):
        model.score_samples(x)


def test_the_columns_of_a_context_are_those_of_fit():
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    C = pandas.DataFrame(random.normal(size=(300, 2)) * [1, 50], columns=["p", "q"])
    model = FlowDensity(**SHORT).fit(rows(), context=C)
    for call in (model.score_samples, lambda X, context: model.sample(len(X), context=context)):
        with pytest.raises(DataError, match="The columns of context are q, p, but were p, q in fit"):
            call(rows(), context=C[["q", "p"]])
    with pytest.warns(UserWarning, match="context has no names"):
        plain = model.score_samples(rows(), context=C.to_numpy())
    np.testing.assert_array_equal(plain, model.score_samples(rows(), context=C))
    model.fit(rows(), context=C.to_numpy())
    model.score_samples(rows(), context=C[["q", "p"]])  # nothing is known of their names
    detector = FlowOutlierDetector(**SHORT).fit(rows(), context=C)
    with pytest.raises(DataError, match="The columns of context"):
        detector.predict(rows(), context=C[["q", "p"]])


# Outliers and classes


def test_outliers_are_what_the_density_finds_unlikely():
    X = rows(400)
    model = FlowOutlierDetector(contamination=0.1, **SHORT).fit(X)
    held_out = model.score_samples(split(400)[1].x.numpy())
    assert model.offset_ == pytest.approx(np.quantile(held_out, 0.1), abs=1e-5)  # they were scored in float32
    new = (model.predict(rows(5000, 1)) == -1).mean()
    assert new == pytest.approx(0.1, abs=3 * math.sqrt(0.09 / 60))  # the quantile of 60 rows
    everything = FlowOutlierDetector(contamination=0.1, **SHORT, early_stopping=False).fit(X)
    assert (everything.predict(X) == -1).mean() == pytest.approx(0.1, abs=0.003)
    assert not hasattr(model, "fit_predict")
    np.testing.assert_allclose(model.decision_function(X), model.score_samples(X) - model.offset_, atol=1e-12)
    assert (model.predict([[20.0, 100], [0.0, 900]]) == -1).all()
    with pytest.raises(OptionError, match=r"must lie in \(0, 0.5\]"):
        FlowOutlierDetector(contamination=0.7).fit(X)


def test_a_classifier_knows_classes_and_how_unlikely_its_input_is():
    X, y = load_wine(return_X_y=True)
    names = np.array(["red", "white", "rose"])[y]
    model = FlowClassifier(max_iter=200, blocks=3, folds=1, random_state=0).fit(X[::2], names[::2])
    assert model.score(X[1::2], names[1::2]) > 0.93
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1, atol=1e-12)
    assert list(model.classes_) == ["red", "rose", "white"]
    assert np.median(model.score_samples(X[1::2])) > model.score_samples(X[1::2] * 1.5).max()
    with pytest.raises(OptionError, match="must not be negative"):
        FlowClassifier(density_weight=-1).fit(X, y)


def test_the_weight_of_the_density_decides_what_is_learned():
    X, y = load_iris(return_X_y=True)
    scores = [
        FlowClassifier(density_weight=w, max_iter=100, blocks=3, folds=1, random_state=0).fit(X, y).score_samples(X).mean()
        for w in (0, 1)
    ]
    assert scores[1] > scores[0]
