"""What the options of a run may be. Bad ones are rejected before anything is written."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from idensenet.config import Config
from idensenet.data.source import Source
from idensenet.errors import OptionError

FITS: dict[str, Callable[[Any], bool]] = {
    "at least 1": lambda value: value >= 1,
    "positive and finite": lambda value: 0 < value < math.inf,
    "finite and not negative": lambda value: 0 <= value < math.inf,
    "between 0 and 1": lambda value: 0 <= value <= 1,
    "at least 0 and below 1": lambda value: 0 <= value < 1,
    "at least 0 and below 2^63": lambda value: 0 <= value < 1 << 63,
}
TRAIN = {
    "at least 1": (
        "batch_size",
        "accumulate",
        "devices",
        "num_nodes",
        "log_every",
        "eval_every",
        "eval_samples",
        "save_every",
        "threads",
    ),
    "positive and finite": ("epochs", "lr", "clip", "timeout"),
    "finite and not negative": ("weight_decay", "warmup_steps"),
    "between 0 and 1": ("warmup", "average", "concatenation_from"),
    "at least 0 and below 1": ("betas",),
    "at least 0 and below 2^63": ("seed",),
}
CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "accelerator": ("auto", "cpu", "cuda"),
        "precision": ("32-true", "64-true", "bf16-mixed"),
        "memory": ("keep", "save"),
        "compile": ("auto", "on", "off"),
    },
    "output": {"display": ("auto", "rich", "plain", "quiet")},
}
LARGEST = 2 << 30  # bytes of Jacobians in a batch
LEAST_SIDE = 5  # of an image that is shifted with reflection


def check(name: str, value: Any, words: str = "at least 1") -> None:
    """A number, some of them or None: `words` say what each must be."""
    if value is not None and not all(map(FITS[words], value if isinstance(value, tuple) else (value,))):
        raise OptionError(f"{name}={value} must be {words}.")


def check_choice(group: str, name: str, value: Any) -> None:
    """One of the words that an option may be."""
    known = CHOICES[group][name]
    if value not in known:
        raise OptionError(f"{group}.{name}={value!r} is not known; use {', '.join(known[:-1])} or {known[-1]}.")


def accelerator_of(name: str) -> str:
    """What to compute on. Apple's GPUs have no float64, which draws and norms are made of."""
    apple = torch.backends.mps.is_available() and not torch.cuda.is_available()
    return "cpu" if name == "auto" and apple else name


def check_exact(config: Config) -> None:
    """Whether there is room for the whole Jacobians that an exact log-determinant of images takes."""
    if len(config.model.shape) != 3:  # on columns, a Jacobian is no wider than the activations
        return
    numbers = math.prod(config.model.shape)
    for name, batch in (("method", config.train.batch_size), ("eval_method", 100)):
        size = batch * numbers**2 * (8 if config.train.precision == "64-true" else 4)
        if getattr(config.logdet, name) == "exact" and size > LARGEST:
            raise OptionError(
                f"logdet.{name}=exact takes the whole Jacobian of every sample, {size / 2**30:.1f} GB for {batch} samples of "
                f"{numbers} numbers; use --logdet.method roulette --logdet.eval_method krylov, or a recipe for images."
            )


def check_run(config: Config, source: Source) -> None:
    """Options of training in their ranges, and in keeping with the data."""
    d, m, t = config.data, config.model, config.train
    for words, names in TRAIN.items():
        for name in names:
            check(f"train.{name}", getattr(t, name), words)
    for group, choices in CHOICES.items():
        for name in choices:
            check_choice(group, name, getattr(getattr(config, group), name))
    if (d.flip or d.crop) and min(source.shape[1:], default=0) < LEAST_SIDE:
        raise OptionError(
            f"data.flip and data.crop are for images of at least {LEAST_SIDE} pixels a side, and {source.name} has samples of "
            f"shape {source.shape}; leave them out."
        )
    if t.objective in ("classification", "hybrid") and not source.train.labelled:
        raise OptionError(f"train.objective={t.objective} needs labels, and {source.name} has none; use density.")
    check("model.classes", m.classes)
    if m.classes is not None and m.classes < (source.classes or 0):
        raise OptionError(f"model.classes={m.classes} is too few: {source.name} has {source.classes} classes.")


def fitted(config: Config, source: Source) -> Config:
    """A recipe adapted to data of one's own: shape, levels, preprocessing, and a batch that is no larger than the data."""
    check_run(config, source)
    own = config.data.folder is not None or config.data.table is not None
    d, m, t = config.data, config.model, config.train
    if own:
        names = tuple(source.table.names) if source.table is not None else source.columns
        # by their names, whatever is used later, and divided in the same way, whatever is added later
        d = dataclasses.replace(d, columns=names, split_at=source.split_at)
        t = dataclasses.replace(t, batch_size=min(t.batch_size, max(1, len(source.train) // (t.devices * t.num_nodes))))
        m = dataclasses.replace(m, shape=source.shape, levels=source.levels, context=len(source.context))
        if source.table is not None:
            m = dataclasses.replace(m, integers=source.table.integers, bounds=source.bounds or m.bounds)
        if source.levels is None and m.preprocess == "none":
            m = dataclasses.replace(m, preprocess="standardize")
    if m.context != len(source.context):
        raise OptionError(
            f"The model is given {m.context} numbers, but there are {len(source.context)} columns of --data.context."
        )
    if m.shape != source.shape or (m.levels is None) != (source.levels is None):
        raise OptionError(
            f"The model is for samples of shape {m.shape} with {m.levels} levels, but {source.name} has {source.shape} with "
            f"{source.levels}; choose another recipe, or set --model.shape and --model.levels."
        )
    fit = dataclasses.replace(config, data=d, model=m, train=t)
    check_exact(fit)
    return fit
