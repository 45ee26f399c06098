"""x + g(x) with Lip(g) < 1."""

from __future__ import annotations

import torch
from torch import Tensor

from idensenet.bijections.base import Bijection
from idensenet.draws import Draws, default_draws
from idensenet.lipschitz.certificate import OperatorNorms
from idensenet.lipschitz.conditional import ConditionalNetwork, Given
from idensenet.lipschitz.linear import fresh_norms
from idensenet.lipschitz.networks import Network
from idensenet.logdet import Estimate, ExactLogDet, LogDet
from idensenet.logdet.base import Recompute
from idensenet.solve import Anderson, Solution, Solver, solve
from idensenet.solve.implicit import with_implicit_gradient


class ResidualBlock(Bijection):
    """F(x) = x + g(x), or x + g(x, context). `log_det` is used in training, `eval_log_det` (the same by default) otherwise.

    >>> from idensenet.lipschitz import Pieces, dense_block
    >>> block = ResidualBlock(dense_block([2], 3, 16, Pieces()))
    >>> x = torch.randn(5, 2)
    >>> y, log_det = block(x)
    >>> bool(torch.allclose(block.inverse(y)[0], x, atol=1e-5))
    True
    """

    def __init__(
        self,
        g: Network | ConditionalNetwork,
        log_det: LogDet | None = None,
        eval_log_det: LogDet | None = None,
        solver: Solver | None = None,
        recompute: Recompute = False,
    ) -> None:
        super().__init__()
        self.g = g
        self.log_det = log_det or ExactLogDet()
        self.eval_log_det = eval_log_det or self.log_det
        self.solver = solver or Anderson()
        self.recompute = recompute

    @property
    def conditional(self) -> bool:
        return isinstance(self.g, ConditionalNetwork)

    def _at(self, context: Tensor | None) -> Network | Given:
        return self.g.given(context) if isinstance(self.g, ConditionalNetwork) else self.g

    def estimate(self, x: Tensor, draws: Draws | None = None, context: Tensor | None = None) -> tuple[Tensor, Estimate]:
        """F(x) and the estimate of its log-determinant, with a standard error where there is one."""
        method = self.log_det if self.training else self.eval_log_det
        with fresh_norms(self):
            gx, estimate = method(self._at(context), x, draws or default_draws(x, self.training), self.recompute)
        return x + gx, estimate

    def forward(self, x: Tensor, draws: Draws | None = None, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, estimate = self.estimate(x, draws, context)
        return y, estimate.value

    def solve(self, y: Tensor, context: Tensor | None = None) -> Solution:
        """The inverse as the solver found it, converged or not; no gradient."""
        with fresh_norms(self):
            return solve(self._at(context), y, self.solver)

    def inverse(self, y: Tensor, draws: Draws | None = None, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        with fresh_norms(self):
            x = self.decode(y, context)
            _, log_det = self(x, draws or default_draws(y, self.training), context)
        return x, -log_det

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        gx: Tensor = self._at(context)(x)
        return x + gx

    def initialize(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return self.encode(x, context)

    def decode(self, y: Tensor, context: Tensor | None = None) -> Tensor:
        g = self._at(context)
        with fresh_norms(self):
            solution = self.solve(y, context)
            solution.raise_unless_converged()
            if torch.is_grad_enabled() and (y.requires_grad or any(p.requires_grad for p in g.parameters())):
                return with_implicit_gradient(g, self.solver, solution.value, y)
        return solution.value

    def lipschitz(self, norms: OperatorNorms) -> float:
        """A guaranteed bound on Lip(g), for every context."""
        return self.g.lipschitz(norms)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        bound = self.lipschitz(norms)
        return max(0.0, 1 - bound), 1 + bound
