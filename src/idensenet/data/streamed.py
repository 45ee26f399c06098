"""Tables larger than memory: training and held-out rows that stay in their files.

A row is known by its number among the training rows (or the held-out ones), in the order of the files. `StreamedRows` reads
any of them, fast where they are close together, and `GroupedOrder` sees to that in training: row groups come in random order,
and rows are shuffled within a buffer of a few. So it holds a few row groups, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from idensenet.data.row_groups import RowGroups
from idensenet.data.shuffle import places
from idensenet.data.source import Batch, Samples, Split
from idensenet.data.store import Array
from idensenet.data.table_source import Contents

BUFFER = 8  # row groups that are shuffled together, at most
ROWS = 1 << 22  # of them
BYTES = 1 << 28  # of them


@dataclass(frozen=True)
class Division:
    """The rows of all row groups, as numbers for a flow, in two parts.

    Args:
        groups: Where they are.
        contents: Makes numbers of a row group.
        seed: Of the split.
        below: Rows whose place is below this are held out.
    """

    groups: RowGroups
    contents: Callable[[int], Contents]
    seed: int
    below: float

    def rows(self, i: int) -> tuple[Contents, Array]:
        """All rows of a row group, and which of them are held out."""
        contents = self.contents(i)
        return contents, self.places(contents) < self.below

    def places(self, contents: Contents) -> Array:
        """The numbers that decide which rows are held out."""
        return places(contents.keys(self.seed))

    def part(self, i: int, held_out: bool) -> Split:
        """The training rows of a row group, or the others."""
        contents, test = self.rows(i)
        return contents.split(np.flatnonzero(test == held_out))


class StreamedRows(Samples):
    """One part of the rows of a table.

    Args:
        division: All rows.
        held_out: Which part.
        counts: How many rows of this part each row group has.
        mean_weight: How much a row counts on average, if rows count differently.
    """

    def __init__(self, division: Division, held_out: bool, counts: Array, mean_weight: float | None = None) -> None:
        self.division, self.held_out, self.counts = division, held_out, counts
        self.ends = np.cumsum(counts)
        self._mean_weight = mean_weight
        self._held: dict[int, Split] = {}  # row groups, the one that was read last at the end

    def __len__(self) -> int:
        return int(self.ends[-1])

    @property
    def mean_weight(self) -> float | None:
        return self._mean_weight

    @property
    def held(self) -> int:
        """Row groups in memory."""
        return len(self._held)

    def batch(self, index: Array) -> Batch:
        owner = np.searchsorted(self.ends, index, side="right")
        wanted = sorted(set(owner.tolist()), key=lambda i: (i not in self._held, i))  # first what would be let go
        found: dict[str, Tensor] = {}
        for i in wanted:
            here = np.flatnonzero(owner == i)
            rows = self._group(i).batch(index[here] - (self.ends[i] - self.counts[i]))
            for name, value in rows._asdict().items():
                if value is not None:
                    whole = found.setdefault(name, torch.empty((len(index), *value.shape[1:]), dtype=value.dtype))
                    whole[torch.from_numpy(here)] = value
        return Batch(**found)

    def _group(self, i: int) -> Split:
        """The rows of this part in a row group; others are let go of, the longest unused first."""
        if i in self._held:
            self._held[i] = self._held.pop(i)
            return self._held[i]
        taken = [*self._held, i]
        while len(taken) > 1 and not self._fits(taken):
            self._held.pop(taken.pop(0))
        self._held[i] = self._read(i)
        return self._held[i]

    def _read(self, i: int) -> Split:
        split = self.division.part(i, self.held_out)
        assert len(split) == self.counts[i], "a row group has other rows than when it was counted"
        return split

    def _fits(self, groups: Sequence[int]) -> bool:
        """Whether there is room for these row groups at once."""
        rows = int(self.counts[list(groups)].sum())
        return len(groups) <= BUFFER and rows <= ROWS and rows * len(self.division.groups.layout.names) * 8 <= BYTES

    def order(self, seed: Sequence[int]) -> GroupedOrder:
        full = [i for i in np.random.default_rng(seed).permutation(len(self.counts)).tolist() if self.counts[i]]
        buffers: list[list[int]] = [[]]
        for i in full:
            if buffers[-1] and not self._fits([*buffers[-1], i]):
                buffers.append([])
            buffers[-1].append(i)
        return GroupedOrder(buffers, self.ends - self.counts, self.counts, seed)

    def blocks(self) -> Iterator[Split]:
        for i in self.division.groups.each("reading all rows, one more pass over the row groups"):
            if self.counts[i]:
                yield self._read(i)


class GroupedOrder:
    """All rows once: buffers of row groups one after the other, and the rows of each shuffled together.

    The order within a buffer is computed when it is first needed, so that the order of all rows is never in memory.
    """

    def __init__(self, buffers: list[list[int]], starts: Array, counts: Array, seed: Sequence[int]) -> None:
        self.buffers, self.starts, self.counts, self.seed = buffers, starts, counts, list(seed)
        self.ends = np.cumsum([int(counts[buffer].sum()) for buffer in buffers])
        self._known: tuple[int, Array] = (-1, np.empty(0, np.int64))

    def __getitem__(self, part: slice, /) -> Array:
        start, stop, _ = part.indices(int(self.ends[-1]))
        found = [np.empty(0, np.int64)]
        for i in range(int(np.searchsorted(self.ends, start, side="right")), len(self.buffers)):
            first = int(self.ends[i - 1]) if i else 0
            if first >= stop:
                break
            found.append(self._buffer(i)[max(start - first, 0) : stop - first])
        return np.concatenate(found)

    def _buffer(self, i: int) -> Array:
        if self._known[0] != i:
            rows = np.concatenate([np.arange(self.counts[g]) + self.starts[g] for g in self.buffers[i]])
            np.random.default_rng([*self.seed, i + 1]).shuffle(rows)
            self._known = i, rows
        return self._known[1]
