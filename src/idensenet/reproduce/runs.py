"""Training the runs of experiments: several side by side, each once, each to be continued where it stopped."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from idensenet.commands import train
from idensenet.config import Config
from idensenet.data.source import Source
from idensenet.errors import OptionError, StorageError
from idensenet.flow import Flow
from idensenet.reproduce.experiment import Plan
from idensenet.reproduce.progress import Progress
from idensenet.storage import load
from idensenet.training.evaluation import first_rows, score_rows
from idensenet.training.packing import unpack
from idensenet.training.run import RunFolder
from idensenet.training.sources import source_of

ALWAYS = {"output.display": "quiet", "output.pictures": False, "output.report": False}


def wanted(plan: Plan, data: str, extra: Sequence[str] = ()) -> list[str]:
    """The words after `idensenet train`, without the folder."""
    return [*Plan(plan.name, plan.recipe, {**plan.options, "data.root": data, **ALWAYS}).arguments(), *extra]


def check_extra(plans: Sequence[Plan], extra: Sequence[str]) -> None:
    """Reject options for the runs that are unknown, or that no run takes, before anything is trained."""
    if extra and not plans:
        raise OptionError(f"Nothing is trained here, so nobody takes the options after ' -- ' ({shlex.join(extra)}).")
    for plan in plans[:1] if extra else ():
        train.parse(wanted(plan, "data", extra))


def _decides(config: Config) -> dict[str, Any]:
    """What decides the numbers of a run: not where its files are, and not how it is shown."""
    values = config.as_dict()
    del values["output"], values["data"]["root"]
    return values


class Trained:
    """A run that is done."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.plan, self.run = plan, RunFolder(path)
        self.step = self.run.checkpoints.find("last")

    @cached_property
    def config(self) -> Config:
        return self.run.config()

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return self.run.metrics()

    @property
    def command(self) -> str:
        return str(self.run.description()["command"])

    @property
    def seconds(self) -> float:
        """Of training, evaluations not counted."""
        return max((entry.get("seconds", 0.0) for entry in self.metrics), default=0.0)

    @cached_property
    def source(self) -> Source:
        return source_of(self.config)

    @property
    def device(self) -> str:
        """Where it is scored: a GPU if there is one, unless it was trained without."""
        return "cuda" if torch.cuda.is_available() and self.config.train.accelerator != "cpu" else "cpu"

    @property
    def flow(self) -> Flow:
        """The averaged model of the last step."""
        return load(self.run.path, self.device)

    @property
    def last_flow(self) -> Flow:
        """The model of the last step as the optimiser left it."""
        from safetensors.torch import load_file

        flow = self.flow
        weights = load_file(self.run.checkpoints.check(self.step) / "weights.safetensors", device=str(flow.device))
        flow.load_state_dict(weights)
        return flow

    def curve(self, name: str, kind: str = "eval") -> list[tuple[int, float, float]]:
        """(step, seconds, value) of a metric."""
        return [(e["step"], e.get("seconds", 0.0), e[name]) for e in self.metrics if e["kind"] == kind and name in e]

    def held_out(self, samples: int | None, last: bool = False) -> Tensor:
        """-log p in nats of the first held-out samples, None for all; of the averaged or of the last weights; computed once."""
        file = self.run.path / f"held-out-{samples or 'all'}-{'last' if last else 'average'}-{self.step}.npy"
        if not file.is_file():
            flow = self.last_flow if last else self.flow
            scores = -score_rows(flow, self.source.test, first_rows(self.source.test, samples))["log_prob"].double()
            with (part := file.with_suffix(".part")).open("wb") as handle:
                np.save(handle, scores.cpu().numpy())
            part.replace(file)
        return torch.from_numpy(np.load(file))


