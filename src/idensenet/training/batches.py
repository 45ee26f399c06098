"""Which samples a step sees, and the noise it draws.

Both are a function of the seed and of the number of the batch, counted over all processes. So resuming is exact, and a batch
is the same whether several processes share the batches of a step or one process accumulates them.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idensenet.config import DataConfig
from idensenet.data.source import Batch, Order, Source
from idensenet.errors import OptionError


def seed_of(*parts: int) -> int:
    """One seed from several numbers; different numbers give independent ones."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


class Batches:
    """The batches of one rank. Every epoch is a fresh permutation of the data; ranks take turns."""

    def __init__(self, source: Source, batch_size: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self.source, self.size, self.seed, self.rank, self.world = source, batch_size, seed, rank, world
        if batch_size < 1:
            raise OptionError(f"train.batch_size={batch_size} must be at least 1.")
        self.per_epoch = len(source.train) // batch_size  # over all ranks
        if source.stream is None and self.per_epoch < 1:
            raise OptionError(f"train.batch_size={batch_size} is more than the {len(source.train)} training samples; use less.")
        self._epoch = -1
        self._order: Order = np.empty(0, np.int64)

    def among_all(self, number: int) -> int:
        """The number of a batch of this rank, counted over all ranks from the start of training."""
        return number * self.world + self.rank

    def __call__(self, number: int) -> Batch:
        """The batch of this rank with this number, counted from the start of training."""
        if self.source.stream is not None:
            generator = torch.Generator().manual_seed(seed_of(self.seed, 1, self.among_all(number), 0))
            return Batch(self.source.stream.sample(self.size, generator))
        epoch, place = divmod(self.among_all(number), self.per_epoch)
        if epoch != self._epoch:
            self._order = self.source.train.order([self.seed, 2, epoch])
            self._epoch = epoch
        return self.source.train.batch(self._order[place * self.size : (place + 1) * self.size])


def augment(x: Tensor, config: DataConfig, generator: torch.Generator) -> Tensor:
    """Random mirror images and shifts with reflection, sample by sample; uint8 in, uint8 out."""
    n = len(x)
    if config.flip:
        mirrored = torch.rand(n, generator=generator) < 0.5
        x = torch.where(mirrored[:, None, None, None].to(x.device), x.flip(3), x)
    if config.crop:
        h, w = x.shape[2:]
        padded = F.pad(x.float(), (4, 4, 4, 4), mode="reflect").to(x.dtype)
        top, left = torch.randint(0, 9, (2, n), generator=generator).to(x.device)
        rows = top[:, None] + torch.arange(h, device=x.device)
        columns = left[:, None] + torch.arange(w, device=x.device)
        sample, channel = torch.arange(n, device=x.device)[:, None, None, None], torch.arange(x.shape[1], device=x.device)
        x = padded[sample, channel[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]
    return x
