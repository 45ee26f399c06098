"""What is guaranteed about a chain of blocks: its Lipschitz bounds, and the error of a computed inverse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from idensenet.bijections import Bijection, Chain, ResidualBlock
from idensenet.errors import OptionError
from idensenet.lipschitz import BlockCertificate, Certificate, LipschitzMap, OperatorNorms

NamedBlocks = Sequence[tuple[str, ResidualBlock]]


def _norms(blocks: NamedBlocks) -> OperatorNorms:
    kinds = sorted({block.g.norm for _, block in blocks})
    if len(kinds) > 1:
        raise OptionError(f"Blocks bounded in the norms {kinds} have no common certificate; build all with one norm.")
    return OperatorNorms(kinds[0] if kinds else 2.0)


def certificate(blocks: NamedBlocks, body: Bijection) -> Certificate:
    """The bounds of every block, and of the whole."""
    norms = _norms(blocks)
    rows = tuple(
        BlockCertificate(
            name,
            block.lipschitz(norms),
            tuple((path, norms(m)) for path, m in block.g.named_modules() if isinstance(m, LipschitzMap)),
        )
        for name, block in blocks
    )
    lower, upper = body.bi_lipschitz(norms)
    return Certificate(norms.norm, rows, lower, upper)


def _leaves(body: Bijection) -> list[Bijection]:
    """The parts of chains in chains, in order."""
    return [leaf for part in body for leaf in _leaves(part)] if isinstance(body, Chain) else [body]


def inverse_error(blocks: NamedBlocks, body: Bijection, z: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """A bound per sample: on the way back an error is divided by the lower constant of each part, and a solver adds its own."""
    parts = _leaves(body)
    if len(blocks) != sum(isinstance(part, ResidualBlock) for part in parts):
        raise OptionError("The error of the inverse is bounded for chains of blocks, not for blocks inside of other parts.")
    norms = _norms(blocks)
    wide = z[:1].numel() ** 0.5 if norms.norm == 1 else 1.0  # of a Euclidean residual in that norm
    bound = torch.zeros(len(z), dtype=z.dtype, device=z.device)
    for part in reversed(parts):
        at = given if part.conditional else {}
        lower = part.bi_lipschitz(norms)[0]
        bound = bound / lower if lower > 0 else torch.full_like(bound, math.inf)
        if isinstance(part, ResidualBlock):
            solution = part.solve(z, **at)
            bound = bound + wide * solution.error_bound(part.lipschitz(norms))
            z = solution.value
        else:
            z = part.decode(z, **at)
    return bound
