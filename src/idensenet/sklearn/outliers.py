"""Outliers: rows that the density finds unlikely."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import OutlierMixin
from sklearn.utils.validation import validate_data

from idensenet.data.store import Array
from idensenet.errors import OptionError
from idensenet.sklearn.base import FlowEstimator, and_options_of


class FlowOutlierDetector(OutlierMixin, FlowEstimator):  # type: ignore[misc]
    """Marks rows whose log-density is below the `contamination` quantile of that of the training rows.

    `offset_` is that quantile; `decision_function` is the log-density less the offset, negative for outliers.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> FlowOutlierDetector(max_iter=20, random_state=0).fit(X).predict([[0, 0], [9, -9]])
    array([ 1, -1])
    """

    @and_options_of(FlowEstimator)
    def __init__(self, *, contamination: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.contamination = contamination

    def fit(self, X: ArrayLike, y: object = None, *, context: ArrayLike | None = None) -> Self:
        """Fit to the rows of X, some of which may be outliers themselves; `y` is not looked at."""
        if not 0 < self.contamination <= 0.5:
            raise OptionError(f"contamination={self.contamination!r} must lie in (0, 0.5].")
        x: Array = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        self._fit(x, context)
        self.offset_ = float(np.quantile(self.score_samples(X, context), self.contamination))
        return self

    def decision_function(self, X: ArrayLike, context: ArrayLike | None = None) -> Array:
        """The log-density less `offset_`: below zero for outliers."""
        found: Array = self.score_samples(X, context) - self.offset_
        return found

    def predict(self, X: ArrayLike, context: ArrayLike | None = None) -> Array:
        """1 for inliers, -1 for outliers."""
        return np.where(self.decision_function(X, context) < 0, -1, 1)
