"""What the estimators share: their options, how a flow is fitted, and what it says of rows."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from idensenet.checks import check_rounding
from idensenet.columns import Columns
from idensenet.data.density import check_density, check_digits
from idensenet.data.store import Array
from idensenet.errors import DataError, OptionError
from idensenet.flow import Flow, Prepared
from idensenet.logdet import KrylovLogDet
from idensenet.sklearn.columns import column_names, joined, second_look, warn_of_unknown
from idensenet.sklearn.defaults import Settings, held_out_rows
from idensenet.sklearn.options import FlowOptions
from idensenet.sklearn.start import Part, Start, best_start, start_from
from idensenet.sklearn.tables import check_numbers, checked_rows
from idensenet.threads import suited_to
from idensenet.training import clock
from idensenet.training.fitting import Fitted, Loss, Options, fit, new_flow
from idensenet.training.progress import progress
from idensenet.training.rows import Rows, divided

FEWEST = 10  # rows from which a flow is fitted; below, it stays the Gaussian that it starts from
AT_ONCE = 1000  # rows that are scored together
FEW_POINTS = 2  # of the cells of discrete columns, where held-out rows decide when to stop


def _scales(flow: Flow) -> dict[str, Tensor]:
    """What a flow knows of the units of the table, which training does not change and must not round."""
    before = ("preprocess.", "context_scale.")
    return {name: value.clone() for name, value in flow.state_dict().items() if name.startswith(before)}


class FlowEstimator(FlowOptions):
    """Base of the estimators. `flow_` is the fitted flow, a torch module with all that the rest of the package can do with it.

    A flow starts as the Gaussian of the data (a shrunk covariance) and is trained while held-out rows gain from it. Below 400
    rows, as by `folds=3`, all rows are held out in turn to find the number of steps, and the flow is then fitted to all.

    Options that are None follow the numbers of rows and columns; `settings_` has what was chosen. `max_time` limits a fit to so
    many seconds, with a schedule that ends in time. Training is in float32 where that keeps the digits of the table, else in
    float64; the fitted flow is in float64. `dtype` fixes the number type of both.

    `bounds` has lower and upper bounds of columns by name or by number, None for none: `{"rate": (0, 1), "price": (0, None)}`.
    The density is zero outside, samples stay inside, and densities are in the units of the table. The bounds of a discrete
    column are possible values.

    `discrete` names columns on a grid (counts, rounded numbers); "auto" takes those with at least two rows for each value on
    average, and warns. They are scored by the probability of a value, so that `score_samples` is the log of a density (of real
    columns) times a probability. `categorical` names nominal columns; "auto" takes strings, categories and booleans of a data
    frame. They have a table of probabilities p(c), and the flow is p(x | c) for the rest; `score_samples` is log p(c) p(x | c).
    A category that `fit` did not see has a log-probability of minus infinity, and a value off its grid is rounded, both with a
    warning. `columns_` has what was found.

    With `warm_start`, `fit` goes on with the flow of the last one. Early stopping then needs the same rows again, and holds out
    those that it held out before; to go on with other rows, which the flow may have seen, use `early_stopping=False`.
    """

    flow_: Flow  # None for a table of nominal columns alone
    settings_: Settings
    columns_: Columns
    _first_look: Columns
    context_names_in_: list[str] | None = None
    _held_out_: tuple[object, int, list[Flow]] | None = None  # for a warm start: what was divided, the seed, the copies

    # Checks

    def _check_context_names(self, context: ArrayLike | None) -> None:
        found, fitted = column_names(context), self.context_names_in_
        if found is not None and fitted is not None and found != fitted:
            raise DataError(f"The columns of context are {', '.join(found)}, but were {', '.join(fitted)} in fit; give these.")

    def _context(self, context: ArrayLike | None, n: int) -> Array | None:
        if context is None:
            return None
        if self.context_names_in_ is not None and column_names(context) is None:
            warnings.warn("context has no names of columns, but had them in fit; they are taken in that order.", stacklevel=4)
        self._check_context_names(context)
        try:
            found: Array = check_array(context, dtype=np.float64, ensure_2d=False, input_name="context")
        except (TypeError, ValueError):
            check_numbers(context, "context")  # says more, if a value is to blame
            raise
        found = found[:, None] if found.ndim == 1 else found
        if len(found) != n:
            check_consistent_length(found, np.empty(n))
        return found

    def _tensor(self, values: Array) -> Tensor:
        copied = torch.from_numpy(np.array(values, order="C"))  # which may be read-only
        return copied.to(torch.device(self.device), getattr(torch, self.dtype or "float64"))

    def _check_rounding(self, flow: Flow, x: Array, context: Array | None, dtype: str | None) -> None:
        """Refuse rows that rounding to a number type would change."""
        for values, before, what in ((x, flow.preprocess, "X"), (context, flow.context_scale, "context")):
            if values is not None and before is not None and dtype is not None:
                check_rounding(torch.from_numpy(np.array(values)), before, getattr(torch, dtype), what)

    def _training_dtype(self, flow: Flow, x: Array, context: Array | None) -> torch.dtype:
        """float32, unless it would change rows."""
        try:
            for values in (x, context):
                if values is not None:
                    check_digits(values, "float32")
            self._check_rounding(flow, x, context, "float32")
        except DataError:
            return torch.float64
        return torch.float32

    # Fitting

    def _loss(self, flow: Flow, rows: Rows, generator: torch.Generator | None, prepared: Prepared) -> Tensor:
        found = -flow.log_prob(rows.x, generator, context=rows.context, prepared=prepared)
        if generator is None and flow.columns is not None and rows.context is not None:
            found -= self._log_prob_of_categories(flow.columns, rows.context, left_out=1.0).to(found)
        return found

    @staticmethod
    def _log_prob_of_categories(columns: Columns, context: Tensor, left_out: float = 0.0) -> Tensor:
        """log p(c) of the categories at the front of contexts, if there are any."""
        if columns.categories is None:
            return torch.zeros(len(context))
        return torch.from_numpy(columns.log_prob(context[:, : columns.indicators].cpu().numpy(), left_out))

    def _fit(
        self,
        x: Array,
        context: ArrayLike | None,
        y: Array | None = None,
        classes: int | None = None,
        weight: Array | None = None,
    ) -> Self:
        """Fit a flow to checked rows."""
        began = clock.now()
        self._check_options()
        names = getattr(self, "feature_names_in_", None)
        self.context_names_in_ = column_names(context)
        given = self._context(context, len(x))
        if weight is not None:
            used = weight > 0
            if used.sum() < 2:
                raise DataError("At least two rows need a positive sample_weight.")
            x, weight, given = x[used], weight[used], None if given is None else given[used]
        again = self.warm_start and hasattr(self, "flow_")
        columns = self._first_look if again else second_look(self._first_look, x, self.discrete)
        if again and (x.shape[1] != len(columns.columns) or columns.unknown(x)):
            raise OptionError("warm_start goes on with the flow that was fitted; options and columns must stay the same.")
        columns = columns.counted(x, weight)
        if columns.categories is not None and given is not None:
            raise OptionError(
                f"Nominal columns ({columns.in_words('nominal')}) cannot be modelled given a context; move them to the context "
                "as numbers, or leave the context out."
            )
        bounds = columns.bounds(x, self.bounds or {})
        x, given = columns.numbers(x), joined(columns.one_hot(x), given)
        if not columns.amounts:
            return self._keep_categories(columns, given, y)
        names = None if names is None else [columns.names[i] for i in columns.amounts]
        check_density(x, names, columns.integers)
        check_digits(x, self.dtype or "float64", names)
        if given is not None and columns.categories is None:
            check_digits(given, self.dtype or "float64", self.context_names_in_)
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        chosen = self._settings(*x.shape)
        config = self._config(chosen, x.shape[1], 0 if given is None else given.shape[1], classes, bounds)
        config = config.replace(integers=columns.integers)
        known = self.settings_.components if again and self.components is None else chosen.components
        if classes is not None or given is not None:
            if (self.components or 1) > 1:
                raise OptionError(f"components={self.components} is for densities without a context; leave it out.")
            known = 1
        chosen = replace(chosen, components=known)
        if again and self.flow_.config != config.replace(components=known):
            raise OptionError("warm_start goes on with the flow that was fitted; options and columns must stay the same.")
        rows = Rows(
            self._tensor(x),
            None if given is None else self._tensor(given),
            None if y is None else torch.from_numpy(y).to(torch.device(self.device)),
            None if weight is None else self._tensor(weight),
        )
        if again:
            flow = copy.deepcopy(self.flow_)
        else:
            flow = new_flow(config, seed, rows.x.dtype, torch.device(self.device))
            flow.standardize(rows.x, rows.context, rows.weight)
        flow.columns = columns
        self._check_rounding(flow, x, given, self.dtype)
        dtype = self._training_dtype(flow, x, given) if self.dtype is None else rows.x.dtype
        with suited_to(flow, chosen.batch_size):
            parts = self._splits(flow, rows, chosen, seed, again)
            if not again:
                chosen = self._start(flow, rows, parts, chosen, seed)
            options = self._options(rows, bool(parts), chosen, seed, began)
            fitted = self._train(flow, rows, parts, options, dtype, again)
            self.settings_ = chosen
            self._keep(flow, rows, fitted)
        return self

    def _start(self, flow: Flow, rows: Rows, parts: Sequence[Part], chosen: Settings, seed: int) -> Settings:
        """Give the flow and its copies the mixture that they start from."""
        start: Start = (chosen.components or 1, float(rows.x.shape[1]))
        if chosen.components is None and parts:
            start = best_start(parts, seed)
        for copied, train, _ in parts:
            start_from(copied, train, start, seed)
        start_from(flow, None if len(parts) == 1 else rows, start, seed)
        return replace(chosen, components=start[0])

    def _finish(self, flow: Flow, rows: Rows, parts: Sequence[Part]) -> None:
        """What is done with a fitted flow, given the copies that have not seen their held-out rows."""

    def _options(self, rows: Rows, held_out: bool, chosen: Settings, seed: int, began: float) -> Options:
        """How the fit goes on, in the time that is left."""
        steps = chosen.max_iter
        if self.early_stopping and not held_out:
            warnings.warn(
                f"{len(rows)} rows are too few to hold some out, so the flow stays the Gaussian that it starts from; "
                "give more rows, or early_stopping=False.",
                stacklevel=5,
            )
            steps = 0
        left = None if self.max_time is None else max(self.max_time - (clock.now() - began), 1e-3)
        rate, decay, size = chosen.learning_rate, self.weight_decay, chosen.batch_size
        return Options(rate, decay, steps, size, self.n_iter_no_change, self.tol, seed, left)

    def _train(
        self, flow: Flow, rows: Rows, parts: Sequence[Part], options: Options, dtype: torch.dtype, again: bool
    ) -> Fitted:
        """Train the flow on rows, in this number type; it keeps its own."""
        scales = _scales(parts[0][0] if len(parts) == 1 and not again else flow)
        splits = [(each.to(dtype), train.to(dtype), held_out.to(dtype)) for each, train, held_out in parts]
        with progress(options.max_iter, self.verbose) as report:
            loss: Loss = self._loss
            own = flow.dtype
            fitted = fit(flow.to(dtype), loss, rows.to(dtype), splits, replace(options, report=report))
            self._finish(flow, rows, splits)
            flow.to(own).load_state_dict({**flow.state_dict(), **scales})
        return fitted

    def _keep(self, flow: Flow, rows: Rows, fitted: Fitted) -> None:
        """Take over what was fitted, with what is guaranteed about it, and say how it ended."""
        context = None if rows.context is None else rows.context[:AT_ONCE]
        with torch.no_grad():
            bound = flow.inverse_error(flow(rows.x[:AT_ONCE], context=context)[0], context)
        self.certificate_, self.inverse_error_bound_ = flow.certify(), float(bound.max())
        self.flow_, self.history_, self.n_iter_ = flow, fitted.history, fitted.history[-1][0]
        assert flow.columns is not None
        self.columns_ = flow.columns
        if fitted.interrupted:
            warnings.warn(
                f"Interrupted after {self.n_iter_} steps; the weights of step {fitted.best}, the best so far, are kept.",
                stacklevel=4,
            )
        elif not fitted.converged:
            remedy = f"max_iter={2 * self.settings_.max_iter}"
            if self.max_time is not None and self.n_iter_ < self.settings_.max_iter:
                remedy = f"max_time={2 * self.max_time:g}"
            warnings.warn(
                f"The held-out loss was still falling when the fit ended after {self.n_iter_} steps "
                f"({fitted.history[-1][1]:.4f}); use {remedy}.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _keep_categories(self, columns: Columns, given: Array | None, y: Array | None) -> Self:
        """Take over a table of nominal columns alone, which needs no flow."""
        if y is not None:
            raise DataError("All columns are nominal, and a classifier reads numbers; encode a column as numbers.")
        self.columns_, self.flow_, self.history_, self.n_iter_ = columns, None, [], 0  # type: ignore[assignment]
        self.certificate_, self.inverse_error_bound_ = None, 0.0  # type: ignore[assignment]
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "flow_")

    def _splits(self, flow: Flow, rows: Rows, chosen: Settings, seed: int, again: bool) -> list[Part]:
        """Copies of the flow, with the rows they train on and those held out; each starts from the Gaussian of the former.

        A warm start goes on with the copies and the rows of the last fit: others may have been trained on.
        """
        if not self.early_stopping or len(rows) < FEWEST:
            self._held_out_ = None
            return []
        folds = min(chosen.folds, len(rows))
        what = (rows.digest(), folds, self.validation_fraction)
        copies: list[Flow] = []
        if again:
            if self._held_out_ is None or self._held_out_[0] != what:
                raise OptionError(
                    "warm_start holds out again what the last fit with warm_start and early stopping held out, but rows, folds "
                    "or validation_fraction are not the same; use early_stopping=False to go on without."
                )
            _, seed, copies = self._held_out_
        parts = divided(rows, folds, held_out_rows(len(rows), self.validation_fraction), seed)
        for train, _ in parts if not again else []:
            copies.append(copy.deepcopy(flow))
            copies[-1].standardize(train.x, train.context, train.weight)
            for stack in copies[-1].stacks() if chosen.log_det == "estimate" else []:
                stack.eval_log_det = KrylovLogDet()  # whole Jacobians of held-out rows would take longer than the training
        for each in copies:
            each.points = FEW_POINTS
        self._held_out_ = (what, seed, copies) if self.warm_start else None
        return [(each, *part) for each, part in zip(copies, parts, strict=True)]

    # What it says of rows

    def _checked(self, X: ArrayLike, context: ArrayLike | None) -> tuple[Tensor, Tensor | None]:
        check_is_fitted(self)
        x: Array = checked_rows(self, X, fit=False)
        warn_of_unknown(self.columns_, x, X)
        given = joined(self.columns_.one_hot(x), self._context(context, len(x)))
        x = self.columns_.numbers(x)
        if self.flow_ is not None:
            self._check_rounding(self.flow_, x, given, self.dtype)
        return self._tensor(x), None if given is None else self._tensor(given)

    def score_samples(self, X: ArrayLike, context: ArrayLike | None = None) -> Array:
        """log p(x) of each row in nats, in the units of X; with a context, log p(x | context).

        Real columns count by their density, discrete and nominal ones by the probability of their values.
        """
        x, given = self._checked(X, context)
        found = np.zeros(len(x)) if self.flow_ is None else self._in_parts(x, given, self.flow_.log_prob)
        if self.columns_.categories is not None:
            assert given is not None
            found = found + self._log_prob_of_categories(self.columns_, given).numpy()
        return found

    def _in_parts(self, x: Tensor, context: Tensor | None, of: Callable[..., Tensor]) -> Array:
        """A function of rows and contexts, some rows at a time."""
        with torch.no_grad(), suited_to(self.flow_, min(len(x), AT_ONCE)):
            prepared = self.flow_.prepare()
            found = [
                of(
                    x[start : start + AT_ONCE],
                    context=None if context is None else context[start : start + AT_ONCE],
                    prepared=prepared,
                )
                for start in range(0, len(x), AT_ONCE)
            ]
        return torch.cat(found).double().cpu().numpy()
