"""A page in a real browser without a window: what it says on its console, how wide it gets, how it looks."""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from html import escape
from pathlib import Path

QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
]


def chromium() -> str | None:
    return shutil.which("chromium")


@dataclass(frozen=True)
class Rendered:
    console: list[str]  # what the page said
    needed: int  # width that its content needs
    height: int
    images: int  # pictures that were decoded
    broken: int  # pictures that were not


FRAME = """<!DOCTYPE html><html><head><meta charset="utf-8">
<style>body{{margin:0}}iframe{{border:0;display:block}}</style></head><body>
<iframe id="page" width="{width}" height="{height}" srcdoc="{page}"></iframe>
<pre id="found"></pre>
<script>addEventListener("load", () => {{
  const inner = document.getElementById("page").contentDocument, root = inner.documentElement;
  const shown = [...inner.images].filter(image => image.complete && image.naturalWidth > 0).length;
  document.getElementById("found").textContent =
    [root.scrollWidth, root.scrollHeight, shown, inner.images.length - shown].join(" ");
}});</script></body></html>"""


def run_chromium(folder: Path, file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [chromium() or "chromium", *QUIET, f"--user-data-dir={folder / 'profile'}", *options, file.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


def console_lines(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if ":CONSOLE" in line]


def render(page: str, width: int, height: int = 800, screenshot: Path | None = None, dark: bool = False) -> Rendered:
    """Open a page in a frame of some width. A window of a browser cannot be as narrow as a phone, a frame can."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "frame.html"
        file.write_text(FRAME.format(width=width, height=height, page=escape(page)))
        options = [f"--window-size={max(width, 600)},{height}"]
        if dark:
            options.append("--blink-settings=preferredColorScheme=0")
        done = run_chromium(folder, file, "--dump-dom", *options)
        match = re.search(r'<pre id="found">(\d+) (\d+) (\d+) (\d+)</pre>', done.stdout)
        assert match, done.stderr
        if screenshot is not None:
            run_chromium(folder, file, f"--screenshot={screenshot}", *options)
        return Rendered(console_lines(done.stderr), *map(int, match.groups()))
