"""Downloads that go on where they were cut off."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idensenet.errors import DataError

if TYPE_CHECKING:
    from rich.progress import Progress

ATTEMPTS = 5
CHUNK = 1 << 18


class ResumingDownloader:
    """A downloader for pooch that collects the bytes in a file `part`, which survives a failure and is continued later.

    A server that knows the header `Range` sends only what is missing. From one that does not, the file starts anew. Pooch
    compares the checksum of the whole with the known one, so a part of another file does no harm.
    """

    def __init__(self, part: Path, *, progress: bool = True, timeout: float = 30.0, pause: float = 1.0) -> None:
        self.part, self.progress, self.timeout, self.pause = part, progress, timeout, pause

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        """Download `url` completely, then move it to `output_file`."""
        reason, received = "", -1
        with self._display() as display:
            failures = 0
            while failures < ATTEMPTS:
                try:
                    self._attempt(url, display)
                except urllib.error.HTTPError as error:
                    reason = f"{error.code} {error.reason}"
                    if error.code < 500 and error.code not in (408, 429):
                        break
                except (OSError, http.client.HTTPException) as error:  # also no route, no name, time run out
                    reason = str(getattr(error, "reason", error)) or type(error).__name__
                else:
                    os.replace(self.part, output_file)
                    return
                size = self.part.stat().st_size if self.part.exists() else 0
                failures = 1 if size > received >= 0 else failures + 1  # a connection that makes headway is not given up
                received = max(size, received)
                if failures < ATTEMPTS:
                    time.sleep(self.pause * failures)
        kept = (
            f", {self.part.stat().st_size:,} bytes are kept and the next try goes on from there" if self.part.exists() else ""
        )
        raise DataError(f"{url} cannot be downloaded ({reason}){kept}")

    def _attempt(self, url: str, display: Progress | None) -> None:
        start = self.part.stat().st_size if self.part.exists() else 0
        request = urllib.request.Request(url, headers={"User-Agent": "idensenet", "Accept-Encoding": "identity"})
        if start:
            request.add_header("Range", f"bytes={start}-")
        try:
            response = urllib.request.urlopen(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            if error.code == 416 and start:  # nothing is left to send, or the file is another one: begin again
                self.part.unlink()
                return self._attempt(url, display)
            raise
        with response:
            length = response.headers.get("Content-Length")
            if response.status != 206:
                start = 0
            elif not (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-"):
                self.part.unlink()
                raise ConnectionError("the server sent another part than it was asked for")
            total = start + int(length) if length else None
            with self.part.open("ab" if start else "wb") as file:
                self._copy(response, file, start, total, display)
        return None

    def _copy(self, response: Any, file: Any, start: int, total: int | None, display: Progress | None) -> None:
        task = display.add_task(self.part.name.removesuffix(".part"), total=total, completed=start) if display else None
        received = start
        try:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                received += len(chunk)
                if display and task is not None:
                    display.update(task, completed=received)
        finally:
            if display and task is not None and received != total:
                display.remove_task(task)
        if total is not None and received < total:
            raise ConnectionError(f"the connection was cut after {received:,} of {total:,} bytes")

    def _display(self) -> Any:
        """A bar with size, speed and the time left, on the error stream, so that output stays clean."""
        if not self.progress:
            return nullcontext()
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        return Progress(*columns, console=Console(stderr=True))
