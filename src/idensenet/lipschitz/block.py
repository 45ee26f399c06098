"""How a residual branch is computed: values and tangents together, elementwise steps in one pass.

Rows are samples, or samples of several probes one after the other: [rows, *event]. Where a value and tangents travel together,
the rows of the value come first, and every linear map is one product for all of them.

In a dense block h_i = [a_i h_(i-1) ; b_i s_i], so every h_i is the plain concatenation of s_0, s_1, ..., s_i up to one factor
per channel. The factors multiply the columns of the weights, which are small, and never the maps, which are large: values,
tangents and transposed products are convolutions, activations and concatenations, and nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idensenet.lipschitz.activations import Activation, Branches
from idensenet.lipschitz.linearmap import LinearMap, flipped

if TYPE_CHECKING:
    from typing import Self


def laid_out(rows: Tensor) -> Tensor:
    """Maps with their channels next to each other, as convolutions are fastest."""
    return rows.contiguous(memory_format=torch.channels_last) if rows.ndim == 4 else rows


def apply(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A matrix on vectors, a convolution on maps."""
    return F.linear(rows, weight, bias) if weight.ndim == 2 else F.conv2d(rows, weight, bias, padding=weight.shape[-1] // 2)


def products(rows: Tensor, weight: Tensor, n: int, low: bool = False) -> Tensor:
    """`apply` to n rows of values and the tangents behind them; with `low`, for the tangents in bfloat16."""
    if not low or len(rows) == n:
        return apply(rows, weight)
    value, tangent = torch.split(rows, [n, len(rows) - n])
    return torch.cat([apply(value, weight), apply(tangent.bfloat16(), weight.bfloat16()).to(rows.dtype)])


def transposed(weight: Tensor) -> Tensor:
    return weight.mT if weight.ndim == 2 else flipped(weight)


def biased(rows: Tensor, bias: Tensor) -> Tensor:
    return rows + (bias[:, None, None] if rows.ndim == 4 else bias)


# The elementwise steps. Each is a function of tensors, so that it can be compiled into one pass over the memory.


def activate(moved: Tensor, bias: Tensor | None, activation: Activation, n: int) -> tuple[Tensor, Branches]:
    """Through an activation: n rows of values, to which the bias belongs, and the tangents behind them; and its slopes."""
    value, tangent = (moved, None) if len(moved) == n else torch.split(moved, [n, len(moved) - n])
    values, slopes = activation.curves(value if bias is None else biased(value, bias))
    grown = values[0] if len(values) == 1 else torch.cat(values, 1)
    return grown if tangent is None else torch.cat([grown, sloped(tangent, slopes)]), slopes


def grow(rows: Tensor, moved: Tensor, bias: Tensor, activation: Activation, n: int) -> tuple[Tensor, Branches]:
    """What a dense layer does after its linear map: the activated rows beside those that came in."""
    grown, slopes = activate(moved, bias, activation, n)
    return torch.cat([rows, grown], 1), slopes


def sloped(tangent: Tensor, slopes: Branches) -> Tensor:
    """Tangents of one or several probes through the derivative of an activation; of none, too."""
    if len(tangent) == 0:
        slopes = tuple(slope[:0] for slope in slopes)
    if len(tangent) != len(slopes[0]):
        return torch.cat([sloped(part, slopes) for part in torch.split(tangent, len(slopes[0]))])
    return slopes[0] * tangent if len(slopes) == 1 else torch.cat([slope * tangent for slope in slopes], 1)


def slopes_back(rows: Tensor, slopes: Branches) -> Tensor:
    """The transposed product with the derivative of an activation."""
    if len(rows) == 0:
        slopes = tuple(slope[:0] for slope in slopes)
    if len(rows) != len(slopes[0]):
        return torch.cat([slopes_back(part, slopes) for part in torch.split(rows, len(slopes[0]))])
    if len(slopes) == 1:
        return slopes[0] * rows
    first, second = rows.chunk(2, 1)
    return torch.addcmul(slopes[0] * first, slopes[1], second)


def grow_back(rows: Tensor, slopes: Branches) -> tuple[Tensor, Tensor]:
    """The transpose of `grow`: the first channels go on, the others go back through the slopes."""
    width = rows.shape[1] - len(slopes) * slopes[0].shape[1]
    return rows[:, :width], slopes_back(rows[:, width:], slopes)


def grow_back_from(rows: Tensor, added: Tensor, slopes: Branches) -> tuple[Tensor, Tensor]:
    """The same, with what came back through the layer behind."""
    return grow_back(rows + added, slopes)


@lru_cache(maxsize=16)
def one_pass(function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function, made once."""
    return torch.compile(function, dynamic=True)


def fused(function: Callable[..., Any], wanted: bool) -> Callable[..., Any]:
    """One of the elementwise steps, compiled into one pass where that is wanted, for all shapes at once.

    Inside of compiled code it is left as it is: there it is compiled with all the rest.
    """
    return one_pass(function) if wanted and not torch.compiler.is_compiling() else function


class BranchMap(LinearMap):
    """The Jacobian of a residual branch on rows: weights, and the slopes of the activations between them."""

    def __init__(self, weights: Sequence[Tensor], slopes: Sequence[Branches], batch: int, compiled: bool = False) -> None:
        self.weights, self.slopes, self.batch, self.compiled = list(weights), list(slopes), batch, compiled
        self._back: list[Tensor] | None = None

    @abstractmethod
    def forth(self, rows: Tensor) -> Tensor: ...

    @abstractmethod
    def back(self, rows: Tensor) -> Tensor: ...

    def _on_rows(self, function: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
        event = v.ndim - (3 if self.weights[0].ndim == 4 else 1)
        rows = function(laid_out(v.flatten(0, event - 1) if event > 1 else v))
        return rows.view(*v.shape[:event], *rows.shape[1:]) if event > 1 else rows

    def matvec(self, v: Tensor) -> Tensor:
        return self._on_rows(self.forth, v)

    def rmatvec(self, u: Tensor) -> Tensor:
        return self._on_rows(self.back, u)

    def transposed_weights(self) -> list[Tensor]:
        """Last to first; kept where no gradient is recorded."""
        if torch.is_grad_enabled():
            return [transposed(weight) for weight in reversed(self.weights)]
        if self._back is None:
            self._back = [transposed(weight) for weight in reversed(self.weights)]
        return self._back

    def take(self, index: Tensor) -> Self:
        slopes = [tuple(slope[index] for slope in each) for each in self.slopes]
        return type(self)(self.weights, slopes, len(index), self.compiled)


class DenseBlockMap(BranchMap):
    """Of a dense block: folded weights, [first,] one for each dense layer, closing."""

    def forth(self, rows: Tensor) -> Tensor:
        *weights, closing = self.weights
        if len(weights) > len(self.slopes):
            rows = apply(rows, weights.pop(0))
        for weight, slopes in zip(weights, self.slopes, strict=True):
            rows = torch.cat([rows, sloped(apply(rows, weight), slopes)], 1)
        return apply(rows, closing)

    def back(self, rows: Tensor) -> Tensor:
        closing, *weights = self.transposed_weights()
        rows, added = apply(rows, closing), None
        wanted = self.compiled and len(rows) == self.batch
        first, then = fused(grow_back, wanted), fused(grow_back_from, wanted)
        for weight, slopes in zip(weights, reversed(self.slopes), strict=False):
            rows, returned = first(rows, slopes) if added is None else then(rows, added, slopes)
            added = apply(returned, weight)
        rows = rows if added is None else rows + added
        return apply(rows, weights[-1]) if len(weights) > len(self.slopes) else rows


class ResidualNetMap(BranchMap):
    """Of linear maps with activations in between, and perhaps one in front."""

    def forth(self, rows: Tensor) -> Tensor:
        for i, weight in enumerate(self.weights, len(self.slopes) - len(self.weights)):
            rows = apply(sloped(rows, self.slopes[i]) if i >= 0 else rows, weight)
        return rows

    def back(self, rows: Tensor) -> Tensor:
        step = fused(slopes_back, self.compiled and len(rows) == self.batch)
        for i, weight in enumerate(self.transposed_weights()):
            rows = apply(rows, weight)
            if i < len(self.slopes):
                rows = step(rows, self.slopes[-1 - i])
        return rows
