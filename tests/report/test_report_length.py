"""Words about runs that were too short, and numbers in place of curves of two points."""

import json

import pytest
from report_outline import Outline, text_of

from driven_browser import driven
from idensenet.report.curves import Line, Panel, curve_figure
from idensenet.report.length import last_gain, undertrained
from idensenet.report.page import write_report
from idensenet.report.story import tell
from report_browser import chromium
from report_runs import fake_run, image_flow, image_source, toy_flow, toy_source


@pytest.mark.parametrize(
    ("scores", "gaining"),
    [
        ([3.0, 2.5, 2.2, 2.0], True),
        ([3.0, 2.1, 2.0, 2.0], False),  # flat
        ([3.0, 2.0, 1.9, 1.95], False),  # the last is not the best
        ([3.0, 2.5, 2.2], None),  # too few to tell
        ([2.0, 2.0, 2.0, 2.0], False),
    ],
)
def test_gain_of_the_last_quarter(scores, gaining):
    found = last_gain([(100 * (i + 1), score) for i, score in enumerate(scores)])
    assert (None if found is None else found[1]) == gaining
    if gaining:
        assert found[0] == pytest.approx(0.2)


def test_scores_that_moved_less_than_their_error_tell_nothing():
    scores = [(100, 3.0), (200, 2.99), (300, 2.98), (400, 2.97)]
    assert last_gain(scores, 0.02) == (pytest.approx(0.01), True)
    assert last_gain(scores, 0.1) is None


def made(path, change=None, **overrides):
    """A run of 60 steps whose metrics `change` has rewritten."""
    run = fake_run(path, toy_flow(**overrides), toy_source(), "toy-idensenet-clipswish")
    entries = run.metrics()
    if change is not None:
        (run.path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in map(change, entries) if entry))
    return tell(run, toy_source())


def test_a_short_run_is_called_one(tmp_path):
    reasons = " ".join(undertrained(made(tmp_path / "short")))
    assert "The held-out score still fell by" in reasons
    assert "nats in the last quarter of the run" in reasons
    assert "trains for 50,000 steps of 500 samples; this model has seen 0.12 % of that" in reasons
    unfinished = undertrained(made(tmp_path / "unfinished", train={"max_steps": 200}))
    assert unfinished[0] == "The run is not finished: this is step 60 of 200."


def test_a_run_that_gains_no_more_is_long_enough(tmp_path):
    def flat(entry):
        return {**entry, "nats": 5.0 if entry["step"] < 20 else 2.5} if entry["kind"] == "eval" else entry

    assert undertrained(made(tmp_path / "flat", flat)) == []


def test_the_page_says_so_in_words_and_how_to_go_on(tmp_path):
    story = made(tmp_path / "run")
    page = write_report(story.run, toy_source()).read_text()
    assert "This model looks undertrained." in text_of(page)
    assert f"idensenet train --resume {story.run.path} --train.max_steps 120" in text_of(page)
    assert page.index('class="warning"') < page.index('class="tiles"')


def test_two_values_are_numbers_and_no_curve(tmp_path):
    def few(entry):
        return entry if entry["kind"] == "train" and entry["step"] in (5, 10) else {"kind": "none", "step": 0}

    story = made(tmp_path / "run", few)
    page = write_report(story.run, toy_source()).read_text()
    assert not [alt for alt in Outline(page).alts if "over the steps" in alt]
    assert "Too few values for a curve" in text_of(page)
    assert "Negative log-density, nats: training 5 " in text_of(page)


def test_two_values_beside_a_curve_are_points():
    line, pair = Line("training", (1, 2, 3, 4), (4.0, 3.0, 2.0, 1.0)), Line("held out", (2, 4), (3.0, 2.0), (0.1, 0.1))
    figure = curve_figure(Panel("Score", (line, pair)))
    drawn = {each.get_label(): each for each in figure.axes[0].get_lines() if not each.get_label().startswith("_")}
    assert drawn["training"].get_linestyle() == "-"
    assert next(each.get_linestyle() for each in figure.axes[0].get_lines() if len(each.get_xdata()) == 2) == "None"


@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")
def test_what_scrolls_on_a_phone_has_a_hint_and_text_is_legible(tmp_path):
    flow = image_flow()
    run = fake_run(tmp_path / "run", flow, image_source(flow), "digits-idensenet")
    page = write_report(run, image_source(flow))
    hidden = """[...document.querySelectorAll('.scroll, .wide, .heat')].filter(box => box.scrollWidth > box.clientWidth
        && !(box.previousElementSibling?.classList.contains('hint')
        && box.previousElementSibling.getClientRects().length)).map(box => box.outerHTML.slice(0, 200))"""
    shown = "[...document.querySelectorAll('.hint')].filter(hint => hint.getClientRects().length).length"
    with driven(tmp_path) as browser:
        browser.open(page.as_uri(), 390, phone=True, ready="document.readyState === 'complete'")
        assert browser.evaluate(hidden) == []
        assert browser.evaluate(shown) > 0
        assert browser.needed() == 390
        assert browser.smallest_text() >= 13
        browser.open(page.as_uri(), 1280, ready="document.readyState === 'complete'")
        assert browser.evaluate(shown) == 0
        assert browser.said == []
