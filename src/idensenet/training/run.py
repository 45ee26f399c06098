"""The folder of a run: its configuration, its metrics, its checkpoints, and the lock of whoever is writing to it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from idensenet.config import Config
from idensenet.errors import CheckpointError, OptionError
from idensenet.files import write_atomically
from idensenet.provenance import commit
from idensenet.training.checkpoint import Checkpoints

# what a run, its evaluation, its report and reproductions write; a folder may hold other things, even beside the pictures
OWN = (
    *("config.yaml", "metrics.jsonl", "best.json", "certificate.json", "evaluation.json", "report.html"),
    *("checkpoints/step-*", "checkpoints/aside-*", "checkpoints/.part-*"),
    *("pictures/step-*.png", "events/events.out.tfevents.*", "held-out-*.npy"),
)


class RunFolder:
    """RUN/config.yaml, RUN/metrics.jsonl, RUN/checkpoints, RUN/pictures, RUN/report.html."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path)

    @property
    def pictures(self) -> Path:
        return self.path / "pictures"

    def exists(self) -> bool:
        return (self.path / "config.yaml").is_file()

    def unsaved(self) -> bool:
        """Whether it ended before its first checkpoint, so that there is nothing that could be lost."""
        return self.exists() and not self.checkpoints.steps() and self.checkpoints.best() is None

    def create(self, config: Config, recipe: str | None, command: str) -> None:
        import yaml

        if self.unsaved():
            self.description()  # of a run, and not a file of that name
            self.clear()
        if self.exists():
            raise OptionError(
                f"{self.path} already holds a run; continue it with 'idensenet train --resume {self.path}', "
                "or choose another folder with --output.dir."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        versions = {"idensenet": version("idensenet"), "torch": torch.__version__.split("+")[0]}
        started = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"recipe": recipe, "command": command, "started": started, "commit": commit(), "versions": versions}
        text = yaml.safe_dump({**about, "config": config.as_dict()}, sort_keys=False)
        write_atomically(self.path / "config.yaml", text)

    def clear(self) -> None:
        """Remove what the run has written, and nothing else."""
        for own in [path for pattern in OWN for path in self.path.glob(pattern)]:
            shutil.rmtree(own) if own.is_dir() and not own.is_symlink() else own.unlink()

    def change(self, config: Config, command: str) -> None:
        """Options given when a run is resumed hold from then on, also when it is resumed once more."""
        import yaml

        described = self.description()
        if described["config"] == config.as_dict():
            return
        described["config"] = config.as_dict()
        described.setdefault("resumed", []).append(command)
        write_atomically(self.path / "config.yaml", yaml.safe_dump(described, sort_keys=False))

    def description(self) -> dict[str, Any]:
        """What config.yaml says: recipe, command and config."""
        import yaml

        if not self.exists():
            raise CheckpointError(f"{self.path} holds no run (config.yaml is missing); 'idensenet train' makes one.")
        try:
            values = yaml.safe_load((self.path / "config.yaml").read_text())
        except (yaml.YAMLError, ValueError):
            values = None
        if not isinstance(values, dict) or not isinstance(values.get("config"), dict) or "command" not in values:
            raise CheckpointError(f"{self.path / 'config.yaml'} is damaged or not of a run; mend it, or choose another folder.")
        return values

    def config(self) -> Config:
        return Config.from_dict(self.description()["config"])

    def log(self, entry: dict[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl that are whole."""
        file = self.path / "metrics.jsonl"
        entries = []
        for line in file.read_text().splitlines() if file.is_file() else []:
            try:
                entries.append(json.loads(line))
            except ValueError:  # the last line of a killed process
                continue
        return entries

    def forget_after(self, step: int) -> None:
        """Drop metrics of steps that a resumed run will do again."""
        kept = [entry for entry in self.metrics() if entry["step"] <= step]
        write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(entry) + "\n" for entry in kept))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes to the run inside. The system frees the lock of a process that died."""
        import fcntl

        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise OptionError(f"{self.path} is a file or lies in one; choose another folder.") from None
        with (self.path / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                owner = file.read().strip() or "another process"
                raise OptionError(f"{self.path} is in use by {owner}; wait for it, or choose another --output.dir.") from None
            file.truncate(0)
            file.write(f"process {os.getpid()}")
            file.flush()
            yield
