"""What a run remembers of its data, so that a change is noticed: how many rows, which ones, in which order, in which part.

A row is known by a key of 64 bits, a hash of its content. Of the training rows the smallest keys are kept: whether a row with a
small key was trained on is then known, and such rows are a random sample of all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from idensenet.data.source import Samples, Source, Split
from idensenet.data.store import Array, chunks
from idensenet.draws import content_keys

KEPT = 1024  # keys of training rows
OWN = ("table", "folder")  # sources that can change; the others are verified, or drawn from a seed
UNKNOWN = (
    "This run keeps no fingerprint of its data that can be read, so nothing can tell whether held-out rows were trained on; "
    "runs that are trained with this version keep one."
)


def row_keys(samples: Samples) -> Array:
    """One key for each row, a function of its content alone."""
    return np.concatenate([np.empty(0, np.uint64), *key_blocks(samples)])


def key_blocks(samples: Samples) -> Iterator[Array]:
    """The same, some at a time."""
    for split in samples.blocks():
        if split.x.dtype == np.uint8:
            digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for rows in chunks(split.x) for row in rows]
            yield np.frombuffer(b"".join(digests), "<u8")
            continue
        for start in range(0, len(split), 1 << 16):
            yield _keys(split, start)


def _keys(split: Split, start: int) -> Array:
    parts = [
        np.asarray(array[start : start + (1 << 16)], np.float64) for array in (split.x, split.context) if array is not None
    ]
    rows = torch.from_numpy(np.concatenate([part.reshape(len(part), -1) for part in parts], 1))
    return content_keys(rows).numpy().view(np.uint64)


@dataclass(frozen=True)
class Part:
    """Training or held-out rows: their number, a hash of them in any order, and one of their order."""

    rows: int
    content: str
    order: str


class Digest:
    """What is kept of the keys of some rows, which come some at a time: their `part`, and the smallest of them."""

    def __init__(self) -> None:
        self.rows = self.total = 0
        self.order = hashlib.blake2b(digest_size=16)
        self.smallest = np.empty(0, np.uint64)  # one more than are kept, if there are more

    @classmethod
    def of(cls, blocks: Iterable[Array]) -> Digest:
        found = cls()
        for keys in blocks:
            found.add(keys)
        return found

    @classmethod
    def of_samples(cls, samples: Samples) -> Digest:
        """The one that is known already, or from all rows."""
        return samples.digest or cls.of(key_blocks(samples))

    def add(self, keys: Array) -> None:
        self.rows += len(keys)
        self.total = (self.total + int(keys.sum(dtype=np.uint64))) % (1 << 64)
        self.order.update(keys.astype("<u8").tobytes())
        if len(self.smallest) > KEPT:
            keys = keys[keys < self.smallest[-1]]
        self.smallest = np.union1d(self.smallest, keys)[: KEPT + 1]

    @property
    def part(self) -> Part:
        return Part(self.rows, f"{self.total:016x}", self.order.hexdigest())


@dataclass(frozen=True)
class Fingerprint:
    """Both parts, and the smallest keys of all rows that were ever trained on; `all_kept` if these are all there are."""

    train: Part
    test: Part
    trained: tuple[int, ...]
    all_kept: bool

    @classmethod
    def of(cls, source: Source) -> Fingerprint:
        train, test = (Digest.of_samples(samples) for samples in (source.train, source.test))
        return cls(train.part, test.part, tuple(map(int, train.smallest[:KEPT])), len(train.smallest) <= KEPT)

    def continued(self, now: Fingerprint) -> Fingerprint:
        """The fingerprint of a run that began with `self` and goes on with the data of `now`."""
        both = sorted({*self.trained, *now.trained})
        return Fingerprint(now.train, now.test, tuple(both[:KEPT]), self.all_kept and now.all_kept and len(both) <= KEPT)

    def trained_on(self, blocks: Iterable[Array]) -> float | None:
        """How many of these rows were trained on, an estimate where not all keys are kept; None if nothing can be said."""
        kept = np.array(self.trained, np.uint64)
        rows = known = found = 0
        for keys in blocks:
            some = keys if self.all_kept else keys[keys <= kept[-1]]
            rows, known, found = rows + len(keys), known + len(some), found + int(np.isin(some, kept).sum())
        return float(found) * rows / known if known else None

    def as_dict(self) -> dict[str, Any]:
        parts = {name: vars(part) for name, part in (("train", self.train), ("test", self.test))}
        return {"format": 1, **parts, "all_kept": self.all_kept, "trained": [f"{key:016x}" for key in self.trained]}

    @classmethod
    def from_dict(cls, values: Any) -> Fingerprint | None:
        """The fingerprint that `as_dict` described; None for anything else."""
        try:
            train, test = (Part(**values[name]) for name in ("train", "test"))
            trained = tuple(int(key, 16) for key in values["trained"])
            found = cls(train, test, trained, values["all_kept"])
            whole = (
                0 < len(trained) <= KEPT and list(trained) == sorted(set(trained)) and 0 <= trained[0] <= trained[-1] < 1 << 64
            )
            return found if whole and found.as_dict() == values and train.rows > 0 < test.rows else None
        except (TypeError, ValueError, LookupError, AttributeError):
            return None


def changes(then: Fingerprint, source: Source) -> tuple[str, ...]:
    """What is different from the data that a run was trained on, and what that means; nothing if nothing is."""
    now = Fingerprint.of(source)
    if (then.train, then.test) == (now.train, now.test):
        return ()
    if (then.train.content, then.test.content) == (now.train.content, now.test.content):
        return (
            "The rows are in another order than when the run was trained; the held-out ones are the same, so scores compare.",
        )
    counts = [f"{each.train.rows:,} + {each.test.rows:,}" for each in (then, now)]
    words = f"The data is not what the run was trained on: {counts[0]} rows then, {counts[1]} now (training + held out)."
    seen = then.trained_on(key_blocks(source.test))
    if seen is None:
        return (words, "Whether held-out rows were trained on cannot be told, so the score may be too good.")
    if seen:
        about = "" if then.all_kept else "About "
        return (words, f"{about}{round(seen):,} of {now.test.rows:,} held-out rows were trained on, so the score is too good.")
    return (words, "No held-out row was trained on, but they are not the same rows: the score is of others than before.")
