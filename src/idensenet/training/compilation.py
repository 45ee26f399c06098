"""Whether compiling the blocks repays itself: from the time of a step and the length of the run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from idensenet.flow import Flow
from idensenet.logdet import ExactLogDet

SECONDS = 100.0  # that compilation takes: ten blocks on vectors in one function, measured cold
MARGIN = 2.0  # it has to save so many times that
EXACT, OTHER = 0.7, 0.05  # of the time of a step: saved with exact log-determinants, and with the others
WATCHED, WATCH = 8, 2.0  # steps that are timed at most, and the seconds after which it is enough


def saved_share(flow: Flow) -> float:
    """The share of the time of a step that compilation saves."""
    return EXACT if all(isinstance(s.log_det, ExactLogDet) and not s.save for s in flow.stacks()) else OTHER


def step_time(work: Callable[[], None], steps: int, share: float) -> float:
    """The median time of a step. If even the first step, which is the slowest, is too short to repay, its time."""
    began = time.perf_counter()
    work()
    first = time.perf_counter() - began
    seconds: list[float] = []
    while repays(first, steps, share) and len(seconds) < WATCHED and (not seconds or sum(seconds) < WATCH):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) if seconds else first


def repays(seconds: float, steps: int, share: float) -> bool:
    """Whether compilation clearly saves more than it costs over so many steps of so many seconds."""
    return seconds * steps * share > MARGIN * SECONDS


def in_words(seconds: float, steps: int, share: float) -> str:
    """The decision in one line."""
    left, verdict = seconds * steps, "so blocks are compiled" if repays(seconds, steps, share) else "so blocks are not compiled"
    return (
        f"{steps} steps of {seconds:.2g} s take about {left:.2g} s: compiling the blocks would save about {left * share:.2g} s "
        f"and takes about {SECONDS:.0f} s, {verdict} (--train.compile on or off decides otherwise)"
    )
