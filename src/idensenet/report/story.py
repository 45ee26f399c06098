"""What is known about a run: its configuration, its metrics, its model, its data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from idensenet.config import Config, Recipe, recipe, recipes
from idensenet.data.source import Source
from idensenet.errors import InputError
from idensenet.files import read_json
from idensenet.flow import Flow
from idensenet.storage import load
from idensenet.training.run import RunFolder
from idensenet.training.sources import as_trained, source_of


@dataclass(frozen=True)
class Story:
    """Everything that a page about a run is made from. `source` is None if the data is not there: then `missing` says why."""

    run: RunFolder
    config: Config
    recipe_name: str | None
    command: str
    entries: list[dict[str, Any]]  # metrics, until the step of the checkpoint
    flow: Flow
    step: int  # of the checkpoint that the model is from
    source: Source | None
    missing: str = ""

    @property
    def data_name(self) -> str:
        d = self.config.data
        own = d.table or d.folder
        if own:
            return Path(own).name
        return self.source.name if self.source else d.name or "data without a name"

    @property
    def title(self) -> str:
        return f"{self.recipe_name or 'A model of your own'} on {self.data_name}"

    @property
    def recipe(self) -> Recipe | None:
        return recipe(self.recipe_name) if self.recipe_name in recipes() else None

    @property
    def entropy(self) -> float | None:
        return self.source.stream.entropy if self.source and self.source.stream else None

    def last(self, kind: str) -> dict[str, Any] | None:
        """The newest line of metrics of one kind."""
        return next((entry for entry in reversed(self.entries) if entry.get("kind") == kind), None)

    @property
    def best(self) -> tuple[int, float] | None:
        """Step and held-out score of the best checkpoint."""
        try:
            values = read_json(self.run.path / "best.json")
            return int(values["step"]), float(values["score"])
        except (OSError, ValueError, LookupError, TypeError):
            return None

    @property
    def written(self) -> str:
        """When the checkpoint was written."""
        seconds = (self.run.checkpoints.path(self.step) / "manifest.json").stat().st_mtime
        return datetime.fromtimestamp(seconds, UTC).strftime("%d %B %Y, %H:%M UTC")


def _open(config: Config, flow: Flow) -> tuple[Source | None, str]:
    """The data of a run, or why it cannot be shown."""
    try:
        source = source_of(as_trained(config, flow), flow.columns)
    except (InputError, OSError) as error:
        return None, str(error)
    if source.shape != flow.shape:
        return None, f"{source.name} now has samples of shape {source.shape}, and the model takes {flow.shape}."
    return source, ""


def tell(run: RunFolder, source: Source | None = None, step: int | str = "last") -> Story:
    """Read a run. Without a checkpoint, or with a damaged one, there is nothing to tell, and `load` says so."""
    description = run.description()
    config = run.config()
    number = run.checkpoints.find(step)
    flow = load(run.path, step=number)
    source, missing = (source, "") if source is not None else _open(config, flow)
    entries = [entry for entry in run.metrics() if entry["step"] <= number]
    return Story(run, config, description.get("recipe"), description["command"], entries, flow, number, source, missing)
