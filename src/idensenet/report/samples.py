"""The section with samples next to real data."""

from __future__ import annotations

from html import escape

import numpy as np
import torch
from torch import Tensor

from idensenet.errors import InputError
from idensenet.report.drawing import Drawing, draw, png, themed
from idensenet.report.markup import figure, note, section
from idensenet.report.pictures import first_of, image_grid, image_png, in_units, magnification
from idensenet.report.plane import MOST_COLUMNS, Frame, frame_of, pairs_figure, plane_figure
from idensenet.report.story import Story

SHOWN_IMAGES = 64
SHOWN_POINTS = 10_000


def samples(story: Story) -> str:
    title = "Samples next to real data" if story.source else "Samples"
    said = f"<p>The data is not there any more, so it is not shown: {escape(story.missing)}</p>" if story.source is None else ""
    try:
        body = _images(story) if story.flow.levels is not None else _points(story)
    except (InputError, ArithmeticError) as error:
        body = f'<p class="alarm">Samples cannot be drawn: {escape(str(error))}</p>'
    return section("samples", title, said + body)


def _images(story: Story) -> str:
    flow, source = story.flow, story.source
    assert flow.levels is not None
    scale = magnification(flow.shape[1])
    drawn = story.run.pictures / f"step-{story.step:08d}.png"
    if drawn.is_file():  # the very same samples, drawn at the last evaluation
        made = drawn.read_bytes()
    else:
        made = image_png(image_grid(flow.sample(SHOWN_IMAGES, torch.Generator().manual_seed(0)), flow.levels, scale=scale))
    parts = []
    if source is not None:
        count = min(SHOWN_IMAGES, len(source.test))
        real = source.test.batch(np.arange(count)).x
        grid = Drawing(image_png(image_grid(real, flow.levels, scale=scale)))
        words = f"{count} held-out images of {source.name}, which the model has never seen"
        parts.append(figure(grid, words, "Real data", words, "pixels"))
    words = f"{SHOWN_IMAGES} images drawn from the model of step {story.step:,}"
    parts.append(figure(Drawing(made), words, "Samples", words, "pixels"))
    return f'<div class="pair">{"".join(parts)}</div>'


def _points(story: Story) -> str:
    flow, source = story.flow, story.source
    count = SHOWN_POINTS if source is None else min(SHOWN_POINTS, len(source.test))
    if flow.context and source is None:
        return "<p>Samples of a conditional model need the contexts of its data.</p>"
    data, given = (None, None) if source is None else first_of(flow, source.test, count)
    made = flow.sample(count, torch.Generator().manual_seed(0), context=given)
    if flow.shape == (2,) and not flow.context and not flow.integers:
        return _plane(story, data, made)
    made, data = in_units(flow, made), None if data is None else in_units(flow, data)
    sets = [("samples", made)] if data is None else [("data", data), ("samples", made)]
    names = source.columns if source else story.config.data.columns
    drawing = draw(lambda: pairs_figure(sets, names))
    some = f" The first {MOST_COLUMNS} of {flow.dims} columns are shown." if flow.dims > MOST_COLUMNS else ""
    words = "Histograms on the diagonal, pairs of columns off it"
    words += ": data below, samples above." if len(sets) > 1 else "."
    return figure(drawing, f"{words} {count:,} samples.", "", words + some, "wide" if flow.dims > 2 else "plain")


def _plane(story: Story, data: Tensor | None, made: Tensor) -> str:
    frame = frame_of(made if data is None else data)
    words = f"{len(made):,} points"
    parts = []
    if data is not None:
        parts.append(figure(_square(story, data, frame, False), f"Histogram of the data, {words}", "Data", words))
    parts.append(
        figure(
            _square(story, made, frame, True), "The density that the model has learned", "Learned density", "exp of log_prob"
        )
    )
    parts.append(figure(_square(story, made, frame, False), f"Histogram of samples from the model, {words}", "Samples", words))
    left, right, bottom, top = frame
    place = f"All show {left:.4g} to {right:.4g} from left to right and {bottom:.4g} to {top:.4g} from bottom to top."
    return f'<div class="three">{"".join(parts)}</div>{note(place)}'


def _square(story: Story, points: Tensor, frame: Frame, density: bool) -> Drawing:
    with themed():
        return Drawing(png(plane_figure(story.flow if density else None, points, frame)))
