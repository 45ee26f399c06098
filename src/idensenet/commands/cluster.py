"""Scoring the parts of a table on the workers of a Dask cluster, with a sentence for whatever is lost on the way."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any

from idensenet.commands.parts import Job, Part, Written
from idensenet.errors import LostClusterError, OptionError
from idensenet.extras import needs

ANSWER = 15  # seconds that a scheduler may take to answer
PATIENCE = 60  # seconds to wait for a worker
WATCH = 5  # seconds without a finished part after which the scheduler is asked whether it is still there
AT_ONCE = 1000  # parts that a scheduler knows of


def on_cluster(job: Job, parts: Sequence[Part], address: str) -> Iterator[Written]:
    """All parts, on the workers of a Dask cluster that see the same files. A part whose worker is lost goes to another one.

    Raises:
        OptionError: No scheduler answers at the address, or the workers have another installation.
        LostClusterError: The cluster has no workers, or it was lost.
    """
    with needs("Scoring with --dask"):
        distributed: Any = import_module("distributed")
    with _silent():
        _check_answers(distributed, address)
        client = distributed.Client(address, timeout=ANSWER, set_as_default=False)
        try:
            cluster = Cluster(distributed, client, address)
            cluster.wait_for_a_worker()
            waiting = list(parts)
            for _ in range(min(AT_ONCE, len(waiting))):
                cluster.submit(job, waiting.pop(0))
            for _ in parts:
                yield cluster.result()
                if waiting:
                    cluster.submit(job, waiting.pop(0))
        finally:
            with suppress(OSError):  # a scheduler that is lost does not answer to this either
                client.close(timeout=ANSWER)
            gc.collect()  # what was begun and came to nothing is let go of here, where Dask says nothing about it


class Cluster:
    """Parts that are being scored on a cluster.

    Args:
        distributed: The module.
        client: Connected to the scheduler.
        address: Of the scheduler.
    """

    def __init__(self, distributed: Any, client: Any, address: str) -> None:
        self.distributed, self.client, self.address = distributed, client, address
        self.running: set[Any] = set()
        self.finished: SimpleQueue[Any] = SimpleQueue()
        self.seen = time.monotonic()  # when there was a worker
        self.rest = "the scores of finished parts are kept, and the same command does the rest"

    def wait_for_a_worker(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError:
            raise LostClusterError(
                f"The Dask cluster at {self.address} has no workers; start some with 'dask worker {self.address}', and give "
                "the same command again."
            ) from None
        except (OSError, self.distributed.client.ClosedClientError) as error:
            raise self._lost(error) from None

    def submit(self, job: Job, part: Part) -> None:
        try:
            future = self.client.submit(job.write, part, key=f"idensenet-{part.key}", pure=False)
        except (OSError, self.distributed.client.ClosedClientError) as error:
            raise self._lost(error) from None
        self.running.add(future)
        future.add_done_callback(self.finished.put)

    def result(self) -> Written:
        """What is known of the next part that is finished."""
        future = self._next()
        try:
            found: Written = self._content(future)
        except self.distributed.KilledWorker as error:
            raise LostClusterError(
                f"Several workers ended while they scored the same part ({_short(error)}); see their logs. Otherwise "
                f"{self.rest}."
            ) from None
        except (self.distributed.CancelledError, self.distributed.comm.CommClosedError) as error:
            raise self._lost(error) from None
        except (ImportError, AttributeError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "deserializ" not in str(error):
                raise
            raise OptionError(
                f"The cluster at {self.address} cannot read what it is to do ({_short(error)}); install the same version of "
                "idensenet, with the same extras, where the scheduler and the workers run."
            ) from None
        self.running.discard(future)
        future.release()
        return found

    def _next(self) -> Any:
        """The next part that is finished, as long as there are a scheduler and a worker that could finish one."""
        self.seen = time.monotonic()
        while True:
            try:
                return self.finished.get(timeout=WATCH)
            except Empty:
                self._check()

    def _content(self, future: Any) -> Written:
        """What a part that is finished says, from the worker that did it; if that is lost, another one does it again."""
        while True:
            try:
                found: Written = future.result(timeout=WATCH)
            except self.distributed.TimeoutError:
                self._check()
            else:
                return found

    def _check(self) -> None:
        """Raise if there is no scheduler, or for a long time no worker."""
        try:
            if self.client.sync(self.client.scheduler.ncores, callback_timeout=PATIENCE):
                self.seen = time.monotonic()
        except (OSError, AttributeError, self.distributed.client.ClosedClientError) as error:
            raise self._lost(error) from None
        if time.monotonic() - self.seen > PATIENCE:
            raise LostClusterError(
                f"The Dask cluster at {self.address} has lost all its workers, and none has come for {PATIENCE} seconds; see "
                f"their logs, and start some with 'dask worker {self.address}': {self.rest}."
            )

    def _lost(self, error: BaseException) -> LostClusterError:
        return LostClusterError(
            f"The Dask scheduler at {self.address} is lost ({_short(error)}); start it and its workers again: {self.rest}."
        )


def _check_answers(distributed: Any, address: str) -> None:
    """Refuse an address where no scheduler answers, before there is a client, which would wait longer and say more."""
    rpc: Any = import_module("distributed.core").rpc

    async def ask() -> Any:
        options = distributed.Security().get_connection_args("client")
        async with rpc(address, connection_args=options) as other:
            return await asyncio.wait_for(other.identity(), ANSWER)

    try:
        kind = asyncio.run(ask())["type"]
        if kind != "Scheduler":
            raise ValueError(f"a Dask {kind.lower()} does")
    except ImportError as error:
        raise OptionError(f"--dask {address} needs {error.name or error}, which is not installed.") from None
    except Exception as error:  # a wrong address, and another program behind one, fail in every way there is
        why = f"nothing came within {ANSWER} s" if isinstance(error, TimeoutError) else _short(error)
        raise OptionError(
            f"No Dask scheduler answers at {address!r:.80} ({why}); give the address that 'dask scheduler' prints, such "
            "as tcp://node0:8786, or leave --dask out."
        ) from None


@contextmanager
def _silent() -> Iterator[None]:
    """Inside, Dask writes no log: what it has to say is said in one sentence."""
    names = ("distributed", "distributed.client", "asyncio")
    quiet: list[Any] = [logging.getLogger("asyncio"), *(each for name in names for each in logging.getLogger(name).handlers)]
    before = [each.level for each in quiet]
    for each in quiet:
        each.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for each, level in zip(quiet, before, strict=True):
            each.setLevel(level)


def _short(error: BaseException) -> str:
    """The first line of an error, without the connection that Dask describes in it."""
    return ((str(error).strip().splitlines() or [""])[0].rpartition(">: ")[2] or type(error).__name__)[:200]
