"""Results as files: JSON for programs, Markdown for readers, PNG and SVG for eyes."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from idensenet.files import write_atomically
from idensenet.report.drawing import png, themed
from idensenet.reproduce.experiment import Cell, Experiment, Result, Table
from idensenet.reproduce.runs import Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def in_words(cell: Cell, digits: int) -> str:
    """'3.660 ± 0.003', or nothing."""
    if cell.ours is None:
        return "–"
    if cell.error is None:
        return f"{cell.ours:.{digits}f}" if abs(cell.ours) < 100 else f"{cell.ours:,.0f}"
    needed = math.ceil(-math.log10(cell.error)) if cell.error > 1e-9 else 0  # for its first digit
    return f"{cell.ours:.{digits}f} ± {cell.error:.{max(digits, needed)}f}"


def published(cell: Cell) -> str:
    """As the paper prints it: at least two digits behind the point."""
    if cell.paper is None:
        return ""
    text = f"{cell.paper:g}"
    return text if len(text.partition(".")[2]) >= 2 else f"{cell.paper:.2f}"


# Provenance


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
    return name + ("+" if git("status", "--porcelain", "--", str(here.parent)) else "")


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
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }


def run_facts(run: Trained) -> dict[str, Any]:
    return {
        "name": run.plan.name,
        "command": run.command,
        "seed": run.config.train.seed,
        "steps": run.step,
        "seconds": round(run.seconds, 1),
        "started": str(run.run.description()["started"]),
    }


# Files


def svg(figure: Figure) -> bytes:
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "idensenet"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def comparison_figure(tables: Sequence[Table]) -> Figure:
    """Our numbers and the paper's as points on one axis per column, for results that have no picture of their own."""
    from matplotlib.figure import Figure

    table = tables[0]
    columns = len(table.columns)
    figure = Figure(figsize=(min(13.0, 2.1 * columns + 2.4), 0.34 * len(table.rows) + 1.3))
    axes: Any = figure.subplots(1, columns, squeeze=False, sharey=True)[0]
    places = range(len(table.rows))[::-1]
    for j, axis in enumerate(axes):
        for place, (_, cells) in zip(places, table.rows, strict=True):
            cell = cells[j]
            if cell.paper is not None:
                axis.plot([cell.paper], [place], "o", markerfacecolor="none", color="C1", label="paper")
            if cell.ours is not None:
                axis.errorbar([cell.ours], [place], xerr=[cell.error or 0.0], fmt="o", markersize=4, color="C0", label="here")
        axis.set_title(table.columns[j], fontsize=8)
        axis.set_yticks(list(places), [row for row, _ in table.rows])
        axis.set_ylim(-0.6, len(table.rows) - 0.4)
        axis.margins(x=0.15)
        axis.grid(True)
        axis.locator_params(axis="x", nbins=4)
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="lower left", ncols=2)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


def _compared(table: Table) -> list[bool]:
    """Which columns have a number of the paper's somewhere."""
    return [any(cells[j].paper is not None for _, cells in table.rows) for j in range(len(table.columns))]


def header(table: Table, paper: str | None = None) -> list[str]:
    """The names of the columns, the paper's after ours where it has one."""
    names = []
    for name, compared in zip(table.columns, _compared(table), strict=True):
        names += [name, paper or f"{name}, paper"] if compared else [name]
    return names


def lines(table: Table) -> list[list[str]]:
    """The rows in words, each with its title first."""
    found = []
    for row, cells in table.rows:
        words = [row]
        for cell, compared in zip(cells, _compared(table), strict=True):
            words += [in_words(cell, table.digits), published(cell)] if compared else [in_words(cell, table.digits)]
        found.append(words)
    return found


def _markdown_table(table: Table) -> list[str]:
    names = header(table)
    rows = [f"| {' | '.join(words)} |" for words in lines(table)]
    return [f"| {table.title} | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}", *rows]


def markdown(experiment: Experiment, budget: str, result: Result, facts: dict[str, Any], runs: Sequence[dict[str, Any]]) -> str:
    page = [
        f"# {experiment.title}",
        "",
        f"In the paper: {experiment.place}. Budget: **{budget}** ({experiment.budget(budget)}).",
    ]
    for table in result.tables:
        page += ["", *_markdown_table(table)]
    page += ["", f"![{experiment.title}]({experiment.name}.png)"]
    if result.claims:
        page += ["", "| The paper, or what must be so | here | evidence |", "|---|---|---|"]
        page += [f"| {claim.text} | {claim.verdict} | {claim.because} |" for claim in result.claims]
    page += ["", *(f"- {note}" for note in result.notes)]
    seeds = sorted({run["seed"] for run in runs})
    trained = sum(run["seconds"] for run in runs)
    page += [
        f"- `{facts['command']}`, commit {facts['commit'] or 'unknown'}, torch {facts['torch']}, {facts['date']}.",
        f"- {facts['machine']}.",
        f"- {facts['seconds']:,.0f} s for the last call"
        + (f", {trained / 3600:.2f} hours of training in {len(runs)} runs (seeds {seeds})." if runs else "."),
    ]
    return "\n".join(page) + "\n"


def write(
    experiment: Experiment, budget: str, result: Result, runs: Sequence[Trained], folder: Path, facts: dict[str, Any]
) -> list[Path]:
    """NAME.json, NAME.md, NAME.png and NAME.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = [run_facts(run) for run in runs]
    values = {
        "experiment": experiment.name,
        "title": experiment.title,
        "place": experiment.place,
        "budget": budget,
        "what": experiment.budget(budget),
        "tables": [dataclasses.asdict(table) for table in result.tables],
        "claims": [{**dataclasses.asdict(claim), "verdict": claim.verdict} for claim in result.claims],
        "notes": result.notes,
        "made": facts,
        "runs": trained,
    }
    make = result.figure or (lambda: comparison_figure(result.tables))
    with themed():
        pictures = {".png": png(make()), ".svg": svg(make())}
    contents: dict[str, str | bytes] = {
        ".json": json.dumps(values, indent=1) + "\n",
        ".md": markdown(experiment, budget, result, facts, trained),
        **pictures,
    }
    paths = []
    for ending, content in contents.items():
        path = folder / f"{experiment.name}{ending}"
        write_atomically(path, content)
        paths.append(path)
    return paths


def write_index(folder: Path, order: Sequence[str]) -> Path:
    """README.md: every result in the folder, with what became of the paper's claims."""
    page = ["# Results", "", "| experiment | in the paper | budget | holds | does not hold | does not show | commit, date |"]
    page.append("|---|---|---|---:|---:|---:|---|")
    for name in order:
        file = folder / f"{name}.json"
        if not file.is_file():
            continue
        found = json.loads(file.read_text())
        verdicts = [claim["verdict"] for claim in found["claims"]]
        counts = " | ".join(str(verdicts.count(verdict)) for verdict in ("holds", "does not hold", "does not show"))
        facts = found["made"]
        page.append(
            f"| [{name}]({name}.md): {found['title']} | {found['place']} | {found['budget']} | {counts} | "
            f"{facts['commit'] or 'unknown'}, {facts['date'][:10]} |"
        )
    path = folder / "README.md"
    write_atomically(path, "\n".join(page) + "\n")
    return path
