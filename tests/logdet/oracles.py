"""Small networks, and traces of f(J) and of its series, differentiable, from autograd's Jacobian of the plain layers."""

from functools import partial

import torch
from torch import Tensor

from brute import plain_network
from idensenet.bijections import ActNorm, Call, ResidualBlock
from idensenet.draws import Draws
from idensenet.lipschitz import LinearMap, LipschitzMap, Network, Pieces, dense_block, refresh_norms, residual_net
from idensenet.logdet import LOG_ONE_PLUS, Estimate, LogDet, PowerSeries
from idensenet.logdet.gradient import neumann
from idensenet.logdet.series import weighted_series

MONOTONE = PowerSeries(((1.0, -1.0), (-1.0, 1.0)))  # log(1 - t) - log(1 + t)
SERIES = {"log(1 + t)": LOG_ONE_PLUS, "log(1 - t) - log(1 + t)": MONOTONE}


def network(name: str, blocks: int = 1) -> Network:
    """`dense-<D>`, `residual-<D>`, `dense-conv` or `residual-conv`, float64, at full Lipschitz strength."""
    kind, size = name.split("-")
    shape = [2, 3, 3] if size == "conv" else [int(size)]
    if kind == "dense":
        g: Network = dense_block(shape, depth=2, growth=6, pieces=Pieces(), blocks=blocks)
    else:
        g = residual_net(shape, [8, 8], [3, 1, 3] if size == "conv" else [1, 1, 1], Pieces("lipswish"), blocks=blocks)
    g = g.double()
    maps = [m for m in g.modules() if isinstance(m, LipschitzMap)]
    with torch.no_grad():
        for m in maps:
            for weight in m.weight:
                torch.nn.init.orthogonal_(weight, gain=3)
            m.bias.add_(0.7)  # where the slope of the activations is large
        refresh_norms(g)
        last = maps[-1].weight
        for k in range(blocks):
            if last.ndim == 3:  # the transpose of what comes before, so that eigenvalues do not cancel; with both signs
                x = torch.ones(1, *shape, dtype=torch.float64)
                before = _open_jacobian(g, x, k)
                last[k] = 3 * before.T * torch.tensor([1.0, -1.0]).repeat(shape[0])[: shape[0], None]
            else:
                last[k, :, :2, last.shape[3] // 2, last.shape[4] // 2] += 3 * torch.eye(2)
    return g


def _open_jacobian(g: Network, x: Tensor, block: int) -> Tensor:
    """The Jacobian of all layers but the last, at one sample."""

    class Open:
        layers = list(g.layers)[:-1]

    return torch.autograd.functional.jacobian(lambda a: plain_network(Open, a[None], block, refresh=False)[0], x[0])


def series_log_det(g, x: Tensor, probe: Tensor, weights: Tensor, f: PowerSeries = LOG_ONE_PLUS, save: bool = False):
    """g(x) and tr f(J) for given probes [probes, *x.shape] and weights of the terms."""
    gx, values = neumann(g, x, probe, partial(weighted_series, weights, f), save)
    return gx, values.mean(0)


def inputs(name: str, batch: int = 3) -> Tensor:
    size = name.split("-")[1]
    return torch.randn(batch, *([2, 3, 3] if size == "conv" else [int(size)]), dtype=torch.float64, requires_grad=True)


def value_of(g, x: Tensor, block: int = 0) -> Tensor:
    """g(x) from the plain layers, or from a function."""
    return plain_network(g, x, block) if isinstance(g, Network) else g(x)


def run(method: LogDet, g, x: Tensor, draws: Draws, f: PowerSeries = LOG_ONE_PLUS, save: bool = False, block: int = 0):
    """g(x) and the estimate for one block of a network, or for whatever is linearizable."""
    branch = g.prepare()[block] if isinstance(g, Network) else g
    gx, found = method.measure(branch, x, draws, f, save)
    return gx, method.total(found[None], f)


def run_stack(
    method: LogDet, g: Network, x: Tensor, draws: Draws, f=LOG_ONE_PLUS, save=False, norm: ActNorm | None = None, prepared=None
) -> tuple[Tensor, Estimate]:
    """All blocks of a stack: what came out, and the estimate of the sum."""
    block = ResidualBlock(g, method, norm=norm, save=save)
    block.series = f
    return block.estimate(x, Call(draws, prepared or g.prepare()))


def actnorm(g: Network, channels: int) -> ActNorm:
    """Initialised, with other scales and shifts for every block."""
    norm = ActNorm(channels, g.blocks).double()
    with torch.no_grad():
        norm.log_scale.normal_(std=0.3)
        norm.shift.normal_()
        norm.initialized.fill_(True)
    return norm


def exact_stack(g: Network, x: Tensor, f: PowerSeries = LOG_ONE_PLUS, norm: ActNorm | None = None) -> tuple[Tensor, Tensor]:
    """The same from the plain layers: x <- x + g_k(x), and the sum of tr f(J) with the log-determinants of the scales."""
    refresh_norms(g)
    total, y = torch.zeros(len(x), dtype=x.dtype), x
    for k in range(g.blocks):
        gy = plain_network(g, y, k, refresh=False).flatten(1)
        rows = [torch.autograd.grad(gy[:, i].sum(), y, create_graph=True)[0].flatten(1) for i in range(gy.shape[1])]
        total = total + trace_of(torch.stack(rows, 1), f)
        y = y + gy.view_as(y)
        if norm is not None:
            shape = (-1, *[1] * (x.ndim - 2))
            y = torch.exp(norm.log_scale[k]).view(shape) * (y + norm.shift[k].view(shape))
            total = total + norm.log_scale[k].sum() * (x[0].numel() // norm.channels)
    return y, total


def trace_of(J: Tensor, f: PowerSeries) -> Tensor:
    """tr f(J) = sum_j a_j log det(I + s_j J)."""
    unit = torch.eye(J.shape[1], dtype=J.dtype)
    return sum(a * torch.linalg.slogdet(unit + s * J).logabsdet for a, s in f.pairs)


def autograd_jacobians(g, x: Tensor, block: int = 0) -> Tensor:
    """[batch, D, D] from the forward pass alone, with a graph to x and the parameters of g."""
    gx = value_of(g, x, block).flatten(1)
    rows = [torch.autograd.grad(gx[:, i].sum(), x, create_graph=True)[0].flatten(1) for i in range(gx.shape[1])]
    return torch.stack(rows, 1)


def exact(g, x: Tensor, f: PowerSeries = LOG_ONE_PLUS) -> Tensor:
    return trace_of(autograd_jacobians(g, x), f)


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


def monotone_terms(J: Tensor, terms: int) -> Tensor:
    """The terms of log(1 - t) - log(1 + t) = -2 (t + t^3/3 + t^5/5 + ...), [terms, batch]."""
    k = torch.arange(1, terms + 1, dtype=J.dtype)[:, None]
    return torch.where(k % 2 == 1, -2 / k, 0.0) * traces(J, terms)


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


class Matrices(LinearMap):
    """One matrix per sample, [batch, D, D], or one for all, [1, D, D]."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def matvec(self, v: Tensor) -> Tensor:
        return torch.einsum("bij,...bj->...bi", self.matrix.expand(v.shape[-2], -1, -1), v)

    def rmatvec(self, u: Tensor) -> Tensor:
        return torch.einsum("bij,...bi->...bj", self.matrix.expand(u.shape[-2], -1, -1), u)

    def take(self, index: Tensor) -> LinearMap:
        return self if len(self.matrix) == 1 else Matrices(self.matrix[index])


class MatrixNet:
    """g(x) = A x, for whatever matrix."""

    def __init__(self, A: Tensor) -> None:
        self.A = A

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.A.T

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        return self(x), Matrices(self.A[None])

    def push(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, LinearMap]:
        value, J = self.linearize(x)
        return value, J.matvec(v), J

    def tensors(self) -> list[Tensor]:
        return [self.A]

    def replaced(self, tensors):
        return type(self)(tensors[0])


class TanhNet(MatrixNet):
    """g(x) = A tanh(x): the spectrum shrinks with the size of x, sample by sample."""

    def __call__(self, x: Tensor) -> Tensor:
        return torch.tanh(x) @ self.A.T

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        return self(x), Matrices(self.A * (1 - torch.tanh(x).square())[:, None])


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
    """A branch whose Jacobian is watched."""

    def __init__(self, g, sizes=None) -> None:
        self.g = g.prepare()[0] if isinstance(g, Network) else g
        self.sizes: list[int] = [] if sizes is None else sizes

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        gx, J = self.g.linearize(x)
        return gx, Spy(J, self.sizes)

    def push(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, LinearMap]:
        gx, product, J = self.g.push(x, v)
        return gx, product, Spy(J, self.sizes)

    def tensors(self) -> list[Tensor]:
        return self.g.tensors()

    def replaced(self, tensors):
        return Spied(self.g.replaced(tensors), self.sizes)


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
