"""Anderson acceleration: the combination of the last points whose residuals cancel best; on images, after a stencil."""

from __future__ import annotations

import torch
from torch import Tensor

from idensenet.errors import OptionError
from idensenet.solve.solver import Function, Memory, PerSample, Solver
from idensenet.solve.stencil import Stencil, shared, with_own


class History(Memory):
    """The last differences of successive points and of their steps, in any order: [batch, depth, D]; if wanted, a stencil."""

    def __init__(self, y: Tensor, depth: int, wanted: bool) -> None:
        flat, self.wanted, self.seen = y.flatten(1), wanted, 0
        self.points, self.changes = (flat.new_zeros(len(flat), depth, flat.shape[1]) for _ in range(2))
        self.x: Tensor | None = None
        self.step: Tensor | None = None
        self.stencil: Stencil | None = None

    def begin(self, x: Tensor, gx: Tensor) -> None:
        if self.wanted:
            self.stencil = with_own(self.stencil, x, gx)

    def take(self, index: Tensor) -> None:
        self.points, self.changes = self.points[index], self.changes[index]
        if self.x is not None and self.step is not None:
            self.x, self.step = self.x[index], self.step[index]
        if self.stencil is not None:
            self.stencil = self.stencil.take(index)

    def add(self, x: Tensor, step: Tensor, forget: Tensor) -> None:
        """Remember the move to x; samples in `forget` were refused their last proposal and start afresh."""
        if self.x is not None and self.step is not None:
            oldest = self.seen % self.points.shape[1]
            torch.sub(x, self.x, out=self.points[:, oldest])
            torch.sub(step, self.step, out=self.changes[:, oldest])
            self.seen += 1
            if bool(forget.any()):
                self.points[forget] = 0
                self.changes[forget] = 0
        self.x, self.step = x, step


class Anderson(Solver):
    """Least squares over the last `depth` steps, per sample (Anderson, 1965; Walker and Ni, 2011).

    On maps the start is the solution with a small convolution in place of g, and a step is not the residual r itself but
    (I + S)^-1 r, with a small convolution S that is fitted to the first evaluation of g (see stencil.py);
    `stencil=False` leaves both out.

    Args:
        tol: Residual per square root of the dimension at which a sample stops; by default 5e-7 in float32, 1e-12 in float64.
        max_steps: Most steps.
        depth: Number of steps that are combined.
        stencil: Whether to use a fitted convolution on images.
    """

    def __init__(self, tol: float | None = None, max_steps: int = 1000, depth: int = 5, stencil: bool = True) -> None:
        super().__init__(tol, max_steps)
        if depth < 1:
            raise OptionError(f"depth={depth} must be at least 1.")
        self.depth, self.stencil = depth, stencil

    def start(self, g: Function, y: Tensor) -> tuple[Tensor, Memory]:
        memory = History(y, self.depth, self.stencil)
        if self.stencil and not isinstance(g, PerSample):
            memory.stencil = shared(g, y)
        return y if memory.stencil is None else memory.stencil.undo(y - memory.stencil.bias)[0], memory

    def propose(self, g: Function, x: Tensor, residual: Tensor, memory: Memory, plain: Tensor) -> Tensor:
        assert isinstance(memory, History)
        step = residual if memory.stencil is None else memory.stencil.undo(residual)[0]
        flat, r = x.flatten(1), step.flatten(1)
        memory.add(flat, r, plain)
        moves, changes = memory.points, memory.changes
        gram = (changes @ changes.mT).double()
        scale = gram.diagonal(dim1=1, dim2=2).sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        ridge = torch.eye(self.depth, dtype=torch.float64, device=x.device) * 1e-10
        right = (changes @ r[:, :, None]).double() / scale[:, None, None]
        mixed = torch.linalg.solve(gram / scale[:, None, None] + ridge, right).to(x.dtype)
        way: Tensor = r - ((moves.mT @ -mixed) + (changes.mT @ mixed)).squeeze(2)
        return torch.sub(flat, way).view_as(x)
