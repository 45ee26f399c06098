"""Outliers: rows that the density finds unlikely."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import OutlierMixin

from idensenet.columns import Columns
from idensenet.data.store import Array
from idensenet.errors import OptionError
from idensenet.flow import Flow
from idensenet.sklearn.base import FlowEstimator
from idensenet.sklearn.options import and_options_of
from idensenet.sklearn.tables import checked_rows
from idensenet.training.fitting import Fitted, losses
from idensenet.training.rows import Rows


class FlowOutlierDetector(OutlierMixin, FlowEstimator):  # type: ignore[misc]
    """Marks rows whose log-density is below a threshold, so that about a share `contamination` of new normal rows is marked.

    The threshold `offset_` is a quantile of the log-densities of held-out rows: a flow gives the rows that it was trained on a
    higher density than new ones. Without early stopping no rows are held out, and the quantile is over all training rows.
    `decision_function` is the log-density less the threshold, negative for outliers.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> FlowOutlierDetector(max_iter=20, random_state=0).fit(X).predict([[0, 0], [9, -9]])
    array([ 1, -1])
    """

    novelty = True  # the threshold is for new rows, so the share of training rows that is marked is not exact

    @and_options_of(FlowEstimator)
    def __init__(self, *, contamination: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.contamination = contamination

    def fit(self, X: ArrayLike, y: object = None, *, context: ArrayLike | None = None) -> Self:
        """Fit to the rows of X, some of which may be outliers themselves; `y` is ignored."""
        if not 0 < self.contamination <= 0.5:
            raise OptionError(f"contamination={self.contamination!r} must lie in (0, 0.5].")
        x: Array = checked_rows(self, X)
        return self._fit(x, context)

    def _keep(self, flow: Flow, rows: Rows, fitted: Fitted) -> None:
        super()._keep(flow, rows, fitted)
        found = losses(flow, self._loss, rows) if fitted.held_out is None else fitted.held_out
        self.offset_ = float(np.quantile(-found.double().cpu().numpy(), self.contamination))

    def _keep_categories(self, columns: Columns, given: Array | None, y: Array | None) -> Self:
        assert given is not None
        self.offset_ = float(np.quantile(columns.log_prob(given, left_out=1.0), self.contamination))
        return super()._keep_categories(columns, given, y)

    @property
    def fit_predict(self) -> Any:
        """Not there: marking a share of the training rows takes a threshold of its own."""
        raise AttributeError("FlowOutlierDetector has a threshold for new rows; use fit(X).predict(X).")

    def decision_function(self, X: ArrayLike, context: ArrayLike | None = None) -> Array:
        """The log-density less `offset_`: below zero for outliers."""
        found: Array = self.score_samples(X, context) - self.offset_
        return found

    def predict(self, X: ArrayLike, context: ArrayLike | None = None) -> Array:
        """1 for inliers, -1 for outliers."""
        return np.where(self.decision_function(X, context) < 0, -1, 1)
