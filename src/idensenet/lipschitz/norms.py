"""Norms of linear maps, for many maps of one shape at a time.

A spectral norm comes with its singular vectors: sigma = u' W v. Matrices are done to rounding, through the eigenvalues of the
smaller Gram matrix; convolutions by warm-started power iteration on the zero-padded operator on its real input size.
Induced 1- and infinity-norms are sums of absolute values, so they are exact for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from idensenet.errors import OptionError

NORMS = (1.0, 2.0, math.inf)
WARM_STEPS, COLD_STEPS = 10, 1000  # at most: after a small change of the weights, and from scratch
LARGE = 128  # rows of a matrix from which on its largest singular vector is computed on its own,
COLUMNS = 16  # among so many
FEW = 32  # numbers on one side of a convolution up to which it is taken as a matrix


def checked_norm(norm: float) -> float:
    if float(norm) not in NORMS:
        raise OptionError(f"norm={norm} is not supported; use 1, 2 or infinity, whose induced matrix norms are computable.")
    return float(norm)


def matrix_norms(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Largest singular value of each matrix in [layers, rows, columns], with its vectors: sigma, u, v.

    >>> matrix_norms(torch.diag(torch.tensor([1.0, 3.0])).unsqueeze(0))[0]
    tensor([3.])
    """
    if weight.shape[1] > weight.shape[2]:
        sigma, v, u = matrix_norms(weight.mT)
        return sigma, u, v
    tiny = torch.finfo(weight.dtype).tiny
    scale = torch.linalg.vector_norm(weight, math.inf, (1, 2), keepdim=True).clamp(min=tiny)
    small = weight / scale
    u = top_vectors(small @ small.mT)
    product = (u[:, None] @ small)[:, 0]
    sigma = product.norm(dim=1)
    return sigma * scale[:, 0, 0], u, product / sigma.clamp(min=tiny)[:, None]


def _last(gram: Tensor) -> Tensor:
    vectors: Tensor = torch.linalg.eigh(gram).eigenvectors
    return vectors[:, :, -1]


def top_vectors(gram: Tensor) -> Tensor:
    """The eigenvector of the largest eigenvalue of each matrix in [layers, n, n], to rounding: [layers, n].

    Large matrices first try the space of a few random vectors under powers of the matrix: trained weights have few large
    singular values, and then it takes a third of the time. Where that leaves more of a residual than rounding does, and for
    small matrices, all eigenvectors are computed.
    """
    if gram.shape[-1] < LARGE:
        return _last(gram)
    basis = _noise(torch.Size([gram.shape[-1], COLUMNS]), gram.device, gram.dtype)
    for _ in range(2):
        basis = torch.linalg.qr(gram @ (gram @ (gram @ basis)))[0]
    image = gram @ basis
    values, mix = torch.linalg.eigh(basis.mT @ image)
    u: Tensor = (basis @ mix[:, :, -1:])[:, :, 0]
    moved = (image @ mix[:, :, -1:])[:, :, 0]
    rest = torch.linalg.vector_norm(moved - values[:, -1:] * u, dim=1)
    todo = (~(rest <= 32 * torch.finfo(gram.dtype).eps * values[:, -1])).nonzero().flatten()
    return u.index_copy(0, todo, _last(gram[todo])) if len(todo) else u


def sizes(x: Tensor) -> Tensor:
    """The Euclidean norm of each of the vectors [n, ...]."""
    size: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return size


def _unit(x: Tensor) -> Tensor:
    return x / sizes(x).clamp(min=torch.finfo(x.dtype).tiny)[:, None, None, None]


