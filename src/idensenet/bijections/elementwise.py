"""Fixed maps of each number alone: what stands between the data and the flow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from idensenet.bijections.base import Bijection, Call, constant_log_det, sum_event
from idensenet.errors import OptionError, ShapeError
from idensenet.lipschitz.certificate import OperatorNorms
from idensenet.moments import Moments


class Logit(Bijection):
    """y = logit(alpha + (1 - 2 alpha) x) for x in [0, 1].

    Args:
        alpha: Margin at both ends, from 0 to below 0.5.

    Raises:
        OptionError: alpha lies outside.
    """

    def __init__(self, alpha: float = 0.05) -> None:
        super().__init__()
        if not 0 <= alpha < 0.5:
            raise OptionError(f"alpha={alpha} of a logit must lie in [0, 0.5).")
        self.alpha = alpha

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        s = self.alpha + (1 - 2 * self.alpha) * x
        y = torch.log(s) - torch.log1p(-s)
        return y, sum_event(math.log(1 - 2 * self.alpha) - torch.log(s) - torch.log1p(-s))

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        x = (torch.sigmoid(y) - self.alpha) / (1 - 2 * self.alpha)
        return x, sum_event(
            torch.nn.functional.logsigmoid(y) + torch.nn.functional.logsigmoid(-y) - math.log(1 - 2 * self.alpha)
        )

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        slope = (1 - 2 * self.alpha) / (self.alpha * (1 - self.alpha)) if self.alpha else math.inf
        return 4 * (1 - 2 * self.alpha), slope


class Affine(Bijection):
    """y = (x - loc) / scale with fixed numbers, which broadcast over the event.

    Args:
        loc: What is subtracted.
        scale: What is divided by; positive.

    Raises:
        OptionError: A scale is not positive and finite.
    """

    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        super().__init__()
        if not bool((scale > 0).all()) or not bool(torch.isfinite(scale).all()):
            raise OptionError(f"Every scale must be positive and finite; the smallest is {float(scale.min())}.")
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)

    @classmethod
    def normalize(cls, mean: Sequence[float], std: Sequence[float]) -> Affine:
        """The map (x - mean) / std per channel of an image.

        Args:
            mean: One number for each channel.
            std: One number for each channel.

        Returns:
            The affine map.
        """
        return cls(torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1))

    @classmethod
    def standardize(cls, data: Tensor) -> Affine:
        """The map to mean 0 and deviation 1 per dimension of `data`; a constant dimension is only shifted.

        Args:
            data: Rows.

        Returns:
            The affine map.
        """
        affine = cls(torch.zeros_like(data[0]), torch.ones_like(data[0]))
        affine.fit(data)
        return affine

    @torch.no_grad()
    def fit(self, data: Tensor, weight: Tensor | None = None) -> None:
        """Take location and scale from data, per dimension; a constant dimension is only shifted.

        Args:
            data: Samples.
            weight: How much each counts, [samples]; all the same by default.
        """
        std, mean = data.std(0, unbiased=False), data.mean(0)
        if weight is not None:
            share = (weight / weight.sum()).view(-1, *[1] * (data.ndim - 1))
            mean = (share * data).sum(0)
            std = (share * (data - mean).square()).sum(0).sqrt()
        self._take(mean, std)

    @torch.no_grad()
    def fit_moments(self, found: Moments) -> None:
        """The same from rows that came block by block.

        Args:
            found: Their mean and covariance.
        """
        self._take(*(torch.from_numpy(each).to(self.loc) for each in (found.mean, found.deviation)))

    def _take(self, mean: Tensor, std: Tensor) -> None:
        self.loc.copy_(mean)
        rounding = 8 * torch.finfo(mean.dtype).eps * self.loc.abs()  # in the deviation of a constant
        self.scale.copy_(torch.where(std > rounding, std, torch.ones_like(std)))

    def _log_det(self, x: Tensor) -> Tensor:
        try:
            scale = self.scale.expand(x.shape[1:])
        except RuntimeError:
            raise ShapeError(
                f"A scale of shape {tuple(self.scale.shape)} does not fit data of shape {tuple(x.shape)}."
            ) from None
        return constant_log_det(x, -torch.log(scale).sum())

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        log_det = self._log_det(x)
        return (x - self.loc) / self.scale, log_det

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        log_det = self._log_det(y)
        return y * self.scale + self.loc, -log_det

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        return 1 / float(self.scale.max()), 1 / float(self.scale.min())
