"""The lines of the table, each measured by a function of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from idensenet.bench import memory
from idensenet.bench.machine import Machine
from idensenet.bench.peers import normflows_toy_step
from idensenet.bench.timing import Row, Times, in_turns
from idensenet.bench.work import flops_of, images_for, stepper
from idensenet.data.catalog import open_source
from idensenet.data.toy import toy_set
from idensenet.flow import Flow
from idensenet.logdet import AdaptiveLogDet, ExactLogDet, KrylovLogDet, LogDet, RouletteLogDet, SeriesLogDet
from idensenet.models import build
from idensenet.solve import Anderson, Picard
from idensenet.storage import load


@dataclass(frozen=True)
class Size:
    """How much is done. SMALL is for tests of the benchmark itself."""

    batch: int = 8
    repeats: int = 5
    recipe: str = "cifar10-idensenet-small"
    blocks: tuple[int, ...] | None = None
    growth: int | None = None
    toy_blocks: int = 10
    toy_repeats: int = 60
    draws: int = 40
    compile: bool = True

    @property
    def overrides(self) -> dict[str, object]:
        wanted = {"blocks": self.blocks, "growth": self.growth}
        return {name: value for name, value in wanted.items() if value is not None}


SMALL = Size(2, 2, "digits-idensenet", (1,), 8, 2, 3, 4, False)


def _row(what: str, times: Times, unit: str = "s", against: str = "", other: Times | None = None, **more: object) -> Row:
    scale = 1e3 if unit == "ms" else 1.0
    ratio = other.median / times.median if other is not None else None
    return Row(what, times.median * scale, times.deviation * scale, unit, against, ratio, **more)  # type: ignore[arg-type]


def toy(size: Size, machine: Machine) -> Iterator[Row]:
    """Ten blocks, depth 3, growth 16, batch 500, exact log-determinant."""
    points, generator = toy_set("checkerboard"), torch.Generator().manual_seed(0)

    def sample() -> Tensor:
        return points.sample(500, generator)

    def ours(recipe: str, compiled: bool = False) -> Callable[[], None]:
        flow = build(recipe, blocks=(size.toy_blocks,)).train()
        for _, block in flow.named_blocks():
            block.log_det = ExactLogDet(compiled)
        return stepper(flow, sample, 1e-3)

    work = {"eager": ours("toy-idensenet-clipswish"), "residual": ours("toy-resflow")}
    cold = 0.0
    if size.compile:
        work["compiled"] = ours("toy-idensenet-clipswish", compiled=True)
        began = time.perf_counter()
        work["compiled"]()
        cold = time.perf_counter() - began
    peer = normflows_toy_step(sample, size.toy_blocks)
    if peer is not None:
        work["normflows"] = peer
    times = in_turns(work, size.toy_repeats, 3)
    yield _row("toy: training step of the i-DenseNet, eager", times["eager"], "ms")
    if "compiled" in times:
        note = f"compilation took {cold:.1f} s (cold or from its cache)"
        yield _row("toy: the same, compiled", times["compiled"], "ms", "eager", times["eager"], notes=(note,))
    against = "normflows" if "normflows" in times else ""
    yield _row("toy: training step of the Residual Flow", times["residual"], "ms", against, times.get("normflows"))


def _image_flow(size: Size, **options: object) -> tuple[Flow, Tensor]:
    torch.manual_seed(0)
    flow = build(size.recipe, **size.overrides, **options)
    x = images_for(flow, size.batch)
    flow.initialize(images_for(flow, max(16, size.batch)))
    return flow, x


def image(size: Size, machine: Machine) -> Iterator[Row]:
    """A whole training step on images, with everything kept and with the blocks recomputed; its own forward pass beside it."""
    kept, x = _image_flow(size)
    saving, _ = _image_flow(size, logdet={"recompute": True})
    still, _ = _image_flow(size)  # its weights do not change, so its norms are not computed again
    smooth = still.preprocess.encode(still.dequantize(x))

    @torch.no_grad()
    def forward() -> Tensor:
        return still.body.encode(smooth)

    work = {"kept": stepper(kept.train(), x), "saving": stepper(saving.train(), x), "forward": forward}
    times = in_turns(work, size.repeats)
    for name, what in (("kept", "training step"), ("saving", "training step, memory-saving")):
        flops = flops_of(work[name])
        rate = flops / times[name].median / 1e9
        passes = times[name].median / times["forward"].median
        notes = (f"{passes:.1f} of its own forward passes; {flops / 1e9:.0f} GFLOP in the step counted",)
        title = f"images: {what}, batch {size.batch}"
        yield _row(title, times[name], peak=rate / machine.convolution, notes=notes)
    rate = flops_of(forward) / times["forward"].median / 1e9
    yield _row(f"images: forward pass, batch {size.batch}", times["forward"], peak=rate / machine.convolution)


def step_memory(size: Size, machine: Machine) -> Iterator[Row]:
    """Peak memory of a step above the idle process, in processes of their own."""
    kept = memory.measure_apart(size.recipe, size.overrides, size.batch)
    saving = memory.measure_apart(size.recipe, {**size.overrides, "logdet": {"recompute": True}}, size.batch)
    yield Row(f"images: memory of a step above idle, batch {size.batch}", kept["above"], 0.0, "MB")
    ratio = kept["above"] / max(saving["above"], 1e-9)
    yield Row("images: the same, memory-saving", saving["above"], 0.0, "MB", "everything kept", ratio)


def _trained() -> tuple[Flow, Tensor]:
    flow = load("digits")
    return flow, open_source("digits").test.batch(np.arange(16))[0]


def sampling(size: Size, machine: Machine) -> Iterator[Row]:
    """16 images from a trained model, to the same residual."""
    flow, _ = _trained()
    z = torch.randn(16, *flow.latent_shape, generator=torch.Generator().manual_seed(0))

    def draw(solver: Anderson | Picard) -> Callable[[], None]:
        def run() -> None:
            for _, block in flow.named_blocks():
                block.solver = solver
            with torch.no_grad():
                flow.preprocess.decode(flow.body.decode(z))

        return run

    times = in_turns({"anderson": draw(Anderson(1e-5)), "picard": draw(Picard(1e-5))}, size.repeats)
    yield _row("sampling 16 digits, residual 1e-5", times["anderson"], "ms", "fixed-point iteration", times["picard"])


def _with(flow: Flow, method: LogDet) -> None:
    for _, block in flow.named_blocks():
        block.log_det = block.eval_log_det = method


def evaluation(size: Size, machine: Machine) -> Iterator[Row]:
    """Log-densities of 16 images from a trained model against twenty terms; errors against those of the same probes in full."""
    flow, x = _trained()

    def score(method: LogDet) -> Callable[[], Tensor]:
        def run() -> Tensor:
            _with(flow, method)
            with torch.no_grad():
                return flow.bits_per_dim(x)

        return run

    work = {"krylov": score(KrylovLogDet()), "adaptive": score(AdaptiveLogDet()), "twenty": score(SeriesLogDet(20))}
    times = in_turns(work, size.repeats)
    right = score(SeriesLogDet(200))()
    error = {name: float((run() - right).square().mean().sqrt()) for name, run in work.items()}
    for name, title in (("krylov", "from a Krylov space"), ("adaptive", "adaptive series")):
        note = f"error {error[name]:.2g} bits/dim; that of 20 terms is {error['twenty']:.2g}"
        yield _row(f"log-density of 16 digits, {title}", times[name], "ms", "20 terms", times["twenty"], notes=(note,))


def spread(size: Size, machine: Machine) -> Iterator[Row]:
    """Variance of the gradient of the log-determinant on a trained model: the same roulette with other probes."""
    flow, x = _trained()
    flow.train()
    wanted = [p for p in flow.parameters() if p.requires_grad]

    def variance(method: LogDet) -> float:
        _with(flow, method)
        smooth = flow.dequantize(x, torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(1)
        found = []
        for _ in range(size.draws):
            log_det = flow(smooth, generator, dequantized=True)[1].mean() / flow.dims
            gradient = torch.autograd.grad(log_det, wanted, allow_unused=True)
            found.append(torch.cat([g.flatten() for g in gradient if g is not None]))
        return float(torch.stack(found).var(0).sum())

    theirs, against = variance(RouletteLogDet(probe="gaussian")), "roulette, Gaussian probes"
    chance = (2 / max(1, size.draws - 1)) ** 0.5  # of a variance, as if the gradient were one normal number
    methods = {"roulette, 2 exact terms": RouletteLogDet(), "Krylov, 2 steps": KrylovLogDet(max_steps=2)}
    for name, method in methods.items():
        ours = variance(method)
        yield Row(f"spread of the gradient: {name}", ours, ours * chance, "", against, theirs / ours)


def start(size: Size, machine: Machine) -> Iterator[Row]:
    """From the command to the first step, in processes of their own."""

    def run(*command: str) -> Callable[[], None]:
        def go() -> None:
            subprocess.run([sys.executable, *command], check=True, capture_output=True)

        return go

    with tempfile.TemporaryDirectory() as folder:
        places = iter(range(1000))

        def train() -> None:
            words = ["-m", "idensenet.cli", "train", "toy-idensenet", "--data.name", "moons", "--train.max_steps", "1"]
            words += ["--train.eval_samples", "1", "--output.pictures", "false", "--output.display", "quiet"]
            run(*words, "--output.dir", f"{folder}/{next(places)}")()

        times = in_turns({"import": run("-c", "import idensenet"), "train": train}, max(2, size.repeats - 2))
    yield _row("import idensenet", times["import"])
    yield _row("train: a whole run of one step, with evaluation, checkpoint and report", times["train"])


CASES: dict[str, Callable[[Size, Machine], Iterator[Row]]] = {
    "toy": toy,
    "image": image,
    "memory": step_memory,
    "sampling": sampling,
    "evaluation": evaluation,
    "spread": spread,
    "start": start,
}
