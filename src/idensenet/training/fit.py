"""Train any flow on data in memory: `idn.fit`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idensenet.bijections import Affine, Whiten
from idensenet.errors import DataError, OptionError
from idensenet.flow import Flow, Prepared
from idensenet.threads import suited_to
from idensenet.training.fitting import Fitted, Options
from idensenet.training.fitting import fit as fit_rows
from idensenet.training.progress import progress
from idensenet.training.rows import Rows, divided

ENOUGH = 2000  # rows that ActNorm is initialised with


def fit(
    flow: Flow,
    data: Tensor | np.ndarray[Any, Any] | Iterable[Any],
    context: Tensor | np.ndarray[Any, Any] | None = None,
    *,
    steps: int = 2000,
    batch_size: int = 256,
    learning_rate: float = 5e-3,
    weight_decay: float = 0.0,
    held_out: float = 0.1,
    patience: int = 5,
    max_time: float | None = None,
    seed: int = 0,
    verbose: bool = True,
) -> Fitted:
    """Trains a flow by maximum likelihood, and keeps the weights with the best held-out loss.

    A share of the samples is held out. Whitening and ActNorm, as far as the flow has them and they have seen no data, are
    initialised from the others. The learning rate follows half a cosine. Where the held-out loss stops falling, training goes
    back to the best weights and ahead on that schedule. Ctrl-C ends it; the best weights so far are kept.

    Args:
        flow: The flow. It is trained in place and ends in evaluation mode.
        data: Samples [n, *shape] as a tensor or an array, or a loader, which is read once: an iterable of batches, each a
            tensor of samples or a pair of samples and contexts.
        context: A context for each sample, [n, context], for a conditional flow.
        steps: Most steps of the optimiser.
        batch_size: Number of samples in a step.
        learning_rate: Highest learning rate.
        weight_decay: Weight decay of AdamW.
        held_out: Share of the samples that decides which weights are best.
        patience: Number of evaluations without progress after which the schedule jumps ahead.
        max_time: Most seconds; None for no limit.
        seed: Seed of the split, the order of the samples and the noise.
        verbose: Show progress: a bar on a terminal, lines elsewhere.

    Returns:
        The held-out loss over steps (`history`), the step whose weights were taken (`best`), and how training ended.

    Raises:
        DataError: If there are fewer than ten samples.
        OptionError: If an option has a value that cannot be used.
        ShapeError: If the samples do not have the shape of the flow.

    >>> import torch, idensenet as idn
    >>> flow = idn.IDenseNet(features=2, blocks=2, growth=16)
    >>> found = fit(flow, torch.randn(200, 2, generator=torch.Generator().manual_seed(0)), steps=20, verbose=False)
    >>> found.history[0][0], len(found.history) > 1
    (0, True)
    """
    for name, value in (("steps", steps), ("batch_size", batch_size), ("patience", patience)):
        if value < 1:
            raise OptionError(f"{name}={value} must be at least 1.")
    if not 0 < held_out < 1 or not learning_rate > 0 or (max_time is not None and not max_time > 0):
        raise OptionError(
            f"held_out={held_out} must lie between 0 and 1, and learning_rate={learning_rate} and max_time={max_time} must be "
            "positive."
        )
    rows = _rows(flow, data, context)
    if len(rows) < 10:
        raise DataError(f"{len(rows)} samples are too few to train on and to hold some out; give at least 10.")
    train, test = divided(rows, 1, min(max(2, round(held_out * len(rows))), len(rows) - 2), seed)[0]
    _initialize(flow, train)
    with suited_to(flow, batch_size), progress(steps, verbose) as report:
        options = Options(learning_rate, weight_decay, steps, batch_size, patience, 1e-4, seed, max_time, report)
        found = fit_rows(flow, _loss, train, [(flow, train, test)], options)
    if found.interrupted:
        warnings.warn(f"Interrupted; the weights of step {found.best}, the best so far, are kept.", stacklevel=2)
    elif not found.converged:
        warnings.warn(
            f"The held-out loss was still falling when training ended ({found.history[-1][1]:.4f} after "
            f"{found.history[-1][0]} steps); use more steps, or a longer max_time if it is set.",
            stacklevel=2,
        )
    return found


def _loss(flow: Flow, rows: Rows, generator: torch.Generator | None, prepared: Prepared) -> Tensor:
    return -flow.log_prob(rows.x, generator, context=rows.context, prepared=prepared)


def _rows(flow: Flow, data: Any, context: Any) -> Rows:
    """Samples and contexts as tensors in the number type and on the device of the flow."""
    if not isinstance(data, Tensor | np.ndarray):
        batches = [each if isinstance(each, tuple | list) else (each,) for each in data]
        if not batches:
            raise DataError("The loader has no batch; give samples to train on.")
        if context is None and flow.context and all(len(each) > 1 for each in batches):
            context = torch.cat([torch.as_tensor(each[1]) for each in batches])
        data = torch.cat([torch.as_tensor(each[0]) for each in batches])
    dtype = torch.uint8 if flow.levels else flow.dtype
    x = torch.as_tensor(data).to(flow.device, dtype)
    given = None if context is None else torch.as_tensor(context).to(flow.device, flow.dtype)
    if given is not None and len(given) != len(x):
        raise DataError(f"There are {len(x)} samples but {len(given)} contexts; give one for each sample.")
    return Rows(x, given)


def _initialize(flow: Flow, rows: Rows) -> None:
    """Take from data what the flow has not yet taken from any."""
    flow.eval()
    for part in flow.preprocess.modules():
        fresh = isinstance(part, Affine) and part.loc.shape == flow.shape and not bool(part.loc.any())
        fresh = fresh or (isinstance(part, Whiten) and not bool(part.loc.any()))
        if fresh:
            flow.standardize(rows.x, rows.context)
            break
    flow.initialize(rows.x[:ENOUGH], None if rows.context is None else rows.context[:ENOUGH])
