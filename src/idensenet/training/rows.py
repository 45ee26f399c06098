"""The rows of a table as tensors, with what belongs to them; how they are divided and drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Samples, and what belongs to them."""

    x: Tensor
    context: Tensor | None = None
    y: Tensor | None = None
    weight: Tensor | None = None  # how much each counts

    def __len__(self) -> int:
        return len(self.x)

    def parts(self) -> tuple[Tensor | None, ...]:
        return self.x, self.context, self.y, self.weight

    def take(self, index: Tensor) -> Rows:
        return Rows(*[None if part is None else part[index] for part in self.parts()])  # type: ignore[arg-type]

    def weighted(self, losses: Tensor) -> Tensor:
        """Losses of these rows times their weights."""
        return losses if self.weight is None else losses * self.weight

    def mean(self, losses: Tensor) -> float:
        """The weighted mean of losses of these rows."""
        return float(losses.mean()) if self.weight is None else float(self.weighted(losses).sum() / self.weight.sum())

    def to(self, dtype: torch.dtype) -> Rows:
        """The same rows in another number type; classes stay what they are."""
        x, context, _, weight = (None if part is None else part.to(dtype) for part in self.parts())
        assert x is not None
        return Rows(x, context, self.y, weight)

    def digest(self) -> str:
        """The same for the same rows alone."""
        found = hashlib.sha256()
        for part in self.parts():
            found.update(b"" if part is None else f"{part.shape}".encode() + part.cpu().numpy().tobytes())
        return found.hexdigest()


def batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Every epoch a fresh permutation, without an end; a last batch of less than half the size is left out."""
    size = min(size, n)
    while True:
        order = torch.randperm(n, generator=generator)
        for part in torch.split(order, size):
            if 2 * len(part) > size:
                yield part


def divided(rows: Rows, folds: int, held_out: int, seed: int) -> list[tuple[Rows, Rows]]:
    """(training, held-out) rows: one split with so many rows held out, or as many splits as there are folds."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).to(rows.x.device)
    if folds == 1:
        return [(rows.take(order[held_out:]), rows.take(order[:held_out]))]
    parts = torch.tensor_split(order, folds)
    return [(rows.take(torch.cat([p for j, p in enumerate(parts) if j != i])), rows.take(part)) for i, part in enumerate(parts)]
