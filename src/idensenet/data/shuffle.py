"""Which rows are for training and which for testing, the same on every machine.

The order comes from the counter-based generator in `draws.py`, not from a library's shuffle, so that a new version of
another package never moves a test sample into the training set.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from idensenet.draws import content_keys
from idensenet.errors import DataError, OptionError

MANY = 1 << 22  # rows from which the share that lies below a bound is the bound, with an error of 0.15 per cent of it
Index = np.ndarray[Any, np.dtype[np.int64]]


def shuffled(n: int, seed: int) -> Index:
    """The numbers 0 to n - 1 in an order that is a function of the seed alone.

    >>> sorted(shuffled(5, seed=1).tolist())
    [0, 1, 2, 3, 4]
    """
    keys = content_keys(torch.arange(n)[:, None], seed).numpy()
    return np.argsort(keys, kind="stable").astype(np.int64)


def split_rows(n: int, test_fraction: float, seed: int) -> tuple[Index, Index]:
    """Rows for training and rows for testing, both rising, at least one of each.

    >>> [len(rows) for rows in split_rows(20, 0.1, seed=0)]
    [18, 2]
    """
    if not 0 < test_fraction < 1:
        raise OptionError(f"test_fraction is {test_fraction}; it must lie between 0 and 1.")
    if n < 2:
        raise DataError(f"There {'is 1 sample' if n == 1 else 'are no samples'}; at least 2 are needed, to train and to test.")
    held_out = min(max(round(n * test_fraction), 1), n - 1)
    order = shuffled(n, seed)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def split_keys(
    keys: np.ndarray[Any, Any], test_fraction: float, seed: int, below: float | None = None
) -> tuple[Index, Index, float | None]:
    """Rows for training and for testing by a key of each, int64 as `content_keys` has them, and the bound that divides them.

    A key stands for a number in [0, 1), and a row is held out if it lies below the bound: by default so that `test_fraction` of
    these rows do, of more than `MANY` rows up to chance. With the bound of another call, neither order nor new rows move a row
    from one part to the other. Equal rows stay together. At least one of each part is needed: where there is none, the lowest
    or highest row goes there.
    """
    split_rows(len(keys), test_fraction, seed)  # for its errors
    place = places(keys)
    if below is None:
        below = bound_of(place, test_fraction) if len(keys) <= MANY else test_fraction
        if below is None:
            return *split_rows(len(keys), test_fraction, seed), None
    test = place < below
    if not test.any():
        test = place == place.min()
    if test.all():
        test = place < place.max()
    if not test.any():
        return *split_rows(len(keys), test_fraction, seed), None
    return np.flatnonzero(~test), np.flatnonzero(test), below


def places(keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The numbers in [0, 1) that keys of `content_keys` stand for, uniform and exact in float64."""
    return (keys.view(np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bound_of(place: np.ndarray[Any, Any], test_fraction: float) -> float | None:
    """The bound below which this share of the different rows lies, at least one of them and not all; None for a single row."""
    distinct = np.unique(place)
    if len(distinct) == 1:
        return None
    held_out = min(max(round(len(distinct) * test_fraction), 1), len(distinct) - 1)
    return float(distinct[held_out - 1 : held_out + 1].mean())


def stratified_rows(labels: np.ndarray[Any, Any], held_out: int, seed: int) -> tuple[Index, Index]:
    """As `split_rows`, with exactly `held_out` test rows in which every class has its share, rounded up or down.

    The largest remainders are rounded up, the smaller class first among equals.
    """
    classes, counts = np.unique(labels, return_counts=True)
    share = counts * held_out / len(labels)
    quota = np.floor(share).astype(int)
    quota[np.argsort(quota - share, kind="stable")[: held_out - quota.sum()]] += 1
    order = shuffled(len(labels), seed)
    test = [order[labels[order] == c][:k] for c, k in zip(classes, quota, strict=True)]
    test_rows = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), test_rows), test_rows
