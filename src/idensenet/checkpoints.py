"""The checkpoints of a run on disk: folders that are complete or not there, with a hash of every file.

RUN/checkpoints/step-00000100/
    weights.safetensors    parameters and buffers in training (norms too)
    average.safetensors    averaged parameters
    optimizer.safetensors  moments of Adam
    model/                 what idensenet.load reads: the averaged model, ready for use
    state.json             step, best score, skipped steps, length of the run
    manifest.json          SHA-256 of all of these
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idensenet.errors import CheckpointError
from idensenet.files import is_inside, read_json

FOR_TRAINING = ("average.safetensors", "optimizer.safetensors")  # a run that is passed on may do without
ALWAYS = ("state.json", "model/model.json", "model/model.safetensors")  # in every checkpoint
KNOWN = (*ALWAYS, "weights.safetensors", *FOR_TRAINING)


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    best: float | None = None
    best_step: int | None = None
    skipped: int = 0
    seconds: float = 0.0  # spent on training steps so far
    steps: int | None = None  # of the whole run
    compiled: bool | None = None  # what --train.compile auto decided; None if it has not been asked

    @classmethod
    def from_dict(cls, values: Any) -> Progress:
        """What `asdict` described; a ValueError for anything else."""
        if not isinstance(values, dict) or not values.keys() <= cls.__dataclass_fields__.keys():
            raise ValueError("it does not describe the state of a run")
        found = cls(**values)
        for name in ("step", "skipped", "best_step", "steps"):
            value = getattr(found, name)
            counts = type(value) is int and 0 <= value < 1 << 63
            if not counts and not (value is None and name in ("best_step", "steps")):
                raise ValueError(f"{name} is {value!r:.80}")
        if type(found.seconds) not in (int, float) or not 0 <= found.seconds < math.inf:
            raise ValueError(f"seconds is {found.seconds!r:.80}")
        if found.best is not None and type(found.best) not in (int, float):
            raise ValueError(f"best is {found.best!r:.80}")
        if found.compiled not in (None, True, False) or type(found.compiled) is int:
            raise ValueError(f"compiled is {found.compiled!r:.80}")
        return found


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class CheckpointFolder:
    """The checkpoints of one run, to read."""

    def __init__(self, run: Path) -> None:
        self.run, self.folder = run, run / "checkpoints"

    def steps(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        named = [re.fullmatch(r"step-(\d{8,18})", p.name) for p in self.folder.iterdir() if p.is_dir()]
        return sorted(int(found[1]) for found in named if found and found[0] == self.path(int(found[1])).name)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def best(self) -> int | None:
        """The step of the best checkpoint, if there is one; where best.json is damaged, the last checkpoint knows."""
        steps = self.steps()
        try:
            best = read_json(self.run / "best.json")["step"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError):
            best = None
        if type(best) is not int or best not in steps:
            best = None
            for step in steps[-1:]:
                try:
                    best = self.progress(step).best_step
                except CheckpointError:
                    continue
        return best if best in steps else None

    def find(self, step: int | str) -> int:
        """The step of a checkpoint that is there: a number, "last" or "best"."""
        steps = self.steps()
        if not steps:
            raise CheckpointError(f"The run in {self.run} has no checkpoint yet; let it train until the first one.")
        if step == "last":
            return steps[-1]
        if step == "best":
            best = self.best()
            if best is None:
                raise CheckpointError(
                    f"The run in {self.run} has not been evaluated yet, so no checkpoint is the best; use 'last'."
                )
            return best
        if not str(step).isdecimal() or int(step) not in steps:
            known = ", ".join(map(str, steps))
            raise CheckpointError(
                f"The run in {self.run} has no checkpoint of step {step!r}; it has {known}, 'last' and 'best'."
            )
        return int(step)

    def progress(self, step: int) -> Progress:
        """How far a run was at a checkpoint."""
        try:
            found = Progress.from_dict(read_json(self.path(step) / "state.json"))
            if found.step != step:
                raise ValueError(f"step is {found.step}")
        except (OSError, ValueError) as error:
            raise self._damaged(step, "state.json") from error
        return found

    def _damaged(self, step: int, name: str) -> CheckpointError:
        others = [other for other in self.steps() if other < step]
        remedy = f"the one before it is step {others[-1]}: add --step {others[-1]}" if others else "there is no earlier one"
        return CheckpointError(f"The checkpoint of step {step} in {self.run} is damaged ({name}); {remedy}.")

    def check(self, step: int) -> Path:
        """The folder of a checkpoint, after comparing every file with its hash."""
        folder = self.path(step)
        try:
            manifest = read_json(folder / "manifest.json")
            there = [name for name in KNOWN if name in ALWAYS or (folder / name).is_file()]
            if not isinstance(manifest, dict) or not {*there} <= manifest.keys():
                raise ValueError("it does not list all files")
            wanted = [name for name in manifest if name not in FOR_TRAINING or name in there]
            bad = [name for name in wanted if not is_inside(folder / name, folder) or digest(folder / name) != manifest[name]]
        except (OSError, ValueError) as error:
            bad = [str(getattr(error, "filename", None) or "manifest.json")]
        if bad:
            raise self._damaged(step, Path(bad[0]).name)
        return folder
