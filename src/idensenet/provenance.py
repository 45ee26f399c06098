"""Where numbers come from: the commit, the command, the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def commit() -> str | None:
    """The commit of the code, with a plus if the tree differs from it; None outside a repository."""
    here = Path(__file__).parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    name = git("rev-parse", "--short=12", "HEAD")
    if name is None or git("ls-files", str(Path(__file__))) == "":
        return None
    return name + ("+" if git("status", "--porcelain", "--", str(here)) else "")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def made(command: str, code: str | None, seconds: float) -> dict[str, Any]:
    """Where results come from."""
    return {
        "command": command,
        "commit": code,
        "idensenet": version("idensenet"),
        "torch": torch.__version__,
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }
