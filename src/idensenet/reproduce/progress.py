"""How far the runs of an experiment are."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from idensenet.reproduce.experiment import Plan


class Progress:
    """One bar per run on a terminal; a line a minute elsewhere."""

    def __init__(self, missing: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        console = Console(stderr=True)
        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
        self.bars = Bars(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.whole = self.bars.add_task("all runs", total=missing)
        self.plain = not console.is_terminal
        self.tasks: dict[str, Any] = {}
        self.told: dict[str, float] = {}
        self.done, self.missing = 0, missing
        self.say(f"{missing} runs to train")

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def say(self, text: str) -> None:
        self.bars.console.print(text, highlight=False, soft_wrap=True)

    def show(self, plan: Plan, path: Path, goal: int | None) -> None:
        step, last = _last_line(path)
        if plan.name not in self.tasks:
            self.tasks[plan.name] = self.bars.add_task(plan.name, total=goal)
        self.bars.update(self.tasks[plan.name], completed=step, total=goal)
        now = time.monotonic()
        if self.plain and step and now - self.told.setdefault(plan.name, now) > 60:
            self.told[plan.name] = now
            self.say(f"{plan.name}: step {step} of {goal or '?'}{last}")

    def finish(self, plan: Plan, path: Path) -> None:
        self.done += 1
        self.bars.update(self.whole, completed=self.done)
        if plan.name in self.tasks:
            self.bars.remove_task(self.tasks[plan.name])
        step, last = _last_line(path)
        self.say(f"[{self.done}/{self.missing}] {plan.name}: {step} steps{last}")


def _last_line(path: Path) -> tuple[int, str]:
    """The step that a run has reached, and its last score in words."""
    file = path / "metrics.jsonl"
    if not file.is_file():
        return 0, ""
    with file.open("rb") as handle:
        handle.seek(max(0, file.stat().st_size - 4000))
        lines = handle.read().decode(errors="replace").splitlines()
    step, score = 0, ""
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        step = entry["step"]
        for name, unit in (("bits_per_dim", "bits/dim"), ("bits/dim", "bits/dim"), ("nats", "nats")):
            if name in entry:
                score = f", {entry[name]:.4f} {unit}"
                break
    return step, score
