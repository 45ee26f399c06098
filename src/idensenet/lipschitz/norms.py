"""Norms of linear maps, for many maps of one shape at a time.

A spectral norm comes with its singular vectors: sigma = u' W v. Matrices are done exactly, through the eigenvalues of the
smaller Gram matrix; convolutions by warm-started power iteration on the zero-padded operator on its real input size.
Induced 1- and infinity-norms are sums of absolute values, so they are exact for both.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from idensenet.errors import OptionError

NORMS = (1.0, 2.0, math.inf)
WARM_STEPS = 10  # after a small change of the weights


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
    scale = weight.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
    small = weight / scale
    u = torch.linalg.eigh(small @ small.mT).eigenvectors[:, :, -1]
    product = torch.einsum("lrc,lr->lc", small, u)
    sigma = product.norm(dim=1)
    v = product / sigma.clamp(min=torch.finfo(weight.dtype).tiny)[:, None]
    return sigma * scale[:, 0, 0], u, v


def _each(x: Tensor) -> Tensor:
    """The norm of every layer's vector."""
    size: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return size


def _unit(x: Tensor) -> Tensor:
    return x / _each(x).clamp(min=torch.finfo(x.dtype).tiny)[:, None, None, None]


def _unit_pair(pair: Tensor) -> tuple[Tensor, Tensor]:
    """x and A x, laid end to end, scaled so that x is a unit vector."""
    x, ax = pair.chunk(2, 1)
    size = x.norm(dim=1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return x / size, ax / size


@lru_cache(maxsize=64)
def _noise(shape: torch.Size, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A random unit vector, always the same."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    unit: Tensor = (x / x.norm()).to(device, dtype)
    return unit


def grouped(x: Tensor, weight: Tensor, transposed: bool = False) -> Tensor:
    """Layer l's convolution on layer l's vector: x is [layers, channels, h, w], weight [layers, out, in, k, k]."""
    layers, pad = len(weight), weight.shape[-1] // 2
    apply = F.conv_transpose2d if transposed else F.conv2d
    x = F.hardshrink(x, 1e-20)  # subnormal numbers slow a CPU down a hundredfold
    y = apply(x.flatten(0, 1)[None], weight.flatten(0, 1), padding=pad, groups=layers)
    return y.view(layers, -1, *x.shape[2:])


def convolution_norms(
    weight: Tensor, v: Tensor, tolerance: float, known: Tensor | None = None, limit: int = 1000
) -> tuple[Tensor, Tensor, Tensor]:
    """Spectral norms of zero-padded convolutions, to a relative tolerance: sigma, u, v.

    It starts from v where |W v| is not far below the `known` sigma (infinity for not known), and otherwise adds noise: a
    vector of other weights may lie in a subspace that the largest singular vector is not in. Where v fits already, one step of
    power iteration is all; elsewhere `climb` goes on, for a few steps where v is known: in training the next step of the
    optimiser changes the weights again, and the climb continues from where it is.
    """
    small = max(tolerance, 64 * torch.finfo(weight.dtype).eps)
    x = _unit(v)
    wx = grouped(x, weight)
    known = torch.full_like(x[:, 0, 0, 0], math.inf) if known is None else known
    lost = ~(_each(wx) > 0.8 * known)
    if bool(lost.any()):
        x = _unit(torch.where(lost[:, None, None, None], x + _noise(v.shape[1:], v.device, v.dtype), x))
        wx = grouped(x, weight)
    ax = grouped(wx, weight, transposed=True)
    value = (x * ax).flatten(1).sum(1)
    rest = _each(ax - value[:, None, None, None] * x)
    todo = ((rest > 10 * small * value) | lost).nonzero().flatten()
    if len(todo):
        calm_steps, most = (5, limit) if bool(lost.any()) else (2, min(limit, WARM_STEPS))
        x = x.index_copy(0, todo, climb(weight[todo], x[todo], ax[todo], small, calm_steps, most))
        wx = grouped(x, weight)
    u = _unit(wx)
    v = grouped(u, weight, transposed=True)
    return _each(v), u, _unit(v)


def climb(weight: Tensor, x: Tensor, ax: Tensor, small: float, calm_steps: int, limit: int) -> Tensor:
    """Unit vectors that bring x'Ax, A = W'W, close to its maximum.

    Each step takes the best vector in the span of x, its residual under A, and the step before (Knyazev, 2001), so that
    close singular values cost a few more steps and not a thousand, until `calm_steps` steps together raise sigma by less
    than a tenth of `small`.
    """
    tiny, shape = torch.finfo(weight.dtype).tiny, x.shape

    def gram(flat: Tensor) -> Tensor:
        return grouped(grouped(flat.view(shape), weight), weight, transposed=True).flatten(1)

    x, ax = x.flatten(1), ax.flatten(1)
    values = [(x * ax).sum(1, keepdim=True)]
    rest = ax - values[0] * x
    step = astep = torch.zeros_like(x)
    for _ in range(limit):
        rest = rest / _each(rest).clamp(min=tiny)[:, None]
        arest = gram(rest)
        on_x, on_rest = (step * x).sum(1, keepdim=True), (step * rest).sum(1, keepdim=True)
        step, astep = step - on_x * x - on_rest * rest, astep - on_x * ax - on_rest * arest
        length = _each(step)[:, None]
        scale = torch.where(length > 1e-3, 1 / length.clamp(min=tiny), 0)
        basis, image = torch.stack([x, rest, scale * step], 1), torch.stack([ax, arest, scale * astep], 1)
        best = torch.linalg.eigh(basis @ image.mT).eigenvectors[:, :, -1:]
        pairs = best * torch.cat([basis, image], 2)
        x, ax = _unit_pair(pairs.sum(1))
        step, astep = _unit_pair(pairs[:, 1:].sum(1))
        values = [*values[-calm_steps:], (x * ax).sum(1, keepdim=True)]
        rest = ax - values[-1] * x
        calm = (values[-1] - values[0] <= 0.2 * small * values[-1]) & (_each(rest)[:, None] <= small**0.5 * values[-1])
        if len(values) > calm_steps and bool(calm.all()):
            break
    return x.view(shape)


def convolution_norm_gradient(u: Tensor, v: Tensor, kernel: int) -> Tensor:
    """d (u' W v) / d kernel, for one layer: u is [out, h, w], v is [in, h, w]; the result is [out, in, k, k]."""
    return F.conv2d(v[:, None], u[:, None], padding=kernel // 2).transpose(0, 1).contiguous()


def induced_norm(weight: Tensor, norm: float, size: tuple[int, int] | None) -> Tensor:
    """Induced 1- or infinity-norm of a matrix, or of a zero-padded convolution on maps of `size`; differentiable."""
    magnitude = weight.abs()
    if size is None:
        return magnitude.sum(0 if norm == 1 else 1).amax()
    ones = magnitude.new_ones(1, weight.shape[0 if norm == 1 else 1], *size)
    apply = F.conv_transpose2d if norm == 1 else F.conv2d
    return apply(ones, magnitude, padding=weight.shape[-1] // 2).amax()
