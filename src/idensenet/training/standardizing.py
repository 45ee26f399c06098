"""Standardisation from all training rows, which may be more than there is memory for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from idensenet.bijections import Affine, Chain, Whiten
from idensenet.bijections.base import Bijection
from idensenet.checks import check_rounding
from idensenet.data.source import Samples, Split
from idensenet.draws import GeneratorDraws
from idensenet.errors import OptionError
from idensenet.flow import Flow
from idensenet.flow_input import INDICATOR, MIXED
from idensenet.moments import Array, Moments


def standardize(flow: Flow, samples: Samples) -> None:
    """Take mean and deviation, or the whitening, of a model from training rows, and check that no digit is lost that matters.

    Args:
        flow: The model; rows are taken to its device and number type.
        samples: Rows in memory, or from files, which are read once for deviations and once more to whiten.
    """
    if isinstance(samples, Split):
        context, weight = (None if each is None else _inside(flow, each) for each in (samples.context, samples.weight))
        flow.standardize(_inside(flow, samples.x[:]), context, weight)
    else:
        _from_blocks(flow, samples)
    for block in samples.blocks():
        check_rounding(torch.from_numpy(block.x[:]), flow.preprocess, flow.dtype, "the table")


def _from_blocks(flow: Flow, samples: Samples) -> None:
    """As `Flow.standardize`, block by block."""
    parts: list[Bijection] = list(flow.preprocess) if isinstance(flow.preprocess, Chain) else [flow.preprocess]
    place = next((i for i, part in enumerate(parts) if _takes_data(part, flow)), None)
    if place is None:
        raise OptionError("This flow does not standardise its data; build it with preprocess='standardize' or 'whiten'.")
    found, given, indicator = Moments(), Moments(), np.array(True)
    for rows, block in _encoded(flow, samples, parts[:place]):
        found.add(rows, block.weight)
        if block.context is not None:
            given.add(block.context)
            indicator = indicator & ((block.context == 0) | (block.context == 1)).all(0)
    part = parts[place]
    if isinstance(part, Whiten):
        mean, deviation = found.mean, np.where(found.constant, 1.0, found.deviation)
        fourth = 0.0
        for rows, block in _encoded(flow, samples, parts[:place]):
            square = np.square((rows - mean) / deviation).sum(1)
            fourth += float(np.sum(np.square(square) * (1 if block.weight is None else block.weight)))
        part.fit_moments(found, fourth / found.total)
    elif isinstance(part, Affine):
        part.fit_moments(found)
    if flow.context_scale is not None:
        flow.context_scale.fit_moments(given)
        least = torch.from_numpy(np.where(indicator, INDICATOR, 0.0)).to(flow.context_scale.scale)
        flow.context_scale.scale.clamp_(min=least)
    if flow.base is not None:
        _fit_base(flow, samples)


def _takes_data(part: Bijection, flow: Flow) -> bool:
    return isinstance(part, Whiten) or (isinstance(part, Affine) and part.loc.shape == flow.shape)


def _encoded(flow: Flow, samples: Samples, before: list[Bijection]) -> Iterator[tuple[Array, Split]]:
    """Rows as the part that takes its values from them sees them, the same whenever they are read."""
    noise = GeneratorDraws(torch.Generator(flow.device).manual_seed(flow.seed))
    for block in samples.blocks():
        rows = _inside(flow, block.x)
        rows = rows if flow.cells is None else flow.cells.noisy(rows, noise)
        for part in before:
            rows = part.encode(rows)
        yield rows.double().cpu().numpy(), block


def _inside(flow: Flow, x: Array) -> Tensor:
    return torch.from_numpy(x).to(flow.device, flow.dtype)


def _fit_base(flow: Flow, samples: Samples) -> None:
    """The mixture, from rows that stand at equal distances."""
    assert flow.base is not None
    generator = torch.Generator(flow.device).manual_seed(flow.seed)
    some = samples.batch(np.unique(np.linspace(0, len(samples) - 1, MIXED).astype(np.int64)))
    rows = some.x.to(flow.device, flow.dtype)
    rows = rows if flow.cells is None else flow.cells.noisy(rows, GeneratorDraws(generator))
    weight = None if some.weight is None else some.weight.to(flow.device, flow.dtype)
    flow.base.fit(flow.preprocess.encode(rows), weight, generator=generator)
