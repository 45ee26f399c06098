"""log|det(I + J_g(x))|: one interface for all ways to get it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from idensenet.draws import Draws
from idensenet.lipschitz.linearmap import LinearMap, rounding

Recompute = bool | Literal["input"]


class Linearizable(Protocol):
    """A residual branch g, as far as the log-determinant is concerned."""

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]: ...


@dataclass(frozen=True)
class Estimate:
    """log|det(I + J)| per sample. `standard_error` is None for an exact value or a single probe."""

    value: Tensor
    standard_error: Tensor | None = None


def push(g: Linearizable, x: Tensor, v: Tensor, low: bool = False) -> tuple[Tensor, Tensor, LinearMap]:
    """g(x), J v for vectors [probes, *x.shape], and J: in one go where g knows how; with `low`, J v in bfloat16."""
    together = getattr(g, "push", None)
    if together is not None:
        found: tuple[Tensor, Tensor, LinearMap] = together(x, v, low)
        return found
    y, J = g.linearize(x)
    with rounding(low, v):
        product = J.matvec(v)
    return y, product.to(v.dtype), J


class LogDet(ABC):
    """A way to compute the log-determinant. Nothing is drawn but from `draws`."""

    @abstractmethod
    def __call__(self, g: Linearizable, x: Tensor, draws: Draws, recompute: Recompute = False) -> tuple[Tensor, Estimate]:
        """g(x), and the log-determinant of x -> x + g(x) at x.

        With `recompute` the backward pass rebuilds the block instead of keeping it; no number changes. A series keeps the
        block's input, the bits of its probe and the vector that the gradient needs; with "input" it does not keep that vector
        and is evaluated once more.
        """
