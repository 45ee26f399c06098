"""Peak memory of one training step above the idle process: a program, because a peak is that of a whole process."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import Any


def peak() -> float:
    """The largest resident size of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1 << 20)


def measure(recipe: str, overrides: dict[str, Any], batch: int) -> dict[str, float]:
    """In this process: build, one step to have the optimiser's moments, and one more."""
    import torch

    from idensenet.bench.work import images_for, stepper
    from idensenet.models import build

    flow = build(recipe, **overrides)
    x = images_for(flow, batch)
    flow.initialize(x)
    flow.train()
    moments = [torch.zeros_like(p) for p in flow.parameters() for _ in range(3)]  # room for gradients and moments of Adam
    idle = peak()
    del moments
    step = stepper(flow, x)
    step()
    step()
    return {"idle": idle, "above": peak() - idle, "input": x.numel() * 4 / 1e6}


def measure_apart(recipe: str, overrides: dict[str, Any], batch: int) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "idensenet.bench.memory", recipe, json.dumps(overrides), str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))))
