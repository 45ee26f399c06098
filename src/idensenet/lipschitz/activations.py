"""Activations with a known Lipschitz constant, their derivative written out.

`lipschitz(p)` is the constant for the p-norm on both sides, for p = 1, 2, infinity. A concatenated activation maps each
number to two, so there the constants differ: the p-norm of the two derivatives. With d the derivative of swish,
d(x) + d(-x) = 1 and sup d = 1.09984 (at every b > 0), which gives |d| + |1 - d| <= 1.19968 for p = 1, and
sqrt(d^2 + (1 - d)^2) <= 1.10437 for p = 2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idensenet.errors import UnknownNameError, nearest
from idensenet.lipschitz.linearmap import LinearMap, diagonal

Branches = tuple[Tensor, ...]
SWISH_SLOPE = 1.0998394  # sup of (x sigmoid(x))', rounded up


class Activation(nn.Module, ABC):
    """An elementwise map; `expansion` is how many numbers it makes of one (along channels)."""

    expansion = 1

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def curves(self, x: Tensor, *own: Tensor) -> tuple[Branches, Branches]:
        """The numbers that are made of each number, and their derivatives. `own` stands in for the parameters, if given."""

    def factors(self) -> tuple[Tensor | float, Tensor | float]:
        """(inner, outer) with forward(x) = outer * core(inner * x): what can go into the weights before and after it."""
        return 1.0, 1.0

    def core(self, x: Tensor) -> Branches:
        return (self.forward(x),)

    def core_into(self, x: Tensor, out: Tensor) -> None:
        """`core`, written to where it is wanted; without gradients."""
        branches = self.core(x)
        for branch, place in zip(branches, out.chunk(len(branches), 1), strict=True):
            place.copy_(branch)

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        values, slopes = self.curves(x)
        return values[0] if len(values) == 1 else torch.cat(values, 1), diagonal(slopes)

    def lipschitz(self, norm: float) -> float:
        return 1.0


def swish(x: Tensor, beta: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """scale x sigmoid(b x) and its derivative, b = softplus(beta)."""
    b = F.softplus(beta)
    s = torch.sigmoid(b * x)
    scaled = s * scale
    value = x * scaled
    return value, torch.addcmul(scaled, b * value, 1 - s)


class LipSwish(Activation):
    """x sigmoid(b x) / 1.1 with b = softplus(beta); constant 1.09984 / 1.1 (Chen et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(F.softplus(self.beta) * x) / 1.1

    def factors(self) -> tuple[Tensor | float, Tensor | float]:
        b = F.softplus(self.beta).clamp(min=1e-12)  # its inverse has to be a number
        return b, 1 / (1.1 * b)

    def core(self, x: Tensor) -> Branches:
        return (F.silu(x),)

    def core_into(self, x: Tensor, out: Tensor) -> None:
        torch.mul(x, torch.sigmoid(x), out=out)  # twice as fast as silu where `out` is part of a wider map

    def curves(self, x: Tensor, *own: Tensor) -> tuple[Branches, Branches]:
        value, slope = swish(x, own[0] if own else self.beta, 1 / 1.1)
        return (value,), (slope,)

    def lipschitz(self, norm: float) -> float:
        return SWISH_SLOPE / 1.1


class LeakyLipSwish(Activation):
    """a x + (1 - a) LipSwish(x) with a = sigmoid(alpha): the paper's LeakyLSwish."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(0.5))
        self.alpha = nn.Parameter(torch.tensor(-3.0))

    def forward(self, x: Tensor) -> Tensor:
        a = torch.sigmoid(self.alpha)
        return a * x + (1 - a) * x * torch.sigmoid(F.softplus(self.beta) * x) / 1.1

    def curves(self, x: Tensor, *own: Tensor) -> tuple[Branches, Branches]:
        beta, alpha = own or (self.beta, self.alpha)
        value, slope = swish(x, beta)
        a = torch.sigmoid(alpha)
        return (a * x + (1 - a) * value / 1.1,), (a + (1 - a) * slope / 1.1,)

    def lipschitz(self, norm: float) -> float:
        return 1.0  # for every alpha


class CLipSwish(Activation):
    """[LipSwish(x) ; LipSwish(-x)] / c along channels, c = 1.004 for the Euclidean norm (the paper, section 3.4)."""

    expansion = 2
    divisors = {1.0: 1.0907, 2.0: 1.004, math.inf: 1.0}  # noqa: RUF012

    def __init__(self, norm: float = 2.0) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(0.5))
        self.scale = 1 / (1.1 * self.divisors[float(norm)])

    def forward(self, x: Tensor) -> Tensor:
        value = x * torch.sigmoid(F.softplus(self.beta) * x) * self.scale
        return torch.cat([value, torch.sub(value, x, alpha=self.scale)], 1)  # swish(-x) = swish(x) - x

    def factors(self) -> tuple[Tensor | float, Tensor | float]:
        b = F.softplus(self.beta).clamp(min=1e-12)
        return b, self.scale / b

    def core(self, x: Tensor) -> Branches:
        value = F.silu(x)
        return value, value - x

    def core_into(self, x: Tensor, out: Tensor) -> None:
        value, other = out.chunk(2, 1)
        torch.mul(x, torch.sigmoid(x), out=value)
        torch.sub(value, x, out=other)

    def curves(self, x: Tensor, *own: Tensor) -> tuple[Branches, Branches]:
        value, slope = swish(x, own[0] if own else self.beta, self.scale)
        return (value, torch.sub(value, x, alpha=self.scale)), (slope, slope - self.scale)

    def lipschitz(self, norm: float) -> float:
        other = 1 - SWISH_SLOPE
        pair = {1.0: SWISH_SLOPE - other, 2.0: math.hypot(SWISH_SLOPE, other), math.inf: SWISH_SLOPE}
        return pair[float(norm)] * self.scale


class CReLU(Activation):
    """[relu(x) ; relu(-x)] along channels."""

    expansion = 2

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.relu(x), torch.relu(-x)], 1)

    def curves(self, x: Tensor, *own: Tensor) -> tuple[Branches, Branches]:
        return (torch.relu(x), torch.relu(-x)), ((x > 0).to(x.dtype), -(x < 0).to(x.dtype))


class ReLU(Activation):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    def curves(self, x: Tensor, *own: Tensor) -> tuple[Branches, Branches]:
        return (torch.relu(x),), ((x > 0).to(x.dtype),)


class ELU(Activation):
    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x)

    def curves(self, x: Tensor, *own: Tensor) -> tuple[Branches, Branches]:
        return (F.elu(x),), (torch.exp(x.clamp(max=0)),)


class Tanh(Activation):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def curves(self, x: Tensor, *own: Tensor) -> tuple[Branches, Branches]:
        y = torch.tanh(x)
        return (y,), (1 - y * y,)


class Sigmoid(Activation):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def curves(self, x: Tensor, *own: Tensor) -> tuple[Branches, Branches]:
        y = torch.sigmoid(x)
        return (y,), (y * (1 - y),)

    def lipschitz(self, norm: float) -> float:
        return 0.25


class Identity(Activation):
    def forward(self, x: Tensor) -> Tensor:
        return x

    def curves(self, x: Tensor, *own: Tensor) -> tuple[Branches, Branches]:
        return (x,), (torch.ones_like(x),)


ACTIVATIONS: dict[str, Callable[[float], Activation]] = {
    "lipswish": lambda norm: LipSwish(),
    "leakylipswish": lambda norm: LeakyLipSwish(),
    "clipswish": CLipSwish,
    "crelu": lambda norm: CReLU(),
    "relu": lambda norm: ReLU(),
    "elu": lambda norm: ELU(),
    "tanh": lambda norm: Tanh(),
    "sigmoid": lambda norm: Sigmoid(),
    "identity": lambda norm: Identity(),
}


def activation(name: str, norm: float = 2.0) -> Activation:
    """An activation by name.

    >>> activation("clipswish")(torch.zeros(1, 3)).shape
    torch.Size([1, 6])
    """
    if name not in ACTIVATIONS:
        raise UnknownNameError(f"There is no activation {name!r}; {nearest(name, sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name](norm)
