"""Being asked to stop: once is a request, twice is an order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)  # what SLURM is asked to send before the end: --signal=USR1@120


class StopRequest:
    """`signal` is the number of the signal that asked, 0 while nobody has."""

    signal = 0


@contextmanager
def listening() -> Iterator[StopRequest]:
    """The first SIGINT, SIGTERM or warning signal sets the request; the second one acts as it always does."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, *WARNINGS)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
