"""The README of a package: on a package index, its links and pictures need full addresses."""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")


class Readme(MetadataHookInterface):
    """Puts the address in IDENSENET_ADDRESS, where the files of the repository can be read, in front of relative links."""

    def update(self, metadata: dict[str, object]) -> None:
        """Sets the readme of the package."""
        text, address = (Path(self.root) / "README.md").read_text(), os.environ.get("IDENSENET_ADDRESS", "").rstrip("/")
        if address:
            text = RELATIVE.sub(rf"]({address}/\1)", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
