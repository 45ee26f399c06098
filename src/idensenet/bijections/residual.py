"""x + g(x) with Lip(g) < 1."""

from __future__ import annotations

import torch
from torch import Tensor

from idensenet.bijections.base import Bijection
from idensenet.draws import Draws, default_draws
from idensenet.lipschitz.certificate import OperatorNorms
from idensenet.lipschitz.linear import fresh_norms
from idensenet.lipschitz.networks import Network
from idensenet.logdet import Estimate, ExactLogDet, LogDet
from idensenet.solve import Anderson, Solution, Solver, solve
from idensenet.solve.implicit import with_implicit_gradient


class ResidualBlock(Bijection):
    """F(x) = x + g(x). `log_det` is used in training, `eval_log_det` (the same by default) otherwise.

    >>> from idensenet.lipschitz import Pieces, dense_block
    >>> block = ResidualBlock(dense_block([2], 3, 16, Pieces()))
    >>> x = torch.randn(5, 2)
    >>> y, log_det = block(x)
    >>> bool(torch.allclose(block.inverse(y)[0], x, atol=1e-5))
    True
    """

    def __init__(
        self,
        g: Network,
        log_det: LogDet | None = None,
        eval_log_det: LogDet | None = None,
        solver: Solver | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.g = g
        self.log_det = log_det or ExactLogDet()
        self.eval_log_det = eval_log_det or self.log_det
        self.solver = solver or Anderson()
        self.recompute = recompute

    def estimate(self, x: Tensor, draws: Draws | None = None) -> tuple[Tensor, Estimate]:
        """F(x) and the estimate of its log-determinant, with a standard error where there is one."""
        method = self.log_det if self.training else self.eval_log_det
        with fresh_norms(self):
            gx, estimate = method(self.g, x, draws or default_draws(x, self.training), self.recompute)
        return x + gx, estimate

    def forward(self, x: Tensor, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        y, estimate = self.estimate(x, draws)
        return y, estimate.value

    def solve(self, y: Tensor) -> Solution:
        """The inverse as the solver found it, converged or not; no gradient."""
        with fresh_norms(self):
            return solve(self.g, y, self.solver)

    def inverse(self, y: Tensor, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        with fresh_norms(self):
            x = self.decode(y)
            _, log_det = self(x, draws)
        return x, -log_det

    def encode(self, x: Tensor) -> Tensor:
        gx: Tensor = self.g(x)
        return x + gx

    def decode(self, y: Tensor) -> Tensor:
        with fresh_norms(self):
            solution = self.solve(y)
            solution.raise_unless_converged()
            if torch.is_grad_enabled() and (y.requires_grad or any(p.requires_grad for p in self.g.parameters())):
                return with_implicit_gradient(self.g, self.solver, solution.value, y)
        return solution.value

    def lipschitz(self, norms: OperatorNorms) -> float:
        """A guaranteed bound on Lip(g)."""
        return self.g.lipschitz(norms)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        bound = self.lipschitz(norms)
        return max(0.0, 1 - bound), 1 + bound
