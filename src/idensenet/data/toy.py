"""Eight densities in the plane, drawn without end from a generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from idensenet.errors import UnknownNameError, nearest

Draw = Callable[[int, torch.Generator | None], Tensor]


def _uniform(n: int, generator: torch.Generator | None) -> Tensor:
    return torch.rand(n, generator=generator, dtype=torch.float64)


def _noise(n: int, scale: float, generator: torch.Generator | None) -> Tensor:
    return scale * torch.randn(n, 2, generator=generator, dtype=torch.float64)


def _choice(n: int, kinds: int, generator: torch.Generator | None) -> Tensor:
    return torch.randint(0, kinds, (n,), generator=generator)


def _on_circles(n: int, radii: list[float], noise: float, generator: torch.Generator | None) -> Tensor:
    radius = torch.tensor(radii, dtype=torch.float64)[_choice(n, len(radii), generator)]
    angle = 2 * math.pi * _uniform(n, generator)
    points = radius[:, None] * torch.stack([torch.cos(angle), torch.sin(angle)], 1)
    return points + _noise(n, noise, generator)


def circles(n: int, generator: torch.Generator | None) -> Tensor:
    return _on_circles(n, [3.0, 1.5], 0.24, generator)


def rings(n: int, generator: torch.Generator | None) -> Tensor:
    return _on_circles(n, [3.0, 2.25, 1.5, 0.75], 0.08, generator)


def moons(n: int, generator: torch.Generator | None) -> Tensor:
    t = math.pi * _uniform(n, generator)
    upper = torch.stack([torch.cos(t), torch.sin(t)], 1)
    lower = torch.stack([1 - torch.cos(t), 0.5 - torch.sin(t)], 1)
    points = torch.where(_choice(n, 2, generator)[:, None] == 0, upper, lower) + _noise(n, 0.1, generator)
    return 2 * points + torch.tensor([-1.0, -0.2], dtype=torch.float64)


def checkerboard(n: int, generator: torch.Generator | None) -> Tensor:
    x = 4 * _uniform(n, generator) - 2
    y = _uniform(n, generator) - 2.0 * _choice(n, 2, generator) + torch.floor(x) % 2
    return 2 * torch.stack([x, y], 1)


def gaussians(n: int, generator: torch.Generator | None) -> Tensor:
    angle = _choice(n, 8, generator) * (math.pi / 4)
    centres = 4 * torch.stack([torch.cos(angle), torch.sin(angle)], 1)
    return (centres + _noise(n, 0.5, generator)) / 1.414


def swissroll(n: int, generator: torch.Generator | None) -> Tensor:
    t = 1.5 * math.pi * (1 + 2 * _uniform(n, generator))
    return (torch.stack([t * torch.cos(t), t * torch.sin(t)], 1) + _noise(n, 1.0, generator)) / 5


def spirals(n: int, generator: torch.Generator | None) -> Tensor:
    t = 3 * math.pi * torch.sqrt(_uniform(n, generator))
    x = -t * torch.cos(t) + _uniform(n, generator) / 2
    y = t * torch.sin(t) + _uniform(n, generator) / 2
    sign = 2.0 * _choice(n, 2, generator) - 1
    return sign[:, None] * torch.stack([x, y], 1) / 3 + _noise(n, 0.1, generator)


def pinwheel(n: int, generator: torch.Generator | None) -> Tensor:
    features = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    features = features * torch.tensor([0.3, 0.1], dtype=torch.float64) + torch.tensor([1.0, 0.0], dtype=torch.float64)
    angle = 2 * math.pi / 5 * _choice(n, 5, generator) + torch.exp(features[:, 0]) / 4
    cos, sin = torch.cos(angle), torch.sin(angle)
    x, y = features.unbind(1)
    return 2 * torch.stack([cos * x + sin * y, cos * y - sin * x], 1)


@dataclass(frozen=True)
class ToySet:
    """A density in the plane. `entropy` is its differential entropy in nats, by quadrature: no model scores lower."""

    name: str
    draw: Draw
    entropy: float

    def sample(self, n: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.draw(n, generator).to(dtype)


TOY_SETS = {
    name: ToySet(name, draw, entropy)
    for name, draw, entropy in (
        ("circles", circles, 3.2681),
        ("moons", moons, 2.3939),
        ("checkerboard", checkerboard, math.log(32)),
        ("8gaussians", gaussians, 2.8319),
        ("rings", rings, 2.6232),
        ("swissroll", swissroll, 2.6696),
        ("2spirals", spirals, 2.6455),
        ("pinwheel", pinwheel, 2.3178),
    )
}


def toy_set(name: str) -> ToySet:
    """A toy set by name.

    >>> toy_set("moons").sample(3).shape
    torch.Size([3, 2])
    """
    if name not in TOY_SETS:
        raise UnknownNameError(f"There is no toy set {name!r}; {nearest(name, sorted(TOY_SETS))}")
    return TOY_SETS[name]
