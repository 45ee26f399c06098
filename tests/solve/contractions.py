"""Functions to invert, and slow sure answers."""

import torch
from torch import Tensor

from idensenet.lipschitz import Branch, LinearMap, LipschitzMap, Network, Pieces, dense_block, residual_net

SHAPES = {"dense": [3], "residual": [5], "dense-conv": [2, 3, 3], "residual-conv": [2, 3, 3]}


def network(name: str, dtype: torch.dtype = torch.float64, blocks: int = 1) -> Network:
    """A stack at full Lipschitz strength."""
    shape = SHAPES[name]
    if name.startswith("dense"):
        g: Network = dense_block(shape, depth=2, growth=6, pieces=Pieces(), blocks=blocks)
    else:
        g = residual_net(shape, [8, 8], [3, 1, 3] if len(shape) == 3 else [1, 1, 1], Pieces("lipswish"), blocks=blocks)
    with torch.no_grad():
        for m in g.modules():
            if isinstance(m, LipschitzMap):
                for weight in m.weight:
                    torch.nn.init.orthogonal_(weight, gain=3)
                m.weight.add_(torch.randn_like(m.weight))  # one largest singular value, or its norm has no derivative
                m.bias.add_(0.7)
    return g.to(dtype)


def branch(name: str, dtype: torch.dtype = torch.float64) -> Branch:
    """One block of such a stack, prepared as solvers take it."""
    with torch.no_grad():
        return network(name, dtype).prepare()[0]


def points(name: str, batch: int = 6, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, *SHAPES[name], dtype=dtype)


class Diagonal(LinearMap):
    """A slope for each number."""

    def __init__(self, slope: Tensor) -> None:
        self.slope = slope

    def matvec(self, v: Tensor) -> Tensor:
        return self.slope * v

    rmatvec = matvec

    def take(self, index: Tensor) -> LinearMap:
        return Diagonal(self.slope[index])


class ScaledMatrix(LinearMap):
    """A diag(slope), with one slope for each number of each sample."""

    def __init__(self, A: Tensor, slope: Tensor) -> None:
        self.A, self.slope = A, slope

    def matvec(self, v: Tensor) -> Tensor:
        return (self.slope * v) @ self.A.T

    def rmatvec(self, u: Tensor) -> Tensor:
        return self.slope * (u @ self.A)

    def take(self, index: Tensor) -> LinearMap:
        return ScaledMatrix(self.A, self.slope[index])


class TanhNet:
    """g(x) = A tanh(x), which is flat far from zero; with a Jacobian."""

    def __init__(self, A: Tensor) -> None:
        self.A, self.sizes = A, []

    def __call__(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return torch.tanh(x) @ self.A.T

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        y = torch.tanh(x)
        return y @ self.A.T, ScaledMatrix(self.A, 1 - y * y)


class Zigzag:
    """Slopes of +0.95 and -0.95 in turn, on a scale much finer than the way to go: no model of it lasts a step."""

    def __init__(self, period: float = 0.13) -> None:
        self.period = period

    def __call__(self, x: Tensor) -> Tensor:
        phase = torch.remainder(x / self.period, 1)
        return 0.95 * self.period * (0.5 - (phase - 0.5).abs())

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        slope = torch.where(torch.remainder(x / self.period, 1) < 0.5, 0.95, -0.95).to(x.dtype)
        return self(x), Diagonal(slope)


class Square:
    """x + x^2 = y has no solution below -1/4."""

    def __call__(self, x: Tensor) -> Tensor:
        return x * x

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        return x * x, Diagonal(2 * x)


def contraction(dims: int, norm: float) -> Tensor:
    """A symmetric matrix with this norm and eigenvalues of both signs."""
    q = torch.linalg.qr(torch.randn(dims, dims, dtype=torch.float64)).Q
    return q @ torch.diag(torch.linspace(-norm, norm, dims, dtype=torch.float64)) @ q.T


@torch.no_grad()
def root(g, y: Tensor) -> Tensor:
    """By so many fixed-point steps in float64 that only rounding is left."""
    g = g.replaced([t.double() for t in g.tensors()]) if isinstance(g, Branch) else g
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
