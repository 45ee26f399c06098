"""Showing how a run goes: a live display, plain lines for logs and pipes, or nothing."""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from idensenet.errors import OptionError


def clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def line(metrics: Mapping[str, Any]) -> str:
    """Metrics as one readable line."""
    shown = []
    for name, value in metrics.items():
        if name in ("step", "time", "kind"):
            continue
        shown.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(shown)


class Notices:
    """Says how far work is that comes before everything else: the first line at once, others every few seconds.

    Args:
        why: What the work is for.
    """

    every = 5.0

    def __init__(self, why: str) -> None:
        self.why, self.last = why, -math.inf

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self.last >= self.every:
            print(f"{self.why}: {what}, {done:,} of {total:,}", flush=True)
            self.last = time.monotonic()


class Display(ABC):
    def __init__(self, steps: int, start: int) -> None:
        self.steps, self.start, self.began = steps, start, time.monotonic()

    def time_left(self, step: int) -> float:
        done = max(1, step - self.start)
        return (time.monotonic() - self.began) / done * (self.steps - step)

    @abstractmethod
    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def say(self, text: str) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Quiet(Display):
    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class Plain(Display):
    """One line for each report, for log files."""

    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        print(f"step {step}/{self.steps}: {line(metrics)}, left {clock(self.time_left(step))}", flush=True)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        pass


class Rich(Display):
    """A progress bar with the latest metrics under it."""

    def __init__(self, steps: int, start: int) -> None:
        super().__init__(steps, start)
        from rich.console import Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.text import Text

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self.progress, self.text = Progress(*columns), Text("starting")
        self.task = self.progress.add_task("", total=steps, completed=start)
        self.live = Live(Group(self.progress, self.text), refresh_per_second=4)
        self.live.start()

    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.progress.update(self.task, completed=step)
        self.text.plain = line(metrics)

    def say(self, text: str) -> None:
        self.live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self.live.stop()


def make_display(kind: str, steps: int, start: int) -> Display:
    if kind == "auto":
        kind = "rich" if sys.stdout.isatty() else "plain"
    kinds: dict[str, type[Display]] = {"rich": Rich, "plain": Plain, "quiet": Quiet}
    if kind not in kinds:
        raise OptionError(f"output.display={kind!r} is not known; use rich, plain or quiet.")
    return kinds[kind](steps, start)
