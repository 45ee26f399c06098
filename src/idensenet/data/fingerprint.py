"""What a run remembers of its data, so that a change is noticed: how many rows, which ones, in which order, in which part.

A row is known by a key of 64 bits, a hash of its content. Of the training rows the smallest keys are kept: whether a row with a
small key was trained on is then known, and such rows are a random sample of all.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from idensenet.data.source import Source, Split
from idensenet.data.store import Array, chunks
from idensenet.draws import content_keys

KEPT = 1024  # keys of training rows
OWN = ("table", "folder")  # sources that can change; the others are verified, or drawn from a seed
UNKNOWN = (
    "This run keeps no fingerprint of its data that can be read, so nothing can tell whether held-out rows were trained on; "
    "runs that are trained with this version keep one."
)


def row_keys(split: Split) -> Array:
    """One key for each row, a function of its content alone."""
    if split.x.dtype == np.uint8:
        digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for rows in chunks(split.x) for row in rows]
        return np.frombuffer(b"".join(digests), "<u8")
    return np.concatenate([_keys(split, start) for start in range(0, max(1, len(split)), 1 << 16)])


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

    @classmethod
    def of(cls, keys: Array) -> Part:
        total = int(keys.sum(dtype=np.uint64))
        return cls(len(keys), f"{total:016x}", hashlib.blake2b(keys.astype("<u8").tobytes(), digest_size=16).hexdigest())


@dataclass(frozen=True)
class Fingerprint:
    """Both parts, and the smallest keys of all rows that were ever trained on; `all_kept` if these are all there are."""

    train: Part
    test: Part
    trained: tuple[int, ...]
    all_kept: bool

    @classmethod
    def of(cls, source: Source) -> Fingerprint:
        return cls.of_keys(row_keys(source.train), row_keys(source.test))

    @classmethod
    def of_keys(cls, train: Array, test: Array) -> Fingerprint:
        smallest = np.unique(train)
        return cls(Part.of(train), Part.of(test), tuple(map(int, smallest[:KEPT])), len(smallest) <= KEPT)

    def continued(self, now: Fingerprint) -> Fingerprint:
        """The fingerprint of a run that began with `self` and goes on with the data of `now`."""
        both = sorted({*self.trained, *now.trained})
        return Fingerprint(now.train, now.test, tuple(both[:KEPT]), self.all_kept and now.all_kept and len(both) <= KEPT)

    def trained_on(self, keys: Array) -> float | None:
        """How many of these rows were trained on, an estimate where not all keys are kept; None if nothing can be said."""
        kept = np.array(self.trained, np.uint64)
        known = keys if self.all_kept else keys[keys <= kept[-1]]
        return float(np.isin(known, kept).sum()) * len(keys) / len(known) if len(known) else None

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
    test = row_keys(source.test)
    now = Fingerprint.of_keys(row_keys(source.train), test)
    if (then.train, then.test) == (now.train, now.test):
        return ()
    if (then.train.content, then.test.content) == (now.train.content, now.test.content):
        return (
            "The rows are in another order than when the run was trained; the held-out ones are the same, so scores compare.",
        )
    counts = [f"{each.train.rows:,} + {each.test.rows:,}" for each in (then, now)]
    words = f"The data is not what the run was trained on: {counts[0]} rows then, {counts[1]} now (training + held out)."
    seen = then.trained_on(test)
    if seen is None:
        return (words, "Whether held-out rows were trained on cannot be told, so the score may be too good.")
    if seen:
        about = "" if then.all_kept else "About "
        return (words, f"{about}{round(seen):,} of {len(test):,} held-out rows were trained on, so the score is too good.")
    return (words, "No held-out row was trained on, but they are not the same rows: the score is of others than before.")
