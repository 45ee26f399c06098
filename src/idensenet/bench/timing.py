"""Times that can be compared: everything that is compared runs in turns, so that a noisy machine is noisy for all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Times:
    """Seconds of several repeats."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.seconds) if len(self.seconds) > 1 else 0.0

    def divided(self, by: int) -> Times:
        """Of one piece, where each repeat did several."""
        return Times(tuple(each / by for each in self.seconds))


def in_turns(work: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 1) -> dict[str, Times]:
    """The times of several pieces of work, each done once in every round."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for i in range(warm_up + repeats):
        for name, each in work.items():
            began = time.perf_counter()
            each()
            if i >= warm_up:
                seconds[name].append(time.perf_counter() - began)
    return {name: Times(tuple(values)) for name, values in seconds.items()}


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure with its spread, and what it is compared with.

    `ratio` is how many times better we are than `against`. `peak` is the fraction of what this machine can do.
    """

    what: str
    value: float
    deviation: float
    unit: str
    against: str = ""
    ratio: float | None = None
    peak: float | None = None
    notes: tuple[str, ...] = field(default=())
    axis: str = ""
    points: tuple[tuple[float, float], ...] = field(default=())  # of a curve over `axis`


def timed_row(what: str, times: Times, unit: str = "s", against: str = "", other: Times | None = None, **more: object) -> Row:
    """The median of some times, and how many times that is in the median of others."""
    scale = 1e3 if unit == "ms" else 1.0
    ratio = other.median / times.median if other is not None else None
    return Row(what, times.median * scale, times.deviation * scale, unit, against, ratio, **more)  # type: ignore[arg-type]
