"""A job of SLURM that must end before its run does goes back into the queue."""

from __future__ import annotations

import signal
import subprocess

from idensenet.training.interrupt import WARNINGS

PATIENCE = 60  # seconds for an answer


def requeue(number: int) -> str | None:
    """Ask SLURM to start this job again later, if there is one and a signal says that it is about to end.

    Args:
        number: The signal. An interrupt comes from a person, who wants the run to stop.

    Returns:
        A sentence about it; None where there is nothing to ask.
    """
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

    job = SLURMEnvironment.job_id()
    if job is None or number not in (signal.SIGTERM, *WARNINGS):
        return None
    try:
        done = subprocess.run(["scontrol", "requeue", str(job)], capture_output=True, text=True, timeout=PATIENCE)
        problem = (done.stderr or done.stdout).strip() if done.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem is not None:
        return f"job {job} cannot be requeued ({problem:.200}); submit it again"
    return f"job {job} is requeued and goes on from here when it starts again"
