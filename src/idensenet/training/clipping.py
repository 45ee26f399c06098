"""The size of a gradient, and its limit."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def clip(parameters: Iterable[Tensor], limit: float | None = None) -> Tensor:
    """The Euclidean norm of all gradients together, which are scaled down where it is above the limit. Nothing waits for it."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if limit is not None:
        torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1))
    return norm
