"""The whole Jacobian and its determinant."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from idensenet.draws import Draws
from idensenet.errors import NonInvertibleError
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.logdet.base import Estimate, Linearizable, LogDet


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
    # The look at the sign makes the host wait, so on an accelerator it is left out where gradients are recorded:
    # there a lost inverse shows as NaN in two dimensions, and certify() finds the block.
    if not torch.compiler.is_compiling() and (matrix.device.type == "cpu" or not torch.is_grad_enabled()):
        lost = (sign <= 0).nonzero().flatten().tolist()
        if lost:
            raise NonInvertibleError(
                f"det(I + J) is not positive at sample {lost[0]} ({len(lost)} of {len(sign)}): the block has lost its inverse; "
                "certify() names the layers to blame."
            )
    return value


class ExactLogDet(LogDet):
    """log det(I + J) from the whole Jacobian; for small dimensions, and the oracle in tests.

    >>> from idensenet.lipschitz import Pieces, dense_block
    >>> from idensenet.draws import GeneratorDraws
    >>> gx, log_det = ExactLogDet()(dense_block([2], 3, 16, Pieces()), torch.zeros(5, 2), GeneratorDraws())
    >>> log_det.value.shape
    torch.Size([5])
    """

    def _compute(self, g: Linearizable, x: Tensor) -> tuple[Tensor, Tensor]:
        gx, J = g.linearize(x)
        return gx, log_abs_det(jacobian(J, x))

    def __call__(self, g: Linearizable, x: Tensor, draws: Draws, recompute: bool = False) -> tuple[Tensor, Estimate]:
        if recompute and torch.is_grad_enabled():
            gx, value = checkpoint(self._compute, g, x, use_reentrant=False, preserve_rng_state=False)
        else:
            gx, value = self._compute(g, x)
        return gx, Estimate(value)
