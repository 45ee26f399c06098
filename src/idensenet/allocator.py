"""Freed memory: kept for the next step, or given back at once.

Large blocks go back to the system as soon as they are freed, and the next training step, which asks for the same ones, gets
empty pages, each with an interruption, which on image models takes a few percent of the processor's time. glibc can be told
to keep them. What it keeps raises the peak, so training that saves memory tells it to give large blocks back.
"""

from __future__ import annotations

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of <malloc.h>
SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory, in this whole process. False where it cannot, or where the environment decides."""
    return _tell(1 << 30, 2**31 - 1)


def give_back_freed_memory() -> bool:
    """Make the C library give freed blocks of a megabyte and more back to the system. False as above."""
    return _tell(1 << 20, 1 << 20)


def _tell(mmap: int, trim: int) -> bool:
    if any(name in os.environ for name in SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library
        return False
    return bool(mallopt(MMAP_THRESHOLD, mmap)) and bool(mallopt(TRIM_THRESHOLD, trim))
