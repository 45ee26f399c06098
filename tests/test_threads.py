"""The number of threads follows the size of the work, unless somebody has set it, and is what it was afterwards."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import idensenet as idn
from idensenet import threads
from idensenet.cli import main
from idensenet.threads import VARIABLES, set_by_user, suited_to, threads_for


@pytest.fixture
def free(monkeypatch):
    """As if nobody had set a number, on a machine of eight cores; returns the numbers that torch receives."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    now, told = [8], []
    monkeypatch.setattr(threads, "_AT_IMPORT", 8)
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: (told.append(number), now.__setitem__(0, number)))
    return told


def test_toys_and_tables_take_one_thread_and_images_all(free):
    assert threads_for(idn.build("toy-idensenet"), 500) == 1
    assert threads_for(idn.build("toy-resflow"), 500) == 1
    assert threads_for(idn.build("toy-idensenet", shape=(30,)), 128) == 1
    assert threads_for(idn.build("cifar10-idensenet-tiny"), 16) == 8
    assert threads_for(idn.build("cifar10-idensenet-small"), 8) == 8


def test_the_number_is_what_it_was_afterwards_also_after_an_error(free):
    flow = idn.build("toy-idensenet", blocks=(1,))
    with suited_to(flow, 10):
        assert torch.get_num_threads() == 1
        with suited_to(idn.build("cifar10-idensenet-tiny"), 100):  # inside of another choice nothing is chosen
            assert torch.get_num_threads() == 1
    assert free == [1, 8]
    with pytest.raises(ArithmeticError), suited_to(flow, 10):
        raise ArithmeticError
    assert torch.get_num_threads() == 8


@pytest.mark.parametrize("name", VARIABLES)
def test_the_environment_decides(free, monkeypatch, name):
    monkeypatch.setenv(name, "3")
    assert set_by_user()
    with suited_to(idn.build("toy-idensenet", blocks=(1,)), 10):
        assert not free


def test_a_call_of_torch_decides_before_and_after_the_import(free, monkeypatch):
    assert not set_by_user()
    torch.set_num_threads(5)
    assert set_by_user()
    monkeypatch.setattr(threads, "_AT_IMPORT", 5)
    assert set_by_user()
    with suited_to(idn.build("toy-idensenet", blocks=(1,)), 10):
        assert torch.get_num_threads() == 5


def test_an_option_decides_before_all(free, monkeypatch):
    monkeypatch.setenv(VARIABLES[0], "3")
    with suited_to(idn.build("toy-idensenet", blocks=(1,)), 10, wanted=2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 8


def test_commands_choose_and_restore(free, tmp_path):
    words = ["train", "toy-idensenet", "--model.blocks", "[1]", "--train.max_steps", "1", "--train.eval_samples", "2"]
    words += ["--output.display", "quiet", "--output.pictures", "false", "--output.report", "false"]
    assert main([*words, "--output.dir", str(tmp_path / "a")]) == 0
    assert free == [1, 8]
    assert main([*words, "--output.dir", str(tmp_path / "b"), "--train.threads", "3"]) == 0
    assert free == [1, 8, 3, 8]
    assert main(["certify", str(tmp_path / "a")]) == 0
    assert main(["sample", str(tmp_path / "a"), "-n", "2", "--out", str(tmp_path / "x.csv")]) == 0
    assert free == [1, 8, 3, 8, 1, 8, 1, 8]


def test_estimators_choose_and_restore(free):
    from idensenet.sklearn import FlowDensity

    x = np.random.default_rng(0).normal(size=(30, 2))
    density = FlowDensity(blocks=1, max_iter=2, random_state=0).fit(x)
    density.score_samples(x)
    density.sample(2, random_state=0)
    assert free == [1, 8] * 3


def test_in_a_process_of_its_own():
    """Without a word from the user: one thread for a toy, the default again after it."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    code = (
        "import torch, idensenet as idn; from idensenet.threads import suited_to; before = torch.get_num_threads();\n"
        "with suited_to(idn.build('toy-idensenet', blocks=(1,)), 10): print(torch.get_num_threads())\n"
        "print(torch.get_num_threads() == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["1", "True"]
