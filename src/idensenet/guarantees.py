"""What is guaranteed about a chain of blocks: its Lipschitz bounds, and the error of a computed inverse."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from idensenet.bijections import Bijection, Call, Chain, ContractionStack, Invert
from idensenet.errors import OptionError
from idensenet.lipschitz import BlockCertificate, Certificate, LipschitzMap, OperatorNorms

NamedBlocks = Sequence[tuple[str, ContractionStack, int]]


def _norms(blocks: NamedBlocks) -> OperatorNorms:
    kinds = sorted({stack.g.norm for _, stack, _ in blocks})
    if len(kinds) > 1:
        raise OptionError(f"Blocks bounded in the norms {kinds} have no common certificate; build all with one norm.")
    return OperatorNorms(kinds[0] if kinds else 2.0)


def certificate(blocks: NamedBlocks, body: Bijection) -> Certificate:
    """The bounds of every block, and of the whole; norms must be up to date."""
    norms = _norms(blocks)
    bounds = {stack: stack.lipschitz(norms) for _, stack, _ in blocks}
    rows = tuple(
        BlockCertificate(
            name,
            bounds[stack][k],
            tuple((path, norms(m)[k]) for path, m in stack.g.named_modules() if isinstance(m, LipschitzMap)),
        )
        for name, stack, k in blocks
    )
    lower, upper = body.bi_lipschitz(norms)
    return Certificate(norms.norm, rows, lower, upper)


def _leaves(body: Bijection, call: Call) -> list[tuple[Bijection, Call]]:
    """The parts of chains in chains with their calls, in order."""
    if not isinstance(body, Chain):
        return [(body, call)]
    return [leaf for i, part in enumerate(body) for leaf in _leaves(part, call.part(i))]


def inverse_error(blocks: NamedBlocks, body: Bijection, z: Tensor, call: Call) -> Tensor:
    """A bound per sample: on the way back an error is divided by the lower constant of each part, and a solver adds its own."""
    parts = _leaves(body, call)
    formulas = {part.inner for part, _ in parts if isinstance(part, Invert) and getattr(part.inner, "explicit", False)}
    if {stack for _, stack, _ in blocks} - formulas != {part for part, _ in parts if isinstance(part, ContractionStack)}:
        raise OptionError("The error of the inverse is bounded for chains of blocks, not for blocks inside of other parts.")
    norms = _norms(blocks)
    wide = z[:1].numel() ** 0.5 if norms.norm == 1 else 1.0  # of a Euclidean residual in that norm
    bound = torch.zeros(len(z), dtype=z.dtype, device=z.device)

    def divided(bound: Tensor, lower: float) -> Tensor:
        return bound / lower if lower > 0 else torch.full_like(bound, math.inf)

    for part, given in reversed(parts):
        if not isinstance(part, ContractionStack):
            bound = divided(bound, part.bi_lipschitz(norms)[0])
            z, _ = part.pull(z, given)
            continue
        solutions = part.solve(z, given, raises=False)
        scales = [1.0] * part.blocks if part.norm is None else torch.exp(part.norm.log_scale.double()).amin(1).tolist()
        for L, scale, solution in reversed(list(zip(part.lipschitz(norms), scales, solutions, strict=True))):
            bound = divided(bound, scale * part.constants(L)[0]) + wide * solution.error_bound(L)
        z = solutions[0].value
    return bound
