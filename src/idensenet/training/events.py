"""TensorBoard events, beside metrics.jsonl, for those who ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from idensenet.errors import OptionError


class Events:
    """Writes every number of a metrics entry as a scalar."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise OptionError(
                "output.tensorboard needs TensorBoard; install it with pip install 'idensenet[tensorboard]'."
            ) from None
        self.writer = SummaryWriter(str(folder))

    def write(self, entry: dict[str, Any]) -> None:
        for name, value in entry.items():
            if name not in ("step", "kind") and isinstance(value, (int, float)):
                self.writer.add_scalar(f"{entry['kind']}/{name}", value, entry["step"])
        self.writer.flush()
