"""How the cost of a training step grows: with blocks, batch, image side and dimension, with a fitted exponent each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from idensenet.bench import memory
from idensenet.bench.timing import Row, in_turns
from idensenet.bench.work import images_for, stepper
from idensenet.models import build

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPE = "cifar10-idensenet-small"
SAVING: dict[str, Any] = {"train": {"memory": "save"}}
IMAGES: dict[str, Any] = {"growth": 32, "fc_blocks": 0}  # a narrow model, so that the largest one is done in a second


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y over log x, by least squares.

    >>> round(exponent([1, 2, 4], [3.0, 12.0, 48.0]), 6)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _image_step(batch: int, side: int = 32, blocks: int = 2) -> Callable[[], None]:
    flow = build(RECIPE, **IMAGES, shape=(3, side, side), blocks=(blocks,) * 3)
    flow.initialize(images_for(flow, max(16, batch)))
    return stepper(flow.train(), images_for(flow, batch))


def _table_step(dims: int, method: str) -> Callable[[], None]:
    flow = build("toy-idensenet-clipswish", shape=(dims,), blocks=(4,), logdet={"method": method})
    return stepper(flow.train(), torch.randn(256, dims, generator=torch.Generator().manual_seed(0)))


def _curve(what: str, axis: str, work: dict[int, Callable[[], None]], repeats: int, size: Callable[[int], int]) -> Row:
    times = in_turns({str(n): each for n, each in work.items()}, repeats)
    points = tuple((float(size(n)), times[str(n)].median) for n in work)
    slope = exponent(*zip(*points, strict=True))
    last = exponent(*zip(*points[-2:], strict=True))
    shown = ", ".join(f"{n:.0f}: {seconds * 1e3:.3g} ms" for n, seconds in points) + f"; between the last two {last:.2f}"
    return Row(f"scaling: {what}", slope, 0.0, "exponent", notes=(shown,), axis=axis, points=points)


def scaling(repeats: int = 3, small: bool = False) -> Iterator[Row]:
    """Exponents of the time of a step, and the memory of the memory-saving mode for each further block."""
    same = lambda n: n  # noqa: E731
    axes: list[tuple[int, ...]] = [(4, 8, 16), (4, 8, 16, 32, 64), (16, 32, 64), (2, 8, 32, 128, 512)]
    blocks, batches, sides, dims = [(1, 2), (2, 4), (8, 16), (2, 4)] if small else axes
    batch = 2 if small else 8
    yield _curve("time over blocks a scale", "blocks", {n: _image_step(batch, blocks=n) for n in blocks}, repeats, same)
    yield _curve("time over batch", "images", {n: _image_step(n) for n in batches}, repeats, same)
    yield _curve("time over pixels", "pixels", {n: _image_step(batch, side=n) for n in sides}, repeats, lambda n: n * n)
    for method in ("roulette", "exact"):
        work = {n: _table_step(n, method) for n in dims if method == "roulette" or n <= 32}
        yield _curve(f"time over dimensions of a table, {method}", "dimensions", work, repeats, same)
    yield memory_over_blocks(blocks, batch)


def memory_over_blocks(blocks: Sequence[int], batch: int) -> Row:
    """Peak memory of a memory-saving step against the number of blocks, and the slope next to what a block has to keep."""
    saving = {**IMAGES, **SAVING}
    found = [memory.measure_apart(RECIPE, {**saving, "blocks": [n] * 3}, batch, tight=True) for n in blocks]
    points = tuple((float(3 * n), each["above"]) for n, each in zip(blocks, found, strict=True))
    slope = float(np.polyfit([n for n, _ in points], [mb for _, mb in points], 1)[0])
    kept = [memory.kept(RECIPE, {**saving, "blocks": [n] * 3}, batch) for n in (blocks[0], blocks[-1])]
    each_keeps = (kept[1] - kept[0]) / (3 * (blocks[-1] - blocks[0]))
    saved = batch * 3 * 32 * 32 * 4 / 2**20
    gradients = (_parameters(blocks[-1]) - _parameters(blocks[0])) * 4 / 2**20 / (3 * (blocks[-1] - blocks[0]))
    note = (
        f"a block's input is {saved:.2f} MB; what a block keeps for the backward pass is {each_keeps:.2f} MB, that is "
        f"{each_keeps / saved:.2f} of them (its input, u, the input of its ActNorm, signs of the probe, prepared weights); the "
        f"gradients of its weights are {gradients:.2f} MB; peaks: "
        + ", ".join(f"{n:.0f} blocks {mb:.1f} MB" for n, mb in points)
    )
    what = "scaling: memory for one more block, memory-saving"
    return Row(what, slope, 0.0, "MB", notes=(note,), axis="blocks", points=points)


def _parameters(blocks: int) -> int:
    return build(RECIPE, **IMAGES, blocks=(blocks,) * 3).num_parameters


def picture(rows: Sequence[Row]) -> Figure:
    """One panel for each curve, on logarithmic axes but for memory."""
    from matplotlib.figure import Figure

    curves = [row for row in rows if row.points]
    figure = Figure(figsize=(9.6, 2.9 * math.ceil(len(curves) / 3)), layout="constrained")
    for i, row in enumerate(curves, 1):
        axes = figure.add_subplot(math.ceil(len(curves) / 3), 3, i)
        x, y = zip(*row.points, strict=True)
        axes.plot(x, y, "o-")
        if row.unit == "exponent":
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            ticks: list[float] = []
            for seconds in sorted(y):
                if not ticks or seconds > 1.3 * ticks[-1]:  # labels that do not touch
                    ticks.append(seconds)
            axes.set_yticks(ticks, [f"{seconds:.2g}" for seconds in ticks])
            axes.set_ylabel("seconds a step")
            title = f"{row.what.removeprefix('scaling: ')}\nexponent {row.value:.2f}"
        else:
            axes.set_ylabel("MB above idle")
            axes.set_ylim(0, 1.1 * max(y))
            title = f"{row.what.split(', ')[1]}\n{row.value:.2f} MB for one more block"
        axes.set_xticks(x, [f"{n:.0f}" for n in x])
        axes.minorticks_off()
        axes.set_xlabel(row.axis)
        axes.set_title(title)
        axes.grid(True)
    return figure
