"""The benchmark runs, and its figures mean what they say. How fast anything is, is not tested."""

import importlib.util
import json
import time

import pytest
import torch
import torch.nn.functional as F

from idensenet.bench import peers
from idensenet.bench.scaling import exponent
from idensenet.bench.timing import Times, in_turns
from idensenet.bench.work import flops_of
from idensenet.cli import main


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_work_is_done_in_turns_and_the_first_rounds_do_not_count():
    done = []
    times = in_turns({"a": lambda: done.append("a"), "b": lambda: (done.append("b"), time.sleep(0.02))}, repeats=3, warm_up=2)
    assert done == ["a", "b"] * 5
    assert len(times["a"].seconds) == 3
    assert times["b"].median >= 0.02 > times["a"].median


def test_median_and_deviation():
    times = Times((1.0, 2.0, 6.0))
    assert times.median == 2.0
    assert times.deviation == pytest.approx(7**0.5)
    assert Times((1.0,)).deviation == 0.0


def test_operations_are_those_of_the_products():
    x, kernel = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3)
    assert flops_of(lambda: F.conv2d(x, kernel, padding=1)) == 2 * 2 * 3 * 5 * 9 * 64
    assert flops_of(lambda: torch.ones(4, 6) @ torch.ones(6, 7)) == 2 * 4 * 6 * 7


def test_the_table_has_every_line_and_is_written_as_json(tmp_path, capsys):
    out = tmp_path / "bench.json"
    names = "[toy,image,memory,sampling,evaluation,spread,scaling,processes]"
    drawn = tmp_path / "scaling.png"
    assert main(["bench", "--small", "--threads", "1", "--only", names, "--out", str(out), "--picture", str(drawn)]) == 0
    assert drawn.read_bytes().startswith(b"\x89PNG")
    shown = " ".join(capsys.readouterr().out.split())
    found = json.loads(out.read_text())
    assert found["threads"] == 1
    whats = [row["what"] for row in found["rows"]]
    for part in (
        "plain convolution",
        "i-DenseNet, eager",
        "Residual Flow",
        "memory-saving",
        "sampling",
        "log-density",
        "spread",
        "time over batch",
        "one more block",
        "two processes",
    ):
        assert any(part in what for what in whats), part
        assert part in shown
    assert all(row["value"] > 0 for row in found["rows"] if "scaling" not in row["what"])  # a tiny model's slope is noise
    spread = next(row for row in found["rows"] if "spread" in row["what"])
    assert spread["against"] == "roulette, Gaussian probes"
    assert spread["ratio"] > 0


def test_the_profile_names_what_takes_the_time(capsys):
    assert main(["bench", "--small", "--threads", "1", "--profile"]) == 0
    assert "convolution" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "[tyo]"], "did you mean 'toy'"),
        (["--threads", "0"], "at least 1"),
        (["--only", "[toy]", "--picture", "x.png"], "add it to --only"),
    ],
)
def test_bad_input(words, says, capsys):
    assert main(["bench", *words]) == 2
    assert says in capsys.readouterr().err


def test_an_exponent_is_the_slope_in_logarithms():
    assert exponent([1, 2, 4, 8], [5.0, 10.0, 20.0, 40.0]) == pytest.approx(1)
    assert exponent([2, 4, 8], [1.0, 8.0, 64.0]) == pytest.approx(3)


@pytest.mark.parametrize("name", ["normflows", "flowcon"])
def test_a_peer_steps_where_it_is_installed_and_is_left_out_elsewhere(name):
    step = getattr(peers, f"{name}_toy_step")(lambda: torch.randn(20, 2), blocks=1)
    if importlib.util.find_spec(name) is None:
        assert step is None
    else:
        step()


def test_a_memory_saving_block_keeps_its_input_and_u_or_its_input_alone():
    """The ActNorm between two blocks keeps nothing of its own; everything kept is many times that."""
    from idensenet.bench import memory

    def slope(recompute):
        options = {"growth": 16, "fc_blocks": 0, "logdet": {"recompute": recompute}}
        few, more = (memory.kept("cifar10-idensenet-small", {**options, "blocks": [n, 1, 1]}, 2) for n in (1, 3))
        return (more - few) / 2

    size = 2 * 3 * 32 * 32 * 4 / 2**20
    assert slope(True) == pytest.approx((2 + 1 / 32) * size, rel=0.02)
    assert slope("input") == pytest.approx((1 + 1 / 32) * size, rel=0.02)
    assert slope(False) > 10 * slope(True)
