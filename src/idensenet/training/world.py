"""The processes of a run: who starts them, how many there are, and how they meet."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from idensenet.config import TrainConfig
from idensenet.errors import LostProcessError, OptionError
from idensenet.extras import needs
from idensenet.training.options import accelerator_of, check

if TYPE_CHECKING:
    from lightning_fabric import Fabric

HOW = {"torchrun": "torchrun's --nnodes and --nproc-per-node", "SLURM": "SLURM's --nodes and --ntasks-per-node"}
RESTARTS = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")


def _number(name: str, default: int | None = None) -> int:
    """A number that a launcher has put into the environment."""
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise OptionError(f"The environment variable {name} is {text!r} where a launcher puts a number; start the run anew.")
    return int(text)


def restarted() -> bool:
    """Whether a launcher has started this command before: SLURM after a requeue, or torchrun after a failure."""
    return any(_number(name, 0) > 0 for name in RESTARTS)


@dataclass(frozen=True)
class World:
    """All processes of a run, as many on every node.

    `launcher` is what has started them; None if this command starts the processes of its node.
    """

    nodes: int
    devices: int
    launcher: str | None = None

    @property
    def size(self) -> int:
        return self.nodes * self.devices

    @classmethod
    def of(cls, train: TrainConfig, typed: Collection[str] = ()) -> World:
        """The processes that a launcher has started, or else those that the options ask for.

        Args:
            train: Options, of which `devices` and `num_nodes` count.
            typed: Names of options that the user has given, so that they must agree with the launcher.

        Raises:
            OptionError: The launcher and the options disagree, or the processes could not meet.
        """
        with needs("Training a run"):
            from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
            from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

        if TorchElasticEnvironment.detect():
            found = cls(*_of_torchrun(), "torchrun")
        elif SLURMEnvironment.detect():
            found = cls(*_of_slurm(), "SLURM")
        elif train.num_nodes > 1 and "MASTER_ADDR" not in os.environ:
            raise OptionError(
                f"train.num_nodes={train.num_nodes}, but nothing says where the nodes meet; start with torchrun or srun, "
                "set MASTER_ADDR, MASTER_PORT and NODE_RANK on every node, or give --train.num_nodes 1 to use this one alone."
            )
        else:
            return cls(train.num_nodes, train.devices)
        for name, number in (("num_nodes", found.nodes), ("devices", found.devices)):
            if name in typed and getattr(train, name) != number:
                raise OptionError(
                    f"--train.{name} is {getattr(train, name)}, but {found.launcher} has started {found.in_words()}; leave the "
                    f"option out, or change {HOW[str(found.launcher)]}."
                )
        return found

    def in_words(self) -> str:
        """2 nodes x 4 processes."""
        return f"{self.nodes} node{'s' * (self.nodes > 1)} x {self.devices} process{'es' * (self.devices > 1)}"

    def applied(self, train: TrainConfig) -> TrainConfig:
        """Options that name the processes that there are."""
        return dataclasses.replace(train, devices=self.devices, num_nodes=self.nodes)

    def connect(self, train: TrainConfig) -> Fabric:
        """Start the processes of this node, unless a launcher has, and meet the processes of all nodes.

        Raises:
            OptionError: There are no such devices here.
            LostProcessError: Not all processes came.
        """
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy

        check("train.timeout", train.timeout, "positive and finite")
        try:
            fabric = Fabric(
                accelerator=accelerator_of(train.accelerator),
                strategy=DDPStrategy(timeout=timedelta(minutes=train.timeout)) if self.size > 1 else "auto",
                devices=self.devices,
                num_nodes=self.nodes,
                precision="64-true" if train.precision == "64-true" else "32-true",  # bfloat16 is a policy of the step alone
            )
        except (ValueError, RuntimeError) as error:
            raise OptionError(f"train.accelerator, devices or precision cannot be used here: {error}") from error
        try:
            fabric.launch()
        except RuntimeError as error:
            raise LostProcessError(
                f"The {self.size} processes of the run did not meet within {train.timeout:g} minutes "
                f"({in_short(error)}); see that all nodes are started, and reach {os.environ.get('MASTER_ADDR', 'the first')}."
            ) from error
        return fabric


def _of_torchrun() -> tuple[int, int]:
    size, here = _number("WORLD_SIZE"), _number("LOCAL_WORLD_SIZE")
    nodes = _number("GROUP_WORLD_SIZE", size // here)
    if nodes * here != size:
        raise OptionError(
            f"torchrun has started {size} processes on {nodes} nodes, {here} of them here; give every node the same "
            "--nproc-per-node."
        )
    return nodes, here


def _of_slurm() -> tuple[int, int]:
    tasks, nodes = _number("SLURM_NTASKS"), _number("SLURM_NNODES", 1)
    if tasks == 1:
        return 1, 1
    if "SLURM_STEP_ID" not in os.environ:
        raise OptionError(f"SLURM has room for {tasks} tasks, but did not start this one as one of them; write srun in front.")
    each = _number("SLURM_NTASKS_PER_NODE", 0)
    if each * nodes != tasks:
        raise OptionError(
            f"SLURM has started {tasks} tasks on {nodes} node{'s' * (nodes > 1)} with --ntasks-per-node {each or 'not given'}; "
            f"every node must have as many: give --nodes {nodes} --ntasks-per-node {max(1, tasks // nodes)}, and no --ntasks."
        )
    return nodes, each


def in_short(error: BaseException) -> str:
    """The first sentence of what torch says, without the place in its code."""
    sentence = str(error).strip().partition("\n")[0].partition(". ")[0]
    return re.sub(r"^\[[^]]*\.\w+:\d+\] ", "", sentence)[:160]


@contextmanager
def leaving_in_order() -> Iterator[None]:
    """Part from the other processes at the end, also after an error.

    A process that ends on its own may fall over threads of the group it still belongs to, and whoever launched it then kills
    those that are still at work, such as writing the report.
    """
    try:
        yield
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
