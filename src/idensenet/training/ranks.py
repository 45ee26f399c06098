"""What the processes of a run tell each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from idensenet.errors import LostProcessError
from idensenet.training.world import in_short

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Ranks:
    """The processes of a run, as one of them sees them. Alone, it waits for nobody."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.rank, self.world = fabric.global_rank, fabric.world_size
        self._asked: Later | None = None

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """What goes wrong between processes is one kind of error."""
        try:
            yield
        except RuntimeError as error:
            lost = f"Rank {self.rank} of {self.world} has lost another process, which has ended or cannot be reached"
            raise LostProcessError(f"{lost} ({in_short(error)})") from error

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.world > 1:
            with self._talking():
                self.fabric.barrier()

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all processes."""
        if self.world == 1:
            return value
        with self._talking():
            mean = self.fabric.all_reduce(value, reduce_op="mean")
        assert isinstance(mean, Tensor)
        return mean

    def rows(self, value: Tensor) -> Tensor:
        """The rows of all processes, one process after the other."""
        if self.world == 1:
            return value
        rows = [torch.empty_like(value) for _ in range(self.world)]
        with self._talking():
            torch.distributed.all_gather(rows, value.contiguous())
        return torch.cat(rows)

    def numbers(self, mine: Iterable[int]) -> list[list[int]]:
        """A few whole numbers of every process, on the host."""
        found: list[list[int]] = self.rows(torch.tensor([list(mine)], device=self.fabric.device)).tolist()
        return found

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Give the first process's values to all, where other hardware may have rounded differently."""
        if self.world > 1:
            with self._talking():
                for tensor in tensors:
                    torch.distributed.broadcast(tensor, 0)

    def share(self, n: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The places of this process among n rows: of one length in all, to be gathered, so that the first may come again."""
        size = -(-n // self.world)
        return np.arange(self.rank * size, (self.rank + 1) * size) % max(1, n)

    def average_gradients(self, parameters: Iterable[Tensor], asked: bool) -> bool:
        """Every process has the mean of all gradients after it.

        Returns:
            Whether anybody was asked to stop; of several processes, by the call before, so that nothing waits for the device.
        """
        if self.world == 1:
            return asked
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = self.mean(torch.cat([g.flatten() for g in gradients] + [gradients[0].new_tensor([float(asked)])]))
        for g, part in zip(gradients, torch.split(flat[:-1], [g.numel() for g in gradients]), strict=True):
            g.copy_(part.view_as(g))
        before, self._asked = self._asked, Later(flat[-1:])
        return before is not None and float(before) > 0


class Later:
    """A number on the device that is read when it has arrived on the host, while the device goes on."""

    def __init__(self, value: Tensor) -> None:
        self._event = torch.Event("cuda") if value.is_cuda else None
        self._host = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
        self._host.copy_(value, non_blocking=True)
        if self._event is not None:
            self._event.record()

    def __float__(self) -> float:
        if self._event is not None:
            self._event.synchronize()
        return float(self._host)
