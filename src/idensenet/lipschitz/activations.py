"""Activations with a known Lipschitz constant.

`lipschitz(p)` is the constant for the p-norm on both sides, for p = 1, 2, infinity. A concatenated activation maps each
number to two, so its constants differ: they are the p-norm of the pair of derivatives. With d the derivative of swish,
d(x) + d(-x) = 1 and sup d = 1.09984 (at every b > 0), which gives |d| + |1 - d| <= 1.19968 for p = 1, and
sqrt(d^2 + (1 - d)^2) <= 1.10437 for p = 2. The derivative of pila lies between -19 exp(-4) and 1, and CPila
has both at one point, so hypot(1, 19 exp(-4)) <= 1.05882 for p = 2; for p = 1 the pair is largest at zero, 4 / e <= 1.47152.
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
PILA_SLOPE = 0.3479972  # -inf of pila', rounded up


@dataclass(frozen=True)
class Folded:
    """What a stack prepares of an activation: phi(x) = outer * mix core(inner * x), with `inner` and `outer` of shape [K].

    `inner` goes into the weight in front of the activation, `outer` and the matrix `mix` into the weight behind it, so none of
    them costs a pass over the features. `own` are the parameters that the core takes itself.
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

    def folded(self) -> Folded:
        """The parameters as `curves` takes them, and the factors that go into weights.

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
        folded = self.folded()
        inner = torch.ones_like(x) if folded.inner is None else folded.inner[block].expand_as(x)
        values, slopes = self.curves(inner * x, *[each[block] for each in folded.own])
        each = [inner if slope is None else inner * slope for slope in slopes()]
        return folded.unfolded(values, block), folded.unfolded(each, block)

    def forward(self, x: Tensor, block: int = 0) -> Tensor:
        """The activation of one block, its values concatenated along channels.

        Args:
            x: Samples [batch, channels, ...].
            block: Which block.

        Returns:
            Values [batch, expansion * channels, ...].
        """
        return torch.cat(self.linearize(x, block)[0], 1)


def swish(x: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """x sigmoid(x) and its derivative."""
    value = F.silu(x)

    def slope() -> Tensor:
        s = torch.sigmoid(x)
        return torch.addcmul(s, value, 1 - s)

    return value, slope


class Swish(Activation):
    """Activations phi(b x) / b with a factor b = softplus(beta), most of them in a sigmoid; beta is learned, from 0.5."""

    scale = 1 / 1.1

    def __init__(self, blocks: int = 1, norm: float = 2.0) -> None:
        super().__init__(blocks, norm)
        self.beta = nn.Parameter(torch.full((blocks,), 0.5))

    def folded(self) -> Folded:
        b = F.softplus(self.beta).clamp(min=1e-12)  # its inverse has to be a number
        return Folded(b, self.scale / b)


class LipSwish(Swish):
    """x sigmoid(b x) / 1.1 with b = softplus(beta); constant 1.09984 / 1.1 (Chen et al., 2019)."""

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        value, slope = swish(x)
        return (value,), lambda: (slope(),)

    def lipschitz(self, norm: float) -> float:
        return SWISH_SLOPE * self.scale


class LeakyLipSwish(Swish):
    """a x + (1 - a) LipSwish(x) with a = sigmoid(alpha): the paper's LeakyLSwish."""

    def __init__(self, blocks: int = 1, norm: float = 2.0) -> None:
        super().__init__(blocks, norm)
        self.alpha = nn.Parameter(torch.full((blocks,), -3.0))

    def folded(self) -> Folded:
        found, a = super().folded(), torch.sigmoid(self.alpha)
        assert found.outer is not None
        return Folded(found.inner, found.outer * (1 - a), (a / (1 - a) / self.scale,))

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        value, slope = swish(x)
        return (torch.addcmul(value, own[0], x),), lambda: (slope() + own[0],)


class CLipSwish(Swish):
    """[LipSwish(x) ; LipSwish(-x)] / c along channels, c = 1.004 for the Euclidean norm (the paper, section 3.4)."""

    expansion = 2
    divisors = {1.0: 1.0907, 2.0: 1.004, math.inf: 1.0}  # noqa: RUF012

    def __init__(self, blocks: int = 1, norm: float = 2.0) -> None:
        super().__init__(blocks, norm)
        self.scale = 1 / (1.1 * self.divisors[self.norm])

    def folded(self) -> Folded:
        return replace(super().folded(), mix=((1.0, 0.0), (1.0, -1.0)))  # swish(-x) = swish(x) - x

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        """swish(x) and x: the second costs nothing, and the weights behind make swish(-x) of both."""
        value, slope = swish(x)
        return (value, x), lambda: (slope(), None)

    def lipschitz(self, norm: float) -> float:
        other = 1 - SWISH_SLOPE
        pair = {1.0: SWISH_SLOPE - other, 2.0: math.hypot(SWISH_SLOPE, other), math.inf: SWISH_SLOPE}
        return pair[float(norm)] * self.scale


class Sine(Swish):
    """[sin(b x) ; cos(b x)] / b along channels, b = softplus(beta): nothing is attenuated, the norm is one everywhere."""

    expansion = 2

    def __init__(self, blocks: int = 1, norm: float = 2.0) -> None:
        super().__init__(blocks, norm)
        self.scale = 1 / math.sqrt(2) if self.norm == 1 else 1.0

    def folded(self, behind: bool = True) -> Folded:
        b = F.softplus(self.beta).clamp(min=0.01)  # cos(0) / b is a constant that must not grow
        return Folded(b if behind else None, self.scale / b, () if behind else (b,))

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        t = x if not own else own[0] * x
        sin, cos = torch.sin(t), torch.cos(t)
        return (sin, cos), lambda: (cos, -sin) if not own else (own[0] * cos, -own[0] * sin)

    def lipschitz(self, norm: float) -> float:
        return self.scale * (math.sqrt(2) if norm == 1 else 1.0)


def pila(x: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """x above zero, (t^3/2 - t^2 + t) exp(t) / 5 with t = 5 x below; the derivative there is (t^3/2 + t^2/2 - t + 1) exp(t)."""
    t = 5 * x.clamp(max=0)
    decay = torch.exp(t)
    value = torch.relu(x) + 0.2 * t * (t * (t / 2 - 1) + 1) * decay
    return value, lambda: (t * (t * (t + 1) / 2 - 1) + 1) * decay


class CPila(Activation):
    """[pila(x - 0.2) ; pila(-x - 0.2)] / c along channels, c = 1.06 for the Euclidean norm (Ahn et al., 2022).

    Before the division the norm of its derivative lies between 1 and 1.0589: it hardly attenuates anything.
    """

    expansion = 2
    divisors = {1.0: 1.4716, 2.0: 1.06, math.inf: 1.0}  # noqa: RUF012

    def folded(self, behind: bool = True) -> Folded:
        scale = 1 / self.divisors[self.norm]
        return Folded(mix=((scale, 0.0), (0.0, scale)))

    def curves(self, x: Tensor, *own: Tensor) -> Curves:
        (above, rising), (below, falling) = pila(x - 0.2), pila(-x - 0.2)
        return (above, below), lambda: (rising(), -falling())

    def lipschitz(self, norm: float) -> float:
        pair = {1.0: 4 / math.e, 2.0: math.hypot(1, PILA_SLOPE), math.inf: 1.0}
        return pair[float(norm)] / self.divisors[self.norm]


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
for _kind in (LipSwish, LeakyLipSwish, CLipSwish, CPila, Sine, CReLU, ReLU, ELU, Tanh, Sigmoid, Identity):
    ACTIVATIONS.register(_kind.__name__.lower(), _kind)


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
