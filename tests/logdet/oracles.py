"""Small networks, and the log-determinants of x + g(x) and of its series, differentiable, from autograd's Jacobian."""

import torch
from torch import Tensor

from brute import jacobians
from idensenet.draws import Draws
from idensenet.lipschitz import LipschitzMap, Network, Pieces, dense_block, refresh_norms, residual_net
from idensenet.lipschitz.linearmap import Composition, DiagonalMap, LinearMap, MatrixMap


def network(name: str) -> Network:
    """`dense-<D>`, `residual-<D>`, `dense-conv` or `residual-conv`, float64, at full Lipschitz strength."""
    kind, size = name.split("-")
    shape = [2, 3, 3] if size == "conv" else [int(size)]
    if kind == "dense":
        g: Network = dense_block(shape, depth=2, growth=6, pieces=Pieces())
    else:
        g = residual_net(shape, [8, 8], [3, 1, 3] if size == "conv" else [1, 1, 1], Pieces("lipswish"))
    g = g.double()
    maps = [m for m in g.modules() if isinstance(m, LipschitzMap)]
    with torch.no_grad():
        for m in maps:
            torch.nn.init.orthogonal_(m.weight, gain=3)
            m.bias.add_(0.7)  # where the slope of the activations is large
        last = maps[-1].weight
        if last.ndim == 2:  # the transpose of what comes before, so that eigenvalues do not cancel; with both signs
            x = torch.ones(1, *shape, dtype=torch.float64)
            before = jacobians(Network(g.layers[:-1]), x)[0]
            last.copy_(3 * before.T * torch.tensor([1.0, -1.0]).repeat(shape[0])[: shape[0], None])
        else:
            last[:, :2, last.shape[2] // 2, last.shape[3] // 2] += 3 * torch.eye(2)
    return g


def inputs(name: str, batch: int = 3) -> Tensor:
    size = name.split("-")[1]
    return torch.randn(batch, *([2, 3, 3] if size == "conv" else [int(size)]), dtype=torch.float64, requires_grad=True)


def autograd_jacobians(g, x: Tensor) -> Tensor:
    """[batch, D, D] from the forward pass alone, with a graph to x and the parameters of g."""
    gx = g(x).flatten(1)
    rows = [torch.autograd.grad(gx[:, i].sum(), x, create_graph=True)[0].flatten(1) for i in range(gx.shape[1])]
    return torch.stack(rows, 1)


def exact(g, x: Tensor) -> Tensor:
    J = autograd_jacobians(g, x)
    return torch.linalg.slogdet(torch.eye(J.shape[1], dtype=J.dtype) + J).logabsdet


def traces(J: Tensor, terms: int) -> Tensor:
    """tr(J^k) for k = 1..terms, [terms, batch]."""
    power, found = torch.eye(J.shape[1], dtype=J.dtype), []
    for _ in range(terms):
        power = power @ J
        found.append(power.diagonal(dim1=-2, dim2=-1).sum(-1))
    return torch.stack(found)


def series_terms(J: Tensor, terms: int) -> Tensor:
    """(-1)^(k+1)/k tr(J^k), [terms, batch]."""
    k = torch.arange(1, terms + 1, dtype=J.dtype)[:, None]
    return -((-1.0) ** k) / k * traces(J, terms)


def basis(x: Tensor) -> Tensor:
    """Probes [D, *x.shape] over which the mean of v' A v is the trace of A."""
    dims = x[0].numel()
    units = torch.eye(dims, dtype=x.dtype).view(dims, 1, *x.shape[1:]) * dims**0.5
    return units.expand(dims, *x.shape)


def gradient(loss: Tensor, g, x: Tensor, **options) -> Tensor:
    """With respect to x and all parameters, as one vector."""
    wrt = [x, *(g.parameters() if isinstance(g, torch.nn.Module) else [])]
    found = torch.autograd.grad(loss, wrt, allow_unused=True, **options)
    return torch.cat([torch.zeros_like(w).flatten() if f is None else f.flatten() for w, f in zip(wrt, found, strict=True)])


def close(a: Tensor, b: Tensor, atol: float) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


class MatrixNet:
    """g(x) = A x, for whatever matrix."""

    def __init__(self, A: Tensor) -> None:
        self.A = A

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.A.T

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        return self(x), MatrixMap(self.A)


class TanhNet:
    """g(x) = A tanh(x): the spectrum shrinks with the size of x, sample by sample."""

    def __init__(self, A: Tensor) -> None:
        self.A = A

    def __call__(self, x: Tensor) -> Tensor:
        return torch.tanh(x) @ self.A.T

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        y = torch.tanh(x)
        return y @ self.A.T, Composition([DiagonalMap(1 - y * y), MatrixMap(self.A)])


class Spy(LinearMap):
    """Counts the products with the transpose, and how many samples each of them has."""

    def __init__(self, inner: LinearMap, sizes: list[int]) -> None:
        self.inner, self.sizes = inner, sizes

    def matvec(self, v: Tensor) -> Tensor:
        return self.inner.matvec(v)

    def rmatvec(self, u: Tensor) -> Tensor:
        self.sizes.append(u.shape[1])
        return self.inner.rmatvec(u)

    def take(self, index: Tensor) -> LinearMap:
        return Spy(self.inner.take(index), self.sizes)


class Spied:
    """A network whose Jacobian is watched."""

    def __init__(self, g) -> None:
        self.g, self.sizes = g, []

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        gx, J = self.g.linearize(x)
        return gx, Spy(J, self.sizes)


def matrix(dims: int, norm: float, symmetric: bool = False) -> Tensor:
    A = torch.randn(dims, dims, dtype=torch.float64)
    A = A + A.T if symmetric else A
    return A * (norm / torch.linalg.matrix_norm(A, 2))


class GivenDraws(Draws):
    """These probes [probes, *x.shape] and these uniforms [probes, batch]."""

    def __init__(self, probe: Tensor, uniform: Tensor | None = None, part: int = 0) -> None:
        self.probe, self.uniforms, self.part = probe, uniform, part

    def fold(self, part: int) -> Draws:
        return GivenDraws(self.probe, self.uniforms, part)

    def uniform(self, like: Tensor, copies: int = 1) -> Tensor:
        raise NotImplementedError

    def normal(self, like: Tensor, copies: int = 1) -> Tensor:
        return self.probe

    def rademacher(self, like: Tensor, copies: int = 1) -> Tensor:
        return self.probe

    def lengths(self, batch: int, device: torch.device) -> Tensor:
        return self.uniforms[self.part]


def uniforms_for(survival, lengths: Tensor) -> Tensor:
    """Uniforms that make the law draw these lengths."""
    return (survival(lengths.double()) + survival(lengths.double() + 1)) / 2


def saved_bytes(run, parameters) -> int:
    """Bytes that autograd keeps for the backward pass, without the parameters."""
    known, kept = {p.data_ptr() for p in parameters}, {}

    def pack(t):
        if t.data_ptr() not in known:
            kept[t.data_ptr()] = t.numel() * t.element_size()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = run()  # alive until everything is counted, so that no address comes twice
    del result
    return sum(kept.values())


def enlarged(g):
    """Weights so large that their norms are in force, and norms that know it."""
    with torch.no_grad():
        for p in g.parameters():
            if p.ndim > 1:
                p.mul_(4)
    refresh_norms(g)
    return g
