"""How odd a sample is to a model, in several ways, and how well that tells one data set from another."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from idensenet.errors import OptionError


def oddness(
    log_prob: Tensor, reference: Tensor, background: Tensor | None = None, probabilities: Tensor | None = None
) -> dict[str, Tensor]:
    """Scores of samples, higher for odder ones.

    `log_prob` are their log-densities, `reference` log-densities of training data, `background` log-densities of a background
    model, and `probabilities` class probabilities of a hybrid model.

    - log_density: -log p(x)
    - typicality: the distance of log p(x) from its mean over training data, in deviations
    - ratio: log p of the background model less log p(x)
    - entropy: of the class probabilities
    """
    mean, deviation = reference.mean(), reference.std()
    found = {"log_density": -log_prob, "typicality": (log_prob - mean).abs() / deviation}
    if background is not None:
        found["ratio"] = background - log_prob
    if probabilities is not None:
        found["entropy"] = torch.special.entr(probabilities).sum(1)
    return found


class Auroc(NamedTuple):
    """The chance that a sample of the other set is odder than one of the model's own set, with a 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def auroc(own: Tensor, other: Tensor) -> Auroc:
    """The area under the curve for scores of two sets, higher for odder, with the variance of DeLong et al. (1988).

    The interval assumes normal log-odds. Where the sets do not overlap, it follows the rule of three.
    """
    if len(own) < 2 or len(other) < 2:
        raise OptionError(f"An AUROC needs two samples of each set; there are {len(own)} and {len(other)}.")
    own, other = own.double().sort().values, other.double().sort().values

    def below(values: Tensor, than: Tensor) -> Tensor:
        """The fraction of the sorted values below each, ties counted half."""
        left, right = (torch.searchsorted(values, than.contiguous(), right=r).double() for r in (False, True))
        return (left + right) / (2 * len(values))

    places = below(own, other)
    value = float(places.mean())
    variance = float(places.var() / len(other) + (1 - below(other, own)).var() / len(own))
    if not 0 < value < 1 or variance == 0:
        room = min(1.0, 3 / min(len(own), len(other)))
        return Auroc(value, max(0.0, value - room), min(1.0, value + room))
    odds, width = math.log(value / (1 - value)), 1.96 * math.sqrt(variance) / (value * (1 - value))
    low, high = (1 / (1 + math.exp(-edge)) if edge > -700 else 0.0 for edge in (odds - width, odds + width))
    return Auroc(value, low, high)
