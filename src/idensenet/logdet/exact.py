"""The determinant of the whole Jacobian."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from idensenet.draws import Draws
from idensenet.errors import NonInvertibleError
from idensenet.lipschitz.packed import Plan, closing_parts, value_and_core
from idensenet.lipschitz.packed import value_and_jacobian as packed_value_and_jacobian
from idensenet.lipschitz.scope import without_autocast
from idensenet.logdet.base import Estimate, Linearizable, LogDet, Recompute
from idensenet.logdet.matrices import Function, compiled, compiled_block, compiled_for, prepared, value_and_jacobian


def _slogdet(matrix: Tensor) -> tuple[Tensor, Tensor]:
    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    sign, value = torch.linalg.slogdet(unit + matrix)
    return sign, value


def log_abs_det(matrix: Tensor, common: Tensor | None = None) -> Tensor:
    """log det(I + matrix) of each, which must be positive; two by two in closed form.

    With a `common` matrix, the determinant of each is multiplied with that of I + common.
    """
    if matrix.shape[-1] == 2:
        a, b, c, d = matrix.flatten(1).unbind(1)
        det = (1 + a) * (1 + d) - b * c
        sign, value = det, torch.log(det.abs())
    else:
        sign, value = _slogdet(matrix)
    if common is not None:
        common_sign, common_value = _slogdet(common)
        sign, value = sign * common_sign, value + common_value
    # The look at the sign makes the host wait, so on an accelerator it is left out where gradients are recorded, as in
    # compiled code: there a lost inverse shows as NaN, and certify() finds the block.
    if torch.compiler.is_compiling() or (matrix.device.type != "cpu" and torch.is_grad_enabled()):
        value = value * torch.where(sign > 0, 1.0, torch.nan)  # of its gradient, too
    else:
        lost = (sign <= 0).nonzero().flatten().tolist()
        if lost:
            raise NonInvertibleError(
                f"det(I + J) is not positive at sample {lost[0]} ({len(lost)} of {len(sign)}): the block has lost its inverse; "
                "certify() names the layers to blame."
            )
    return value


def exact_log_det(x: Tensor, g: Linearizable) -> tuple[Tensor, Tensor]:
    """g(x) and the log-determinant, with no block but this one in view."""
    gx, matrix = value_and_jacobian(x, g)
    return gx, log_abs_det(matrix)


def packed_log_det(x: Tensor, plan: Plan, row: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a dense block on vectors that was prepared together with its peers."""
    if plan.narrow:
        common, solved = closing_parts(plan, row)
        gx, matrix = value_and_core(x, plan, row, solved)
        return gx, log_abs_det(matrix, common)
    gx, matrix = packed_value_and_jacobian(x, plan, row)
    return gx, log_abs_det(matrix)


def compiled_log_det(x: Tensor, g: Linearizable) -> tuple[Tensor, Tensor]:
    """The same compiled. slogdet stays outside: its gradient is wrong there (torch 2.13, on a CPU)."""
    if x.shape[1:] == (2,):
        return compiled_block(x, g, alone=exact_log_det, together=packed_log_det)
    pack = prepared(x, g, compiled)
    if pack is not None and pack[0].narrow:
        plan, row = pack
        common, solved = closing_parts(plan, row)
        gx, matrix = compiled_for(plan, value_and_core)(x, row, solved)
        return gx, log_abs_det(matrix, common)
    gx, matrix = compiled_block(x, g)
    return gx, log_abs_det(matrix)


class ExactLogDet(LogDet):
    """log det(I + J) from the whole Jacobian; for small dimensions, and the oracle in tests.

    A dense block on vectors with fewer numbers in its activations than dimensions costs what matrices of their number
    cost (`value_and_core`).

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

    def __call__(self, g: Linearizable, x: Tensor, draws: Draws, recompute: Recompute = False) -> tuple[Tensor, Estimate]:
        with without_autocast(x.device):
            return self._all_digits(g, x, recompute)

    def _all_digits(self, g: Linearizable, x: Tensor, recompute: Recompute) -> tuple[Tensor, Estimate]:
        recorded = torch.is_grad_enabled()
        if self.compiled and recorded and not recompute:
            gx, value = compiled_log_det(x, g)
            return gx, Estimate(value)
        pack = prepared(x, g)
        whole: Function = partial(exact_log_det, g=g) if pack is None else partial(packed_log_det, plan=pack[0], row=pack[1])
        if recompute and recorded:
            gx, value = checkpoint(whole, x, use_reentrant=False, preserve_rng_state=False)
        else:
            gx, value = whole(x)
        return gx, Estimate(value)
