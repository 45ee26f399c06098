"""idensenet bench: how fast this is on this machine, as a table of ratios."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from idensenet.commands.parsing import Parser
from idensenet.errors import OptionError, UnknownNameError, nearest
from idensenet.files import write_atomically


def bench(arguments: list[str]) -> int:
    parser = Parser("bench", "Measure speed and memory on this machine.", "idensenet bench --threads 2 --out bench.json")
    parser.add_argument("--only", type=list[str], default=[], help="Some of the measurements, as [toy,image]; all by default.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="Number of threads.")
    parser.add_argument("--batch", type=int, default=8, help="Number of images in a training step.")
    parser.add_argument("--small", action="store_true", help="Tiny models, to see that it works, not how fast it is.")
    parser.add_argument("--profile", action="store_true", help="Show where the time of a training step goes instead, by name.")
    parser.add_argument("--picture", type=str | None, default=None, help="Draw the curves of 'scaling' into this PNG file.")
    parser.add_argument("--out", type=str | None, default=None, help="Write the figures into this JSON file.")
    values = parser.read(arguments)
    from idensenet.bench.cases import CASES
    from idensenet.bench.size import SMALL, Size

    for name in values.only:
        if name not in CASES:
            raise UnknownNameError(f"There is no measurement {name!r}; {nearest(name, list(CASES))}")
    if values.threads < 1 or values.batch < 1:
        raise OptionError(f"--threads {values.threads} and --batch {values.batch} must both be at least 1.")
    torch.set_num_threads(values.threads)
    size = SMALL if values.small else Size(batch=values.batch)
    if values.profile:
        _profile(size)
        return 0
    names = values.only or list(CASES)
    if values.picture and "scaling" not in names:
        raise OptionError("--picture draws the curves of `scaling`; add it to --only.")
    rows = list(_measured(names, size))
    _show(rows, values.threads)
    if values.picture:
        from idensenet.bench.scaling import picture
        from idensenet.report.drawing import save_figure

        save_figure(lambda: picture(rows), Path(values.picture))
        print(f"drawn as {values.picture}")
    if values.out:
        found = {
            "date": date.today().isoformat(),
            "torch": torch.__version__,
            "machine": platform.processor() or platform.machine(),
            "threads": values.threads,
            "rows": [asdict(row) for row in rows],
        }
        write_atomically(Path(values.out), json.dumps(found, indent=1) + "\n")
        print(f"written to {values.out}")
    return 0


def _measured(names: list[str], size: Any) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import Progress

    from idensenet.bench.cases import CASES
    from idensenet.bench.machine import measure_machine
    from idensenet.bench.size import SMALL

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("the machine itself", total=len(names) + 1)
        machine = measure_machine(2, 8, 8, 8, 2) if size is SMALL else measure_machine()
        yield from machine.rows
        for name in names:
            progress.update(task, advance=1, description=name)
            yield from CASES[name](size, machine)


def _show(rows: list[Any], threads: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{threads} threads, torch {torch.__version__}, {date.today().isoformat()}")
    for column, side in (("what", "left"), ("median", "right"), ("+-", "right"), ("", "left"), ("against", "left")):
        table.add_column(column, justify=side)  # type: ignore[arg-type]
    table.add_column("times better", justify="right")
    table.add_column("of peak", justify="right")
    for row in rows:
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
        peak = f"{100 * row.peak:.0f} %" if row.peak is not None else ""
        table.add_row(row.what, f"{row.value:.4g}", f"{row.deviation:.2g}", row.unit, row.against, ratio, peak)
    console = Console(width=None if Console().is_terminal else 140)
    console.print(table)
    for row in rows:
        for note in row.notes:
            console.print(f"{row.what}: {note}", highlight=False)


def _profile(size: Any) -> None:
    """Self times by name, over two steps."""
    from torch.profiler import ProfilerActivity, profile

    from idensenet.bench.work import images_for, stepper
    from idensenet.models import build

    flow = build(size.recipe, **size.overrides)
    x = images_for(flow, size.batch)
    flow.initialize(images_for(flow, max(16, size.batch)))
    step = stepper(flow.train(), x)
    step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
        step()
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    print(f"{size.recipe}, batch {size.batch}: where the time of a training step goes")
    for event in events[:20]:
        print(f"{100 * event.self_cpu_time_total / total:6.1f} %  {event.self_cpu_time_total / 2e3:9.1f} ms  {event.key}")
