import math

import pytest
import torch

import idensenet as idn
from idensenet.config import TrainConfig
from idensenet.errors import OptionError
from idensenet.training.objective import Objective, hybrid_weight

SMALL = {"shape": (3, 8, 8), "blocks": (1, 1), "growth": 8, "head_width": 4, "fc_blocks": 0, "classes": 3}


@pytest.fixture
def hybrid():
    flow = idn.build("cifar10-idensenet-hybrid", **SMALL)
    flow.initialize(torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8))
    return flow.train()


def test_lambda_is_a_number_or_one_over_the_dimension():
    assert [hybrid_weight(t, 192) for t in ("0", "1", "0.5", "1/D", "1/d")] == [0, 1, 0.5, 1 / 192, 1 / 192]
    for bad in ("-1", "many", "inf", "nan"):
        with pytest.raises(OptionError, match="1/D"):
            hybrid_weight(bad, 192)


@pytest.mark.parametrize("weight", ["1/D", "1", "0.1"])
def test_the_hybrid_loss_is_lambda_times_bits_plus_cross_entropy_in_bits(hybrid, weight):
    x, y = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8), torch.tensor([0, 1, 2, 0])
    loss, shown = Objective(hybrid, TrainConfig(objective="hybrid", weight=weight))(x, y, torch.Generator().manual_seed(1))
    log_prob, logits = hybrid.log_prob_and_logits(x, torch.Generator().manual_seed(1))
    bpd = idn.bits_per_dim(log_prob, 192).mean()
    cross = -logits.log_softmax(1)[torch.arange(4), y].mean()
    torch.testing.assert_close(loss, hybrid_weight(weight, 192) * 192 * bpd + cross / math.log(2))
    torch.testing.assert_close(shown["bits/dim"], bpd.detach())
    assert float(shown["accuracy"]) == float((logits.argmax(1) == y).float().mean())


def test_lambda_zero_and_classification_compute_no_density(hybrid, monkeypatch):
    x, y = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8), torch.tensor([0, 1, 2, 0])
    monkeypatch.setattr(type(hybrid), "log_prob_and_logits", None)
    a, _ = Objective(hybrid, TrainConfig(objective="hybrid", weight="0"))(x, y, torch.Generator().manual_seed(1))
    b, _ = Objective(hybrid, TrainConfig(objective="classification"))(x, y, torch.Generator().manual_seed(1))
    assert float(a.detach()) == float(b.detach())


def test_densities_count_in_nats_without_levels_and_in_bits_with_them(hybrid):
    toy = idn.build("toy-idensenet", blocks=(1,)).train()
    x = torch.randn(5, 2)
    loss, shown = Objective(toy, TrainConfig())(x, None, torch.Generator())
    torch.testing.assert_close(loss, -toy.log_prob(x).mean())
    assert list(shown) == ["nats"]
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    loss, _ = Objective(hybrid, TrainConfig())(images, None, torch.Generator().manual_seed(2))
    torch.testing.assert_close(loss, hybrid.bits_per_dim(images, torch.Generator().manual_seed(2)).mean())


def test_objectives_that_do_not_fit_are_refused(hybrid):
    toy = idn.build("toy-idensenet", blocks=(1,))
    with pytest.raises(OptionError, match="needs a model with classes"):
        Objective(toy, TrainConfig(objective="hybrid"))
    with pytest.raises(OptionError, match="'fit' is not known"):
        Objective(toy, TrainConfig(objective="fit"))
    with pytest.raises(OptionError, match="needs labels"):
        Objective(hybrid, TrainConfig(objective="hybrid"))(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), None, torch.Generator())


def test_a_weight_says_how_much_a_sample_counts():
    flow, x = idn.build("toy-idensenet", blocks=(1,)), torch.randn(6, 2)
    flow.initialize(x)
    objective, counts = Objective(flow, TrainConfig()), torch.tensor([1, 1, 2, 1, 3, 4])
    generator = torch.Generator()
    weighted, _ = objective(x, None, generator, weight=counts / counts.float().mean())
    repeated, _ = objective(x.repeat_interleave(counts, 0), None, generator)
    torch.testing.assert_close(weighted, repeated)
    plain, _ = objective(x, None, generator)
    assert float((plain - repeated).detach().abs()) > 1e-3  # the control
