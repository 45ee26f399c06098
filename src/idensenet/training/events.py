"""TensorBoard events, in addition to metrics.jsonl, if you ask for them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idensenet.extras import needs

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Events:
    """Writes every number of a metrics entry as a scalar."""

    def __init__(self, folder: Path) -> None:
        with needs("output.tensorboard"):
            import torch.utils.tensorboard  # noqa: F401
        self.folder = folder

    @cached_property
    def writer(self) -> SummaryWriter:
        """Opened with the first entry: until then nothing is written to a folder that may not be ours."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.folder))

    def write(self, entry: dict[str, Any]) -> None:
        for name, value in entry.items():
            if name not in ("step", "kind") and isinstance(value, (int, float)):
                self.writer.add_scalar(f"{entry['kind']}/{name}", value, entry["step"])
        self.writer.flush()
