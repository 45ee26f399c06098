"""Images: the neighbourhood of one in the latent space, samples at a temperature, and round trips."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idensenet.dequantization import quantize
from idensenet.errors import OptionError
from idensenet.explore.query import Query, plain
from idensenet.explore.subject import Subject
from idensenet.report.markup import data_uri
from idensenet.report.pictures import error_factor, image_grid, image_png, magnification

MOST_IMAGES = 36  # of one answer
POOL = 12  # images to choose from without data


def neighbours(z: Tensor, angle: float, side: int, generator: torch.Generator) -> Tensor:
    """Codes around a code, on the sphere that it lies on: typical codes all have about the same norm.

    With random orthonormal directions u, v at right angles to z, the code in row i and column j is
    cos(t) z + sin(t) |z| d, where d is the direction of i u + j v and t is its length times `angle`.

    Args:
        z: A code [1, *latent_shape].
        angle: Between neighbours, in degrees.
        side: Codes along each side, an odd number; z itself is in the middle.
        generator: Source of the directions.

    Returns:
        Codes [side * side, *latent_shape], row by row.
    """
    flat = z.flatten().double()
    norm = flat.norm().clamp(min=1e-12)
    drawn = torch.randn(len(flat), 2, generator=generator, dtype=torch.float64, device=z.device)
    basis = torch.linalg.qr(torch.cat([flat[:, None] / norm, drawn], 1)).Q[:, 1:]
    steps = torch.arange(side, device=z.device, dtype=torch.float64) - side // 2
    offsets = torch.cartesian_prod(steps, steps)
    length = offsets.norm(dim=1, keepdim=True)
    turn = length * math.radians(angle)
    direction = (offsets / length.clamp(min=1)) @ basis.T  # in the middle both are zero
    found: Tensor = turn.cos() * flat + turn.sin() * norm * torch.nn.functional.normalize(direction, dim=1)
    return found.to(z.dtype).view(-1, *z.shape[1:])


class Images:
    """Answers about a model of images.

    Args:
        subject: The model.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.scale = magnification(subject.flow.shape[1])
        if subject.flow.dims > 3 * 128 * 128:
            raise OptionError(f"Images of {subject.flow.dims:,} numbers are too large to explore; 3 x 128 x 128 is the limit.")
        self.answers = {
            "choices": self.choices,
            "chosen": self.chosen,
            "neighbourhood": self.neighbourhood,
            "samples": self.samples,
            "reconstructions": self.reconstructions,
        }

    @cached_property
    def levels(self) -> int:
        """The number of integer levels of a pixel."""
        assert self.subject.flow.levels is not None
        return self.subject.flow.levels

    @cached_property
    def _made(self) -> Tensor:
        """Samples to choose from where there is no data."""
        generator = torch.Generator(self.subject.flow.device).manual_seed(0)
        return self.subject.flow.sample(POOL, generator, prepared=self.subject.prepared)

    @property
    def count(self) -> int:
        """How many images there are to choose from."""
        return POOL if self.subject.source is None else len(self.subject.source.test)

    def images(self, first: int, n: int) -> Tensor:
        """Held-out images, or samples if there are none.

        Args:
            first: The place of the first one.
            n: How many at most.

        Returns:
            Levels [n, channels, height, width].
        """
        places = np.arange(first, min(first + n, self.count))
        if self.subject.source is None:
            return self._made[torch.from_numpy(places).to(self._made.device)]
        return self.subject.source.test.batch(places).x.to(self.subject.flow.device)

    def picture(self, images: Tensor, columns: int, levels: int | None = None) -> str:
        """Images side by side, as the address of a picture.

        Args:
            images: Levels [n, channels, height, width].
            columns: Images in a row.
            levels: Number of levels of the images; by default the number of the model.

        Returns:
            A data address.
        """
        return data_uri(image_png(image_grid(images, levels or self.levels, columns, self.scale)))

    def about(self) -> dict[str, Any]:
        """How many images there are, and how large a neighbourhood may be.

        Returns:
            Plain values for JSON.
        """
        return {"count": self.count, "real": self.subject.source is not None, "levels": self.levels}

    @torch.no_grad()
    def _encoded(self, x: Tensor) -> Tensor:
        z: Tensor = self.subject.flow(x, prepared=self.subject.prepared)[0]
        return z

    def _chosen(self, query: Query) -> Tensor:
        return self.images(query.integer("of", 0, 0, self.count - 1), 1)

    # Answers

    def choices(self, query: Query) -> dict[str, Any]:
        """Images to choose from.

        Args:
            query: `first` and `n`.

        Returns:
            A picture of each.
        """
        first = query.integer("first", 0, 0, self.count - 1)
        found = self.images(first, query.integer("n", 12, 1, MOST_IMAGES))
        return {
            "first": first,
            "images": [data_uri(image_png(image_grid(x[None], self.levels, 1, self.scale, 0))) for x in found],
        }

    def chosen(self, query: Query) -> dict[str, Any]:
        """One image, its bits per dimension and the norm of its code.

        Args:
            query: `of`, the place of the image.

        Returns:
            A picture, bits per dimension, and the norm of its code.
        """
        flow, x = self.subject.flow, self._chosen(query)
        with torch.no_grad():
            bits = float(-flow.log_prob(x, prepared=self.subject.prepared)[0]) / (flow.dims * math.log(2))
        norm = float(self._encoded(x).flatten().norm())
        return {"image": self.picture(x, 1), "bits": plain(bits), "norm": plain(norm), "usual": plain(math.sqrt(flow.dims))}

    def neighbourhood(self, query: Query) -> dict[str, Any]:
        """Images around one in the latent space.

        Args:
            query: `of`, the place of the image; `angle` between neighbours in degrees; `side`; `seed` of the directions.

        Returns:
            A picture of them, the image itself in the middle.
        """
        flow = self.subject.flow
        angle, side = query.number("angle", 10.0, 0.0, 30.0), 2 * query.integer("reach", 1, 1, 2) + 1
        generator = torch.Generator(flow.device).manual_seed(query.integer("seed", 0, 0, 2**31))
        codes = neighbours(self._encoded(self._chosen(query)), angle, side, generator)
        with torch.no_grad():
            pixels = flow.preprocess.decode(flow.body.decode(codes))
        return {"image": self.picture(quantize(pixels, self.levels), side), "side": side}

    def samples(self, query: Query) -> dict[str, Any]:
        """Images drawn from the model.

        Args:
            query: `n`, `temperature` and `seed`.

        Returns:
            A picture of them.
        """
        flow, count = self.subject.flow, query.integer("n", 12, 1, MOST_IMAGES)
        generator = torch.Generator(flow.device).manual_seed(query.integer("seed", 0, 0, 2**31))
        temperature = query.number("temperature", 1.0, 0.05, 2.0)
        made = flow.sample(count, generator, temperature, prepared=self.subject.prepared)
        return {"image": self.picture(made, min(count, 6))}

    def reconstructions(self, query: Query) -> dict[str, Any]:
        """Images there and back: what went in, what came back, and the difference, enlarged.

        Args:
            query: `first` and `n`.

        Returns:
            Three pictures, the largest and the mean error in units of the range of a pixel, and the factor of the third.
        """
        flow, prepared = self.subject.flow, self.subject.prepared
        x = self.images(query.integer("first", 0, 0, self.count - 1), query.integer("n", 8, 1, 16))
        with torch.no_grad():
            before = flow.dequantize(x)
            after, _ = flow.inverse(flow(x, prepared=prepared)[0], prepared=prepared)
        error = (after - before).abs() / self.levels
        factor, wide = error_factor(error), len(x)
        return {
            "original": self.picture(x, wide),
            "back": self.picture(quantize(after, self.levels), wide),
            "error": self.picture((error.nan_to_num(1.0) * factor).clamp(0, 1) * 255, wide, 256),
            "factor": factor,
            "largest": plain(float(error.max())),
            "mean": plain(float(error.mean())),
        }
