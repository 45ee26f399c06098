"""The options of the estimators: their checks, what None stands for, and the configuration of the flow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from idensenet.columns import Names, Pair
from idensenet.config import Config
from idensenet.errors import OptionError
from idensenet.sklearn.defaults import SCORED, Settings, settings_for

Init = TypeVar("Init", bound=Callable[..., None])


def and_options_of(parent: type) -> Callable[[Init], Init]:
    """A constructor that hands `**options` on to its parent's, with their names in its own signature, as scikit-learn asks."""

    def decorate(init: Init) -> Init:
        own = inspect.signature(init)
        kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [p for p in inspect.signature(parent).parameters.values() if p.name not in own.parameters]
        init.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
        return init

    return decorate


class FlowOptions(BaseEstimator):  # type: ignore[misc]
    """What can be chosen about a fit. None leaves an option to the numbers of rows and columns."""

    def __init__(
        self,
        *,
        blocks: int | None = None,
        depth: int | None = None,
        growth: int | None = None,
        activation: str | None = None,
        lipschitz: float = 0.99,
        beta: float | None = None,
        log_det: str | None = None,
        components: int | None = None,
        bounds: Mapping[str | int, Pair] | None = None,
        discrete: Names = "auto",
        categorical: Names = "auto",
        learning_rate: float | None = None,
        weight_decay: float = 1e-2,
        max_iter: int | None = None,
        max_time: float | None = None,
        batch_size: int | None = None,
        early_stopping: bool = True,
        validation_fraction: float | None = None,
        folds: int | None = None,
        n_iter_no_change: int = 3,
        tol: float = 1e-4,
        dtype: str | None = None,
        device: str = "cpu",
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.blocks = blocks
        self.depth = depth
        self.growth = growth
        self.activation = activation
        self.lipschitz = lipschitz
        self.beta = beta
        self.log_det = log_det
        self.components = components
        self.bounds = bounds
        self.discrete = discrete
        self.categorical = categorical
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.max_iter = max_iter
        self.max_time = max_time
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.folds = folds
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.dtype = dtype
        self.device = device
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def _check_options(self) -> None:
        for name in ("blocks", "depth", "growth", "max_iter", "batch_size", "folds", "components", "n_iter_no_change"):
            value = getattr(self, name)
            if value is None and name != "n_iter_no_change":
                continue
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise OptionError(f"{name}={value!r} must be a positive integer.")
        for name in ("learning_rate", "max_time", "beta", "lipschitz", "validation_fraction"):
            value, share = getattr(self, name), name in ("lipschitz", "validation_fraction")
            if value is not None and (not value > 0 or (share and not value < 1)):
                raise OptionError(f"{name}={value!r} must be positive{' and below 1' if share else ''}.")
        if self.log_det not in (None, "exact", "estimate"):
            raise OptionError(f"log_det={self.log_det!r} is not known; use 'exact', or 'estimate' for many columns.")
        if self.dtype not in (None, "float32", "float64"):
            raise OptionError(f"dtype={self.dtype!r} is not known; use 'float64', 'float32', or None to leave it to the table.")

    def _settings(self, rows: int, columns: int) -> Settings:
        """The options of this fit: those that were given, and for the rest what suits the table."""
        names = [each.name for each in fields(Settings)]
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(settings_for(rows, columns), **given)

    def _config(
        self, chosen: Settings, columns: int, context: int, classes: int | None, bounds: tuple[Pair, ...] = ()
    ) -> Config:
        estimated = {"method": "roulette", "eval_method": "exact" if columns <= SCORED else "adaptive"}
        return Config().replace(
            shape=(columns,),
            preprocess="whiten",
            bounds=bounds,
            blocks=(chosen.blocks,),
            depth=chosen.depth,
            growth=chosen.growth,
            activation=chosen.activation,
            beta=chosen.beta,
            coeff=self.lipschitz,
            lip=1 - 0.1 * (1 - self.lipschitz),
            actnorm=False,
            start="identity",
            context=context,
            classes=classes,
            head_width=64,
            logdet=estimated if chosen.log_det == "estimate" else {"method": "exact", "eval_method": "exact"},
        )
