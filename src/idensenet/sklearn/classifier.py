"""A classifier that knows how unlikely its input is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from idensenet.data.store import Array
from idensenet.errors import OptionError
from idensenet.flow import Flow, Prepared
from idensenet.hybrid import HybridFlow
from idensenet.sklearn.base import FlowEstimator
from idensenet.sklearn.defaults import Settings
from idensenet.sklearn.options import and_options_of
from idensenet.sklearn.regression import best_strength, keep_what_helps, regression
from idensenet.sklearn.start import Part
from idensenet.sklearn.tables import checked_rows
from idensenet.training.rows import Rows


class FlowClassifier(ClassifierMixin, FlowEstimator):  # type: ignore[misc]
    """p(x, y) = p(x) p(y | x): a flow F is a density of rows, and a classifier reads the rows and what the flow makes of them.

    The logits are the sum of a logistic regression on standardised columns, with a penalty chosen by cross-validation, and of a
    head that reads F(x) and starts at zero. The loss of a row is the cross-entropy less `density_weight` times its
    log-density; None stands for 1 / columns. In the end held-out rows decide how much of the head is kept and at which
    temperature: `head_share_` and `temperature_`. Unless they gain more than two standard errors from it, and a
    twentieth of the loss, the logistic regression alone is kept, with a density of its input.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FlowClassifier(max_iter=60, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape, bool(model.score_samples(X).mean() > model.score_samples(X + 9).mean())
    ((2, 3), True)
    """

    @and_options_of(FlowEstimator)
    def __init__(self, *, density_weight: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.density_weight = density_weight

    def fit(self, X: ArrayLike, y: ArrayLike | None = None, *, context: ArrayLike | None = None) -> Self:
        """Fit to the rows of X and their classes y."""
        if self.density_weight is not None and not self.density_weight >= 0:
            raise OptionError(f"density_weight={self.density_weight!r} must not be negative.")
        x: Array
        x, target = checked_rows(self, X, y)
        check_classification_targets(target)
        self.classes_, encoded = np.unique(column_or_1d(target), return_inverse=True)
        return self._fit(x, context, encoded.astype(np.int64), len(self.classes_))

    def _start(self, flow: Flow, rows: Rows, parts: Sequence[Part], chosen: Settings, seed: int) -> Settings:
        chosen = super()._start(flow, rows, parts, chosen, seed)
        assert isinstance(flow, HybridFlow)
        self._strength = best_strength(flow, rows)
        for each, train in [(copied, train) for copied, train, _ in parts] + [(flow, rows)]:
            assert isinstance(each, HybridFlow)
            regression(each, train, self._strength)
        return chosen

    def _finish(self, flow: Flow, rows: Rows, parts: Sequence[Part]) -> None:
        assert isinstance(flow, HybridFlow)
        kept = keep_what_helps(flow, rows, parts, self._strength) if parts else (1.0, 1.0)
        self.head_share_, self.temperature_ = kept

    def _loss(self, flow: Flow, rows: Rows, generator: torch.Generator | None, prepared: Prepared) -> Tensor:
        assert isinstance(flow, HybridFlow)
        assert rows.y is not None
        weight = 1 / flow.dims if self.density_weight is None else self.density_weight
        log_prob, logits = flow.log_prob_and_logits(rows.x, generator, rows.context, prepared)
        return F.cross_entropy(logits, rows.y, reduction="none") - weight * log_prob

    def predict_proba(self, X: ArrayLike, context: ArrayLike | None = None) -> Array:
        """p(y | x) for each class, in the order of `classes_`."""
        x, given = self._checked(X, context)
        flow = self.flow_
        assert isinstance(flow, HybridFlow)
        return self._in_parts(x, given, lambda rows, **more: flow.classify(rows, **more).softmax(1))

    def predict(self, X: ArrayLike, context: ArrayLike | None = None) -> Array:
        """The likeliest class of each row."""
        probabilities = self.predict_proba(X, context)
        found: Array = self.classes_[probabilities.argmax(1)]
        return found
