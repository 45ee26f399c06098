"""The whole Jacobian of a block on vectors: with the value in one go, compiled where that is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from idensenet.lipschitz.linearmap import LinearMap
from idensenet.lipschitz.packed import Compile, Plan, packable, packed
from idensenet.lipschitz.packed import value_and_jacobian as packed_value_and_jacobian
from idensenet.logdet.base import Linearizable, push

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


def value_and_jacobian(x: Tensor, g: Linearizable) -> tuple[Tensor, Tensor]:
    """g(x) and its Jacobians: tensor arithmetic only, so it can be compiled, given norms that are up to date."""
    dims = math.prod(x.shape[1:])
    if dims > TOGETHER:
        gx, J = g.linearize(x)
        return gx, jacobian(J, x)
    units = torch.eye(dims, dtype=x.dtype, device=x.device).view(dims, 1, *x.shape[1:]).expand(dims, *x.shape)
    gx, columns, _ = push(g, x, units)
    return gx, columns.reshape(dims, len(x), dims).permute(1, 2, 0)


LEAN: dict[str, Any] = {"cpp_wrapper": True, "size_asserts": False, "alignment_asserts": False}  # small blocks feel every call


@lru_cache(maxsize=4)
def compiled(function: Function) -> Function:
    """Compiled once for all blocks of one shape. After several models in one process it falls back to eager code."""
    return torch.compile(function, dynamic=False, options=LEAN)


@lru_cache(maxsize=16)
def compiled_for(plan: Plan, function: Function) -> Function:
    """The same for blocks that were prepared together: only tensors can differ, so only they are looked at in every call."""
    options = {**LEAN, "guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}

    def run(x: Tensor, row: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
        return function(x, plan, row, *more)

    # Compiled code is kept with the code object and found by its guards, which say nothing of plan and function here: without
    # a code object of its own, a plan of the same sizes would run as another.
    run.__code__ = run.__code__.replace()
    return torch.compile(run, dynamic=False, options=options)


def prepared(x: Tensor, g: Linearizable, compile: Compile | None = None) -> tuple[Plan, Tensor] | None:
    """What a dense block on vectors is made of, if it has few dimensions or fewer hidden numbers than that; or None."""
    if x.ndim != 2 or not packable(g):
        return None
    return packed(g, x, compile) if x.shape[1] <= TOGETHER or Plan.of(g).narrow else None


def compiled_block(
    x: Tensor,
    g: Linearizable,
    *more: Tensor,
    alone: Function = value_and_jacobian,
    together: Function = packed_value_and_jacobian,
) -> tuple[Tensor, Tensor]:
    """What `alone(x, g, *more)` returns, as one compiled function; a dense block is prepared together with its peers."""
    pack = prepared(x, g, compiled)
    if pack is None:
        return compiled(alone)(x, g, *more)
    plan, row = pack
    return compiled_for(plan, together)(x, row, *more)


class Jacobians(LinearMap):
    """Matrices [batch, D, D], one for each sample of vectors."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def matvec(self, v: Tensor) -> Tensor:
        return (self.matrix * v.unsqueeze(-2)).sum(-1)

    def rmatvec(self, u: Tensor) -> Tensor:
        return (self.matrix * u.unsqueeze(-1)).sum(-2)

    def take(self, index: Tensor) -> Jacobians:
        return Jacobians(self.matrix[index])
