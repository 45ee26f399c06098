"""A density of two columns: a picture of it, a slice through it, its samples, and the path of a point through the blocks."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idensenet.errors import MissingDataError
from idensenet.explore.journey import journey
from idensenet.explore.query import Query, plain
from idensenet.explore.subject import Subject
from idensenet.report.markup import data_uri
from idensenet.report.pictures import image_png
from idensenet.report.plane import Frame, density_grid, frame_of

MOST_POINTS = 2000
SIDE = 220  # cells of the picture along each axis
LINE = 201  # points of a slice inside the frame
BINS = 40
FAR = 100.0  # how many frames away a point may lie


class Plane:
    """Answers about a density of two columns.

    Args:
        subject: The model.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.answers = {
            "density": self.density,
            "slice": self.slice,
            "samples": self.samples,
            "data": self.data,
            "path": self.path,
            "cloud": self.cloud,
        }

    def about(self) -> dict[str, Any]:
        """The columns, the part of the plane that is shown, and the most likely point to begin with.

        Returns:
            Plain values for JSON.
        """
        start = self.points(200)
        best = start[int(self._log_prob(start).argmax())]
        return {"names": self.subject.names, "frame": plain(self.frame), "start": plain(best.cpu().numpy())}

    # What the model says

    @cached_property
    def frame(self) -> Frame:
        """The part of the plane that is shown: where the data is, or samples if there is none."""
        return frame_of(self.points(10_000))

    def points(self, count: int) -> Tensor:
        """Held-out data, or samples if it cannot be read.

        Args:
            count: How many points at most.

        Returns:
            Points [n, 2].
        """
        flow, source = self.subject.flow, self.subject.source
        if source is None:
            return flow.sample(count, torch.Generator(flow.device).manual_seed(0), prepared=self.subject.prepared)
        rows = source.test.batch(np.arange(min(count, len(source.test)))).x
        return rows.to(flow.device, flow.dtype)

    @torch.no_grad()
    def _log_prob(self, points: Tensor) -> Tensor:
        return self.subject.flow.log_prob(points, prepared=self.subject.prepared)

    def _at(self, query: Query) -> Tensor:
        """The point that is asked for; not so far away that the model overflows."""
        flow, (left, right, bottom, top) = self.subject.flow, self.frame
        wide, tall = FAR * (right - left), FAR * (top - bottom)
        x = query.number("x", (left + right) / 2, left - wide, right + wide)
        y = query.number("y", (bottom + top) / 2, bottom - tall, top + tall)
        return torch.tensor([[x, y]], dtype=flow.dtype, device=flow.device)

    # Answers

    def density(self, query: Query) -> dict[str, Any]:
        """A picture of the density in the frame.

        Args:
            query: Nothing is asked for.

        Returns:
            The picture, its largest value, and the probability inside the frame.
        """
        from matplotlib import colormaps

        grid = density_grid(self.subject.flow, self.frame, SIDE).double().cpu()
        largest = float(grid.max())
        colours = colormaps["magma"]((grid / (largest or 1.0)).numpy(), bytes=True)[::-1, :, :3]
        left, right, bottom, top = self.frame
        inside = float(grid.mean()) * (right - left) * (top - bottom)
        picture = data_uri(image_png(torch.from_numpy(np.ascontiguousarray(colours))))
        return {"image": picture, "largest": plain(largest), "inside": plain(inside)}

    def slice(self, query: Query) -> dict[str, Any]:
        """The conditional density of one column at a value of the other, with the data near it.

        Args:
            query: `axis`, which column is held (0 or 1), and `at`, its value.

        Returns:
            Places, the conditional density there, and the marginal density of the held column.
        """
        flow, frame = self.subject.flow, self.frame
        axis = query.integer("axis", 0, 0, 1)
        held, free = (frame[:2], frame[2:]) if axis == 0 else (frame[2:], frame[:2])
        at = query.number("at", sum(held) / 2, *held)
        step = (free[1] - free[0]) / (LINE - 1)
        beyond = LINE // 2  # the integral goes on outside of the frame
        places = free[0] + step * (torch.arange(LINE + 2 * beyond, device=flow.device, dtype=flow.dtype) - beyond)
        fixed = torch.full_like(places, at)
        line = torch.stack([fixed, places] if axis == 0 else [places, fixed], 1)
        density = self._log_prob(line).double().exp()
        marginal = float(density.sum()) * step
        shown = slice(beyond, beyond + LINE)
        conditional = density[shown] / marginal if marginal > 0 else torch.zeros(LINE)
        found = {
            "places": plain(places[shown].cpu()),
            "conditional": plain(conditional.cpu()),
            "marginal": plain(marginal),
            "bars": None,
        }
        if self.subject.source is not None:
            found |= self._near(axis, at, held, free)
        return found

    def _near(self, axis: int, at: float, held: tuple[float, ...], free: tuple[float, ...]) -> dict[str, Any]:
        """A histogram of the held-out points in a thin band around the slice."""
        points = self.points(10_000).double().cpu().numpy()
        half = (held[1] - held[0]) / 60
        near = points[np.abs(points[:, axis] - at) < half][:, 1 - axis]
        heights, edges = np.histogram(near, BINS, (free[0], free[1]))
        width = (edges[1] - edges[0]) * max(1, len(near))
        return {"bars": plain(heights / width), "edges": plain(edges), "near": len(near), "half": plain(half)}

    def samples(self, query: Query) -> dict[str, Any]:
        """Points drawn from the model.

        Args:
            query: `n`, `temperature` and `seed`.

        Returns:
            The points.
        """
        flow = self.subject.flow
        generator = torch.Generator(flow.device).manual_seed(query.integer("seed", 0, 0, 2**31))
        temperature = query.number("temperature", 1.0, 0.05, 2.0)
        count = query.integer("n", 1000, 1, MOST_POINTS)
        return {"points": plain(flow.sample(count, generator, temperature, prepared=self.subject.prepared).cpu())}

    def data(self, query: Query) -> dict[str, Any]:
        """Held-out points.

        Args:
            query: `n`.

        Returns:
            The points.

        Raises:
            MissingDataError: The data cannot be read.
        """
        if self.subject.source is None:
            raise MissingDataError(f"The data of this model cannot be read: {self.subject.missing}")
        return {"points": plain(self.points(query.integer("n", 1000, 1, MOST_POINTS)).cpu())}

    def path(self, query: Query) -> dict[str, Any]:
        """The path of one point through the blocks, and back.

        Args:
            query: `x` and `y`.

        Returns:
            The point after each step, log-determinants, its log-density and how exactly it comes back.
        """
        flow, prepared, x = self.subject.flow, self.subject.prepared, self._at(query)
        steps = journey(flow, x, prepared)
        z = steps[-1].value
        with torch.no_grad():
            back, _ = flow.inverse(z, prepared=prepared)
        return {
            "steps": [step.name for step in steps],
            "points": [plain(step.value[0].cpu()) for step in steps],
            "log_det": [plain(float(step.log_det[0])) for step in steps],
            "base": plain(float(flow.base_log_prob(z)[0].detach())),
            "log_prob": plain(float(self._log_prob(x)[0])),
            "round_trip": plain(float((back - x).abs().max())),
        }

    def cloud(self, query: Query) -> dict[str, Any]:
        """Where many points are after each step.

        Args:
            query: `n`.

        Returns:
            Points for each step.
        """
        points = self.points(query.integer("n", 500, 1, MOST_POINTS))
        return {"stages": [plain(step.value.cpu()) for step in journey(self.subject.flow, points, self.subject.prepared)]}
