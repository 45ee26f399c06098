"""A chain of dense blocks on a few dimensions as one compiled function.

A small model spends much of a training step between its operations. With one compiled function for each block, there are
still as many calls and graph nodes as blocks; with one for all, there is one, which takes as many times longer to compile.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from idensenet.bijections.base import Bijection
from idensenet.bijections.residual import ResidualBlock
from idensenet.draws import Draws, default_draws
from idensenet.lipschitz.networks import DenseBlock
from idensenet.lipschitz.packed import Plan, packable, packed
from idensenet.logdet import ExactLogDet, LogDet
from idensenet.logdet.exact import packed_log_det
from idensenet.logdet.matrices import compiled, compiled_for
from idensenet.logdet.series import EIGHT, FEW, WeightedLogDet, draw_probes, padded, together, weighted_log_det

LONGEST = 2 * EIGHT  # terms; longer series are rare, and go block by block


def _blocks(parts: Iterable[Bijection], x: Tensor) -> list[tuple[DenseBlock, LogDet]]:
    """The networks and log-determinants of compiled dense blocks in training; none if there is anything else."""
    found: list[tuple[DenseBlock, LogDet]] = []
    for part in parts:
        if type(part) is not ResidualBlock or not packable(part.g) or not part.training or part.recompute:
            return []
        method = part.log_det
        exact = isinstance(method, ExactLogDet) and method.compiled and x.shape[1] == 2
        series = isinstance(method, WeightedLogDet) and part.g.compiled and not method.bfloat16
        if not (exact or series) or (found and type(method) is not type(found[0][1])):
            return []
        found.append((part.g, method))
    return found


def _exact(x: Tensor, plan: Plan, rows: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.zeros_like(x[:, 0])
    for row in rows.unbind():
        gx, value = packed_log_det(x, plan, row)
        x, total = x + gx, total + value
    return x, total


def _series(x: Tensor, plan: Plan, rows: Tensor, probes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.zeros_like(x[:, 0])
    for row, probe, weight in zip(rows.unbind(), probes.unbind(), weights.unbind(), strict=True):
        gx, values = together(x, plan, row, probe, weight)
        x, total = x + gx, total + values.mean(0)
    return x, total


def whole(parts: Iterable[Bijection], x: Tensor, draws: Draws | None) -> tuple[Tensor, Tensor] | None:
    """What the parts one after the other return, with the same draws, or None where they cannot be one function.

    Norms must be up to date.
    """
    if x.ndim != 2 or x.shape[1] > FEW or not torch.is_grad_enabled():
        return None
    blocks = _blocks(parts, x)
    packs = [pack for g, _ in blocks if (pack := packed(g, x, compiled)) is not None]
    if not packs or any(plan != packs[0][0] for plan, _ in packs):
        return None
    plan, rows = packs[0][0], torch.stack([row for _, row in packs])
    probes, weights = [], []
    for i, (_, method) in enumerate(blocks):
        if isinstance(method, WeightedLogDet):
            own = draws.fold(i) if draws else default_draws(x, True)
            probes.append(draw_probes(own, x, method.probes, method.probe))
            weights.append(method.draw_weights(own, x))
    if not weights:
        return compiled_for(plan, _exact)(x, rows)
    terms = max(map(len, weights))
    if terms <= LONGEST and len({(len(probe), each.shape[1:]) for probe, each in zip(probes, weights, strict=True)}) == 1:
        series = torch.stack([padded(each, terms) for each in weights])
        return compiled_for(plan, _series)(x, rows, torch.stack(probes), series)
    total = torch.zeros_like(x[:, 0])
    for (g, _), probe, each in zip(blocks, probes, weights, strict=True):
        gx, values = weighted_log_det(g, x, probe, each)
        x, total = x + gx, total + values.mean(0)
    return x, total
