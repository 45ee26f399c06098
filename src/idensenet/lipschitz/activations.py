"""Activations with a known Lipschitz constant.

`lipschitz(p)` is the constant for the p-norm on both sides, for p = 1, 2, infinity. A concatenated activation maps each
number to two, so its constants differ: they are the p-norm of the pair of derivatives. With d the derivative of swish,
d(x) + d(-x) = 1 and sup d = 1.09984 (at every b > 0), which gives |d| + |1 - d| <= 1.19968 for p = 1, and
sqrt(d^2 + (1 - d)^2) <= 1.10437 for p = 2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idensenet.registry import Registry

Values = tuple[Tensor, ...]
Slopes = tuple[Tensor | None, ...]  # None, though never the first, stands for a slope of one
Curves = tuple[Values, Callable[[], Slopes]]
Mix = tuple[tuple[float, ...], ...]
SWISH_SLOPE = 1.0998394  # sup of (x sigmoid(x))', rounded up


@dataclass(frozen=True)
class Folded:
    """What a stack prepares of an activation: phi(x) = outer * mix core(inner * x), with `inner` and `outer` of shape [K].

    `inner` goes into the rows of the weight before it, `outer` and `mix`, a matrix, into the columns of the weight behind it,
    so that none of them costs a pass over the features; `own` are the parameters that the core takes itself.
    """

    inner: Tensor | None = None
    outer: Tensor | None = None
    own: tuple[Tensor, ...] = ()
    mix: Mix | None = None

    def unfolded(self, parts: Sequence[Tensor], block: int) -> Values:
        """What phi makes of the parts of the core, for one block."""
        mixed = parts if self.mix is None else [combined(row, parts) for row in self.mix]
        return tuple(mixed if self.outer is None else [self.outer[block] * part for part in mixed])


def combined(factors: Sequence[float], parts: Sequence[Tensor]) -> Tensor:
    """The sum of the parts times their factors."""
    first, *others = [part if factor == 1 else factor * part for factor, part in zip(factors, parts, strict=True) if factor]
    return sum(others, first)


class Activation(nn.Module, ABC):
    """An elementwise map of each of K blocks; it makes `expansion` numbers of one, along channels.

    To write one, implement `curves` as a function of tensors, keep every parameter as a tensor of shape [K], and override
    `expansion` and `lipschitz` where they are not one. Override `folded` where a factor can go into the weights around it.

    Args:
        blocks: K, the number of blocks in the stack.
        norm: The p-norm in which the constant is bounded: 1, 2 or infinity.
    """

    expansion = 1

    def __init__(self, blocks: int = 1, norm: float = 2.0) -> None:
        super().__init__()
        self.blocks, self.norm = blocks, float(norm)

    @abstractmethod
    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        """The `expansion` values of the core at x, and a function that returns their derivatives.

        Args:
            x: Any shape.
            own: One number for each tensor in `folded().own`.

        Returns:
            A tuple of values, and a function that returns a tuple of derivatives.
        """

    def folded(self, behind: bool = True) -> Folded:
        """The parameters as `curves` takes them, with the factors that go into the weights around it.

        Args:
            behind: Whether a weight stands before it to take `inner`.

        Returns:
            The folded form.
        """
        return Folded(own=tuple(self.parameters()))

    def lipschitz(self, norm: float) -> float:
        """A bound on the Lipschitz constant in a p-norm, for all values of the parameters.

        Args:
            norm: p: 1, 2 or infinity.

        Returns:
            The bound.
        """
        return 1.0

    def linearize(self, x: Tensor, block: int = 0) -> tuple[Values, Values]:
        """The values of one block's activation at x, and their derivatives.

        Args:
            x: Any shape.
            block: Which block.

        Returns:
            A tuple of values and a tuple of derivatives, `expansion` of each.
        """
        folded, values, slopes = self._at(x, block)
        each = [torch.ones_like(x) if slope is None else slope for slope in slopes()]
        return folded.unfolded(values, block), folded.unfolded(each, block)

    def forward(self, x: Tensor, block: int = 0) -> Tensor:
        """The activation of one block, its values concatenated along channels.

        Args:
            x: Samples [batch, channels, ...].
            block: Which block.

        Returns:
            Values [batch, expansion * channels, ...].
        """
        folded, values, _ = self._at(x, block)
        return torch.cat(folded.unfolded(values, block), 1)

    def _at(self, x: Tensor, block: int) -> tuple[Folded, Values, Callable[[], Slopes]]:
        folded = self.folded(behind=False)
        return folded, *self.curves(x, *[each[block] for each in folded.own])


def swish(x: Tensor, b: Tensor | None = None) -> tuple[Tensor, Callable[[], Tensor]]:
    """t sigmoid(t) with t = b x, or t = x, and its derivative in x."""
    t = x if b is None else b * x
    value = F.silu(t)

    def slope() -> Tensor:
        s = torch.sigmoid(t)
        derivative = torch.addcmul(s, value, 1 - s)
        return derivative if b is None else b * derivative

    return value, slope


class Swish(Activation):
    """Activations with a factor b = softplus(beta) inside a sigmoid; beta is learned and starts at 0.5."""

    scale = 1 / 1.1

    def __init__(self, blocks: int = 1, norm: float = 2.0) -> None:
        super().__init__(blocks, norm)
        self.beta = nn.Parameter(torch.full((blocks,), 0.5))

    def folded(self, behind: bool = True) -> Folded:
        b = F.softplus(self.beta).clamp(min=1e-12)  # its inverse has to be a number
        return Folded(b if behind else None, self.scale / b, () if behind else (b,))


class LipSwish(Swish):
    """x sigmoid(b x) / 1.1 with b = softplus(beta); constant 1.09984 / 1.1 (Chen et al., 2019)."""

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        value, slope = swish(x, *own)
        return (value,), lambda: (slope(),)

    def lipschitz(self, norm: float) -> float:
        return SWISH_SLOPE * self.scale


class LeakyLipSwish(Swish):
    """a x + (1 - a) LipSwish(x) with a = sigmoid(alpha): the paper's LeakyLSwish."""

    def __init__(self, blocks: int = 1, norm: float = 2.0) -> None:
        super().__init__(blocks, norm)
        self.alpha = nn.Parameter(torch.full((blocks,), -3.0))

    def folded(self, behind: bool = True) -> Folded:
        found = super().folded(behind)
        a = torch.sigmoid(self.alpha)
        assert found.outer is not None
        return Folded(found.inner, found.outer * (1 - a), (a / (1 - a) / self.scale, *found.own))

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        ratio, *b = own
        value, slope = swish(x, *b)
        linear = ratio if not b else ratio * b[0]
        return (torch.addcmul(value, linear, x),), lambda: (slope() + linear,)


