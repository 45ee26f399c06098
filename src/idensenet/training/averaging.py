"""Averaged weights: what is evaluated, saved for use and never trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from idensenet.flow import Flow


class Average:
    """An exponential average of all parameters; the decay rises as min(decay, (1 + t) / (10 + t))."""

    def __init__(self, flow: Flow, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor]
        self.restart(flow)

    def restart(self, flow: Flow) -> None:
        """Take the weights of the flow as they are."""
        self.weights = {name: p.detach().clone() for name, p in flow.named_parameters()}

    @torch.no_grad()
    def update(self, parameters: Sequence[Tensor], step: int) -> None:
        """With the parameters of the flow, in their order: it takes its time to name them anew in every step."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.weights.values()), list(parameters), 1 - decay)

    @contextmanager
    def swapped_in(self, flow: Flow) -> Iterator[None]:
        """The flow has the averaged weights inside, its own if there is no averaging, and exactly its own state again after."""
        kept = {name: value.detach().clone() for name, value in flow.state_dict().items()}
        with torch.no_grad():
            for name, parameter in flow.named_parameters() if self.decay else ():
                parameter.copy_(self.weights[name])
        try:
            yield
        finally:
            flow.load_state_dict(kept)
