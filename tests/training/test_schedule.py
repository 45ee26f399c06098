import math

import pytest

from idensenet.config import TrainConfig
from idensenet.errors import OptionError
from idensenet.training.schedule import Schedule


def test_a_shortened_run_scales_warm_up_and_switch_on():
    full = Schedule.of(TrainConfig(epochs=200, warmup=0.0064, concatenation_from=0.125), 781)
    short = Schedule.of(TrainConfig(max_steps=1000, warmup=0.0064, concatenation_from=0.125), 781)
    assert (full.steps, full.warmup, full.concatenation_from) == (156200, 1000, 19525)
    assert (short.steps, short.warmup, short.concatenation_from) == (1000, 6, 125)
    assert Schedule.of(TrainConfig(max_steps=60, warmup_steps=10), 781).warmup == 10


def test_a_crash_loses_no_more_than_a_thousand_steps_unless_told_otherwise():
    long = Schedule.of(TrainConfig(epochs=1000), 781)
    assert (long.eval_every, long.save_every) == (78_100, 1000)
    assert Schedule.of(TrainConfig(max_steps=4000), None).save_every == 400  # with the evaluations
    assert Schedule.of(TrainConfig(epochs=1000, save_every=5000), 781).save_every == 5000


def test_the_rate_rises_linearly_and_then_stays_or_falls_to_zero():
    constant = Schedule.of(TrainConfig(max_steps=100, warmup_steps=10, lr=0.5), None)
    assert [constant.rate(i) for i in (0, 4, 9, 10, 99)] == [0.05, 0.25, 0.5, 0.5, 0.5]
    cosine = Schedule.of(TrainConfig(max_steps=110, warmup_steps=10, lr=0.5, schedule="cosine"), None)
    assert cosine.rate(10) == 0.5
    assert cosine.rate(60) == pytest.approx(0.25)
    assert cosine.rate(109) == pytest.approx(0.25 * (1 + math.cos(math.pi * 0.99)))


def test_a_run_without_length_is_refused():
    with pytest.raises(OptionError, match="max_steps"):
        Schedule.of(TrainConfig(), None)
    with pytest.raises(OptionError, match="0 steps"):
        Schedule.of(TrainConfig(max_steps=0), None)
    with pytest.raises(OptionError, match="'linear' is not known"):
        Schedule.of(TrainConfig(max_steps=5, schedule="linear"), None)
