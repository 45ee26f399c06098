"""What a training step costs on paper: operations, traffic and memory of a model, and the time that follows for a device.

This is a calculation, not a measurement. In units of one pass of a batch through all branches g, a step with a series of n
terms takes 2 passes for values and tangents, n - 1 for the series and 4 for the gradients of values and tangents; saving memory
adds 2. Products run at `EFFICIENCY` of the peak rate. Everything else is traffic with the memory. Each kernel takes `LAUNCH`
seconds to start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from idensenet.config import Config, LogDetConfig
from idensenet.errors import OptionError, nearest
from idensenet.flow import Flow
from idensenet.lipschitz import DenseLayer, LipschitzMap
from idensenet.lipschitz.conditional import ConditionalNetwork
from idensenet.lipschitz.linear import maps_of
from idensenet.precision import Precision

EFFICIENCY = 0.45  # share of the peak rate that large convolutions reach
LAUNCH = 5e-6  # seconds until a kernel runs
KERNELS = 6  # kernels of a layer in a pass: product, bias, activation, slopes, concatenation, tangents
IMAGES = {"cifar10": 50_000, "imagenet32": 1_281_149, "mnist": 60_000, "fashion-mnist": 60_000}  # training images


@dataclass(frozen=True)
class Device:
    """Published figures of an accelerator, dense products.

    Args:
        float32: Peak operations per second in float32.
        tf32: The same in TF32; equal to float32 where there is none.
        bfloat16: The same in bfloat16; equal to float32 where there are no units for it.
        bandwidth: Bytes per second from and to its memory.
        memory: Bytes of memory.
        link: Bytes per second between two devices of a machine.
    """

    float32: float
    tf32: float
    bfloat16: float
    bandwidth: float
    memory: float
    link: float

    def peak(self, precision: Precision) -> float:
        """Peak operations per second of the products of a training step."""
        return self.bfloat16 if precision.bfloat16 else self.tf32 if precision.tf32 else self.float32


DEVICES = {
    "h100": Device(67e12, 494e12, 989e12, 3.35e12, 80e9, 450e9),
    "titan-rtx": Device(16.3e12, 16.3e12, 16.3e12, 672e9, 24e9, 16e9),
}


@dataclass(frozen=True)
class Cost:
    """The cost of one training step with one batch.

    Args:
        operations: Floating point operations of its products.
        traffic: Bytes that its elementwise work and its products move.
        memory: Bytes of weights, gradients, moments, averages and kept activations.
        kernels: Kernels that are started.
        weights: Bytes of the gradients, which devices exchange.
    """

    operations: float
    traffic: float
    memory: float
    kernels: float
    weights: float


def device_of(name: str) -> tuple[int, Device]:
    """How many devices of which kind: "h100", "8xh100".

    >>> device_of("8xh100")[0]
    8
    """
    found = re.fullmatch(r"(?:(\d+)x)?([a-z0-9-]+)", name.lower())
    if found is None or found[2] not in DEVICES or found[1] == "0":
        raise OptionError(f"--assume {name} is not known; {nearest(name.lower(), sorted(DEVICES))} For eight of them: 8xh100.")
    return int(found[1] or 1), DEVICES[found[2]]


def terms(config: LogDetConfig) -> float:
    """The mean number of terms of the series in training."""
    if config.method == "roulette":
        more = config.law_parameter if config.law == "poisson" else 1 / config.law_parameter
        return config.exact_terms + more
    if config.method in ("series", "krylov"):
        return float(config.terms)
    raise OptionError(f"logdet.method={config.method} has no fixed cost; use series or roulette with --assume.")


def _maps(flow: Flow) -> Iterator[tuple[LipschitzMap, int, bool]]:
    """The linear maps of all blocks, with the pixels of a sample and whether each belongs to a dense layer."""
    for stack in flow.stacks():
        g = stack.g.inner if isinstance(stack.g, ConditionalNetwork) else stack.g
        sizes = [linear.maps for linear in maps_of(g) if linear.maps]  # a 1x1 convolution does not know its own
        for layer in g.layers:
            if isinstance(layer, DenseLayer):
                yield layer.linear, math.prod(sizes[0] if sizes else ()), True
            elif isinstance(layer, LipschitzMap):
                yield layer, math.prod(sizes[0] if sizes else ()), False


def step_cost(flow: Flow, config: Config) -> Cost:
    """The cost of a training step of one device with the batch of the configuration."""
    t = config.train
    passes = 2 + terms(config.logdet) - 1 + 4 + (2 if t.memory == "save" else 0)
    size = 2 if t.precision == "bf16-mixed" else 8 if t.precision == "64-true" else 4
    operations = traffic = kept = kernels = 0.0
    for linear, area, dense in _maps(flow):
        pixels = linear.blocks * area * t.batch_size
        grown = 2 * linear.outputs if dense else linear.outputs
        operations += 2 * linear.weight[0].numel() * pixels
        joined = linear.inputs + grown if dense else 0
        traffic += size * pixels * (linear.inputs + linear.outputs + linear.outputs + grown + 2 * joined)
        kept += size * pixels * (joined + 2 * linear.outputs) * 2  # values and tangents, and the slopes of each
        kernels += linear.blocks * KERNELS
    if t.memory == "save":
        stacks = flow.stacks()
        inputs = t.batch_size * flow.dims * sum(stack.blocks for stack in stacks)
        kept = 4 * 3 * inputs + kept / sum(stack.blocks for stack in stacks)  # x, probe and u of each, and one block rebuilt
    weights = 4.0 * flow.num_parameters
    return Cost(passes * operations, passes * traffic, 5 * weights + kept, passes * kernels, weights)


def seconds(cost: Cost, device: Device, count: int, precision: Precision) -> dict[str, float]:
    """Seconds of a step by what they are spent on; each device has a batch of its own."""
    return {
        "products": cost.operations / (EFFICIENCY * device.peak(precision)),
        "memory traffic": cost.traffic / device.bandwidth,
        "launches": cost.kernels * LAUNCH,
        "exchange of gradients": 2 * cost.weights * (count - 1) / count / device.link,
    }


def step_time(parts: Mapping[str, float]) -> float:
    """Seconds of a step. Kernels are started while others run, so it takes the longer of the two."""
    return max(parts["products"] + parts["memory traffic"], parts["launches"]) + parts["exchange of gradients"]


def in_words(config: Config, flow: Flow, assume: str) -> list[str]:
    """The lines that `train --dry-run --assume` prints."""
    count, device = device_of(assume)
    cost = step_cost(flow, config)
    precision = Precision.of(config.train.precision, config.train.tf32)
    parts = seconds(cost, device, count, precision)
    step = step_time(parts)
    limit = max(parts, key=lambda name: parts[name])
    batch = config.train.batch_size * count
    lines = [
        "A calculation from published peak rates, not a measurement:",
        f"parameters: {flow.num_parameters:,}",
        f"a step: {cost.operations / 1e12:.3g} TFLOP, {cost.traffic / 1e9:.3g} GB moved, {cost.kernels:,.0f} kernels",
        f"memory: {cost.memory / 1e9:.3g} GB of {device.memory / 1e9:.0f} GB, on each device",
        f"{assume}, {config.train.precision}{', TF32' if precision.tf32 else ''}: {step * 1e3:.3g} ms for {batch} samples; "
        f"the limit is {limit}",
    ]
    if images := IMAGES.get(config.data.name or ""):
        lines.append(f"an epoch of {images:,} images: {images / batch * step:,.0f} s")
    return lines
