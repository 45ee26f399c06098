"""Writing the checkpoints of a run, and continuing from them. No pickle."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from idensenet.checkpoints import FOR_TRAINING, CheckpointFolder, Progress, digest
from idensenet.errors import CheckpointError
from idensenet.files import load_tensors, save_tensors, write_atomically
from idensenet.flow import Flow
from idensenet.lipschitz import refresh_norms
from idensenet.storage import save
from idensenet.training.averaging import Average


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{index}.{key}": value for index, entry in state.items() for key, value in entry.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    entries: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        entries.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def seal(folder: Path) -> None:
    """Write the manifest of a checkpoint, and flush all of it to the disk."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    manifest = {str(p.relative_to(folder)): digest(p) for p in files}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    for file in [*files, folder / "manifest.json"]:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())


class Checkpoints(CheckpointFolder):
    """The checkpoints of one run, to write and to continue from. The last two and the best are kept."""

    def _note_best(self, progress: Progress) -> None:
        if progress.best_step is not None:
            write_atomically(self.run / "best.json", json.dumps({"step": progress.best_step, "score": progress.best}) + "\n")
        else:
            (self.run / "best.json").unlink(missing_ok=True)

    def set_aside_after(self, step: int, progress: Progress) -> None:
        """A run that continues from an earlier step takes another path: what lies ahead is renamed, not lost."""
        for later in self.steps():
            if later > step:
                before = len(list(self.folder.glob(f"aside-*-{self.path(later).name}")))
                self.path(later).rename(self.folder / f"aside-{before + 1}-{self.path(later).name}")
        if progress.best_step not in self.steps():  # it has been overtaken and removed on the path that is left
            progress.best = progress.best_step = None
        self._note_best(progress)

    def write(self, flow: Flow, average: Average, optimizer: torch.optim.Optimizer, progress: Progress) -> Path:
        """All of it to a temporary folder, which then appears under its name in one go."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".part-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=self.folder))
        try:
            save_tensors(flow.state_dict(), part / "weights.safetensors")
            save_tensors(average.weights, part / "average.safetensors")
            save_tensors(optimizer_tensors(optimizer), part / "optimizer.safetensors")
            training = flow.training
            with average.swapped_in(flow):
                flow.eval()  # norms are recomputed from scratch, not warm-started
                refresh_norms(flow)
                save(flow, part / "model")
                flow.train(training)
            (part / "state.json").write_text(json.dumps(asdict(progress)) + "\n")
            seal(part)
            target = self.path(progress.step)
            if target.exists():
                shutil.rmtree(target)
            part.replace(target)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        self._note_best(progress)
        keep = {*self.steps()[-2:], self.best()}
        for step in self.steps():
            if step not in keep:
                shutil.rmtree(self.path(step))
        return target

    def read(self, step: int, flow: Flow, average: Average, optimizer: torch.optim.Optimizer) -> Progress:
        folder = self.check(step)
        missing = [name for name in FOR_TRAINING if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(
                f"The checkpoint of step {step} in {self.run} can be used but not continued: it was passed on without "
                f"{missing[0]}; train a new run."
            )
        device = str(flow.device)
        try:
            flow.load_state_dict(load_tensors(folder / "weights.safetensors", device=device))
            averaged = load_tensors(folder / "average.safetensors", device=device)
            if set(averaged) != set(average.weights):
                raise LookupError("other parameters")  # the optimiser counts them
            average.weights = {name: averaged[name] for name in average.weights}
            restore_optimizer(optimizer, load_tensors(folder / "optimizer.safetensors", device=device))
        except (RuntimeError, LookupError, ValueError, TypeError) as error:  # the files are as they were written
            raise CheckpointError(
                f"The checkpoint of step {step} in {self.run} is of another model; leave the options of the model and the "
                "columns of the data as they were."
            ) from error
        return self.progress(step)
