"""Norms of linear maps, for many maps of one shape at a time.

A spectral norm comes with its singular vectors: sigma = u' W v. Matrices are done exactly, through the eigenvalues of the
smaller Gram matrix; convolutions by warm-started power iteration on the zero-padded operator on its real input size.
Induced 1- and infinity-norms are sums of absolute values, so they are exact for both.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from idensenet.errors import OptionError

NORMS = (1.0, 2.0, math.inf)


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


def grouped(x: Tensor, weight: Tensor, transposed: bool = False) -> Tensor:
    """Layer l's convolution on layer l's vector: x is [layers, channels, h, w], weight [layers, out, in, k, k]."""
    layers, pad = len(weight), weight.shape[-1] // 2
    apply = F.conv_transpose2d if transposed else F.conv2d
    y = apply(x.flatten(0, 1)[None], weight.flatten(0, 1), padding=pad, groups=layers)
    return y.view(layers, -1, *x.shape[2:])


def convolution_norms(weight: Tensor, v: Tensor, tolerance: float, limit: int = 2000) -> tuple[Tensor, Tensor, Tensor]:
    """Spectral norms of zero-padded convolutions, by power iteration from v, to a relative tolerance on sigma.

    |W v| and |W' u| grow towards sigma half a step at a time. The gap that is left is estimated from the last two
    increments as a geometric series, so a slowly converging iteration is not mistaken for a converged one.
    """
    v = _unit(v)
    before = last = None
    for _ in range(limit):
        u = grouped(v, weight)
        first = _each(u)
        u = _unit(u)
        v = grouped(u, weight, transposed=True)
        second = _each(v)
        v = _unit(v)
        rise = second - first
        if before is None or last is None:
            left = 10 * rise
        else:
            ratio = (rise / (first - last).clamp(min=torch.finfo(weight.dtype).tiny)).clamp(0, 0.999)
            left = rise * ratio / (1 - ratio)
        last, before = second, first
        floor = 4 * torch.finfo(weight.dtype).eps
        if bool((left <= max(tolerance, floor) * second).all()):
            break
    return second, u, v


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
