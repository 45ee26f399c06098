"""A density of a table."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from idensenet.data.store import Array
from idensenet.sklearn.base import FlowEstimator
from idensenet.sklearn.columns import as_table, is_frame, joined
from idensenet.sklearn.tables import checked_rows
from idensenet.threads import suited_to


class FlowDensity(DensityMixin, FlowEstimator):  # type: ignore[misc]
    """An invertible DenseNet as a density of rows, or of rows given a context.

    After `fit`: `flow_` is the flow, `history_` the held-out loss over steps, `n_iter_` the steps that were taken,
    `certificate_` the guaranteed Lipschitz bounds, `inverse_error_bound_` how far a computed inverse can be off on training
    rows (up to the first 1,000; in units of the whitened data).

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2)) * [1, 10]
    >>> density = FlowDensity(max_iter=20, random_state=0).fit(X)
    >>> density.score_samples(X[:3]).shape, density.sample(5).shape, density.certificate_.contractive
    ((3,), (5, 2), True)
    """

    _frame = False  # whether it was fitted to a data frame with names

    def fit(
        self,
        X: ArrayLike,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        *,
        context: ArrayLike | None = None,
    ) -> Self:
        """Fit to the rows of X.

        Args:
            X: Rows, as an array or a data frame.
            y: Ignored.
            sample_weight: How much each row counts; all the same by default. A row of weight two counts as two equal rows.
            context: A row for each of X, which makes it a density of X given the context.
        """
        x: Array = checked_rows(self, X)
        self._frame = is_frame(X) and hasattr(self, "feature_names_in_")
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, x, ensure_non_negative=True)
        return self._fit(x, context, weight=weight)

    def score(self, X: ArrayLike, y: object = None, context: ArrayLike | None = None) -> float:
        """The mean of log p over the rows of X."""
        return float(self.score_samples(X, context).mean())

    def sample(
        self,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = None,
        context: ArrayLike | None = None,
    ) -> Any:
        """Rows drawn from the density, as a data frame with the same types if `fit` was given one.

        Args:
            n_samples: How many.
            random_state: A seed or a generator. By default the estimator's own `random_state` is used.
            context: For a conditional density, a context for all rows or one for each.
        """
        check_is_fitted(self)
        random = check_random_state(self.random_state if random_state is None else random_state)
        generator = torch.Generator(torch.device(self.device)).manual_seed(int(random.randint(2**31 - 1)))
        self._check_context_names(context)
        given = None if context is None else np.atleast_2d(np.asarray(context, np.float64))
        drawn = self.columns_.draw(n_samples, np.random.default_rng(random.randint(2**31 - 1)))
        numbers = np.empty((n_samples, 0)) if self.flow_ is None else self._numbers(n_samples, generator, joined(drawn, given))
        return as_table(self.columns_, self.columns_.values(numbers, drawn), self._frame)

    def _numbers(self, n: int, generator: torch.Generator, given: Array | None) -> Array:
        with suited_to(self.flow_, n):
            found = self.flow_.sample(n, generator, context=None if given is None else self._tensor(given))
        return found.double().cpu().numpy()
