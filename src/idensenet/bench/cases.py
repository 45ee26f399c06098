"""The lines of the table, each measured by a function of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from idensenet.bench import memory
from idensenet.bench.commands import processes, start
from idensenet.bench.machine import Machine
from idensenet.bench.peers import flowcon_toy_step, normflows_toy_step
from idensenet.bench.scaling import SAVING, scaling
from idensenet.bench.size import Size
from idensenet.bench.timing import Row, in_turns, timed_row
from idensenet.bench.work import flops_of, images_for, stepper
from idensenet.data.catalog import open_source
from idensenet.data.toy import toy_set
from idensenet.flow import Flow
from idensenet.logdet import AdaptiveLogDet, KrylovLogDet, LogDet, RouletteLogDet, SeriesLogDet
from idensenet.logdet.roulette import Poisson
from idensenet.models import build
from idensenet.precision import Precision
from idensenet.solve import Anderson, Picard
from idensenet.storage import load


def _ten_times(work: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(10):
            work()

    return run


def toy(size: Size, machine: Machine) -> Iterator[Row]:
    """Ten blocks, depth 3, growth 16, batch 500, exact log-determinant."""
    points, generator = toy_set("checkerboard"), torch.Generator().manual_seed(0)

    def sample() -> Tensor:
        return points.sample(500, generator)

    def ours(recipe: str, compiled: bool = False, **options: object) -> Callable[[], None]:
        flow = build(recipe, blocks=(size.toy_blocks,), **options).train()
        flow.compile_blocks(compiled)
        return stepper(flow, sample, 1e-3, None)

    work = {
        "eager": ours("toy-idensenet-clipswish"),
        "residual": ours("toy-resflow"),
        "monotone": ours("toy-idensenet-clipswish", block="monotone"),
    }
    cold = 0.0
    if size.compile:
        work["compiled"] = ours("toy-idensenet-clipswish", compiled=True)
        began = time.perf_counter()
        work["compiled"]()
        cold = time.perf_counter() - began
        work["monotone, compiled"] = ours("toy-idensenet-clipswish", compiled=True, block="monotone")
    peers = {"normflows": normflows_toy_step(sample, size.toy_blocks), "flowcon": flowcon_toy_step(sample, size.toy_blocks)}
    work |= {name: peer for name, peer in peers.items() if peer is not None}
    rounds = {name: _ten_times(each) for name, each in work.items()}  # as in training, where a step follows its like
    times = {name: each.divided(10) for name, each in in_turns(rounds, size.toy_repeats // 10 or 1).items()}
    other = "flowcon" if "flowcon" in times else ""
    yield timed_row("toy: training step of the i-DenseNet, eager", times["eager"], "ms", other, times.get("flowcon"))
    other = other or "eager"
    if "compiled" in times:
        note = f"compilation took {cold:.1f} s (cold or from its cache)"
        yield timed_row("toy: the same, compiled", times["compiled"], "ms", other, times[other], notes=(note,))
    yield timed_row("toy: with monotone blocks, eager", times["monotone"], "ms", "residual ones", times["eager"])
    if "compiled" in times:
        plain = times["compiled"]
        yield timed_row("toy: with monotone blocks, compiled", times["monotone, compiled"], "ms", "residual ones", plain)
    against = "normflows" if "normflows" in times else ""
    yield timed_row("toy: training step of the Residual Flow", times["residual"], "ms", against, times.get("normflows"))


def serving(size: Size, machine: Machine) -> Iterator[Row]:
    """The log-density of one row of two columns, by a flow that checks its weights in every call and by a frozen one."""
    flow = load("moons")
    frozen, x = flow.frozen(), torch.zeros(1, 2)

    @torch.no_grad()
    def checked() -> None:
        flow.log_prob(x)

    def served() -> None:
        frozen.log_prob(x)

    work = {"checked": _ten_times(checked), "frozen": _ten_times(served)}
    times = {name: each.divided(10) for name, each in in_turns(work, size.toy_repeats // 10 or 1).items()}
    yield timed_row("log-density of one row of two columns", times["checked"], "ms")
    yield timed_row("the same, frozen", times["frozen"], "ms", "not frozen", times["checked"])


def _image_flow(size: Size, **options: object) -> tuple[Flow, Tensor]:
    torch.manual_seed(0)
    flow = build(size.recipe, **size.overrides, **options)
    x = images_for(flow, size.batch)
    flow.initialize(images_for(flow, max(16, size.batch)))
    return flow, x


def image(size: Size, machine: Machine) -> Iterator[Row]:
    """A whole training step on images: by default, saving memory, compiled, in bfloat16, and with the paper's series."""
    still, x = _image_flow(size)  # its weights do not change, so its norms are not computed again
    smooth = still.preprocess.encode(still.dequantize(x))

    @torch.no_grad()
    def forward() -> Tensor:
        return still.body.encode(smooth)

    def step(compiled: bool = False, bfloat16: bool = False, **options: object) -> Callable[[], None]:
        flow, _ = _image_flow(size, **options)
        flow.compile_blocks(compiled and size.compile)
        return stepper(flow.train(), x, precision=Precision(bfloat16))

    work = {
        "training step, eager": step(),
        "training step, eager, memory-saving": step(train={"memory": "save"}),
        "training step, eager, the paper's series": step(logdet={"law_parameter": 2.0}),
        "training step, eager, monotone blocks": step(block="monotone"),
        "training step, compiled": step(True),
        "training step, compiled, memory-saving": step(True, train={"memory": "save"}),
        "forward pass": forward,
    }
    if machine.has_bfloat16:
        work["training step, bf16-mixed"] = step(bfloat16=True)
        work["training step, bf16-mixed, compiled"] = step(True, bfloat16=True)
        work["training step, bf16-mixed, compiled, memory-saving"] = step(True, bfloat16=True, train={"memory": "save"})
    began = time.perf_counter()
    work["training step, compiled"]()
    cold = time.perf_counter() - began
    times = in_turns(work, size.repeats, 2)
    eager = times["training step, eager"]
    for name, each in times.items():
        exact = not any(word in name for word in ("compiled", "bf16"))
        peak = flops_of(work[name]) / each.median / 1e9 / machine.convolution if exact else None
        notes = []
        if name != "forward pass":
            notes.append(f"{each.median / times['forward pass'].median:.1f} of its own forward passes")
        if name == "training step, compiled":
            notes.append(f"the first step took {cold:.1f} s (cold or from the compiler's cache)")
        other = ("", None) if name in ("forward pass", "training step, eager") else ("eager", eager)
        yield timed_row(f"images: {name}, batch {size.batch}", each, "s", *other, peak=peak, notes=tuple(notes))


