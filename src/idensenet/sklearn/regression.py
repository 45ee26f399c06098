"""A logistic regression as the start of a classifier, and how much of what came after is kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from torch import Tensor

from idensenet.bijections import Whiten
from idensenet.hybrid import HybridFlow
from idensenet.sklearn.start import Part
from idensenet.training.rows import Rows

STRENGTHS = (0.01, 0.1, 1.0, 10.0)  # inverse penalties on the weights to choose from
SOME = 20_000  # rows that it is fitted to
SHARES = (0.25, 0.5, 0.75, 1.0)  # how much of the head may be kept
TEMPERATURES = (0.85, 1.0, 1.2, 1.5, 2.0, 3.0)


def _whitening(flow: HybridFlow) -> Whiten:
    (found,) = [part for part in flow.preprocess.modules() if isinstance(part, Whiten)]
    return found


def _scaled(flow: HybridFlow, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """The preprocessed rows, the same with each column by its deviation and not whitened, and the matrix between the two.

    Contexts stand next to the rows, as they are.
    """
    with torch.no_grad():
        z = flow.inputs(rows.x[:SOME], None if rows.context is None else rows.context[:SOME]).double()
    back = torch.linalg.inv(_whitening(flow).weight.double())  # columns = back z, around their means
    back = back / (z[:, : flow.dims] @ back.T).std(0, unbiased=False).clamp(min=1e-300)[:, None]
    whole = torch.eye(z.shape[1], dtype=back.dtype, device=back.device)
    whole[: flow.dims, : flow.dims] = back
    back = whole
    return z, z @ back.T, back


def regression(flow: HybridFlow, rows: Rows, strength: float) -> None:
    """Give the classifier of a flow the weights of a logistic regression on standardised columns."""
    assert rows.y is not None
    direct = flow.classifier.direct
    assert direct is not None
    _, scaled, back = _scaled(flow, rows)
    y = rows.y[:SOME].cpu().numpy()
    known = np.unique(y)
    weight, bias = np.zeros((flow.classifier.classes, flow.classifier.inputs)), np.full(flow.classifier.classes, -20.0)
    bias[known] = 0.0  # classes that are not among the rows stay unlikely
    if len(known) > 1:
        found = LogisticRegression(C=strength, max_iter=1000).fit(scaled.cpu().numpy(), y)
        if len(known) == 2:
            weight[known], bias[known] = found.coef_ * [[-0.5], [0.5]], found.intercept_ * np.array([-0.5, 0.5])
        else:
            weight[known], bias[known] = found.coef_, found.intercept_
    with torch.no_grad():
        direct.weight.copy_(torch.from_numpy(weight).to(back) @ back)
        direct.bias.copy_(torch.from_numpy(bias))
    direct.requires_grad_(False)  # it has its own penalty, which a gradient does not know


def _logits(flow: HybridFlow, rows: Rows) -> tuple[Tensor, Tensor]:
    """Logits of the regression and of the head, for the first rows."""
    direct = flow.classifier.direct
    assert direct is not None
    few = rows.take(torch.arange(min(len(rows), SOME), device=rows.x.device))
    with torch.no_grad():
        linear = direct(flow.eval().inputs(few.x, few.context))
        return linear, flow.eval().classify(few.x, context=few.context) - linear


def _losses(parts: Sequence[tuple[Tensor, Tensor, Tensor]], share: float, temperature: float) -> Tensor:
    return torch.cat([F.cross_entropy((a + share * b) / temperature, y, reduction="none") for a, b, y in parts])


def best_strength(flow: HybridFlow, rows: Rows) -> float:
    """The inverse penalty with the lowest cross-validated log-loss."""
    assert rows.y is not None
    scaled, y = _scaled(flow, rows)[1].cpu().numpy(), rows.y[:SOME].cpu().numpy()
    known, counts = np.unique(y, return_counts=True)
    folds = min(5, int(counts.min()))
    if len(known) < 2 or folds < 2:
        return 1.0
    parts = StratifiedKFold(folds, shuffle=True, random_state=0)

    def score(strength: float) -> float:
        model = LogisticRegression(C=strength, max_iter=1000)
        return float(cross_val_score(model, scaled, y, cv=parts, scoring="neg_log_loss").mean())

    return max(STRENGTHS, key=score)


def keep_what_helps(flow: HybridFlow, rows: Rows, parts: Sequence[Part], strength: float) -> tuple[float, float]:
    """Scale the head of a fitted flow, and all logits, as held-out rows ask for; returns the share and the temperature.

    The logistic regression alone, of all rows, is kept unless something else is better by more than two standard errors and by
    a twentieth of its loss.
    """
    logits = []
    for copied, _, held_out in parts:
        assert isinstance(copied, HybridFlow)
        assert held_out.y is not None
        linear, head = _logits(copied, held_out)
        logits.append((linear, head, held_out.y[: len(linear)]))
    before = _losses(logits, 0.0, 1.0)
    choices = [(share, temperature) for share in SHARES for temperature in TEMPERATURES]
    share, temperature = min(choices, key=lambda each: float(_losses(logits, *each).mean()))
    gain = before - _losses(logits, share, temperature)
    if float(gain.mean()) <= max(2 * float(gain.std()) / len(gain) ** 0.5, 0.05 * float(before.mean())):
        share, temperature = 0.0, 1.0
        regression(flow, rows.to(flow.dtype), strength)
    direct = flow.classifier.direct
    assert direct is not None
    with torch.no_grad():
        for layer, factor in ((flow.classifier.linear, share / temperature), (direct, 1 / temperature)):
            layer.weight.mul_(factor)
            layer.bias.mul_(factor)
    return share, temperature
