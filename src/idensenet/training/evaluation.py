"""Scoring a model on held-out data, every term itemised. The same numbers every time, whatever the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idensenet.checks import rounding_check
from idensenet.data.source import Samples, Source
from idensenet.errors import OptionError
from idensenet.flow import Flow
from idensenet.hybrid import HybridFlow
from idensenet.training.probing import PILOT, Probing, averaged, deviation, for_single_scores
from idensenet.training.ranks import Ranks

TERMS = ("base", "log_det", "preprocess", "levels", "noise", "categories")  # of a log-density, as far as they are there


def mean_and_error(values: Tensor, weight: Tensor | None = None) -> tuple[float, float]:
    """The mean and its standard error, in float64; of rows that count differently, by their weights."""
    values = values.double()
    if weight is not None:
        share = weight.double() / weight.double().sum()
        mean = (share * values).sum()
        return float(mean), float((share * (values - mean)).square().sum().sqrt())
    return float(values.mean()), float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.nan


def calibration_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """Expected calibration error: the gap between confidence and accuracy, averaged over bins of confidence."""
    place = (confidence * bins).long().clamp(max=bins - 1)
    total = 0.0
    for i in range(bins):
        inside = place == i
        if bool(inside.any()):
            gap = confidence[inside].mean() - right[inside].double().mean()
            total += float(gap.abs()) * float(inside.double().mean())
    return total


def first_rows(split: Samples, limit: int | None = None) -> np.ndarray[Any, Any]:
    """The indices of the first rows, at most `limit`, which an evaluation scores."""
    return np.arange(len(split) if limit is None else min(limit, len(split)))


def taken(flow: Flow, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Rows as a flow takes them, on its device and in its number type, which must not change them."""
    return taker(flow)(x, context)


def taker(flow: Flow) -> Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]:
    """The same for many batches."""
    check = rounding_check(flow.preprocess, flow.dtype, "x") if flow.levels is None else None
    scale = flow.context_scale
    check_context = None if scale is None else rounding_check(scale, flow.dtype, "the context")

    def take(x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if check is not None:
            check(x)
            x = x.to(flow.dtype)
        if context is not None and check_context is not None:
            check_context(context)
        return x.to(flow.device), None if context is None else context.to(flow.device, flow.dtype)

    return take


def enough(flow: Flow, trained_on: Source, reference: Tensor) -> Probing:
    """Draws for single scores whose error is small next to the spread of training scores."""
    rows = trained_on.train.batch(first_rows(trained_on.train, PILOT))
    with torch.no_grad():
        one = deviation(flow, *taken(flow, rows.x, rows.context))
    spread = float(reference.var()) - one**2  # without the noise in it
    return for_single_scores(one, math.sqrt(max(spread, 0.0)))


def rows_at_once(flow: Flow) -> int:
    """How many rows to score together: a hundred images, and more of short vectors, which take little memory."""
    return max(100, 8000 // flow.dims)


@torch.no_grad()
def score_rows(
    flow: Flow,
    split: Samples,
    rows: np.ndarray[Any, Any],
    batch: int | None = None,
    report: Callable[[int], None] = lambda done: None,
    probing: Probing | None = None,
    importance: int = 1,
) -> dict[str, Tensor]:
    """Per sample: the terms of the log-density, and for a hybrid the class probabilities, and labels where there are any.

    With `probing`, log-determinants are means of several draws, and `error` is the standard error of each log-density.
    """
    if flow.training:
        raise OptionError("Evaluation needs flow.eval(), so that it is a function of the data.")
    if len(rows) < 1:
        raise OptionError("There is no sample to evaluate on.")
    parts: dict[str, list[Tensor]] = {}
    batch = batch or rows_at_once(flow)
    take, prepared = taker(flow), flow.prepare()
    for start in range(0, len(rows), batch):
        x, y, c, weight = split.batch(rows[start : start + batch])
        x, c = take(x, c)
        found = flow.log_prob_terms(x, context=c, prepared=prepared)
        if probing is not None:
            found["log_det"], found["error"] = averaged(flow, x, c, found["log_det"], probing)
        if importance > 1:
            found["importance"] = flow.log_prob(x, context=c, importance=importance)
            found["importance_samples"] = torch.full_like(found["importance"], importance)
        if flow.columns is not None and flow.columns.categories is not None and c is not None:
            found["categories"] = torch.from_numpy(flow.columns.log_prob(c.cpu().numpy())).to(x)
        if weight is not None:
            found["weight"] = weight.to(x)
        if isinstance(flow, HybridFlow):
            found["probabilities"] = flow.classify(x, context=c).softmax(1)
            if y is not None:
                found["label"] = y.to(flow.device)
        for name, value in found.items():
            parts.setdefault(name, []).append(value)
        report(min(start + batch, len(rows)))
    scores = {name: torch.cat(values) for name, values in parts.items()}
    scores["log_prob"] = sum((scores[name] for name in TERMS if name in scores), torch.zeros(()))
    return scores


def summary(flow: Flow, scores: dict[str, Tensor]) -> dict[str, Any]:
    """Means with standard errors; in bits per dimension too where there are levels."""
    result: dict[str, Any] = {"samples": len(scores["log_prob"])}
    weight = scores.get("weight")
    mean, error = mean_and_error(-scores["log_prob"], weight)
    result["nats"], result["nats_error"] = mean, error
    unit = flow.dims * math.log(2)
    if flow.levels:
        result["bits_per_dim"], result["bits_per_dim_error"] = mean / unit, error / unit
    if "error" in scores:
        result["single_error"] = float(scores["error"].double().square().mean().sqrt())
    result["terms"] = {name: mean_and_error(scores[name], weight)[0] for name in TERMS if name in scores}
    if "importance" in scores:
        mean, error = mean_and_error(-scores["importance"])
        found = {"samples": int(scores["importance_samples"][0]), "nats": mean, "nats_error": error}
        if flow.levels:
            found |= {"bits_per_dim": mean / unit, "bits_per_dim_error": error / unit}
        result["importance"] = found
    if "label" in scores:
        confidence, guess = scores["probabilities"].max(1)
        right = guess == scores["label"]
        result["accuracy"] = float(right.double().mean())
        result["calibration_error"] = calibration_error(confidence.double(), right)
    return result


def held_out(flow: Flow, split: Samples, limit: int | None, ranks: Ranks) -> dict[str, Any]:
    """The summary of at most so many samples; every process scores its share, and all of them know the result."""
    rows = first_rows(split, limit)
    scores = score_rows(flow, split, rows[ranks.share(len(rows))])
    return summary(flow, {name: ranks.rows(value)[: len(rows)] for name, value in scores.items()})


def in_words(found: dict[str, Any]) -> str:
    """A summary in a sentence."""
    name, unit = ("bits_per_dim", "bits/dim") if "bits_per_dim" in found else ("nats", "nats")
    accuracy = f", accuracy {found['accuracy']:.4f}" if "accuracy" in found else ""
    return f"held-out {found[name]:.4f} +- {found[f'{name}_error']:.4f} {unit}{accuracy} on {found['samples']} samples"
