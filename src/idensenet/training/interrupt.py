"""Being asked to stop: once is a request, twice is an order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """`signal` is the number of the signal that asked, 0 while nobody has."""

    signal = 0

    @property
    def exit_code(self) -> int:
        """128 plus the number of the signal, as shells count; SIGINT if another process received the signal."""
        return 128 + (self.signal or signal.SIGINT)


@contextmanager
def listening() -> Iterator[StopRequest]:
    """The first SIGINT or SIGTERM sets the request; the second one acts as it always does."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
