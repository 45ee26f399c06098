"""Peak memory of one training step above the idle process: a program, because a peak is that of a whole process."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from idensenet.errors import OptionError, StorageError


def _status(name: str) -> float:
    """A size of this process, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return float(line.split()[1]) / 1024
    raise StorageError(f"/proc/self/status has no {name}.")


def _settle() -> None:
    """Give freed memory back to the system, and let the peak begin at what is in use now."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def measure(recipe: str, overrides: dict[str, Any], batch: int) -> dict[str, float]:
    """In this process, which must have nothing else to do: one step for the moments of the optimiser, then one that counts."""
    from idensenet.bench.work import images_for, stepper
    from idensenet.models import build

    if not sys.platform.startswith("linux"):
        raise OptionError("Peak memory is measured on Linux only; leave 'memory' out with --only.")
    flow = build(recipe, **overrides)
    x = images_for(flow, batch)
    flow.initialize(x)
    step = stepper(flow.train(), x)
    step()
    flow.zero_grad()
    _settle()
    idle = _status("VmRSS")
    step()
    return {"idle": idle, "above": _status("VmHWM") - idle}


def measure_apart(recipe: str, overrides: dict[str, Any], batch: int) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "idensenet.bench.memory", recipe, json.dumps(overrides), str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))))
