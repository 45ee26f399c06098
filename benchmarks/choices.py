"""What choices cost: estimators, solvers, activations, blocks, precisions. Writes the tables of docs/choose.md.

python benchmarks/choices.py            # prints the tables; a few minutes
python benchmarks/choices.py --write    # and puts them into docs/choose.md

Everything that is compared runs in turns in one process with one thread. Times are of the processor, medians over the turns, as
ratios to the first line of a table, so that a busy machine changes them little.
"""

import argparse
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import idensenet as idn
from idensenet.models import build_config

PAGE = Path(__file__).parents[1] / "docs" / "choose.md"
Table = list[tuple[str, list[Callable[[], object]]]]


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def ratios(rows: Table, turns: int) -> list[tuple[str, list[float]]]:
    """Median processor time of each cell, divided by the cell of the first row."""
    for _, cells in rows:
        for cell in cells:
            cell()  # norms, allocations
    times: dict[tuple[int, int], list[float]] = {}
    for _ in range(turns):
        for i, (_, cells) in enumerate(rows):
            for j, cell in enumerate(cells):
                times.setdefault((i, j), []).append(seconds(cell))
    median = {place: statistics.median(found) for place, found in times.items()}
    return [(name, [median[i, j] / median[0, j] for j in range(len(cells))]) for i, (name, cells) in enumerate(rows)]


def written(title: str, columns: list[str], found: list[tuple[str, list[float]]]) -> str:
    lines = [f"| {title} | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for name, values in found:
        cells = [f"{value:.2f}" for value in values] + [""] * (len(columns) - len(values))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def step(flow: idn.Flow, x: torch.Tensor) -> Callable[[], object]:
    """A training step: value, gradient, Adam, norms."""
    flow.initialize(x)
    optimizer = torch.optim.Adam(flow.parameters(), 1e-4)

    def work() -> None:
        optimizer.zero_grad()
        (-flow.train().log_prob(x).mean()).backward()
        optimizer.step()

    return work


def evaluation(flow: idn.Flow, x: torch.Tensor) -> Callable[[], object]:
    flow.initialize(x)
    frozen = flow.eval().frozen()
    return lambda: frozen.log_prob(x)


def estimators() -> str:
    rows: Table = []
    for method in ("exact", "roulette", "series", "adaptive", "krylov"):
        cells = []
        for features in (4, 16, 64):
            trained, scored = (
                idn.build(
                    "toy-idensenet",
                    shape=(features,),
                    growth=64,
                    blocks=(4,),
                    activation="clipswish",
                    coeff=0.99,
                    logdet={"method": method, "eval_method": method},
                )
                for _ in range(2)
            )
            x = torch.randn(256, features)
            cells += [step(trained, x), evaluation(scored, x)]
        rows.append((f"`{method}`", cells))
    columns = [f"{what}, {n} features" for n in (4, 16, 64) for what in ("step", "`log_prob`")]
    return written("processor time over `exact`", columns, ratios(rows, 7))


def solvers() -> str:
    trained = [idn.load("moons"), idn.load("digits")]
    rows: Table = []
    for method in ("anderson", "picard", "newton"):
        cells = []
        for flow in trained:
            if method == "newton" and flow.dims > 12:
                continue
            config = flow.config.replace(solver={"method": method})
            copied = build_config(config)
            copied.load_state_dict(flow.state_dict())
            frozen = copied.eval().frozen()
            z = torch.randn(64, *flow.latent_shape)
            cells.append(lambda frozen=frozen, z=z: frozen.decode(z))
        rows.append((f"`{method}`", cells))
    columns = ["moons, 2 features", "digits, 64 pixels"]
    return written("processor time over `anderson`, 64 samples", columns, ratios(rows, 5))


def activations() -> str:
    x = torch.randn(256, 8)
    kinds = ("clipswish", "lipswish", "leakylipswish", "crelu", "relu", "elu")
    rows: Table = [(f"`{kind}`", [step(idn.IDenseNet(8, blocks=4, activation=kind), x)]) for kind in kinds]
    return written("processor time over `clipswish`", ["step, 8 features, growth 64"], ratios(rows, 9))


def blocks() -> str:
    rows: Table = [("dense, growth 64", []), ("residual, width 128", [])]
    for features in (2, 8, 32):
        x = torch.randn(256, features)
        for row, flow in zip(rows, (idn.IDenseNet(features, blocks=4), idn.ResidualFlow(features, blocks=4)), strict=True):
            row[1].append(step(flow, x))
    columns = [f"step, {n} features" for n in (2, 8, 32)]
    return written("processor time over dense", columns, ratios(rows, 7))


def precisions() -> str:
    x = torch.randn(256, 8)
    rows: Table = [
        ("float32", [step(idn.IDenseNet(8, blocks=4), x)]),
        ("float64", [step(idn.IDenseNet(8, blocks=4).double(), x.double())]),
    ]
    return written("processor time over float32", ["step, 8 features"], ratios(rows, 9))


TABLES = {each.__name__: each for each in (estimators, solvers, activations, blocks, precisions)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/choose.md")
    parser.add_argument("names", nargs="*", default=list(TABLES), help="tables; all by default")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name in given.names:
        table = TABLES[name]()
        print(table, "\n", flush=True)
        if given.write:
            text = PAGE.read_text()
            place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
            PAGE.write_text(place.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", text))


if __name__ == "__main__":
    main()
