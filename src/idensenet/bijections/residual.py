"""Stacks of blocks of one shape, each made of a contraction g, Lip(g) < 1; and the residual block x + g(x)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from idensenet.bijections.actnorm import ActNorm
from idensenet.bijections.base import Bijection, Call, no_log_det
from idensenet.draws import Draws
from idensenet.errors import OptionError
from idensenet.lipschitz.branch import Branch, Plan
from idensenet.lipschitz.certificate import OperatorNorms
from idensenet.lipschitz.conditional import ConditionalNetwork, Given
from idensenet.lipschitz.networks import Network, Stack, compiled
from idensenet.logdet import LOG_ONE_PLUS, Estimate, ExactLogDet, LogDet, PowerSeries
from idensenet.logdet.exact import value_and_spectrum
from idensenet.precision import Precision
from idensenet.solve import Anderson, Solution, Solver, solve
from idensenet.solve.implicit import with_implicit_gradient

Tensors = Sequence[Tensor]
Walk = Callable[[Tensor, Sequence[Tensors], Tensors, Tensors], tuple[Tensor, Tensor]]


class ContractionStack(Bijection):
    """K blocks made of contractions g_k, in turn, with an ActNorm behind each if one is given.

    A subclass says what a block is: `series`, `forward_block`, `inverse_block` and `constants`, and what is `compiled`.

    Args:
        g: The networks.
        log_det: The estimator of log-determinants in training.
        eval_log_det: The estimator in evaluation; `log_det` by default.
        solver: Solves the equations of a block.
        norm: An ActNorm of K blocks.
        save: Save memory: rebuild each block in the backward pass instead of keeping it.
    """

    series: PowerSeries  # f with log|det| = tr f(J) of a block
    explicit: bool  # whether the forward pass of a block is a formula, with nothing to solve

    def __init__(
        self,
        g: Network | ConditionalNetwork,
        log_det: LogDet | None = None,
        eval_log_det: LogDet | None = None,
        solver: Solver | None = None,
        norm: ActNorm | None = None,
        save: bool = False,
    ) -> None:
        super().__init__()
        if norm is not None and norm.blocks != g.blocks:
            raise OptionError(f"The ActNorm has {norm.blocks} blocks but g has {g.blocks}; give both the same number.")
        self.g, self.norm, self.save = g, norm, save
        self.log_det = log_det or ExactLogDet()
        self.eval_log_det = eval_log_det or self.log_det
        self.solver = solver or Anderson()
        self.walk: Any = None  # what is compiled for exact log-determinants

    # What a block is

    @abstractmethod
    def forward_block(self, g: Branch | Given, x: Tensor, method: LogDet | None, draws: Draws) -> tuple[Tensor, Tensor | None]:
        """F(x) of one block, and what `method` measures of its log-determinant, if there is one.

        Args:
            g: The prepared network of the block.
            x: Samples [batch, *event].
            method: The estimator; None if no log-determinant is wanted.
            draws: The source of random numbers.

        Returns:
            F(x), and the measured values or None.
        """

    @abstractmethod
    def inverse_block(self, g: Branch | Given, y: Tensor) -> Solution:
        """x with F(x) = y of one block, with implicit gradients; its error is at most residual / (1 - L).

        Args:
            g: The prepared network of the block.
            y: Values [batch, *event].

        Returns:
            The solution, whose value is x.
        """

    @abstractmethod
    def constants(self, bound: float) -> tuple[float, float]:
        """The bi-Lipschitz constants of a block whose g has this bound.

        Args:
            bound: A bound on Lip(g).

        Returns:
            The lower and the upper constant.
        """

    @abstractmethod
    def compiled(self) -> Any:
        """What is compiled for exact log-determinants: a `Walk`, if blocks are explicit.

        Returns:
            The compiled function.
        """

    @property
    def blocks(self) -> int:
        """K, the number of blocks."""
        return self.g.blocks

    # What a call works with

    def prepared(self, precision: Precision) -> Stack:
        return self.g.prepared(precision)

    def branches(self, call: Call) -> Sequence[Branch | Given]:
        """The prepared networks, at the contexts of the call if they take any.

        Args:
            call: The call.

        Returns:
            One branch for each block.
        """
        branches: list[Branch] = call.prepared.branches
        if not isinstance(self.g, ConditionalNetwork):
            return branches
        return [Given(g, each) for g, each in zip(branches, self.g.embedded(call.context).unbind(), strict=True)]

    def _scales(self, ready: bool = True) -> list[tuple[Tensor, Tensor]] | list[None]:
        if self.norm is None:
            return [None] * self.blocks
        if ready:
            self.norm.check_ready()
        return self.norm.rows()

    # Both ways

    def estimate(self, x: Tensor, call: Call) -> tuple[Tensor, Estimate]:
        """F(x), and the estimate of its log-determinant with a standard error where there is one.

        Args:
            x: Samples [batch, *event].
            call: The call.

        Returns:
            y and the estimate.
        """
        self.g.check(x)
        method = self.log_det if self.training else self.eval_log_det
        scales, x = self._scales(ready=not call.learn), self.g.plan.kind.laid_out(x)
        whole = self.explicit and self.walk is not None and call.log_det and not self.save and torch.is_grad_enabled()
        if whole and isinstance(method, ExactLogDet):
            embedded = [self.g.embedded(call.context)] if isinstance(self.g, ConditionalNetwork) else []
            factors = [] if self.norm is None else [self.norm.log_scale, self.norm.shift]
            y, found = self.walk(x, call.prepared.steps, embedded, factors)
        else:
            y, measures = x, list[Tensor | None]()
            for k, (g, scale) in enumerate(zip(self.branches(call), scales, strict=True)):
                y, measured = self.forward_block(g, y, method if call.log_det else None, call.draws.fold(k))
                measures.append(measured)
                if scale is not None and self.norm is not None:
                    if call.learn:
                        self.norm.learn(y, k)
                    y = self.norm.affine(y, *scale)
            if not call.log_det:
                return y, Estimate(no_log_det(x))
            found = torch.stack([each for each in measures if each is not None])
        estimate = method.total(found, self.series)
        if self.norm is None:
            return y, estimate
        return y, Estimate(estimate.value + self.norm.log_det(x, self.norm.log_scale), estimate.standard_error)

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        y, estimate = self.estimate(x, call)
        return y, estimate.value

    def solve(self, y: Tensor, call: Call, raises: bool = True) -> list[Solution]:
        """The inverse of every block as the solver found it, in the order of the blocks, with implicit gradients.

        Args:
            y: What the last block returned.
            call: The call.
            raises: Raise an error where a solver has not converged.

        Returns:
            One solution for each block.

        Raises:
            ConvergenceError: A solver has not converged, and `raises` is set.
        """
        self.g.check(y)
        found: list[Solution] = []
        for g, scale in reversed(list(zip(self.branches(call), self._scales(), strict=True))):
            y = y if scale is None or self.norm is None else self.norm.affine_inverse(y, *scale)
            solution = self.inverse_block(g.eager(), y)
            if raises:
                solution.raise_unless_converged()
            y = solution.value
            found.append(solution)
        return found[::-1]

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        x = self.solve(y, call)[0].value
        return x, -self.push(x, call)[1] if call.log_det else no_log_det(x)

    # Guarantees

    def lipschitz(self, norms: OperatorNorms) -> list[float]:
        """A guaranteed bound on Lip(g) of each block, for every context.

        Args:
            norms: Certified norms of linear maps, computed once.

        Returns:
            One bound for each block.
        """
        return self.g.lipschitz(norms)

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        lower, upper = (1.0, 1.0) if self.norm is None else self.norm.bi_lipschitz(norms)
        for a, b in map(self.constants, self.lipschitz(norms)):
            lower, upper = lower * a, upper * b
        return lower, upper

    # Speed

    def compile_blocks(self, on: bool = True) -> None:
        """Compile the function of a block, and with exact log-determinants the whole stack; or stop using compiled code.

        Args:
            on: Whether to use compiled code.
        """
        exact = isinstance(self.log_det, ExactLogDet)
        self.walk = self.compiled() if on and exact else None
        self.g.compile_functions(on)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "walk": None}  # compiled functions stay behind


class ResidualBlock(ContractionStack):
    """x <- x + g_k(x) for each of the K blocks of g, or x + g_k(x, context).

    Args:
        g: The networks.
        log_det: The estimator of log-determinants in training.
        eval_log_det: The estimator in evaluation; `log_det` by default.
        solver: Finds the inverse.
        norm: An ActNorm of K blocks.
        save: Save memory: rebuild each block in the backward pass instead of keeping it.

    >>> from idensenet.lipschitz import Pieces, dense_block
    >>> block = ResidualBlock(dense_block([2], 3, 16, Pieces(), blocks=4))
    >>> x = torch.randn(5, 2)
    >>> y, log_det = block(x)
    >>> bool(torch.allclose(block.inverse(y)[0], x, atol=1e-5))
    True
    """

    series = LOG_ONE_PLUS
    explicit = True

    def forward_block(self, g: Branch | Given, x: Tensor, method: LogDet | None, draws: Draws) -> tuple[Tensor, Tensor | None]:
        if method is None:
            return x + g(x), None
        gx, measured = method.measure(g, x, draws, self.series, self.save)
        return x + gx, measured

    def inverse_block(self, g: Branch | Given, y: Tensor) -> Solution:
        solution = solve(g, y, self.solver)
        return replace(solution, value=with_implicit_gradient(g, self.solver, solution.value, y))

    def constants(self, bound: float) -> tuple[float, float]:
        return max(0.0, 1 - bound), 1 + bound

    def compiled(self) -> Walk:
        return compiled_walk(self.g.plan, self.series)


def compiled_walk(plan: Plan, f: PowerSeries) -> Walk:
    """All blocks of a stack, with their determinants or Jacobians, as one compiled function."""

    def walk(
        x: Tensor, steps: Sequence[Sequence[Tensor]], embedded: Sequence[Tensor], scale: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        found = []
        for k in range(len(steps[-1][0])):
            g = Branch(plan, [tuple(tensor[k] for tensor in step) for step in steps])
            gx, measured = value_and_spectrum(Given(g, embedded[0][k]) if embedded else g, x, f)
            found.append(measured)
            x = x + gx
            if scale:
                log_scale, shift = (each[k].view(-1, *[1] * (x.ndim - 2)) for each in scale)
                x = (x + shift) * torch.exp(log_scale)
        return x, torch.stack(found)

    made: Walk = compiled(walk, cpp_wrapper=True)  # hundreds of small calls: a toy step is a tenth faster
    return made
