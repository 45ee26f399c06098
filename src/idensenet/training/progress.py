"""Progress of a fit: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, float], None]


@contextmanager
def progress(steps: int, verbose: bool) -> Iterator[Report]:
    """A function to call with the step and the held-out loss after each evaluation.

    Args:
        steps: Most steps of the fit.
        verbose: Whether anything is shown at all.
    """
    if not verbose:
        yield lambda step, score: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:  # lines need nothing
        console = None
    else:
        console = Console(stderr=True)
    if console is None or not console.is_terminal:
        yield lambda step, score: print(f"step {step} of {steps}: held-out loss {score:.4f}", file=sys.stderr, flush=True)
        return
    with Progress(transient=True, console=console) as bar:
        task = bar.add_task("fitting", total=steps)

        def report(step: int, score: float) -> None:
            bar.update(task, completed=step, description=f"fitting, held-out loss {score:.4f}")

        yield report
