"""How a run goes on after an end that was not its last step."""

from __future__ import annotations

from idensenet.config import TrainConfig
from idensenet.errors import CheckpointError
from idensenet.training.run import RunFolder


def how_to_go_on(run: RunFolder, first: str) -> str:
    """The end of a sentence about a failure: what is saved, and the command to continue with once `first` is done."""
    steps = run.checkpoints.steps()
    if not steps:
        return f"nothing had been saved yet: {first}, and start again"
    return f"the checkpoint of step {steps[-1]} is whole: {first}, and continue with: idensenet train --resume {run.path}"


def batch_notes(run: RunFolder, train: TrainConfig) -> tuple[str, ...]:
    """What another number of processes changes in a resumed run, unless other options make up for it."""
    try:
        then = run.config().train
    except CheckpointError:  # `options` has said so
        return ()
    was, now = ((t.batches_per_step, t.batch_size) for t in (then, train))
    if was == now:
        return ()
    return (
        f"A step averages {now[0]} x {now[1]} samples, where it averaged {was[0]} x {was[1]} before, so losses will differ "
        "from an unbroken run; keep --train.batch_size, and processes x --train.accumulate, to have them equal.",
    )


def begun(run: RunFolder, command: str) -> RunFolder | None:
    """The run that a command began before it was restarted, if there is one."""
    return run if run.exists() and run.description()["command"] == command else None
