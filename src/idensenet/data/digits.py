"""Handwritten digits of 8 x 8 pixels and 17 levels, which come with scikit-learn: images that need no download."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from idensenet.data.shuffle import stratified_rows
from idensenet.data.source import Source, Split
from idensenet.data.store import Array
from idensenet.extras import needs

HELD_OUT = 360


@lru_cache(maxsize=1)
def _images_and_labels() -> tuple[Array, Array]:
    """All digits as scikit-learn has them; reading its text file takes a fifth of a second, so it is read once."""
    with needs("The data set 'digits'"):
        from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images.astype(np.uint8).reshape(-1, 1, 8, 8), labels.astype(np.int64)


def open_digits() -> Source:
    """1437 images to train and 360 to test, always the same ones, with every digit in both in the same proportion."""
    x, y = _images_and_labels()
    train, test = stratified_rows(y, HELD_OUT, seed=0)
    return Source("digits", Split(x[train], y[train]), Split(x[test], y[test]), (1, 8, 8), levels=17, classes=10)
