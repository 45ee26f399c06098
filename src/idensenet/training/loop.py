"""The training loop, from top to bottom."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from idensenet.checkpoints import Progress
from idensenet.config import Config
from idensenet.data.density import check_source
from idensenet.data.source import Source
from idensenet.errors import LostProcessError, NonFiniteError, OptionError
from idensenet.flow import Flow, Prepared
from idensenet.models import build_config
from idensenet.precision import Precision
from idensenet.training import compilation
from idensenet.training.agreement import check_agreement, check_step
from idensenet.training.averaging import Average
from idensenet.training.batches import Batches, augment, seed_of
from idensenet.training.diagnosis import diagnosis
from idensenet.training.display import Display, make_display
from idensenet.training.evaluation import held_out, in_words
from idensenet.training.events import Events
from idensenet.training.initial import weights_of
from idensenet.training.interrupt import StopRequest, listening
from idensenet.training.objective import Objective
from idensenet.training.options import check_choice
from idensenet.training.ranks import Ranks
from idensenet.training.requeue import requeue
from idensenet.training.run import RunFolder
from idensenet.training.schedule import Schedule
from idensenet.training.standardizing import standardize
from idensenet.training.step import skipped, training_step
from idensenet.training.world import World

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Draw = Callable[[Flow, Source, Path], None]
PATIENCE = 10  # steps in a row that may be skipped for a gradient that is not finite


class Trainer:
    """One process of a run. After each evaluation, `draw` makes its picture: of a flow and its data, in a file."""

    def __init__(
        self, config: Config, source: Source, run: RunFolder, draw: Draw | None = None, fabric: Fabric | None = None
    ) -> None:
        t = config.train
        check_source(source, "float64" if t.precision == "64-true" else "float32")
        self.config, self.source, self.run, self.draw = config, source, run, draw
        self.precision = Precision.of(t.precision, t.tf32)
        self.fabric = fabric or World.of(t).connect(t)
        self.ranks = Ranks(self.fabric)
        self.rank, self.world = self.ranks.rank, self.ranks.world
        check_agreement(self.ranks, config, source)
        torch.manual_seed(t.seed)  # the same weights on every rank
        dtype = torch.float64 if t.precision == "64-true" else torch.float32
        self.flow = build_config(config).to(self.fabric.device, dtype)
        self.flow.columns = source.table
        self.of_categories = self._loss_of_categories()
        self.mean_weight = source.train.mean_weight or 1.0
        self.batches = Batches(source, t.batch_size, t.seed, self.rank, self.world)
        per_step = t.accumulate * self.world
        self.schedule = Schedule.of(t, None if source.stream else max(1, self.batches.per_epoch // per_step))
        self.objective = Objective(self.flow, t)
        self.parameters = list(self.flow.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, t.lr, t.betas, weight_decay=t.weight_decay, fused=True)
        self.average = Average(self.flow, t.average)
        self.progress = Progress()
        self.learning: bool | None = None  # whether the concatenation does; not known before the first step
        self.generator = torch.Generator(self.fabric.device)
        self.bad_in_a_row = torch.zeros((), device=self.fabric.device)
        self.bad = torch.zeros((), device=self.fabric.device)
        self.recent: dict[str, list[Tensor]] = {}
        self.since = time.monotonic()
        self.events = Events(run.path / "events") if config.output.tensorboard and self.rank == 0 else None

    def _loss_of_categories(self) -> float:
        """The mean of -log p(c) over the categories of training rows, which no step changes."""
        columns = self.source.table
        if columns is None or columns.categories is None:
            return 0.0
        loss = total = 0.0
        for block in self.source.train.blocks():
            assert block.context is not None
            weight = np.ones(len(block)) if block.weight is None else block.weight
            loss, total = loss - float(weight @ columns.log_prob(block.context)), total + float(weight.sum())
        return loss / total

    # Before the first step

    def prepare(self, x: Tensor) -> Tensor:
        return x.to(self.fabric.device) if self.flow.levels else x.to(self.fabric.device, self.flow.dtype)

    def given(self, context: Tensor | None) -> Tensor | None:
        return None if context is None else context.to(self.fabric.device, self.flow.dtype)

    def start(self) -> None:
        """Take the first weights from a trained model, or ActNorm and standardisation from the data. The same on every rank."""
        self.flow.eval()
        if self.config.train.initial is None:
            self.take_from_data()
        else:
            self.flow.load_state_dict(weights_of(self.config.train.initial, self.flow)[0])
        self.ranks.spread(self.flow.state_dict().values())
        self.average = Average(self.flow, self.config.train.average)

    def take_from_data(self) -> None:
        """ActNorm and standardisation, from the training data."""
        first = Batches(
            self.source, min(self.config.train.batch_size * 4, max(1, len(self.source.train))), self.config.train.seed
        )
        if self.config.model.preprocess in ("standardize", "whiten"):
            standardize(self.flow, self.source.train)
        x, _, c, _ = first(0)
        self.flow.initialize(self.prepare(x), self.given(c))

    def trial(self) -> None:
        """A forward and a backward pass that change nothing in training."""
        self.flow.train()
        self.flow.learn_concatenation(self.progress.step >= self.schedule.concatenation_from)
        self.learning = None
        x, y, c, _ = self.batches(0)
        y = None if y is None else y.to(self.fabric.device)
        with self.precision.products(self.fabric.device):
            prepared = self.flow.prepare(self.precision)
            loss, _ = self.objective(self.prepare(x), y, self.generator.manual_seed(0), self.given(c), prepared)
            wanted = [p for p in self.parameters if p.requires_grad]
            torch.autograd.grad(loss, wanted, allow_unused=True)

    def choose(self, display: Display) -> None:
        """Compile the blocks if that is asked for, or if it repays itself; the choice of a run is part of its checkpoints."""
        wish = self.config.train.compile
        check_choice("train", "compile", wish)
        if wish == "off" or not self.flow.stacks():
            return
        if wish == "auto" and self.progress.compiled is None:
            steps, share = self.schedule.steps - self.progress.step, compilation.saved_share(self.flow)
            measured = torch.tensor(compilation.step_time(self.trial, steps, share), device=self.fabric.device)
            seconds = float(self.ranks.mean(measured))
            self.progress.compiled = compilation.repays(seconds, steps, share)
            display.say(compilation.in_words(seconds, steps, share))
        if wish == "on" or self.progress.compiled:
            self.compile(display)

    def compile(self, display: Display) -> None:
        """Compile the blocks; where that cannot be done and is not asked for, go on without."""
        display.say("compiling the blocks: a minute or two, seconds where it was done before")
        began = time.monotonic()
        try:
            self.flow.compile_blocks()
            self.trial()
        except Exception as error:
            if self.config.train.compile == "on":
                raise OptionError(f"The blocks cannot be compiled here: {error!s:.200}; use --train.compile off.") from error
            self.flow.compile_blocks(False)
            self.progress.compiled = False
            display.say(f"compilation failed ({type(error).__name__}); training goes on without it")
        else:
            display.say(f"compiled in {time.monotonic() - began:.1f} s")

    def resume(self, step: int) -> None:
        check_step(self.ranks, step)
        if step:
            self.progress = self.run.checkpoints.read(step, self.flow, self.average, self.optimizer)
        else:
            self.start()
        self.ranks.barrier()
        if self.rank == 0:
            self.run.forget_after(step)
            self.run.checkpoints.set_aside_after(step, self.progress)

    # One step

    def step(self, number: int, stop: StopRequest) -> bool:
        """One optimiser step; true if somebody asked to stop."""
        t = self.config.train
        if not self.flow.training:  # an evaluation came before; it takes its time to tell every module
            self.flow.train()
        learning = number >= self.schedule.concatenation_from
        if learning != self.learning:
            self.flow.learn_concatenation(learning)
            self.learning = learning
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(number)
        asked = False

        def share(parameters: Sequence[Tensor]) -> None:
            nonlocal asked
            asked = self.ranks.average_gradients(parameters, bool(stop.signal))

        norm = training_step(
            self.flow,
            (partial(self.loss, number, i) for i in range(t.accumulate)),
            self.optimizer,
            precision=self.precision,
            limit=t.clip,
            share=share,
            average=self.average,
            number=number,
        )
        bad = skipped(norm)
        self.bad += bad
        self.bad_in_a_row = (self.bad_in_a_row + 1) * bad
        self.recent.setdefault("gradient", []).append(norm)
        return asked

    def loss(self, number: int, i: int, prepared: Prepared) -> Tensor:
        """The share of the i-th batch in the loss of a step. Its noise is its own, whichever process computes it."""
        t = self.config.train
        x, y, c, weight = self.batches(number * t.accumulate + i)
        batch = self.batches.among_all(number * t.accumulate + i)
        self.generator.manual_seed(seed_of(t.seed, 3, batch, 0))
        x = augment(x, self.config.data, torch.Generator().manual_seed(seed_of(t.seed, 4, batch, 0, 0)))
        y = None if y is None else y.to(self.fabric.device)
        weight = None if weight is None else self.given(weight / self.mean_weight)
        loss, shown = self.objective(self.prepare(x), y, self.generator, self.given(c), prepared, weight)
        for name, value in shown.items():
            self.recent.setdefault(name, []).append(value + self.of_categories if name == self.objective.unit else value)
        return loss / t.accumulate

    # Now and then

    def record(self, entry: dict[str, Any]) -> None:
        self.run.log(entry)
        if self.events is not None:
            self.events.write(entry)

    def account(self) -> None:
        """Count the time since the last call, or since training went on, as spent on training."""
        now = time.monotonic()
        self.progress.seconds += now - self.since
        self.since = now

    def report(self, display: Display, began: float, last: int) -> None:
        """Read the metrics of the last steps, once, and show and keep them."""
        shown: dict[str, Any] = {}
        for name, values in self.recent.items():
            mean = torch.stack(values)[-1] if name == "gradient" else torch.stack(values).nanmean()
            shown[name] = float(self.ranks.mean(mean))
        self.recent.clear()
        self.progress.skipped += int(self.bad)
        self.bad.zero_()
        if int(self.bad_in_a_row) >= PATIENCE:
            x, _, c, _ = self.batches((self.progress.step - 1) * self.config.train.accumulate)
            found = diagnosis(self.flow, self.prepare(x), self.generator, self.given(c), self.precision)
            raise NonFiniteError(f"{PATIENCE} steps in a row {found}")
        t, done = self.config.train, self.progress.step - last
        seconds = time.monotonic() - began
        self.account()
        shown["samples/s"] = round(done * t.batch_size * t.accumulate * self.world / max(seconds, 1e-9), 1)
        shown["memory"] = (
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform != 'darwin' else 1 << 30):.2f} GB"
        )
        if self.progress.skipped:
            shown["skipped"] = self.progress.skipped
        if self.source.stream is None:
            shown = {"epoch": round(self.progress.step * t.accumulate * self.world / self.batches.per_epoch, 2), **shown}
        if self.rank == 0:
            self.record(
                {
                    "kind": "train",
                    "step": self.progress.step,
                    "lr": self.schedule.rate(self.progress.step - 1),
                    **shown,
                    "seconds": round(self.progress.seconds, 3),
                }
            )
        display.metrics(self.progress.step, shown)

    def evaluate(self, display: Display) -> float:
        """Score the averaged model on held-out data; every rank takes its share, rank 0 tells and draws."""
        self.flow.eval()
        with self.average.swapped_in(self.flow):
            found = held_out(self.flow, self.source.test, self.config.train.eval_samples, self.ranks)
            if self.rank == 0 and self.config.output.pictures and self.draw is not None:
                self.picture(display, self.draw)
        score = float(found.get("bits_per_dim", found["nats"]))
        if self.config.train.objective == "classification":
            score = -float(found["accuracy"])
        if self.rank == 0:
            self.record({"kind": "eval", "step": self.progress.step, **found, "seconds": round(self.progress.seconds, 3)})
            display.say(f"step {self.progress.step}: {in_words(found)}")
        self.ranks.barrier()
        return score

    def picture(self, display: Display, draw: Draw) -> None:
        try:
            self.run.pictures.mkdir(exist_ok=True)
            draw(self.flow, self.source, self.run.pictures / f"step-{self.progress.step:08d}.png")
        except Exception as error:  # no reason to end a run
            display.say(f"step {self.progress.step}: no picture can be made: {error}")

    def score(self, display: Display) -> float:
        """The held-out score; where that fails, what was learned so far is saved first, without waiting for anybody."""
        try:
            return self.evaluate(display)
        except LostProcessError:  # the last checkpoint is as good, and the score is not lost with it
            raise
        except Exception:
            if self.rank == 0:
                self.run.checkpoints.write(self.flow, self.average, self.optimizer, self.progress)
            raise

    def save(self, score: float | None) -> None:
        if score is not None and not math.isnan(score) and (self.progress.best is None or score < self.progress.best):
            self.progress.best, self.progress.best_step = score, self.progress.step
        if self.rank == 0:
            self.run.checkpoints.write(self.flow, self.average, self.optimizer, self.progress)
        self.ranks.barrier()

    def stopped(self, display: Display, number: int) -> int:
        """The exit code after a signal to any of the processes, as shells count it; a job of SLURM is requeued."""
        number = max(each[0] for each in self.ranks.numbers([number]))
        said = requeue(number) if self.rank == 0 and self.config.train.requeue else None
        if said:
            display.say(said)
        return 128 + number

    # The loop

    def train(self, stop_after: int | None = None) -> int:
        """Until the end, or a step before it, or until asked to stop; returns the exit code."""
        s, kind = self.schedule, self.config.output.display if self.rank == 0 else "quiet"
        self.progress.steps = s.steps
        display = make_display(kind, s.steps, self.progress.step)
        try:
            self.choose(display)
            display.began = time.monotonic()
            began, last = time.monotonic(), self.progress.step
            self.since = began
            with listening() as stop:
                while self.progress.step < s.steps:
                    asked = self.step(self.progress.step, stop)
                    self.progress.step += 1
                    number = self.progress.step
                    finished = number == s.steps
                    enough = number == stop_after
                    if number % self.config.train.log_every == 0 or finished or asked or enough:
                        self.report(display, began, last)
                        began, last = time.monotonic(), number
                    paused = time.monotonic()
                    self.account()
                    score = self.score(display) if number % s.eval_every == 0 or finished else None
                    if (asked or enough) and not finished:
                        self.save(score)
                        display.say(f"stopped after step {number}; continue with: idensenet train --resume {self.run.path}")
                        return self.stopped(display, stop.signal) if asked else 0
                    due = number % s.save_every == 0 or (score is not None and self.config.train.save_every is None)
                    if due or finished:
                        self.save(score)
                    began += time.monotonic() - paused  # samples per second count training only
                    self.since = time.monotonic()
        finally:
            display.close()
        return 0
