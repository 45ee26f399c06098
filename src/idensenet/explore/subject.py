"""The subject of a live page: a model, its data if they can be read, and their names."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from idensenet.data.source import Source
from idensenet.errors import OptionError
from idensenet.flow import Flow, Prepared


@dataclass(frozen=True)
class Subject:
    """A trained model and its data.

    Args:
        flow: The model, in evaluation mode.
        title: What to call it.
        source: Its data; None if it cannot be read.
        missing: Why the data cannot be read.
        notes: Sentences for the top of the page.
    """

    flow: Flow
    title: str
    source: Source | None = None
    missing: str = ""
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def kind(self) -> str:
        """plane for a density of two real columns, table for other rows, images for pixels.

        Raises:
            OptionError: It is none of them.
        """
        flow = self.flow
        if len(flow.shape) == 3 and flow.levels is not None:
            return "images"
        if len(flow.shape) != 1 or flow.levels is not None:
            raise OptionError(
                f"Models of samples of shape {flow.shape} {'with' if flow.levels else 'without'} levels cannot be explored; "
                "give a model of a table, or of images with levels."
            )
        return "plane" if flow.shape == (2,) and not flow.context and not flow.integers else "table"

    @cached_property
    def prepared(self) -> Prepared:
        """Normalised weights, computed once: nobody changes the model while its page is open."""
        return self.flow.prepare()

    @property
    def names(self) -> list[str]:
        """The names of the numbers that the flow models."""
        flow = self.flow
        if flow.columns is not None:
            return [flow.columns.names[i] for i in flow.columns.amounts]
        known = self.source.columns if self.source else flow.config.data.columns if flow.config else ()
        return [known[i] if i < len(known) else f"x{i + 1}" for i in range(flow.shape[0])]

    def about(self) -> dict[str, Any]:
        """What the head of the page says.

        Returns:
            Plain values for JSON.
        """
        flow = self.flow
        own = {"table": "a table of your own", "folder": "a folder of your own"}
        data = (
            "" if self.source is None else f"{own.get(self.source.name, self.source.name)}, {len(self.source.test):,} held out"
        )
        return {
            "kind": self.kind,
            "title": self.title,
            "parameters": flow.num_parameters,
            "blocks": len(flow.named_blocks()),
            "shape": list(flow.shape),
            "data": data,
            "missing": self.missing if self.source is None else "",
            "notes": [*self.notes, *(self.source.notes if self.source else ())],
        }
