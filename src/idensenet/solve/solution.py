"""What a solver found, and how well."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from idensenet.errors import ConvergenceError


class Status(IntEnum):
    CONVERGED = 0
    STEP_LIMIT = 1
    DIVERGED = 2


@dataclass(frozen=True)
class Solution:
    """x with x + g(x) = y up to `residual`, all per sample.

    `residual` is the Euclidean norm of x + g(x) - y; `growth` the largest factor by which a plain fixed-point step changed
    it, which a contractive g keeps below one (in its own norm).

    Args:
        value: x, [batch, *event].
        status: A `Status` for each sample.
        steps: Number of steps of each sample.
        residual: Norm of x + g(x) - y.
        growth: Largest growth of a plain step.
    """

    value: Tensor
    status: Tensor
    steps: Tensor
    residual: Tensor
    growth: Tensor

    @property
    def converged(self) -> Tensor:
        """Whether each sample has converged."""
        return self.status == Status.CONVERGED

    def error_bound(self, lipschitz: float) -> Tensor:
        """How far x can be from the true inverse if Lip(g) <= lipschitz < 1, in the Euclidean norm.

        Args:
            lipschitz: A certified bound on Lip(g).

        Returns:
            Bounds [batch]; infinite where `lipschitz` is one or more.
        """
        return self.residual / (1 - lipschitz) if lipschitz < 1 else torch.full_like(self.residual, torch.inf)

    def _rounds(self, i: int) -> bool:
        """Whether a residual is so small next to its sample that a lost contraction would not have left it there."""
        scale = 1 + float(self.value[i].detach().abs().max())
        return bool(float(self.residual[i]) <= torch.finfo(self.value.dtype).eps ** 0.5 * scale)

    def raise_unless_converged(self) -> None:
        """Raises an error that names the samples that have not converged, and what to do.

        Raises:
            ConvergenceError: A sample has not converged.
        """
        bad = (~self.converged).nonzero().flatten().tolist()
        if not bad:
            return
        worst = max(bad, key=lambda i: float(self.residual[i].nan_to_num(torch.inf)))
        shown = ", ".join(map(str, bad[:8])) + (", ..." if len(bad) > 8 else "")
        text = (
            f"The inverse did not converge for {len(bad)} of {len(self.status)} samples ({shown}): "
            f"the worst residual is {float(self.residual[worst]):.3g} after {int(self.steps[worst])} steps"
        )
        growth = float(self.growth[bad].max())
        if self._rounds(worst):
            text += (
                "; that is rounding, most likely: numbers inside g are so large that their last digits exceed the tolerance. "
                "Use float64 (flow.double()), or a larger tolerance (tol)."
            )
        elif growth >= 1:
            text += f"; g is not contractive (a step multiplied the residual by {growth:.3g}), see certify()."
        elif not torch.isfinite(self.residual[bad]).all():
            text += "; a value that is NaN or infinite cannot be inverted; check the input and the weights."
        else:
            text += "; allow more steps (max_steps) or a larger tolerance (tol)."
        raise ConvergenceError(text)
