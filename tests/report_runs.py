"""Small runs with everything that a page is made from, without training."""

from pathlib import Path

import numpy as np
import torch

import idensenet as idn
from flows import images
from idensenet.checkpoints import Progress
from idensenet.data.source import Source, Split
from idensenet.data.toy import toy_set
from idensenet.flow import Flow
from idensenet.lipschitz import LipschitzMap, refresh_norms
from idensenet.training.averaging import Average
from idensenet.training.evaluation import first_rows, score_rows, summary
from idensenet.training.run import RunFolder

IMAGE_OPTIONS = {"blocks": (1, 1), "depth": 2, "growth": 4, "fc_blocks": 1, "fc_first": 8, "fc_growth": 4}
HYBRID_OPTIONS = {
    **IMAGE_OPTIONS,
    "preprocess": "normalize",
    "mean": (0.5,),
    "std": (0.3,),
    "classes": 3,
    "head_width": 8,
    "train": {"objective": "hybrid", "weight": "1/D"},
}


def vary_concatenation(flow: Flow) -> Flow:
    """As if it had learned: every dense layer of every block with weights of its own."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in flow.named_parameters():
            if name.endswith(".k"):
                parameter.copy_(1 + torch.randn(parameter.shape, generator=generator))
    return flow


def toy_flow(initialized: bool = True, **overrides) -> Flow:
    options = {"blocks": (3,), "depth": 2, "growth": 4, "data": {"name": "moons"}, "train": {"max_steps": 60}}
    flow = vary_concatenation(idn.build("toy-idensenet-clipswish", **{**options, **overrides}))
    if initialized:
        flow.initialize(toy_set("moons").sample(100))
    return flow


def expanding_flow() -> Flow:
    """A toy flow with weights far above their bound and norms that claim otherwise: its blocks are not contractive."""
    flow = toy_flow()
    layers = [layer for layer in flow.modules() if isinstance(layer, LipschitzMap)]
    refresh_norms(flow)
    with torch.no_grad():
        for layer in layers:
            layer.weight.mul_(1.3 / layer.sigma.view(-1, *[1] * (layer.weight.ndim - 1)))
    refresh_norms(flow)
    for layer in layers:
        layer.sigma.fill_(0.1)
    return flow


def image_flow(**overrides) -> Flow:
    flow = vary_concatenation(idn.build("digits-idensenet", **{**IMAGE_OPTIONS, **overrides}))
    flow.initialize(images(flow, 16))
    return flow


def toy_source() -> Source:
    toy, generator = toy_set("moons"), torch.Generator().manual_seed(1)
    splits = [Split(toy.sample(n, generator).numpy()) for n in (100, 600)]
    return Source("moons", *splits, (2,), stream=toy)


def image_source(flow: Flow, classes: int | None = None) -> Source:
    splits = []
    for n, seed in ((40, 1), (70, 2)):
        labels = np.arange(n) % classes if classes else None
        splits.append(Split(images(flow, n, seed).numpy(), labels))
    notes = ("No checksum of this set is <known>.",)
    return Source("gradients & noise", *splits, flow.shape, flow.levels, classes, notes=notes)


def table_source(dims: int) -> Source:
    generator = torch.Generator().manual_seed(2)
    splits = [Split((torch.randn(n, dims, generator=generator)).numpy()) for n in (100, 500)]
    return Source("people", *splits, (dims,), columns=tuple(f"quantity {i}" for i in range(dims)))


def fake_run(path: Path, flow: Flow, source: Source, name: str, skipped: int = 0) -> RunFolder:
    """A run of 60 steps with four evaluations, the last of them true."""
    run = RunFolder(path)
    assert flow.config is not None
    run.create(flow.config, name, f"idensenet train {name} --output.dir '{path}'")
    last = summary(flow, score_rows(flow, source.test, first_rows(source.test, 60)))
    unit = "bits/dim" if flow.levels else "nats"
    score = last.get("bits_per_dim", last["nats"])
    for step in range(5, 61, 5):
        entry = {unit: score + 10 / step, "gradient": 3 / step, "samples/s": 1234.5, "memory": "0.42 GB"}
        if flow.config.model.classes:
            entry |= {"bits/class": 1 + 5 / step, "accuracy": step / 100}
        if skipped:
            entry["skipped"] = skipped
        run.log({"kind": "train", "step": step, "lr": 1e-3 * step / 60, **entry})
        if step % 15 == 0:
            worse = 9 / step * (step < 60)
            shifted = {k: v + worse if k in ("nats", "bits_per_dim") else v for k, v in last.items()}
            run.log({"kind": "eval", "step": step, **shifted})
    optimizer = torch.optim.Adam(flow.parameters())
    run.checkpoints.write(flow, Average(flow, 0.0), optimizer, Progress(60, float(score), 60))
    return run
