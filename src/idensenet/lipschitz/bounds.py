"""Guaranteed upper bounds on the norms of linear maps.

Power iteration approaches a norm from below, so it certifies nothing. Here every number comes from the other side, in
float64: singular values for matrices; for convolutions on small maps the Gram matrix A of the zero-padded operator, with
an eigenvalue solver or, where that is slow, a Cholesky factorisation of t I - A, which exists only if t bounds the
spectrum; on larger maps the circular convolution on a grid of at least n + k - 1, of which the zero-padded one is a part.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idensenet.errors import NonFiniteError
from idensenet.lipschitz.norms import induced_norms

DENSE_LIMIT = 6000  # rows of a Gram matrix that is still factorised
EIGEN_LIMIT = 1200  # rows up to which its eigenvalues are computed
ROUNDING = 1 + 1e-9  # far above the float64 rounding of any method here


def gram_matrix(weight: Tensor, size: tuple[int, int]) -> Tensor:
    """W W' of the zero-padded convolution on maps of `size`, dense: [out h w, out h w], channels running fastest.

    Entry (p, p') sums K_d K_d'' over the kernel offsets d, d' that meet in the same input place p + d = p' + d'.
    """
    outputs, _, k, _ = weight.shape
    h, w = size
    rows, columns = torch.arange(h, device=weight.device), torch.arange(w, device=weight.device)
    gram = weight.new_zeros(h * w, outputs, h * w, outputs)
    taps = [(i, j) for i in range(k) for j in range(k)]
    for i, j in taps:
        for i2, j2 in taps:
            top, left = rows + i - k // 2, columns + j - k // 2  # the input place
            other_row, other_column = top - i2 + k // 2, left - j2 + k // 2
            row_ok = (top >= 0) & (top < h) & (other_row >= 0) & (other_row < h)
            column_ok = (left >= 0) & (left < w) & (other_column >= 0) & (other_column < w)
            here = (rows[row_ok, None] * w + columns[column_ok]).flatten()
            there = (other_row[row_ok, None] * w + other_column[column_ok]).flatten()
            gram[here, :, there, :] += weight[:, :, i, j] @ weight[:, :, i2, j2].T
    return gram.view(h * w * outputs, h * w * outputs)


def _bounded(gram: Tensor, bound: float, block: int) -> bool:
    """Whether bound I - gram is positive definite, by a Cholesky factorisation, block after block.

    Only neighbouring blocks of the Gram matrix may be coupled. Then the factor of a block depends on the one before it alone,
    and it takes a tenth of the time of a dense factorisation.
    """
    factor = gram.new_empty(0, 0)
    for start in range(0, len(gram), block):
        rows = gram[start : start + block]
        part = rows[:, start : start + block].neg()
        part.diagonal().add_(bound)
        if start:
            coupled = torch.linalg.solve_triangular(factor, rows[:, start - block : start].mT, upper=False)
            part.addmm_(coupled.mT, coupled, alpha=-1)
        factor, info = torch.linalg.cholesky_ex(part)
        if int(info) != 0:
            return False
    return True


def _largest_eigenvalue_bound(gram: Tensor, guess: float, block: int) -> float:
    if len(gram) <= EIGEN_LIMIT:
        return max(float(torch.linalg.eigvalsh(gram)[-1]), 0.0)
    trace = float(gram.diagonal().sum())
    for slack in (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0):
        bound = guess * (1 + slack) ** 2
        if bound >= trace:
            break
        if _bounded(gram, bound, block):
            return bound
    return trace


def _circular_bound(weight: Tensor, size: tuple[int, int]) -> float:
    """Largest singular value of the circular convolution on a grid that the zero-padded one fits in.

    At each frequency, K K* is the transform of the kernel's correlation with itself, which is much smaller to compute.
    """
    k = weight.shape[-1]
    grid = (max(size[0] + k - 1, 2 * k - 1), max(size[1] + k - 1, 2 * k - 1))
    correlation = torch.nn.functional.conv2d(weight, weight, padding=k - 1)  # [out, out, 2k - 1, 2k - 1]
    centred = weight.new_zeros(*correlation.shape[:2], *grid)
    centred[:, :, : 2 * k - 1, : 2 * k - 1] = correlation
    gram = torch.fft.rfft2(centred.roll((1 - k, 1 - k), (2, 3))).flatten(2).permute(2, 0, 1)
    return math.sqrt(max(float(torch.linalg.eigvalsh(part)[:, -1].max()) for part in torch.split(gram, 64)))


def convolution_bound(weight: Tensor, size: tuple[int, int], sigma: float) -> float:
    """An upper bound on the spectral norm of the zero-padded convolution; `sigma` is a good guess from below."""
    small = weight if weight.shape[0] <= weight.shape[1] else weight.transpose(0, 1).flip(2, 3)
    if small.shape[0] * size[0] * size[1] <= DENSE_LIMIT:
        block = (small.shape[-1] - 1) * size[1] * small.shape[0]  # kernels at rows k - 1 apart and less meet
        return math.sqrt(_largest_eigenvalue_bound(gram_matrix(small, size), sigma**2, block))
    return _circular_bound(small, size)


@torch.no_grad()
def operator_bounds(weight: Tensor, size: tuple[int, int] | None, norm: float, sigma: Tensor) -> list[float]:
    """An upper bound on the norm of each of K maps with these weights, [K, outputs, inputs, ...].

    Args:
        weight: The weights in use.
        size: The maps a convolution acts on; None for matrices and kernels of one pixel.
        norm: 1, 2 or infinity.
        sigma: Estimates of these norms from below, [K]; where they are good, bounds are tight.
    """
    weight = weight.double()
    if not bool(torch.isfinite(weight).all()):
        raise NonFiniteError("A weight is NaN or infinite, so nothing can be certified; go back to an earlier checkpoint.")
    if norm != 2:
        found = induced_norms(weight, norm, size).tolist()
    elif size is None:
        found = torch.linalg.matrix_norm(weight.flatten(2), 2).tolist()
    else:
        guesses = sigma.double().tolist()
        found = [convolution_bound(each, size, guess) for each, guess in zip(weight, guesses, strict=True)]
    return [bound * ROUNDING for bound in found]
