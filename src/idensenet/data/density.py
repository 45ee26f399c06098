"""What a table must be to have a density, and to keep its digits; said in one sentence where it is not that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from idensenet.data.source import Source
from idensenet.data.store import Array
from idensenet.errors import DataError
from idensenet.moments import Moments

SAME = 1e-10  # of the correlation: an eigenvalue below this is a direction in which nothing varies
DIGITS = 1024  # steps of the number type, at the size of a column, that its deviation must have


def _named(columns: Array, names: Sequence[str] | None) -> str:
    shown = [repr(names[i]) if names is not None else str(i) for i in columns[:6]]
    return ", ".join(shown) + (", ..." if len(columns) > 6 else "")


def check_density(x: Array, names: Sequence[str] | None = None, integers: Sequence[int] = ()) -> None:
    """Refuse columns that are constant, copies of each other or determined by others: no density exists there.

    Args:
        x: Rows.
        names: The names of the columns.
        integers: Columns of whole numbers, to which a flow adds noise; with it, they have a density.
    """
    _check_density(Moments.of(_noisy(x, integers, np.random.default_rng(0))), names)


def _noisy(x: Array, integers: Sequence[int], random: np.random.Generator) -> Array:
    x = np.array(x, np.float64)
    x[:, list(integers)] += random.random((len(x), len(integers)))
    return x


def _check_density(found: Moments, names: Sequence[str] | None) -> None:
    deviation, size = found.deviation, found.largest
    if not np.isfinite(deviation).all():
        bad = np.flatnonzero(~np.isfinite(deviation))
        raise DataError(f"Column {_named(bad, names)} has values too large for float64 (up to {size.max():.3g}); rescale it.")
    constant = np.flatnonzero(deviation <= 8 * np.finfo(np.float64).eps * size)
    if len(constant):
        value = found.first[constant[0]]
        which = "Column {} is" if len(constant) == 1 else "Columns {} are"
        raise DataError(
            f"{which.format(_named(constant, names))} constant ({value:.6g}), so that no density exists; drop what is "
            "constant, or add noise of the size of its rounding."
        )
    if found.rows <= len(deviation):
        return  # too few rows to tell
    values, vectors = np.linalg.eigh(found.covariance / np.outer(deviation, deviation))
    if values[0] < SAME:
        largest = np.abs(vectors[:, 0]).max()
        tied = np.flatnonzero(np.abs(vectors[:, 0]) > 0.05 * largest)
        raise DataError(
            f"Columns {_named(tied, names)} determine each other (copies, or a linear combination), so that no density exists; "
            "drop one of them."
        )


def check_digits(x: Array, dtype: str, names: Sequence[str] | None = None) -> None:
    """Refuse columns that vary too little for their size (unix time, ids) to be rounded to a number type; constants may be."""
    _check_digits(Moments.of(x), dtype, names)


def _check_digits(found: Moments, dtype: str, names: Sequence[str] | None) -> None:
    limits, mean, deviation = np.finfo(dtype), found.mean, found.deviation
    constant = deviation <= 8 * np.finfo(np.float64).eps * np.abs(mean)
    least = np.maximum(DIGITS * float(limits.eps) * np.hypot(mean, deviation), float(limits.tiny))
    lost = np.flatnonzero(~constant & (deviation < least))
    if len(lost):
        i = lost[0]
        better = "" if dtype == "float64" else "compute in float64 (--train.precision 64-true, or dtype='float64'), or "
        raise DataError(
            f"Column {_named(lost[:1], names)} (mean {mean[i]:.6g}, deviation {deviation[i]:.3g}) loses digits that matter in "
            f"{dtype}; {better}subtract an offset from it."
        )


def check_source(source: Source, dtype: str) -> None:
    """Both, for a table that a model of a number type is to be trained on."""
    if source.levels is not None or source.stream is not None:
        return
    integers = () if source.table is None else source.table.integers
    random, noisy, plain, given = np.random.default_rng(0), Moments(), Moments(), Moments()
    for block in source.train.blocks():
        plain.add(block.x)
        if integers:
            noisy.add(_noisy(block.x, integers, random))
        if block.context is not None:
            given.add(block.context)
    _check_density(noisy if integers else plain, source.columns or None)
    _check_digits(plain, dtype, source.columns or None)
    if given.rows:
        _check_digits(given, dtype, source.context or None)
