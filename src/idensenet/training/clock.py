"""Where a fit stands on its schedule: steps and seconds move it on, and a plateau lets it jump ahead."""

from __future__ import annotations

import math
import time

WARMUP = 0.03  # share of the schedule over which the learning rate rises
now = time.monotonic  # benchmarks put processor time in its place, which a busy machine does not stretch
LEVELS = (0.5, 0.8, 1.0)  # where a plateau of the held-out loss jumps to


class Clock:
    """A schedule from 0 to 1: a short warm-up, then half a cosine down to zero.

    Args:
        steps: Steps of the whole schedule.
        seconds: Time limit, or None. The schedule then ends with the time, whatever the number of steps.
    """

    def __init__(self, steps: int, seconds: float | None = None) -> None:
        self.steps, self.seconds = steps, seconds
        self.at = 0.0
        self.jumped = False
        self.began = now()

    @property
    def over(self) -> bool:
        """Whether the schedule has ended."""
        return self.at >= 1 - 1e-9

    def tick(self) -> float:
        """The factor of the learning rate for the next step, which this call counts."""
        at = self.at
        self.at += 1 / self.steps
        if self.seconds is not None:
            self.at = max(self.at, (now() - self.began) / self.seconds)
        return factor(at, self.steps)

    def jump(self) -> None:
        """Go on at the next level, where the learning rate is lower; the last one is the end."""
        self.at = next((level for level in LEVELS if level > self.at + 1e-9), 1.0)
        self.jumped = True


def factor(at: float, steps: int) -> float:
    """The share of the highest learning rate at a place of the schedule.

    >>> factor(1.0, 100), round(factor(0.515, 100), 3)
    (0.0, 0.5)
    """
    if at < WARMUP:
        return (at + 1 / steps) / (WARMUP + 1 / steps)
    return 0.5 * (1 + math.cos(math.pi * (at - WARMUP) / (1 - WARMUP)))
