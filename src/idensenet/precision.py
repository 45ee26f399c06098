"""Which products may be rounded. Norms, log-determinants, solvers and certificates never are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from idensenet.errors import OptionError


@dataclass(frozen=True)
class Precision:
    """The policy of a training step: how the products of the residual branches are rounded, forwards and backwards.

    Args:
        bfloat16: Compute values and tangents of the branches in bfloat16. Master weights, norms, sums of log-determinants
            and the optimiser keep their number type.
        tf32: Allow TF32 in float32 products on CUDA.
    """

    bfloat16: bool = False
    tf32: bool = False

    @classmethod
    def of(cls, name: str, tf32: bool = False) -> Precision:
        """The policy by the name that `--train.precision` takes."""
        if name not in ("32-true", "64-true", "bf16-mixed"):
            raise OptionError(f"train.precision={name!r} is not known; use 32-true, 64-true or bf16-mixed.")
        return cls(name == "bf16-mixed", tf32)

    def rounded(self, weight: Tensor) -> Tensor:
        """A prepared weight in the number type of its products."""
        return weight.bfloat16() if self.bfloat16 and weight.dtype == torch.float32 else weight

    @contextmanager
    def products(self, device: torch.device) -> Iterator[None]:
        """Inside, products are computed as this policy says, whatever autocast and the global TF32 switches say."""
        with ExitStack() as stack:
            if torch.is_autocast_enabled(device.type):
                stack.enter_context(torch.autocast(device.type, enabled=False))
            if device.type == "cuda":
                stack.enter_context(_tf32(self.tf32))
            yield


EXACT = Precision()


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    places: list[tuple[Any, str, Any]] = []
    for owner in (torch.backends.cudnn, torch.backends.cuda.matmul):
        inner = getattr(owner, "conv", owner)
        if hasattr(inner, "fp32_precision"):  # where the newer switch exists, the older one must not be read
            places.append((inner, "fp32_precision", "tf32" if allowed else "ieee"))
        else:
            places.append((owner, "allow_tf32", cast(Any, allowed)))
    before = [getattr(owner, name) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(places, before, strict=True):
            setattr(owner, name, value)


@contextmanager
def for_norms(weight: Tensor) -> Iterator[None]:
    """Norms outlive the call that computes them: autocast, TF32 and inference mode have no part in them, nor has a graph."""
    with ExitStack() as stack:
        stack.enter_context(EXACT.products(weight.device))
        if torch.is_inference_mode_enabled() and not weight.is_inference():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        yield
