"""The page as one file: its markup, its style and its program, and nothing from anywhere else."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

PROGRAM = ("core.js", "chart.js", "plane.js", "table.js", "images.js", "start.js")


def _read(package: str, name: str) -> str:
    return (resources.files("idensenet") / package / name).read_text(encoding="utf-8")


@cache
def _parts() -> tuple[str, str]:
    """The style and the program."""
    style = _read("report", "page.css") + _read("explore", "explore.css")
    program = "\n".join(_read("explore", name) for name in PROGRAM)
    return style, f'"use strict";\n{program}'


@cache
def page() -> str:
    """The page; it is the same for all models, and asks the server for everything that it shows.

    Returns:
        HTML.
    """
    style, program = _parts()
    return _read("explore", "explore.html").replace("/* style */", style).replace("/* program */", program)


@cache
def policy() -> str:
    """The Content-Security-Policy of the page: this program and this style, questions to this server, and nothing else.

    Returns:
        The value of the header.
    """
    style, program = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in _parts())
    return (
        f"default-src 'none'; script-src 'sha256-{program}'; style-src 'sha256-{style}'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
