"""Who starts the processes of a run, and how many there are; SLURM and torchrun are played by their environment variables."""

import dataclasses

import pytest
import torch

from idensenet.config import TrainConfig
from idensenet.errors import LostProcessError, OptionError
from idensenet.training.world import World, in_short, leaving_in_order, restarted

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}
SRUN = {"SLURM_NTASKS": "6", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "3", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "71"}
VARIABLES = {*TORCHRUN, *SRUN, "MASTER_ADDR", "SLURM_JOB_NAME", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"}


@pytest.fixture
def environment(monkeypatch):
    """A function that sets variables; nothing else of a launcher is left."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def put(values):
        for name, value in values.items():
            monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, raising=False)

    return put


@pytest.mark.parametrize(
    ("variables", "train", "world"),
    [
        ({}, TrainConfig(), World(1, 1)),
        ({}, TrainConfig(devices=4), World(1, 4)),
        ({"MASTER_ADDR": "a"}, TrainConfig(devices=4, num_nodes=3), World(3, 4)),
        (TORCHRUN, TrainConfig(), World(2, 4, "torchrun")),
        (SRUN, TrainConfig(devices=2), World(2, 3, "SLURM")),
        ({**SRUN, **TORCHRUN}, TrainConfig(), World(2, 4, "torchrun")),  # torchrun may run in a job of SLURM
        ({**SRUN, "SLURM_JOB_NAME": "bash"}, TrainConfig(), World(1, 1)),
        ({"SLURM_NTASKS": "1", "SLURM_NNODES": "1"}, TrainConfig(), World(1, 1, "SLURM")),
    ],
)
def test_the_launcher_decides_and_otherwise_the_options(environment, variables, train, world):
    environment(variables)
    found = World.of(train)
    assert found == world
    asked = found.applied(train)
    assert (asked.devices, asked.num_nodes, asked.batches_per_step) == (found.devices, found.nodes, found.size)
    assert World.of(asked, {"devices", "num_nodes"}) == world


@pytest.mark.parametrize(
    ("variables", "options", "says"),
    [
        (TORCHRUN, {"devices": 2}, r"--train.devices is 2, but torchrun has started 2 nodes x 4 processes; leave .* --nproc"),
        (TORCHRUN, {"devices": 4, "num_nodes": 1}, r"--train.num_nodes is 1, but torchrun"),
        (SRUN, {"devices": 4}, r"--train.devices is 4, but SLURM has started 2 nodes x 3 .* --ntasks-per-node"),
        ({"SLURM_NTASKS": "1"}, {"devices": 4}, r"--train.devices is 4, but SLURM has started 1 node x 1 process;"),
        ({**TORCHRUN, "WORLD_SIZE": "7"}, {}, "give every node the same --nproc-per-node"),
        ({**TORCHRUN, "WORLD_SIZE": "many"}, {}, "WORLD_SIZE is 'many' where a launcher puts a number"),
        ({**SRUN, "SLURM_NTASKS_PER_NODE": None}, {}, r"--ntasks-per-node not given; .* --nodes 2 --ntasks-per-node 3"),
        ({**SRUN, "SLURM_NTASKS": "5"}, {}, "SLURM has started 5 tasks on 2 nodes with --ntasks-per-node 3"),
        ({**SRUN, "SLURM_STEP_ID": None}, {}, "room for 6 tasks, .* write srun in front"),
        ({}, {"num_nodes": 2}, r"train.num_nodes=2, but nothing says where the nodes meet; start with torchrun"),
    ],
)
def test_what_does_not_fit_is_one_sentence(environment, variables, options, says):
    environment(variables)
    with pytest.raises(OptionError, match=says):
        World.of(TrainConfig(**options), options)


def test_a_launcher_restarts_a_command(environment):
    assert not restarted()
    environment({"TORCHELASTIC_RESTART_COUNT": "0"})
    assert not restarted()
    environment({"SLURM_RESTART_COUNT": "2"})
    assert restarted()


def test_processes_that_never_come_end_the_wait_with_a_sentence(environment, monkeypatch):
    environment({**TORCHRUN, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"})
    for name, value in {"RANK": "1", "LOCAL_RANK": "0", "GROUP_RANK": "1", "MASTER_PORT": "1", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    train = dataclasses.replace(TrainConfig(accelerator="cpu"), timeout=0.01)
    with pytest.raises(
        LostProcessError, match=r"The 2 processes of the run did not meet within 0.01 minutes .* reach 127.0.0.1"
    ):
        World.of(train).connect(train)


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("inf")])
def test_a_timeout_is_positive_and_finite(timeout):
    train = TrainConfig(timeout=timeout)
    with pytest.raises(OptionError, match="timeout"):
        World(1, 1).connect(train)


def test_the_group_is_left_also_after_an_error(tmp_path):
    for n, error in enumerate([None, KeyError]):
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/{n}", rank=0, world_size=1)
        try:
            with leaving_in_order():
                if error:
                    raise error
        except KeyError:
            assert error
        assert not torch.distributed.is_initialized()
    with leaving_in_order():
        pass  # one process has no group to leave


@pytest.mark.parametrize(
    ("said", "short"),
    [
        (
            "[/pytorch/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:439. This is\nmore",
            "Connection closed by peer [127.0.0.1]:439",
        ),
        ("Timed out\nframes", "Timed out"),
    ],
)
def test_what_torch_says_is_told_in_short(said, short):
    assert in_short(RuntimeError(said)) == short
