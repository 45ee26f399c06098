"""How long a run is, and what changes on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass

from idensenet.config import TrainConfig
from idensenet.errors import OptionError

MOST_LOST = 1000  # steps between two checkpoints, unless told otherwise


@dataclass(frozen=True)
class Schedule:
    """Steps of a run: its length, its warm-up, the switch-on of the concatenation, evaluations and checkpoints."""

    steps: int
    warmup: int
    concatenation_from: int
    eval_every: int
    save_every: int
    lr: float
    cosine: bool

    @classmethod
    def of(cls, config: TrainConfig, batches_per_epoch: int | None) -> Schedule:
        """`batches_per_epoch` counts the batches of all ranks and accumulations of a step once; None for endless data."""
        if config.max_steps is not None:
            steps = config.max_steps
        elif batches_per_epoch is None:
            raise OptionError("This data set has no end, so the length of the run must be given: --train.max_steps N.")
        else:
            steps = round(config.epochs * batches_per_epoch)
        if steps < 1:
            raise OptionError(f"The run would have {steps} steps; train.max_steps or train.epochs must be larger.")
        if config.schedule not in ("constant", "cosine"):
            raise OptionError(f"train.schedule={config.schedule!r} is not known; use constant or cosine.")
        eval_every = config.eval_every or max(100, math.ceil(steps / 10))
        return cls(
            steps=steps,
            warmup=config.warmup_steps if config.warmup_steps is not None else round(config.warmup * steps),
            concatenation_from=math.ceil(config.concatenation_from * steps),
            eval_every=eval_every,
            save_every=config.save_every or min(eval_every, MOST_LOST),
            lr=config.lr,
            cosine=config.schedule == "cosine",
        )

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if not self.cosine:
            return self.lr
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * 0.5 * (1 + math.cos(math.pi * done))
