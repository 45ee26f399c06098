"""The benchmark runs, and its figures mean what they say. How fast anything is, is not tested."""

import importlib.util
import json
import time

import pytest
import torch
import torch.nn.functional as F

from idensenet.bench import cases, peers
from idensenet.bench.machine import Machine
from idensenet.bench.scaling import exponent
from idensenet.bench.size import SMALL
from idensenet.bench.timing import Row, Times, in_turns
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


@pytest.mark.slow
def test_scaling_and_processes_are_lines_of_the_table_and_scaling_is_drawn(tmp_path, capsys):
    drawn = tmp_path / "scaling.png"
    assert main(["bench", "--small", "--threads", "1", "--only", "[scaling,processes]", "--picture", str(drawn)]) == 0
    assert drawn.read_bytes().startswith(b"\x89PNG")
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("time over batch", "one more block", "two processes"):
        assert part in shown


def test_the_table_has_every_line_and_is_written_as_json(tmp_path, capsys):
    out = tmp_path / "bench.json"
    names = "[toy,image,memory,sampling,serving,evaluation,spread]"
    assert main(["bench", "--small", "--threads", "1", "--only", names, "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    found = json.loads(out.read_text())
    assert found["threads"] == 1
    whats = [row["what"] for row in found["rows"]]
    for part in (
        "plain convolution",
        "i-DenseNet, eager",
        "Residual Flow",
        "eager, memory-saving",
        "the paper's series",
        "toy: with monotone blocks, eager",
        "eager, monotone blocks",
        "training step, compiled",
        "above idle",
        "sampling",
        "the same, frozen",
        "log-density",
        "spread",
    ):
        assert any(part in what for what in whats), part
        assert part in shown
    assert all(row["value"] > 0 for row in found["rows"])
    spread = next(row for row in found["rows"] if "spread" in row["what"])
    assert spread["against"] == "the paper's estimator"
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


def test_the_row_in_bfloat16_is_there_where_the_processor_has_units_for_it():
    lines = [Row("x", 1.0, 0.0, "")]
    for convolution, there in ((1.0, False), (0.5, True)):
        rows = list(cases.image(SMALL, Machine(convolution, 1.0, 1.0, tuple(lines))))
        assert any("bf16-mixed" in row.what for row in rows) == there
        assert all(row.peak is None for row in rows if "bf16" in row.what)


def test_a_memory_saving_block_keeps_its_input_and_u_for_each_image_and_its_prepared_weights():
    """Next to them the signs of the probe, a byte each, and the input of the ActNorm; everything kept is many times that."""
    from idensenet.bench import memory

    def kept(mode, batch, blocks):
        torch.manual_seed(0)  # the same weights for every batch
        options = {"growth": 16, "fc_blocks": 0, "train": {"memory": mode}, "blocks": [blocks, 1, 1]}
        return memory.kept("cifar10-idensenet-small", options, batch)

    def slope(mode, batch):
        return (kept(mode, batch, 3) - kept(mode, batch, 1)) / 2

    size = 2 * 3 * 32 * 32 * 4 / 2**20  # of two images
    saved = {batch: slope("save", batch) for batch in (2, 4)}
    assert saved[4] - saved[2] == pytest.approx((3 + 1 / 4) * size, rel=0.001)
    weights = (8 * 9 * (3 + 19 + 35) + 3 * 51) * 4 / 2**20
    assert weights < 2 * saved[2] - saved[4] < 2.3 * weights  # prepared, and the gradients of their norms where they are active
    assert slope("keep", 4) - slope("keep", 2) > 10 * (saved[4] - saved[2])