@dataclass
class _Child:
    plan: Plan
    path: Path
    process: subprocess.Popen[bytes]
    log: IO[bytes]


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM does what an interrupt from the keyboard does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Pool:
    """Trains what is planned and not yet done, `workers` processes at a time; none for in this process.

    As a context it ends its processes when it is left, and SIGTERM does in it what an interrupt from the keyboard does.
    """

    def __init__(self, folder: Path, workers: int, data: str, extra: Sequence[str] = (), stop_after: int | None = None) -> None:
        self.folder, self.workers, self.data, self.extra, self.stop_after = folder, workers, data, extra, stop_after
        self.running: list[_Child] = []
        self._exit = ExitStack()

    def __enter__(self) -> Pool:
        self._exit.enter_context(_terminable())
        self._exit.callback(self._end)
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def path(self, plan: Plan) -> Path:
        return self.folder / plan.name

    def done(self, plan: Plan) -> bool:
        """Whether a run is there to the end; one that was made with other options is an error."""
        run, packed = RunFolder(self.path(plan)), self.folder / f"{plan.name}.safetensors"
        if not run.exists() and packed.is_file():
            unpack(packed, run.path)
        if not run.exists():
            return False
        config, _ = train.parse(wanted(plan, self.data, self.extra))
        if _decides(config) != _decides(run.config()):
            raise OptionError(f"{run.path} holds a run with other options; choose another folder with --out, or remove it.")
        if not (steps := run.checkpoints.steps()):
            return False
        goal = self.stop_after or config.train.max_steps or run.checkpoints.progress(steps[-1]).steps
        return goal is not None and steps[-1] >= goal

    def arguments(self, plan: Plan) -> list[str]:
        path = self.path(plan)
        run = RunFolder(path)
        if run.exists() and run.checkpoints.steps():
            words = ["--resume", str(path), "--data.root", self.data, "--output.display", "quiet"]
        else:
            words = [*wanted(plan, self.data, self.extra), "--output.dir", str(path)]
        return [*words, *(["--stop-after", str(self.stop_after)] if self.stop_after else [])]

    def train(self, plans: Sequence[Plan], ahead: Sequence[Plan] = ()) -> dict[str, Trained]:
        """All of them, by name. Workers that have nothing to do begin with what comes after, and go on with it."""
        unique = {plan.name: plan for plan in plans}
        missing = self._missing(unique)
        self.folder.mkdir(parents=True, exist_ok=True)
        if missing and self.workers:
            later = {plan.name: plan for plan in ahead if plan.name not in unique}
            try:
                self._beside(missing, self._missing(later))
            except BaseException:
                self._end()
                raise
        elif missing:
            self._here(missing)
        return {name: Trained(plan, self.path(plan)) for name, plan in unique.items()}

    def _missing(self, plans: dict[str, Plan]) -> list[Plan]:
        return [plan for plan in plans.values() if not self.done(plan)]

    def _here(self, plans: Sequence[Plan]) -> None:
        from rich.console import Console
        from rich.progress import track

        for plan in track(plans, "training", console=Console(stderr=True), transient=True):
            with redirect_stdout(sys.stderr):
                code = train.train(self.arguments(plan))
            if code:
                raise KeyboardInterrupt

    # Several processes

    def _start(self, plan: Plan) -> _Child:
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        log = (self.folder / f"{plan.name}.log").open("ab")
        words = self.arguments(plan)
        log.write(f"{shlex.join(['idensenet', 'train', *words])}\n".encode())
        log.flush()
        command = [sys.executable, "-m", "idensenet.cli", "train", *words]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        return _Child(plan, self.path(plan), process, log)

    def _beside(self, plans: Sequence[Plan], ahead: Sequence[Plan]) -> None:
        begun = {child.plan.name for child in self.running}
        waiting = [plan for plan in (*plans, *ahead) if plan.name not in begun]
        wanted = {plan.name for plan in plans}
        with Progress(len(waiting) + len(begun)) as progress:
            while wanted:
                while waiting and len(self.running) < self.workers:
                    self.running.append(self._start(waiting.pop(0)))
                time.sleep(0.5)
                for child in list(self.running):
                    progress.show(child.plan, child.path, train_goal(child.path, self.stop_after))
                    code = child.process.poll()
                    if code is None:
                        continue
                    self.running.remove(child)
                    child.log.close()
                    if code:
                        raise (OptionError if code == 2 else StorageError)(_failure(child, code))
                    progress.finish(child.plan, child.path)
                    wanted.discard(child.plan.name)

    def _end(self) -> None:
        for child in self.running:
            child.process.terminate()  # it saves a checkpoint and ends
        for child in self.running:
            child.process.wait()
            child.log.close()
        self.running.clear()


def train_goal(path: Path, stop_after: int | None) -> int | None:
    run = RunFolder(path)
    return stop_after or (run.config().train.max_steps if run.exists() else None)


def _failure(child: _Child, code: int) -> str:
    file = Path(child.log.name)
    last = (file.read_text(errors="replace").strip().splitlines() or [""])[-1]
    return f"The run {child.plan.name} ended with code {code}: {last} (all it said is in {file})"