class CLipSwish(Swish):
    """[LipSwish(x) ; LipSwish(-x)] / c along channels, c = 1.004 for the Euclidean norm (the paper, section 3.4)."""

    expansion = 2
    divisors = {1.0: 1.0907, 2.0: 1.004, math.inf: 1.0}  # noqa: RUF012

    def __init__(self, blocks: int = 1, norm: float = 2.0) -> None:
        super().__init__(blocks, norm)
        self.scale = 1 / (1.1 * self.divisors[self.norm])

    def folded(self, behind: bool = True) -> Folded:
        return replace(super().folded(behind), mix=((1.0, 0.0), (1.0, -1.0)))  # swish(-x) = swish(x) - x

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        """swish(x) and x: the second costs nothing, and the weights behind make swish(-x) of both."""
        value, slope = swish(x, *own)
        if not own:
            return (value, x), lambda: (slope(), None)
        return (value, own[0] * x), lambda: (slope(), own[0].expand_as(x))

    def lipschitz(self, norm: float) -> float:
        other = 1 - SWISH_SLOPE
        pair = {1.0: SWISH_SLOPE - other, 2.0: math.hypot(SWISH_SLOPE, other), math.inf: SWISH_SLOPE}
        return pair[float(norm)] * self.scale


class CReLU(Activation):
    """[relu(x) ; relu(-x)] along channels."""

    expansion = 2

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        return (torch.relu(x), torch.relu(-x)), lambda: ((x > 0).to(x.dtype), -(x < 0).to(x.dtype))


class ReLU(Activation):
    """max(0, x)."""

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        return (torch.relu(x),), lambda: ((x > 0).to(x.dtype),)


class ELU(Activation):
    """x above zero, exp(x) - 1 below."""

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        return (F.elu(x),), lambda: (torch.exp(x.clamp(max=0)),)


class Tanh(Activation):
    """tanh(x)."""

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        y = torch.tanh(x)
        return (y,), lambda: (1 - y * y,)


class Sigmoid(Activation):
    """1 / (1 + exp(-x)); constant 1/4."""

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        y = torch.sigmoid(x)
        return (y,), lambda: (y * (1 - y),)

    def lipschitz(self, norm: float) -> float:
        return 0.25


class Identity(Activation):
    """x."""

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        return (x,), lambda: (torch.ones_like(x),)


ACTIVATIONS: Registry[Activation] = Registry("activation")
for _name, _kind in {
    "lipswish": LipSwish,
    "leakylipswish": LeakyLipSwish,
    "clipswish": CLipSwish,
    "crelu": CReLU,
    "relu": ReLU,
    "elu": ELU,
    "tanh": Tanh,
    "sigmoid": Sigmoid,
    "identity": Identity,
}.items():
    ACTIVATIONS.register(_name, _kind)


def register_activation(name: str, kind: type[Activation]) -> None:
    """Make an activation usable by name in recipes, options and builders.

    Args:
        name: The name that `--model.activation` and `Pieces` will take.
        kind: A subclass of `Activation`, called with the number of blocks and the norm.
    """
    ACTIVATIONS.register(name, kind)


def activation(name: str, blocks: int = 1, norm: float = 2.0) -> Activation:
    """An activation by name.

    >>> activation("clipswish")(torch.zeros(1, 3)).shape
    torch.Size([1, 6])
    """
    return ACTIVATIONS[name](blocks, norm)
