import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import image_source

from idensenet.errors import LostProcessError
from idensenet.storage import load
from idensenet.training.evaluation import first_rows, score_rows, summary
from idensenet.training.ranks import Ranks
from idensenet.training.run import RunFolder


def test_two_processes_on_images_keep_weights_and_norms_equal_and_draw_different_probes(tmp_path):
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, here / "ranks.py", tmp_path],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    a, b = (load_file(tmp_path / f"rank{rank}.safetensors") for rank in (0, 1))
    assert not torch.equal(a.pop("draws"), b.pop("draws"))
    assert any("norm" in name or "sigma" in name for name in a), list(a)
    for name, value in a.items():
        assert torch.equal(value, b[name]), name

    # every rank scored its share of the seven samples; one process that scores all of them finds the same
    run = RunFolder(tmp_path / "run")
    said = [entry for entry in run.metrics() if entry["kind"] == "eval"][-1]
    test = image_source().test
    found = summary(flow := load(run.path), score_rows(flow, test, first_rows(test, 7)))
    assert said["samples"] == found["samples"] == 7
    for name in ("bits_per_dim", "bits_per_dim_error", "accuracy", "calibration_error"):
        assert said[name] == pytest.approx(found[name], rel=1e-5), name


@pytest.mark.parametrize("n", [1, 2, 7, 12])
def test_the_shares_of_all_processes_are_of_one_length_and_their_rows_come_in_order(n):
    world = 3
    shares = [Ranks(SimpleNamespace(global_rank=rank, world_size=world)).share(n) for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    together = np.concatenate(shares)
    assert together[:n].tolist() == list(range(n))
    assert together.max() < n


def of_two(all_reduce):
    return Ranks(SimpleNamespace(global_rank=1, world_size=2, all_reduce=all_reduce))


def test_a_request_to_stop_holds_for_all_from_the_next_step_on():
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.ones(3)
    ranks = of_two(lambda value, reduce_op: value / 2)  # the other one has no gradient and was not asked
    assert not ranks.average_gradients([weight], asked=True)
    assert weight.grad.tolist() == [0.5] * 3
    assert ranks.average_gradients([weight], asked=False)
    assert not ranks.average_gradients([weight], asked=False)


def test_what_goes_wrong_between_processes_is_one_kind_of_error():
    def closed(value, reduce_op):
        raise RuntimeError("[gloo/pair.cc:1] Connection closed by peer [10.0.0.1]:80. This is typical")

    with pytest.raises(LostProcessError, match=r"^Rank 1 of 2 has lost .* \(Connection closed by peer \[10.0.0.1\]:80\)$"):
        of_two(closed).mean(torch.zeros(()))
