"""Single scores: their standard errors are true, more draws make them smaller, and they stay functions of the data."""

import csv
import json

import numpy as np
import pytest
import torch

import idensenet as idn
from flows import images, small_images
from idensenet.cli import main
from idensenet.commands.use import said_errors
from idensenet.data.catalog import open_source
from idensenet.data.source import Split
from idensenet.errors import OptionError
from idensenet.logdet import ExactLogDet, KrylovLogDet
from idensenet.training.evaluation import score_rows
from idensenet.training.probing import LEAST, MOST, Probing, averaged, deviation, exact_if_small, for_single_scores, is_exact


@pytest.fixture(scope="module")
def flow():
    made = small_images().eval().requires_grad_(False)
    for stack in made.stacks():
        stack.eval_log_det = KrylovLogDet()
    return made


@pytest.fixture(scope="module")
def rows(flow):
    return images(flow, 24)


def scored(flow, x, probing):
    return score_rows(flow, Split(x.numpy()), np.arange(len(x)), probing=probing)


def test_a_standard_error_is_the_spread_of_scores_about_the_exact_one(flow, rows):
    with exact_if_small(flow):
        exact = scored(flow, rows, Probing())
    assert bool((exact["error"] == 0).all())
    found = scored(flow, rows, Probing(16))
    ratio = (found["log_prob"] - exact["log_prob"]).double() / found["error"].double()
    # 24 values of Student's t with 15 degrees of freedom: variance 15/13, and a standard error of about 0.4 for its estimate
    assert float(ratio.square().mean()) == pytest.approx(15 / 13, abs=1.2)
    single = scored(flow, rows, None)["log_prob"] - exact["log_prob"]
    assert float((found["log_prob"] - exact["log_prob"]).square().mean()) < 0.4 * float(
        single.square().mean()
    )  # 1/16 on average
    # negative control: errors of a quarter of the size would be seen
    assert float((4 * ratio).square().mean()) > 15 / 13 + 3 * 1.2


def test_the_first_draw_is_log_prob_and_others_are_independent_functions_of_the_data(flow, rows):
    draws = [flow.log_prob_terms(rows, draw=i)["log_det"] for i in range(3)]
    torch.testing.assert_close(sum(flow.log_prob_terms(rows, draw=0).values()), flow.log_prob(rows))
    torch.testing.assert_close(draws[2][5:7], flow.log_prob_terms(rows[5:7], draw=2)["log_det"], rtol=1e-5, atol=1e-4)
    assert len({round(float(draw[0]), 4) for draw in draws}) == 3
    assert torch.equal(flow.log_prob_terms(rows, draw=1)["base"], flow.log_prob_terms(rows)["base"])  # the noise is the same


def test_a_score_does_not_depend_on_the_others_also_with_a_target(flow, rows):
    for probing in (Probing(5), Probing(error=0.3)):
        together, alone = (scored(flow, part, probing) for part in (rows, rows[3:4]))
        for name in ("log_prob", "error"):
            torch.testing.assert_close(together[name][3:4], alone[name], rtol=1e-4, atol=1e-3)


def test_draws_go_on_until_the_error_is_small_enough_or_there_are_too_many(flow, rows):
    one = deviation(flow, rows, None)
    found = scored(flow, rows, Probing(error=one / 4))["error"]
    assert bool((found <= one / 4).all())
    assert float(found.mean()) > one / 16  # and not much further
    hopeless = scored(flow, rows[:2], Probing(error=1e-6))["error"]
    assert bool((hopeless > 1e-6).all())
    assert float(hopeless.mean()) < 2 * one / MOST**0.5


def test_the_deviation_of_one_draw_and_the_draws_for_a_share_of_the_spread(flow, rows):
    with exact_if_small(flow):
        exact = flow.log_prob_terms(rows)["log_det"]
        assert deviation(flow, rows, None) == 0.0
    errors = torch.stack([flow.log_prob_terms(rows, draw=i)["log_det"] - exact for i in range(20, 26)])
    # both are roots of means of some 150 squares
    assert deviation(flow, rows, None) == pytest.approx(float(errors.double().square().mean().sqrt()), rel=0.35)
    assert for_single_scores(5.0, 10.0) == Probing(25, known=5.0)
    assert for_single_scores(0.1, 10.0).draws == 1
    assert for_single_scores(1e9, 10.0).draws == MOST
    assert for_single_scores(1.0, 0.0).draws == 1
    _, error = averaged(flow, rows, None, exact, Probing(4, known=3.0))
    assert bool((error == 1.5).all())
    assert LEAST > 4


def test_estimators_come_back_and_large_ones_are_left_alone(flow):
    before = [stack.eval_log_det for stack in flow.stacks()]
    with exact_if_small(flow):
        assert is_exact(flow)
    assert [stack.eval_log_det for stack in flow.stacks()] == before
    large = idn.build("mnist-idensenet", blocks=(1, 1), growth=4, fc_blocks=0)
    with exact_if_small(large):
        assert not is_exact(large)
    assert is_exact(idn.load("moons"))


@pytest.mark.parametrize("values", [{"draws": 0}, {"error": 0.0}, {"error": -1.0}, {"error": float("nan")}])
def test_bad_options_are_refused(values):
    with pytest.raises(OptionError, match="must be"):
        Probing(**values)


def read(path):
    with path.open() as stream:
        return list(csv.DictReader(stream))


def test_scores_of_digits_come_with_an_error_far_below_their_spread(tmp_path, capsys):
    """On the model of the package, where one draw has an error of five nats and scores spread by nine."""
    out = tmp_path / "s.csv"
    words = ["score", "digits", "--data.name", "digits", "--samples", "12", "--reference", "40"]
    assert main([*words, "--out", str(out)]) == 0
    found = read(out)
    flow = idn.load("digits")
    x = torch.from_numpy(open_source("digits").test.x[:12].copy())
    for stack in flow.stacks():
        stack.eval_log_det = ExactLogDet()
    with torch.no_grad():
        exact = flow.log_prob(x)
    np.testing.assert_allclose([float(row["log_density"]) for row in found], exact, rtol=1e-5)
    assert all(float(row["log_density_error"]) == 0 for row in found)
    assert main([*words, "--out", str(tmp_path / "p.csv"), "--probes", "2"]) == 0
    errors = [float(row["log_density_error"]) for row in read(tmp_path / "p.csv")]
    assert 1 < np.mean(errors) < 10
    assert main([*words, "--out", str(out), "--probes", "2", "--error", "1"]) == 2
    assert main([*words, "--out", str(out), "--error", "0"]) == 2
    assert "--error" in capsys.readouterr().err


def test_evaluation_takes_both_options(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for extra, said in ((["--probes", "2"], "standard error of a single score"), (["--error", "0.5"], ": 0 nats")):
        assert main(["evaluate", "digits", "--samples", "4", *extra]) == 0
        assert said in capsys.readouterr().out
        assert json.loads((tmp_path / "evaluation.json").read_text())["single_error"] >= 0
    assert main(["evaluate", "digits", "--samples", "4"]) == 0
    assert "single_error" not in json.loads((tmp_path / "evaluation.json").read_text())


def test_rows_that_miss_the_target_are_named():
    lines = said_errors(torch.tensor([0.1, 0.7, 0.2, 0.9]), 0.5)
    assert "2 of 4 rows did not reach --error 0.5" in lines[1]
    assert lines[1].endswith("1, 3")
