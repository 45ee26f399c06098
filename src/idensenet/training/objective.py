"""What is minimised: bits per dimension (or nats), cross-entropy, or both."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from idensenet.config import TrainConfig
from idensenet.errors import OptionError
from idensenet.flow import Flow, Prepared
from idensenet.hybrid import HybridFlow


def hybrid_weight(text: str, dims: int) -> float:
    """Lambda: 0, 1/D, 1 or any number that is not negative.

    >>> hybrid_weight("1/D", 4)
    0.25
    """
    try:
        value = 1 / dims if text.replace(" ", "").lower() == "1/d" else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise OptionError(f"train.weight={text!r} must be a number that is not negative, or 1/D.")
    return value


class Objective:
    """(x, y) -> the loss to minimise, and what to show. Densities of images count in bits per dimension, others in nats.

    A weight for each sample, one on average, says how much it counts in a density.
    """

    def __init__(self, flow: Flow, config: TrainConfig) -> None:
        if config.objective not in ("density", "classification", "hybrid"):
            raise OptionError(f"train.objective={config.objective!r} is not known; use density, classification or hybrid.")
        if config.objective != "density" and not isinstance(flow, HybridFlow):
            raise OptionError(
                f"train.objective={config.objective} needs a model with classes, such as cifar10-idensenet-hybrid."
            )
        self.flow, self.kind = flow, config.objective
        self.weight = hybrid_weight(config.weight, flow.dims)
        self.unit = "bits/dim" if flow.levels else "nats"
        self.scale = 1 / (flow.dims * math.log(2)) if flow.levels else 1.0

    def __call__(
        self,
        x: Tensor,
        y: Tensor | None,
        generator: torch.Generator,
        context: Tensor | None = None,
        prepared: Prepared | None = None,
        weight: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        flow = self.flow
        if self.kind == "density":
            log_prob = flow.log_prob(x, generator, context=context, prepared=prepared)
            loss = -(log_prob if weight is None else log_prob * weight).mean() * self.scale
            return loss, {self.unit: loss.detach()}
        assert isinstance(flow, HybridFlow)
        if y is None:
            raise OptionError(f"train.objective={self.kind} needs labels, and this data set has none.")
        if self.kind == "classification" or self.weight == 0:
            logits = flow.classify(x, generator, context, prepared)
            loss = F.cross_entropy(logits, y) / math.log(2)
            return loss, {"bits/class": loss.detach(), "accuracy": accuracy(logits, y)}
        log_prob, logits = flow.log_prob_and_logits(x, generator, context, prepared)
        bits = -log_prob.mean() / math.log(2)
        cross = F.cross_entropy(logits, y) / math.log(2)
        shown = {self.unit: bits.detach() / flow.dims, "bits/class": cross.detach(), "accuracy": accuracy(logits, y)}
        return self.weight * bits + cross, shown


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    return (logits.detach().argmax(1) == y).float().mean()
