"""How many threads a piece of work repays.

On small tensors a second thread costs more than it saves, and on a busy machine it waits for the first at full speed: a toy run
took twelve times the processor time with two threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from idensenet.flow import Flow

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SMALL = 1e9  # multiply-adds of a pass up to which one thread does it
_AT_IMPORT = torch.get_num_threads()


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_by_user() -> bool:
    """Whether the environment or a call of torch.set_num_threads has settled the number of threads."""
    usual = (cores(), max(1, cores() // 2), os.cpu_count())  # torch takes one for each core; some processors show each twice
    return any(os.environ.get(name) for name in VARIABLES) or torch.get_num_threads() != _AT_IMPORT or _AT_IMPORT not in usual


def multiply_adds(flow: Flow, batch: int) -> float:
    """An upper bound on the multiply-adds of a pass: every parameter meets every pixel of every sample."""
    return float(batch) * flow.num_parameters * math.prod(flow.shape[1:])


def threads_for(flow: Flow, batch: int) -> int:
    """The number of threads that suits batches of this size."""
    return 1 if multiply_adds(flow, batch) <= SMALL else _AT_IMPORT


@contextmanager
def suited_to(flow: Flow, batch: int, wanted: int | None = None) -> Iterator[None]:
    """Inside, torch uses as many threads as the work repays; afterwards as many as before.

    A number that the user has set stays. In runs of several processes Fabric has divided the cores among them.

    Args:
        flow: The model.
        batch: Samples that are computed together.
        wanted: A number of threads that the user asks for.
    """
    before = torch.get_num_threads()
    number = wanted or (before if set_by_user() else threads_for(flow, batch))
    if number != before:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        if number != before:
            torch.set_num_threads(before)
