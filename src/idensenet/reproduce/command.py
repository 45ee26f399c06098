"""idensenet reproduce: a table or figure of the paper, next to ours."""

from __future__ import annotations

import shlex
import time
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from idensenet.commands.parsing import Parser
from idensenet.errors import OptionError, UnknownNameError, nearest

if TYPE_CHECKING:
    from idensenet.reproduce.experiment import Experiment, Result

EXAMPLE = "idensenet reproduce table-signal --budget cpu --out reproduction"


def reproduce(arguments: list[str]) -> int:
    words, extra = _split(arguments)
    parser = Parser("reproduce", "Make a table or figure of the paper again; without a name, list them.", EXAMPLE)
    parser.add_argument("names", type=str, nargs="*", help="Names of experiments, or all.")
    parser.add_argument("--budget", type=str, default="cpu", help="Length of runs: smoke (seconds), cpu (hours) or paper.")
    parser.add_argument("--out", type=str, default="reproduction", help="Folder of the results, with the runs below it.")
    parser.add_argument("--data", type=str, default="data", help="Folder of downloaded data sets.")
    parser.add_argument("--workers", type=int, default=2, help="Number of runs that train side by side.")
    parser.add_argument(
        "--first-steps", type=int | None, default=None, help="Train only so many steps of each run, and write no result."
    )
    parser.epilog = f"example: {EXAMPLE}. What follows ' -- ' is handed to every 'idensenet train': -- --train.devices 4"
    values: Any = parser.read(words)
    from idensenet.reproduce.catalog import EXPERIMENTS, experiment
    from idensenet.reproduce.experiment import BUDGETS

    if values.budget not in BUDGETS:
        raise UnknownNameError(f"There is no budget {values.budget!r}; {nearest(values.budget, list(BUDGETS))}")
    if values.workers < 1 or (values.first_steps is not None and values.first_steps < 1):
        raise OptionError("--workers and --first-steps must be at least 1.")
    if not values.names:
        _list(list(EXPERIMENTS.values()), values.budget)
        return 0
    names = list(EXPERIMENTS) if "all" in values.names else values.names
    chosen = [experiment(name) for name in names]
    torch.set_float32_matmul_precision("highest")
    return _run(chosen, values, extra, shlex.join(["idensenet", "reproduce", *arguments]))


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _list(experiments: list[Experiment], budget: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "in the paper", "what it is", f"budget {budget}", title="idensenet reproduce NAME --budget BUDGET")
    for each in experiments:
        table.add_row(each.name, each.place, each.title, each.budget(budget))
    Console(width=None if Console().is_terminal else 160).print(table)


def _run(chosen: list[Experiment], values: Any, extra: list[str], command: str) -> int:
    from rich.console import Console

    from idensenet.provenance import commit, made
    from idensenet.reproduce.catalog import EXPERIMENTS
    from idensenet.reproduce.experiment import Work
    from idensenet.reproduce.runs import Pool, check_extra
    from idensenet.reproduce.writing import check_folder, write, write_index

    out, console, code = Path(values.out), Console(stderr=True), commit()
    workers = 0 if values.budget == "smoke" else values.workers
    pool = Pool(out / "runs" / values.budget, workers, values.data, extra, values.first_steps)
    plans = {each.name: list(each.plans(values.budget)) for each in chosen}
    check_folder(out, list(plans), values.budget)
    check_extra([plan for every in plans.values() for plan in every], extra)
    try:
        with pool:
            for i, each in enumerate(chosen):
                began = time.monotonic()
                later = [] if each.alone else takewhile(lambda other: not other.alone, chosen[i + 1 :])
                runs = pool.train(plans[each.name], [plan for other in later for plan in plans[other.name]])
                if values.first_steps is not None:
                    for run in runs.values():
                        print(f"{run.plan.name}: step {run.step}, {run.seconds / run.step:.2f} s a step")
                    continue
                with console.status(each.name) as status:
                    result = each.collect(Work(values.budget, runs, status.update))
                facts = made(command, code, time.monotonic() - began)
                what = f"{each.budget(values.budget)}{f'; with {shlex.join(extra)}' if extra and runs else ''}"
                paths = write(each, values.budget, what, result, list(runs.values()), out, facts)
                paths.append(write_index(out, list(EXPERIMENTS)))
                _show(each, values.budget, what, result)
                print(f"written: {', '.join(map(str, paths))}", flush=True)
    except KeyboardInterrupt:
        console.print(f"stopped; what was trained is in {pool.folder}, and the same command continues it", soft_wrap=True)
        return 130
    return 0


def _show(each: Experiment, budget: str, what: str, result: Result) -> None:
    from rich.console import Console
    from rich.table import Table as Shown

    from idensenet.reproduce.experiment import judges
    from idensenet.reproduce.writing import header, lines

    console = Console(width=None if Console().is_terminal else 160)
    console.print(f"{each.title} ({each.place}); budget {budget}: {what}", highlight=False, markup=False)
    for table in result.tables:
        shown = Shown("", *header(table, "paper"), title=table.title)
        for words in lines(table):
            shown.add_row(*words)
        console.print(shown)
    for claim in result.claims if judges(budget) else ():
        console.print(f"{claim.verdict}: {claim.text} ({claim.because})", highlight=False, markup=False)
    for note in result.notes:
        console.print(note, highlight=False, markup=False)
