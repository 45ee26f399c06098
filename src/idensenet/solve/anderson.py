"""Anderson acceleration: the combination of the last points whose residuals cancel best."""

from __future__ import annotations

import torch
from torch import Tensor

from idensenet.errors import OptionError
from idensenet.solve.solver import Function, Memory, Solver


class History(Memory):
    """Differences of successive points and of their residuals, newest last: [depth, batch, D]."""

    def __init__(self, x: Tensor, depth: int) -> None:
        flat = x.flatten(1)
        self.points, self.residuals = flat.new_zeros(depth, *flat.shape), flat.new_zeros(depth, *flat.shape)
        self.x: Tensor | None = None
        self.r: Tensor | None = None

    def take(self, index: Tensor) -> None:
        self.points, self.residuals = self.points[:, index], self.residuals[:, index]
        if self.x is not None and self.r is not None:
            self.x, self.r = self.x[index], self.r[index]

    def add(self, x: Tensor, r: Tensor, forget: Tensor) -> None:
        """Remember the move to x; samples in `forget` were refused their last proposal and start afresh."""
        if self.x is not None and self.r is not None:
            self.points = torch.cat([self.points[1:], (x - self.x)[None]])
            self.residuals = torch.cat([self.residuals[1:], (r - self.r)[None]])
            self.points[:, forget] = 0
            self.residuals[:, forget] = 0
        self.x, self.r = x, r


class Anderson(Solver):
    """Least squares over the last `depth` steps, per sample (Anderson, 1965; Walker and Ni, 2011)."""

    def __init__(self, tol: float | None = None, max_steps: int = 1000, depth: int = 5) -> None:
        super().__init__(tol, max_steps)
        if depth < 1:
            raise OptionError(f"depth={depth} must be at least 1.")
        self.depth = depth

    def memory(self, x: Tensor) -> Memory:
        return History(x, self.depth)

    def propose(self, g: Function, x: Tensor, residual: Tensor, memory: Memory, plain: Tensor) -> Tensor:
        assert isinstance(memory, History)
        flat, r = x.flatten(1), residual.flatten(1)
        memory.add(flat, r, plain)
        moves, changes = memory.points.transpose(0, 1), memory.residuals.transpose(0, 1)  # [batch, depth, D]
        gram = (changes @ changes.mT).double()
        scale = gram.diagonal(dim1=1, dim2=2).sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        ridge = torch.eye(self.depth, dtype=torch.float64, device=x.device) * 1e-10
        right = (changes @ r[:, :, None]).double() / scale[:, None, None]
        mixed = torch.linalg.solve(gram / scale[:, None, None] + ridge, right).to(x.dtype)
        step: Tensor = r - ((moves.mT @ -mixed) + (changes.mT @ mixed)).squeeze(2)
        return torch.sub(flat, step).view_as(x)