@lru_cache(maxsize=64)
def _noise(shape: torch.Size, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A random unit vector, always the same."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    unit: Tensor = (x / x.norm()).to(device, dtype)
    return unit


class Convolutions:
    """Layer l's zero-padded convolution on layer l's vectors, [layers, ..., channels, h, w].

    One call after the other, which is faster on a processor than one call with groups.

    Args:
        there: The weights [out, in, k, k] of the layers.
        back: The weights of the transposed convolutions, which are convolutions again; made here by default.
    """

    def __init__(self, there: Iterable[Tensor], back: Iterable[Tensor] | None = None) -> None:
        self.there = list(there)
        self.back = [w.transpose(0, 1).flip(2, 3).contiguous() for w in self.there] if back is None else list(back)

    def __call__(self, x: Tensor, transposed: bool = False) -> Tensor:
        x = F.hardshrink(x, 1e-20)  # subnormal numbers slow a CPU down a hundredfold
        weights = self.back if transposed else self.there
        return torch.stack([F.conv2d(v, w, padding=w.shape[-1] // 2) for v, w in zip(x, weights, strict=True)])

    def transposed(self) -> Convolutions:
        """The transposed operators."""
        return Convolutions(self.back, self.there)

    def take(self, index: Tensor) -> Convolutions:
        """Some of the layers."""
        chosen = index.tolist()
        return Convolutions([self.there[i] for i in chosen], [self.back[i] for i in chosen])


def convolution_norms(
    weights: Iterable[Tensor],
    v: Tensor,
    tolerance: float,
    known: Tensor | None = None,
    u: Tensor | None = None,
    back: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Spectral norms of zero-padded convolutions, to a relative tolerance: sigma, u, v.

    Where both vectors are given and still fit, half a step of power iteration is all: sigma = |W v| and u from it, or, with
    `back`, sigma = |W' u| and v from it. Whoever calls it again and again takes the two in turns. Elsewhere it works on the
    side with fewer channels, where vectors are shorter. It starts from the last vector x where |W x| is not far below the
    `known` sigma (infinity for not known), and otherwise adds noise: a vector of other weights may lie in a subspace that the
    largest singular vector is not in. Where x fits already, one step of power iteration is all; elsewhere `climb` goes on, for
    a few steps where x is known: in training the next step of the optimiser changes the weights again, and the climb continues
    from where it is.
    """
    small = max(tolerance, 64 * torch.finfo(v.dtype).eps)
    W = Convolutions(weights)
    known = torch.full_like(v[:, 0, 0, 0], math.inf) if known is None else known
    if u is None:
        return _largest(W, v, small, known)
    sigma, u_new, v_new, fits = _half_step(W, u, v, small, known, back)
    todo = (~fits).nonzero().flatten()
    if len(todo) == 0:
        return sigma, u_new, v_new
    found = _shorter_side(W.take(todo), u[todo], v[todo], small, known[todo])
    pairs = zip((sigma, u_new, v_new), found, strict=True)
    sigma, u_new, v_new = (old.index_copy(0, todo, new) for old, new in pairs)
    return sigma, u_new, v_new


def _half_step(
    W: Convolutions, u: Tensor, v: Tensor, small: float, known: Tensor, back: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One of the equations W v = sigma u and W' u = sigma v: the new sigma, u and v, and which layers it holds for as it is."""
    x, old = (u, v) if back else (v, u)
    y = W(x, transposed=back)
    size = sizes(y)
    y = y / size.clamp(min=torch.finfo(y.dtype).tiny)[:, None, None, None]
    fits = (sizes(y - old) <= 10 * small) & (size > 0.8 * known)
    return (size, u, y, fits) if back else (size, y, v, fits)


def _shorter_side(W: Convolutions, u: Tensor, v: Tensor, small: float, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if u.shape[1] < v.shape[1]:
        sigma, v, u = _shorter_side(W.transposed(), v, u, small, known)
        return sigma, u, v
    return _as_matrices(W, v) if v[0].numel() <= FEW else _largest(W, v, small, known)


def _as_matrices(W: Convolutions, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """sigma, u and v from what becomes of every unit vector: a space of so few numbers has no room to climb in."""
    units = torch.eye(v[0].numel(), dtype=v.dtype, device=v.device).view(-1, *v.shape[1:])
    images = W(units.expand(len(v), *units.shape))  # [layers, units, ...]
    sigma, right, left = matrix_norms(images.flatten(2))
    return sigma, left.view(len(v), *images.shape[2:]), right.view_as(v)


def _largest(W: Convolutions, x: Tensor, small: float, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """sigma, W x / sigma and x for the largest singular value."""
    x = _unit(x)
    wx = W(x)
    lost = ~(sizes(wx) > 0.8 * known)
    if bool(lost.any()):
        x = _unit(torch.where(lost[:, None, None, None], x + _noise(x.shape[1:], x.device, x.dtype), x))
        wx = W(x)
    ax = W(wx, transposed=True)
    value = (x * ax).flatten(1).sum(1)
    rest = sizes(torch.addcmul(ax, value[:, None, None, None], x, value=-1))
    todo = ((rest > 10 * small * value) | lost).nonzero().flatten()
    if len(todo):
        calm_steps, most = (8, COLD_STEPS) if bool(lost.any()) else (2, WARM_STEPS)
        part = W.take(todo)
        best = climb(part, x[todo], ax[todo], small, calm_steps, most)
        moved = part(best)
        wx, ax = wx.index_copy(0, todo, moved), ax.index_copy(0, todo, part(moved, transposed=True))
    size = sizes(wx).clamp(min=torch.finfo(x.dtype).tiny)
    return sizes(ax) / size, wx / size[:, None, None, None], _unit(ax)


def climb(W: Convolutions, x: Tensor, ax: Tensor, small: float, calm_steps: int, limit: int) -> Tensor:
    """Unit vectors that bring x'Ax, A = W'W, close to its maximum.

    Each step takes the best vector in the span of x, its residual under A, and the step before (Knyazev, 2001), so that
    close singular values cost a few more steps and not a thousand, until `calm_steps` steps together raise sigma by less
    than a twentieth of `small`. A layer that is there is left alone: further steps would be made of rounding errors.
    """
    shape, result = x.shape[1:], x.clone()
    index = torch.arange(len(x), device=x.device)  # the layers still climbing
    basis = torch.zeros(len(x), 3, x[0].numel(), dtype=x.dtype, device=x.device)  # x, the step before, the residual
    image = torch.zeros_like(basis)  # of each of them under A
    basis[:, 0], image[:, 0] = x.flatten(1), ax.flatten(1)
    values = (basis[:, 0] * image[:, 0]).sum(1, keepdim=True)  # the last ones, a column for each
    basis[:, 2] = image[:, 0] - values * basis[:, 0]
    for _ in range(limit):
        image[:, 2] = W(W(basis[:, 2].view(-1, *shape)), transposed=True).flatten(1)
        mix = _best_in_span((basis @ basis.mT).double(), (basis @ image.mT).double()).to(x.dtype)
        basis[:, :2], image[:, :2] = mix @ basis, mix @ image
        values = torch.cat([values[:, -calm_steps:], (basis[:, 0] * image[:, 0]).sum(1, keepdim=True)], 1)
        now = values[:, -1]
        torch.addcmul(image[:, 0], basis[:, 0], -now[:, None], out=basis[:, 2])
        if values.shape[1] <= calm_steps:
            continue
        calm = (now - values[:, 0] <= 0.1 * small * now) & (sizes(basis[:, 2]) <= small**0.5 * now)
        keep = (~calm).nonzero().flatten()
        if len(keep) < len(index):
            result[index] = basis[:, 0].view(-1, *shape)
            index, W, values, basis, image = index[keep], W.take(keep), values[keep], basis[keep], image[keep]
        if len(keep) == 0:
            return result
    result[index] = basis[:, 0].view(-1, *shape)
    return result


def _best_in_span(gram: Tensor, form: Tensor) -> Tensor:
    """Of three vectors with the given inner products, the mixtures that are the unit vector with the largest form, and the
    unit vector of the way to it from the first one: [layers, 2, 3]. Directions that are nothing but rounding are left out."""
    squares = gram.diagonal(dim1=1, dim2=2)
    size = torch.where(squares > 1e-60, squares.clamp(min=1e-60).rsqrt(), 0.0)
    scale = size[:, :, None] * size[:, None, :]
    values, vectors = torch.linalg.eigh(gram * scale)
    frame = vectors * torch.where(values > 1e-6, values.clamp(min=1e-6).rsqrt(), 0.0)[:, None]
    best = (frame @ torch.linalg.eigh(frame.mT @ (form * scale) @ frame).eigenvectors[:, :, -1:])[:, :, 0] * size
    way = torch.cat([torch.zeros_like(best[:, :1]), best[:, 1:]], 1)
    length = (way[:, None] @ gram @ way[:, :, None])[:, 0].clamp(min=1e-60).sqrt()
    return torch.stack([best, way / length], 1)


def convolution_norm_gradient(u: Tensor, v: Tensor, kernel: int) -> Tensor:
    """d (u' W v) / d kernel, for one layer: u is [out, h, w], v is [in, h, w]; the result is [out, in, k, k]."""
    shape, pad = (len(u), len(v), kernel, kernel), kernel // 2
    rows = [x[None].contiguous(memory_format=torch.channels_last) for x in (u, v)]
    return conv2d_weight(rows[1], shape, rows[0], padding=pad).contiguous()  # type: ignore[no-any-return, no-untyped-call]


def induced_norms(weight: Tensor, norm: float, size: tuple[int, int] | None) -> Tensor:
    """Induced 1- or infinity-norms of K matrices, or of K zero-padded convolutions on maps of `size`; differentiable."""
    magnitude = weight.abs()
    if size is None:
        return magnitude.flatten(2).sum(1 if norm == 1 else 2).amax(1)
    apply = F.conv_transpose2d if norm == 1 else F.conv2d
    ones = magnitude.new_ones(1, weight.shape[1 if norm == 1 else 2], *size)
    return torch.stack([apply(ones, each, padding=weight.shape[-1] // 2).amax() for each in magnitude])
