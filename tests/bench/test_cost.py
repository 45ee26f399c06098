"""What a step costs on paper, against what torch counts while it runs."""

import pytest

import idensenet as idn
from idensenet.bench.cost import DEVICES, device_of, seconds, step_cost, terms
from idensenet.bench.work import flops_of, images_for, stepper
from idensenet.cli import main
from idensenet.config import LogDetConfig, recipe
from idensenet.errors import OptionError
from idensenet.precision import Precision

SMALL = {"shape": (3, 16, 16), "blocks": (1, 2), "growth": 16, "width": 32, "logdet": {"method": "series", "terms": 3}}


@pytest.mark.parametrize("name", ["cifar10-idensenet-tiny", "cifar10-resflow-tiny"])
@pytest.mark.parametrize("memory", ["keep", "save"])
def test_operations_are_those_that_torch_counts(name, memory):
    config = recipe(name).config.replace(**SMALL, train={"batch_size": 16, "memory": memory})
    flow = idn.build(name, **SMALL, train={"memory": memory})
    x = images_for(flow, 16)
    flow.initialize(x)
    step = stepper(flow.train(), x)
    step()
    counted = flops_of(step)  # with norms and their gradients, which the calculation leaves out
    assert 1 <= counted / step_cost(flow, config).operations < 1.12


def test_the_length_of_the_series_counts():
    assert terms(LogDetConfig("roulette", exact_terms=2, law_parameter=1.0)) == 3
    assert terms(LogDetConfig("roulette", exact_terms=2, law="geometric", law_parameter=0.5)) == 4
    assert terms(LogDetConfig("series", terms=7)) == 7
    with pytest.raises(OptionError, match="exact has no fixed cost"):
        terms(LogDetConfig("exact"))


def test_more_devices_cost_an_exchange_and_faster_products_save_time():
    config = recipe("cifar10-idensenet-small").config
    cost = step_cost(idn.build("cifar10-idensenet-small"), config)
    count, h100 = device_of("8xh100")
    one, many = (seconds(cost, h100, n, Precision()) for n in (1, count))
    assert one["exchange of gradients"] == 0 < many["exchange of gradients"]
    assert seconds(cost, h100, 1, Precision(bfloat16=True))["products"] == pytest.approx(one["products"] * 67 / 989)
    assert DEVICES["titan-rtx"].peak(Precision(tf32=True)) == DEVICES["titan-rtx"].float32


def test_a_dry_run_on_paper_needs_no_data_and_says_that_it_is_a_calculation(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "cifar10-idensenet-small", "--dry-run", "--assume", "4xtitan-rtx"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("A calculation")
    assert "8,695,126" in said
    assert "an epoch of 50,000 images" in said
    assert main(["train", "cifar10-idensenet-small", "--dry-run", "--assume", "h1000"]) == 2
    assert "did you mean" in capsys.readouterr().err.lower()
    assert main(["train", "cifar10-idensenet-small", "--assume", "h100"]) == 2
    assert list(tmp_path.iterdir()) == []
