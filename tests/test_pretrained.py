"""The trained models that come with the package."""

import numpy as np
import pytest
import torch

import idensenet as idn
from idensenet.data.catalog import open_source
from idensenet.storage import pretrained
from idensenet.training.evaluation import first_rows, score_rows, summary

# held-out score that each must reach, and the least possible where that is known
SCORES = {"moons": (2.45, 2.3939), "checkerboard": (3.68, 3.4657), "digits": (1.95, 0.0)}


def test_there_are_three_of_them_and_they_are_small():
    assert set(pretrained()) == set(SCORES)
    assert sum(file.stat().st_size for folder in pretrained().values() for file in folder.iterdir()) < 1_000_000


@pytest.mark.parametrize("name", SCORES)
def test_a_name_is_enough_for_densities_samples_and_a_certificate(name):
    flow = idn.load(name)
    test = open_source(name).test
    found = summary(flow, score_rows(flow, test, first_rows(test, 2000), 500))
    score, error = found.get("bits_per_dim", found["nats"]), found.get("bits_per_dim_error", found["nats_error"])
    worst, least = SCORES[name]
    assert least - 2 * error <= score <= worst
    assert flow.certify().contractive
    assert flow.sample(4, torch.Generator().manual_seed(0)).shape == (4, *flow.shape)


def test_digits_know_their_own_from_noise():
    flow = idn.load("digits")
    digits = torch.from_numpy(open_source("digits").test.x[:50])
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 17, digits.shape, dtype=np.uint8))
    with torch.no_grad():
        assert float(flow.log_prob(digits).min()) > float(flow.log_prob(noise).max())
