"""Anderson acceleration: the combination of the last points whose residuals cancel best; on images, after a stencil."""

from __future__ import annotations

import torch
from torch import Tensor

from idensenet.errors import OptionError
from idensenet.solve import stencil
from idensenet.solve.solver import Function, Memory, Solver


class History(Memory):
    """Differences of successive points and of their steps, newest last: [depth, batch, D]; a stencil for each sample."""

    def __init__(self, x: Tensor, depth: int) -> None:
        flat = x.flatten(1)
        self.points, self.changes = flat.new_zeros(depth, *flat.shape), flat.new_zeros(depth, *flat.shape)
        self.x: Tensor | None = None
        self.step: Tensor | None = None
        self.stencil: Tensor | None = None

    def take(self, index: Tensor) -> None:
        self.points, self.changes = self.points[:, index], self.changes[:, index]
        if self.x is not None and self.step is not None:
            self.x, self.step = self.x[index], self.step[index]
        if self.stencil is not None:
            self.stencil = self.stencil[index]

    def add(self, x: Tensor, step: Tensor, forget: Tensor) -> None:
        """Remember the move to x; samples in `forget` were refused their last proposal and start afresh."""
        if self.x is not None and self.step is not None:
            self.points = torch.cat([self.points[1:], (x - self.x)[None]])
            self.changes = torch.cat([self.changes[1:], (step - self.step)[None]])
            self.points[:, forget] = 0
            self.changes[:, forget] = 0
        self.x, self.step = x, step


class Anderson(Solver):
    """Least squares over the last `depth` steps, per sample (Anderson, 1965; Walker and Ni, 2011).

    On maps a step is not the residual r itself but (I + S)^-1 r, with a small convolution S that is fitted to the first
    evaluation of g (see stencil.py); `stencil=False` leaves that out.
    """

    def __init__(self, tol: float | None = None, max_steps: int = 1000, depth: int = 5, stencil: bool = True) -> None:
        super().__init__(tol, max_steps)
        if depth < 1:
            raise OptionError(f"depth={depth} must be at least 1.")
        self.depth, self.stencil = depth, stencil

    def memory(self, x: Tensor) -> Memory:
        return History(x, self.depth)

    def propose(self, g: Function, x: Tensor, residual: Tensor, memory: Memory, plain: Tensor) -> Tensor:
        assert isinstance(memory, History)
        if self.stencil and memory.x is None:
            found = stencil.fit(x, residual)  # x is y as yet, so that the residual is g(x)
            memory.stencil = found if found is not None and bool(found.any()) else None
        step = residual if memory.stencil is None else stencil.undo(memory.stencil, residual)
        flat, r = x.flatten(1), step.flatten(1)
        memory.add(flat, r, plain)
        moves, changes = memory.points.transpose(0, 1), memory.changes.transpose(0, 1)  # [batch, depth, D]
        gram = (changes @ changes.mT).double()
        scale = gram.diagonal(dim1=1, dim2=2).sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        ridge = torch.eye(self.depth, dtype=torch.float64, device=x.device) * 1e-10
        right = (changes @ r[:, :, None]).double() / scale[:, None, None]
        mixed = torch.linalg.solve(gram / scale[:, None, None] + ridge, right).to(x.dtype)
        way: Tensor = r - ((moves.mT @ -mixed) + (changes.mT @ mixed)).squeeze(2)
        return torch.sub(flat, way).view_as(x)