def step_memory(size: Size, machine: Machine) -> Iterator[Row]:
    """Peak memory of a step above the idle process, in processes of their own."""
    kept = memory.measure_apart(size.recipe, size.overrides, size.batch)
    yield Row(f"images: memory of a step above idle, batch {size.batch}", kept["above"], 0.0, "MB")
    saving = memory.measure_apart(size.recipe, {**size.overrides, **SAVING}, size.batch)
    ratio = kept["above"] / max(saving["above"], 1e-9)
    yield Row("images: the same, memory-saving", saving["above"], 0.0, "MB", "everything kept", ratio)


def _trained(size: Size) -> tuple[Flow, Tensor]:
    flow = load("digits")
    return flow, open_source("digits").test.batch(np.arange(size.digits))[0]


def sampling(size: Size, machine: Machine) -> Iterator[Row]:
    """Images from a trained model, to the same residual."""
    flow, x = _trained(size)
    z = torch.randn(len(x), *flow.latent_shape, generator=torch.Generator().manual_seed(0))

    def draw(solver: Anderson | Picard) -> Callable[[], None]:
        def run() -> None:
            for stack in flow.stacks():
                stack.solver = solver
            with torch.no_grad():
                flow.preprocess.decode(flow.body.decode(z))

        return run

    times = in_turns({"anderson": draw(Anderson(1e-5)), "picard": draw(Picard(1e-5))}, size.repeats)
    what = f"sampling {size.digits} digits, residual 1e-5"
    yield timed_row(what, times["anderson"], "ms", "fixed-point iteration", times["picard"])


def _with(flow: Flow, method: LogDet) -> None:
    for stack in flow.stacks():
        stack.log_det = stack.eval_log_det = method


def evaluation(size: Size, machine: Machine) -> Iterator[Row]:
    """Log-densities of images from a trained model against twenty terms; errors against the full series, same probes."""
    flow, x = _trained(size)

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
    for name, title in (("krylov", "from a Krylov space, the default"), ("adaptive", "adaptive series")):
        note = f"error {error[name]:.2g} bits/dim; 20 terms have {error['twenty']:.2g}"
        what = f"log-density of {size.digits} digits, {title}"
        yield timed_row(what, times[name], "ms", "20 terms", times["twenty"], notes=(note,))


def spread(size: Size, machine: Machine) -> Iterator[Row]:
    """Variance of the gradient of the log-determinant on a trained model, against the paper's: Poisson(2), Gaussian probes."""
    flow, x = _trained(size)
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

    theirs, against = variance(RouletteLogDet(Poisson(2.0), probe="gaussian")), "the paper's estimator"
    chance = (2 / max(1, size.draws - 1)) ** 0.5  # of a variance, as if the gradient were one normal number
    methods = {
        "roulette, 2 exact terms and one more on average": RouletteLogDet(),
        "the same, two more as in the paper": RouletteLogDet(Poisson(2.0)),
        "Krylov, 2 steps": KrylovLogDet(max_steps=2),
    }
    for name, method in methods.items():
        ours = variance(method)
        yield Row(f"spread of the gradient: {name}", ours, ours * chance, "", against, theirs / ours)


def growth(size: Size, machine: Machine) -> Iterator[Row]:
    """How the cost of a step grows."""
    yield from scaling(2, small=True) if not size.compile else scaling()


CASES: dict[str, Callable[[Size, Machine], Iterator[Row]]] = {
    "toy": toy,
    "image": image,
    "memory": step_memory,
    "sampling": sampling,
    "serving": serving,
    "evaluation": evaluation,
    "spread": spread,
    "start": start,
    "processes": processes,
    "scaling": growth,
}
