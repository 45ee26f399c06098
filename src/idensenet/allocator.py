"""Freed memory, kept for the next step.

Large blocks go back to the system as soon as they are freed, and the next training step, which asks for the same ones, gets
empty pages, each with an interruption, which on image models takes a few percent of the processor's time. glibc can be told
to keep them.
"""

from __future__ import annotations

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of <malloc.h>
SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Tell the C library so, for this whole process. False where it cannot be told, or where the environment has settled it."""
    if any(name in os.environ for name in SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library
        return False
    return bool(mallopt(MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))
