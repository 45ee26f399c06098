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
from idensenet.data.fingerprint import OWN as CHANGING
from idensenet.data.fingerprint import Fingerprint
from idensenet.data.source import Source
from idensenet.errors import CheckpointError, InputError, OptionError
from idensenet.files import parse_json, read_json, read_small, write_atomically
from idensenet.plainyaml import parse_yaml
from idensenet.provenance import commit
from idensenet.training.checkpoint import Checkpoints

# what a run, its evaluation, its report and reproductions write; a folder may hold other things, even next to the pictures
OWN = (
    *("config.yaml", "data.json", "metrics.jsonl", "best.json", "certificate.json", "evaluation.json", "report.html"),
    *("checkpoints/step-*", "checkpoints/aside-*", "checkpoints/.part-*"),
    *("pictures/step-*.png", "events/events.out.tfevents.*", "held-out-*.npy"),
)
CONFIG_LIMIT, METRICS_LIMIT, LINE_LIMIT = 1 << 18, 1 << 30, 1 << 20  # bytes
TERMS = ("base", "log_det", "preprocess", "levels")


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63)


def _is_entry(entry: Any) -> bool:
    """Whether this is a line of metrics, with numbers where numbers belong."""
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        return False
    step, terms = entry.get("step"), entry.get("terms", dict.fromkeys(TERMS, 0.0))
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 1 << 63:
        return False
    if not isinstance(terms, dict) or not all(_is_number(terms.get(name)) for name in TERMS):
        return False
    if entry["kind"] == "eval" and not {"nats", "nats_error", "samples", "terms"} <= entry.keys():
        return False
    return all(_is_number(value) for name, value in entry.items() if name not in ("kind", "terms", "memory"))


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
        return self.exists() and not self.checkpoints.steps() and not (self.path / "best.json").is_file()

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

        try:
            described = self.description()
        except CheckpointError:  # `options` has said so
            described = {"recipe": None, "command": command}
        if described.get("config") == config.as_dict():
            return
        described["config"] = config.as_dict()
        described.setdefault("resumed", []).append(command)
        write_atomically(self.path / "config.yaml", yaml.safe_dump(described, sort_keys=False))

    def description(self) -> dict[str, Any]:
        """What config.yaml says: recipe, command and config."""
        if not self.exists():
            raise CheckpointError(f"{self.path} holds no run (config.yaml is missing); 'idensenet train' makes one.")
        try:
            values: dict[str, Any] = parse_yaml(read_small(self.path / "config.yaml", CONFIG_LIMIT))
            for name, kind in (("config", dict), ("command", str), ("recipe", str | None)):
                if not isinstance(values, dict) or not isinstance(values.get(name), kind):
                    raise ValueError(f"{name!r} is missing or has another type")
            if not isinstance(values.get("resumed", []), list):
                raise ValueError("'resumed' has another type")
        except ValueError as error:
            raise CheckpointError(
                f"{self.path / 'config.yaml'} is damaged or not of a run ({error!s:.200}); mend it, or choose another folder."
            ) from error
        return values

    def config(self) -> Config:
        try:
            return Config.saved(self.description()["config"])
        except OptionError as error:
            raise CheckpointError(f"{self.path / 'config.yaml'} is damaged: {error}") from error

    def options(self) -> tuple[Config, str]:
        """The options to continue with, and a sentence if config.yaml is damaged and a checkpoint supplied them."""
        try:
            return self.config(), ""
        except CheckpointError as error:
            for step in reversed(self.checkpoints.steps()) if self.exists() else ():
                try:
                    model = read_json(self.checkpoints.check(step) / "model" / "model.json")
                    config = Config.saved(model["config"])
                except (InputError, ValueError, OSError, LookupError, TypeError):
                    continue
                return config, f"{error} The options are taken from the checkpoint of step {step}."
            raise

    def remember(self, source: Source) -> None:
        """Write down what the data of this run is, if it can change; with what was trained on before."""
        if source.name not in CHANGING:
            return
        now, then = Fingerprint.of(source), self.fingerprint()
        found = now if then is None else then.continued(now)
        write_atomically(self.path / "data.json", json.dumps(found.as_dict(), indent=1) + "\n")

    def fingerprint(self) -> Fingerprint | None:
        """What the data of this run was; None if nothing was written down, or if that is damaged."""
        try:
            return Fingerprint.from_dict(read_json(self.path / "data.json"))
        except (OSError, ValueError):
            return None

    def log(self, entry: dict[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl that are whole: the last line of a killed process, and damaged ones, are left out."""
        file = self.path / "metrics.jsonl"
        if not file.is_file():
            return []
        if file.stat().st_size > METRICS_LIMIT:
            raise CheckpointError(f"{file} has {file.stat().st_size:,} bytes, more than can be read; move it away.")
        entries = []
        with file.open("rb") as lines:
            while line := lines.readline(LINE_LIMIT):
                try:
                    entry = parse_json(line)
                except ValueError:
                    continue
                if _is_entry(entry):
                    entries.append(entry)
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
