"""What a table must be to have a density, said in one sentence where it has none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from idensenet.data.store import Array
from idensenet.errors import DataError

SAME = 1e-10  # of the correlation: an eigenvalue below this is a direction in which nothing varies


def _named(columns: Array, names: Sequence[str] | None) -> str:
    shown = [repr(names[i]) if names is not None else str(i) for i in columns[:6]]
    return ", ".join(shown) + (", ..." if len(columns) > 6 else "")


def check_density(x: Array, names: Sequence[str] | None = None) -> None:
    """Refuse columns that are constant, copies of each other or determined by others: no density exists there."""
    x = np.asarray(x, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        deviation, size = x.std(0), np.abs(x).max(0)
    if not np.isfinite(deviation).all():
        bad = np.flatnonzero(~np.isfinite(deviation))
        raise DataError(f"Column {_named(bad, names)} has values too large for float64 (up to {size.max():.3g}); rescale it.")
    constant = np.flatnonzero(deviation <= 8 * np.finfo(x.dtype).eps * size)
    if len(constant):
        value = x[0, constant[0]]
        which = "Column {} is" if len(constant) == 1 else "Columns {} are"
        raise DataError(
            f"{which.format(_named(constant, names))} constant ({value:.6g}), so that no density exists; drop what is "
            "constant, or add noise of the size of its rounding."
        )
    if len(x) <= x.shape[1]:
        return  # too few rows to tell
    scaled = (x - x.mean(0)) / deviation
    values, vectors = np.linalg.eigh(scaled.T @ scaled / len(x))
    if values[0] < SAME:
        largest = np.abs(vectors[:, 0]).max()
        tied = np.flatnonzero(np.abs(vectors[:, 0]) > 0.05 * largest)
        raise DataError(
            f"Columns {_named(tied, names)} determine each other (copies, or a linear combination), so that no density exists; "
            "drop one of them."
        )
