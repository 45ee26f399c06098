"""What went wrong where gradients are not finite any more."""

from __future__ import annotations

import torch
from torch import Tensor

from idensenet.errors import NonFiniteError
from idensenet.flow import Flow


@torch.no_grad()
def diagnosis(flow: Flow, x: Tensor, generator: torch.Generator, context: Tensor | None = None) -> str:
    """The end of a sentence: which parameter is not finite, or which block is the first to produce what is not a number."""
    for name, parameter in flow.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"were skipped: the parameter {name} is not finite; resume from an earlier step."
    found: list[str] = []
    hooks = [
        block.register_forward_hook(
            lambda module, inputs, outputs, name=name: (
                found.append(name) if not all(bool(torch.isfinite(o).all()) for o in outputs) else None
            )
        )
        for name, block in flow.named_blocks()
    ]
    try:
        flow.log_prob(x, generator, context=context)
        place = f"block {found[0]}" if found else "the objective"
    except NonFiniteError as error:
        place = f"the data ({error})"
    finally:
        for hook in hooks:
            hook.remove()
    return f"had a gradient that is not finite; the first to produce NaN or infinity is {place}."
