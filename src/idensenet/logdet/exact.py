"""The whole Jacobian and its determinant."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from idensenet.draws import Draws
from idensenet.errors import NonInvertibleError
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.lipschitz.packed import Plan, packed
from idensenet.lipschitz.packed import value_and_jacobian as packed_value_and_jacobian
from idensenet.logdet.base import Estimate, Linearizable, LogDet, push

TOGETHER = 32  # dimensions whose unit vectors travel with the value
Function = Callable[..., tuple[Tensor, Tensor]]


def jacobian(J: LinearMap, x: Tensor, chunk: int = 256) -> Tensor:
    """The matrices of J at every sample, [batch, D, D], by products with unit vectors, `chunk` at a time."""
    batch, dims = x.shape[0], math.prod(x.shape[1:])
    units = torch.eye(dims, dtype=x.dtype, device=x.device)
    columns = []
    for part in torch.split(units, chunk):
        probes = part.view(len(part), 1, *x.shape[1:]).expand(len(part), *x.shape)
        columns.append(J.matvec(probes).reshape(len(part), batch, dims))
    return torch.cat(columns).permute(1, 2, 0)


def log_abs_det(matrix: Tensor) -> Tensor:
    """log det(I + matrix) of each, which must be positive; two by two in closed form."""
    dims = matrix.shape[-1]
    if dims == 2:
        a, b, c, d = matrix.flatten(1).unbind(1)
        det = (1 + a) * (1 + d) - b * c
        sign, value = det, torch.log(det)
    else:
        sign, value = torch.linalg.slogdet(torch.eye(dims, dtype=matrix.dtype, device=matrix.device) + matrix)
    # The look at the sign makes the host wait, so on an accelerator it is left out where gradients are recorded, as in
    # compiled code: there a lost inverse shows as NaN, and certify() finds the block.
    if torch.compiler.is_compiling() or (matrix.device.type != "cpu" and torch.is_grad_enabled()):
        value = torch.where(sign > 0, value, torch.nan)
    else:
        lost = (sign <= 0).nonzero().flatten().tolist()
        if lost:
            raise NonInvertibleError(
                f"det(I + J) is not positive at sample {lost[0]} ({len(lost)} of {len(sign)}): the block has lost its inverse; "
                "certify() names the layers to blame."
            )
    return value


def value_and_jacobian(x: Tensor, g: Linearizable) -> tuple[Tensor, Tensor]:
    """g(x) and its Jacobians: tensor arithmetic only, so it can be compiled, given norms that are up to date."""
    dims = math.prod(x.shape[1:])
    if dims > TOGETHER:
        gx, J = g.linearize(x)
        return gx, jacobian(J, x)
    units = torch.eye(dims, dtype=x.dtype, device=x.device).view(dims, 1, *x.shape[1:]).expand(dims, *x.shape)
    gx, columns, _ = push(g, x, units)
    return gx, columns.reshape(dims, len(x), dims).permute(1, 2, 0)


def exact_log_det(x: Tensor, g: Linearizable) -> tuple[Tensor, Tensor]:
    """g(x) and the log-determinant, with no block but this one in view."""
    gx, matrix = value_and_jacobian(x, g)
    return gx, log_abs_det(matrix)


def packed_log_det(x: Tensor, plan: Plan, row: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a dense block on vectors that was prepared together with its peers."""
    gx, matrix = packed_value_and_jacobian(x, plan, row)
    return gx, log_abs_det(matrix)


LEAN: dict[str, Any] = {"cpp_wrapper": True, "size_asserts": False, "alignment_asserts": False}  # small blocks feel every call


@lru_cache(maxsize=4)
def compiled(function: Function) -> Function:
    """Compiled once for all blocks of one shape. After several models in one process it falls back to eager code."""
    return torch.compile(function, dynamic=False, options=LEAN)


@lru_cache(maxsize=16)
def compiled_for(plan: Plan, function: Function) -> Function:
    """The same for blocks that were prepared together: only tensors can differ, so only they are looked at in every call."""
    options = {**LEAN, "guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}

    def run(x: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return function(x, plan, row)

    return torch.compile(run, dynamic=False, options=options)


def _compiled_log_det(g: Linearizable, x: Tensor, pack: tuple[Plan, Tensor] | None) -> tuple[Tensor, Tensor]:
    """slogdet stays outside of compiled code: its gradient is wrong there (torch 2.13, on a CPU)."""
    plane = x.shape[1:] == (2,)
    if pack is None:
        gx, found = compiled(exact_log_det if plane else value_and_jacobian)(x, g)
    else:
        plan, row = pack
        gx, found = compiled_for(plan, packed_log_det if plane else packed_value_and_jacobian)(x, row)
    return gx, found if plane else log_abs_det(found)


class ExactLogDet(LogDet):
    """log det(I + J) from the whole Jacobian; for small dimensions, and the oracle in tests.

    `compiled` is for long training of small models: where gradients are recorded, the block then runs as one compiled
    function, to the same result up to rounding. The first call takes half a minute, or seconds where it was compiled before.

    >>> from idensenet.lipschitz import Pieces, dense_block
    >>> from idensenet.draws import GeneratorDraws
    >>> gx, log_det = ExactLogDet()(dense_block([2], 3, 16, Pieces()), torch.zeros(5, 2), GeneratorDraws())
    >>> log_det.value.shape
    torch.Size([5])
    """

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled

    def __call__(self, g: Linearizable, x: Tensor, draws: Draws, recompute: bool = False) -> tuple[Tensor, Estimate]:
        recorded = torch.is_grad_enabled()
        compiling = self.compiled and recorded and not recompute
        pack = packed(g, x, compiled if compiling else None) if x.shape[1:].numel() <= TOGETHER else None
        whole: Function = partial(exact_log_det, g=g) if pack is None else partial(packed_log_det, plan=pack[0], row=pack[1])
        if recompute and recorded:
            gx, value = checkpoint(whole, x, use_reentrant=False, preserve_rng_state=False)
        elif not compiling:
            gx, value = whole(x)
        else:
            gx, value = _compiled_log_det(g, x, pack)
        return gx, Estimate(value)
