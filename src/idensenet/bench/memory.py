"""Peak memory of one training step above the idle process: a program, because peak memory belongs to a whole process."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idensenet.allocator import give_back_freed_memory
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
    if overrides.get("train", {}).get("memory") == "save":
        give_back_freed_memory()  # as `idensenet train` does it
    x = images_for(flow, batch)
    flow.initialize(x)
    step = stepper(flow.train(), x)
    step()
    flow.zero_grad()
    _settle()
    idle = _status("VmRSS")
    step()
    return {"idle": idle, "above": _status("VmHWM") - idle}


def kept(recipe: str, overrides: dict[str, Any], batch: int) -> float:
    """What a forward pass leaves for the backward pass, in MB: tensors other than parameters and buffers, each once."""
    from idensenet.bench.work import images_for
    from idensenet.models import build

    flow = build(recipe, **overrides)
    x = images_for(flow, batch)
    flow.initialize(x)
    flow.train()
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        score = flow.log_prob(x, torch.Generator().manual_seed(0))  # alive, so that no storage is used twice
    own = {tensor.untyped_storage().data_ptr() for tensor in (*flow.parameters(), *flow.buffers(), x)}
    del score
    return sum(size for place, size in sizes.items() if place not in own) / 2**20


# glibc keeps freed memory in pieces for later; told so, it gives it back at once, and a peak is what is in use
TIGHT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def measure_apart(recipe: str, overrides: dict[str, Any], batch: int, tight: bool = False) -> dict[str, float]:
    """`measure` in a process of its own, perhaps with an allocator that hoards nothing."""
    command = [sys.executable, "-m", "idensenet.bench.memory", recipe, json.dumps(overrides), str(batch)]
    environment = {**os.environ, **(TIGHT if tight else {})}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))))
