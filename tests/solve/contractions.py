"""Functions to invert, and slow sure answers."""

import copy

import torch
from torch import Tensor

from idensenet.lipschitz import LipschitzMap, Network, Pieces, dense_block, residual_net
from idensenet.lipschitz.linearmap import Composition, DiagonalMap, LinearMap, MatrixMap

SHAPES = {"dense": [3], "residual": [5], "dense-conv": [2, 3, 3], "residual-conv": [2, 3, 3]}


def network(name: str, dtype: torch.dtype = torch.float64) -> Network:
    """At full Lipschitz strength."""
    shape = SHAPES[name]
    if name.startswith("dense"):
        g: Network = dense_block(shape, depth=2, growth=6, pieces=Pieces())
    else:
        g = residual_net(shape, [8, 8], [3, 1, 3] if len(shape) == 3 else [1, 1, 1], Pieces("lipswish"))
    with torch.no_grad():
        for m in g.modules():
            if isinstance(m, LipschitzMap):
                torch.nn.init.orthogonal_(m.weight, gain=3)
                m.weight.add_(torch.randn_like(m.weight))  # one largest singular value, or its norm has no derivative
                m.bias.add_(0.7)
    return g.to(dtype)


def points(name: str, batch: int = 6, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, *SHAPES[name], dtype=dtype)


class TanhNet:
    """g(x) = A tanh(x), which is flat far from zero; with a Jacobian."""

    def __init__(self, A: Tensor) -> None:
        self.A, self.sizes = A, []

    def __call__(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return torch.tanh(x) @ self.A.T

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        y = torch.tanh(x)
        return y @ self.A.T, Composition([DiagonalMap(1 - y * y), MatrixMap(self.A)])


class Zigzag:
    """Slopes of +0.95 and -0.95 in turn, on a scale much finer than the way to go: no model of it lasts a step."""

    def __init__(self, period: float = 0.13) -> None:
        self.period = period

    def __call__(self, x: Tensor) -> Tensor:
        phase = torch.remainder(x / self.period, 1)
        return 0.95 * self.period * (0.5 - (phase - 0.5).abs())

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        slope = torch.where(torch.remainder(x / self.period, 1) < 0.5, 0.95, -0.95).to(x.dtype)
        return self(x), DiagonalMap(slope)


class Square:
    """x + x^2 = y has no solution below -1/4."""

    def __call__(self, x: Tensor) -> Tensor:
        return x * x

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        return x * x, DiagonalMap(2 * x)


def contraction(dims: int, norm: float) -> Tensor:
    """A symmetric matrix with this norm and eigenvalues of both signs."""
    q = torch.linalg.qr(torch.randn(dims, dims, dtype=torch.float64)).Q
    return q @ torch.diag(torch.linspace(-norm, norm, dims, dtype=torch.float64)) @ q.T


@torch.no_grad()
def root(g, y: Tensor) -> Tensor:
    """By so many fixed-point steps in float64 that only rounding is left."""
    g = copy.deepcopy(g).double() if isinstance(g, torch.nn.Module) else g
    y = y.double()
    x = y
    for _ in range(2000):
        before, x = x, y - g(x)
        if len(x) == 0 or (x - before).abs().max() <= 1e-15:
            break
    return x


def norms(x: Tensor) -> Tensor:
    return x.flatten(1).norm(dim=1)


def forgetful(solver, seen: list[int]):
    """The solver, with a note of how many samples took the plain step because their last proposal was refused."""
    propose = solver.propose

    def watched(g, x, residual, memory, plain):
        seen.append(int(plain.sum()))
        return propose(g, x, residual, memory, plain)

    solver.propose = watched
    return solver
