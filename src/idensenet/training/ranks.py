"""What the processes of a run tell each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Ranks:
    """The processes of a run, as one of them sees them. Alone, it waits for nobody."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.rank, self.world = fabric.global_rank, fabric.world_size

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all processes."""
        if self.world == 1:
            return value
        mean = self.fabric.all_reduce(value, reduce_op="mean")
        assert isinstance(mean, Tensor)
        return mean

    def rows(self, value: Tensor) -> Tensor:
        """The rows of all processes, one process after the other."""
        if self.world == 1:
            return value
        rows = self.fabric.all_gather(value)
        assert isinstance(rows, Tensor)
        return rows.flatten(0, 1)

    def share(self, n: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The places of this process among n rows: of one length in all, to be gathered, so that the first may come again."""
        size = -(-n // self.world)
        return np.arange(self.rank * size, (self.rank + 1) * size) % max(1, n)

    def average_gradients(self, parameters: Iterable[Tensor], asked: bool) -> bool:
        """Every process has the mean of all gradients after it; and whether anybody was asked to stop."""
        if self.world == 1:
            return asked
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = self.mean(torch.cat([g.flatten() for g in gradients] + [gradients[0].new_tensor([float(asked)])]))
        for g, part in zip(gradients, torch.split(flat[:-1], [g.numel() for g in gradients]), strict=True):
            g.copy_(part.view_as(g))
        return bool(flat[-1] > 0)
