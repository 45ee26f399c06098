"""Results as files: JSON for programs, Markdown for readers, PNG and SVG for eyes."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idensenet.errors import OptionError
from idensenet.files import write_atomically
from idensenet.report.drawing import png, themed
from idensenet.reproduce.experiment import BUDGETS, Cell, Claim, Experiment, Result, Table, judges
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


# What was run


def run_facts(run: Trained) -> dict[str, Any]:
    return {
        "name": run.plan.name,
        "command": run.command,
        "seed": run.config.train.seed,
        "steps": run.step,
        "seconds": round(run.seconds, 1),
        "started": str(run.run.description()["started"]),
        "commit": run.run.description().get("commit"),
    }


# Files


def svg(figure: Figure) -> bytes:
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "idensenet"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


FORMS = {".png": png, ".svg": svg}
BAR = "\\|"  # in a cell of Markdown
PER_STRIP = 3  # columns of a table side by side, so that their text can be read where the picture is shown


def comparison_figure(tables: Sequence[Table]) -> Figure:
    """Our numbers and the paper's as points on one axis per column, for results that have no picture of their own."""
    from matplotlib.figure import Figure

    shown = [table for table in tables if any(_compared(table))] or list(tables[:1])
    strips = [(table, first) for table in shown for first in range(0, len(table.columns), PER_STRIP)]
    columns = min(PER_STRIP, max(len(table.columns) for table in shown))
    heights = [0.34 * len(table.rows) + 0.8 for table, _ in strips]
    figure = Figure(figsize=(2.1 * columns + 2.4, sum(heights) + 0.8))
    grid: Any = figure.subplots(len(strips), columns, squeeze=False, sharey="row", gridspec_kw={"height_ratios": heights})
    handles: dict[str, Any] = {}
    for (table, first), axes in zip(strips, grid, strict=True):
        places, names = range(len(table.rows))[::-1], table.columns[first : first + PER_STRIP]
        for axis in axes[len(names) :]:
            axis.set_axis_off()
        for axis, (j, name) in zip(axes, enumerate(names, first), strict=False):
            for place, (_, cells) in zip(places, table.rows, strict=True):
                cell = cells[j]
                if cell.paper is not None:
                    axis.plot([cell.paper], [place], "o", markerfacecolor="none", color="C1", label="paper")
                if cell.ours is not None:
                    bar = [cell.error or 0.0]
                    axis.errorbar([cell.ours], [place], xerr=bar, fmt="o", markersize=4, color="C0", label="here")
            axis.set_title(name, fontsize=9)
            axis.set_yticks(list(places), [row for row, _ in table.rows])
            axis.set_ylim(-0.6, len(table.rows) - 0.4)
            axis.margins(x=0.15)
            axis.grid(True)
            axis.locator_params(axis="x", nbins=4)
            handles |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        if first == 0:  # it says what the numbers are, and their unit
            title = axes[0].annotate(table.title, (0, 1), (0, 20), "axes fraction", "offset points", fontsize=9, weight="bold")
            title.set_in_layout(False)  # it may be wider than the column
    figure.legend(handles.values(), handles.keys(), loc="lower left", ncols=2)
    height = figure.get_figheight()
    figure.tight_layout(h_pad=3, rect=(0, 0.25 / height, 1, 1 - 0.25 / height))
    return figure


def captioned(figure: Figure, text: str) -> Figure:
    """The figure with a line of text below it; what it shows keeps its size."""
    size, inch = 8, 1 / 72
    width, height = figure.get_size_inches()
    words = textwrap.fill(text, max(20, int((width - 0.2) / (0.6 * size * inch))))
    extra = (1.35 * (words.count("\n") + 1) * size + 6) * inch
    whole = height + extra
    for axis in figure.axes:
        box = axis.get_position(original=True)
        axis.set_position((box.x0, (box.y0 * height + extra) / whole, box.width, box.height * height / whole))
    for legend in figure.legends:
        legend.set_bbox_to_anchor((0, extra / whole, 1, height / whole), figure.transFigure)
    figure.set_size_inches(width, whole)
    figure.text(0.1 / width, 4 * inch / whole, words, fontsize=size, va="bottom", color="#777777")
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


def _row(words: Sequence[str]) -> str:
    return f"| {' | '.join(word.replace('|', BAR) for word in words)} |"


def _markdown_table(table: Table) -> list[str]:
    names = header(table)
    return [_row([table.title, *names]), f"|---|{'---:|' * len(names)}", *map(_row, lines(table))]


def markdown(
    experiment: Experiment, budget: str, what: str, result: Result, facts: dict[str, Any], runs: Sequence[dict[str, Any]]
) -> str:
    page = [f"# {experiment.title}", "", f"In the paper: {experiment.place}. Budget: **{budget}** ({what})."]
    for table in result.tables:
        page += ["", *_markdown_table(table)]
    page += ["", f"![{experiment.title}]({experiment.name}.png)"]
    if result.claims and judges(budget):
        page += ["", "| The paper, or what must be so | here | evidence |", "|---|---|---|"]
        page += [_row((claim.text, claim.verdict, claim.because)) for claim in result.claims]
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


def found(folder: Path, name: str) -> dict[str, Any] | None:
    """The result of an experiment that is in a folder; None if there is none that can be read."""
    try:
        values = json.loads((folder / f"{name}.json").read_text())
        return values if values["budget"] in BUDGETS and values["made"] and isinstance(values["claims"], list) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def check_folder(folder: Path, names: Sequence[str], budget: str) -> None:
    """A result is not replaced by one of a smaller budget."""
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise OptionError(f"--out {folder} is a file or lies in one; choose another folder.")
    order = list(BUDGETS)
    for name in names:
        if (there := found(folder, name)) and order.index(there["budget"]) > order.index(budget):
            raise OptionError(
                f"{folder / name}.json is of the {there['budget']} budget and would be replaced by one of {budget}; "
                "choose another folder with --out."
            )


def _judged(claim: Claim, budget: str) -> dict[str, Any]:
    return {**dataclasses.asdict(claim), "verdict": claim.verdict if judges(budget) else "not judged"}


def write(
    experiment: Experiment, budget: str, what: str, result: Result, runs: Sequence[Trained], folder: Path, facts: dict[str, Any]
) -> list[Path]:
    """NAME.json, NAME.md, NAME.png and NAME.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = [run_facts(run) for run in runs]
    values = {
        "experiment": experiment.name,
        "title": experiment.title,
        "place": experiment.place,
        "budget": budget,
        "what": what,
        "tables": [dataclasses.asdict(table) for table in result.tables],
        "claims": [_judged(claim, budget) for claim in result.claims],
        "notes": result.notes,
        "made": facts,
        "runs": trained,
    }
    draw = result.figure or (lambda: comparison_figure(result.tables))
    with themed():
        pictures = {ending: form(captioned(draw(), f"Budget {budget}: {what}")) for ending, form in FORMS.items()}
    contents: dict[str, str | bytes] = {
        ".json": json.dumps(values, indent=1) + "\n",
        ".md": markdown(experiment, budget, what, result, facts, trained),
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
        if (values := found(folder, name)) is None:
            continue
        verdicts = [claim["verdict"] for claim in values["claims"]]
        counts = [str(verdicts.count(verdict)) for verdict in ("holds", "does not hold", "does not show")]
        facts = values["made"]
        made = f"{facts['commit'] or 'unknown'}, {facts['date'][:10]}"
        page.append(_row([f"[{name}]({name}.md): {values['title']}", values["place"], values["budget"], *counts, made]))
    path = folder / "README.md"
    write_atomically(path, "\n".join(page) + "\n")
    return path
