"""From latent codes to data: the inverse of a flow, and its samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idensenet.bijections import Call
from idensenet.dequantization import quantize
from idensenet.errors import OptionError
from idensenet.flow_input import FlowInput, Prepared
from idensenet.precision import EXACT

LEAST_ROWS, NUMBERS = 256, 1 << 18  # of samples that are decoded together


class FlowSamples(FlowInput):
    """The part of a `Flow` that leads from latent codes to data."""

    def inverse(
        self,
        z: Tensor,
        generator: torch.Generator | None = None,
        context: Tensor | None = None,
        prepared: Prepared | None = None,
    ) -> tuple[Tensor, Tensor]:
        """x with F(x) = z (levels plus noise, for images), and the log-determinant of the inverse map.

        Args:
            z: Latent codes [batch, *latent_shape].
            generator: Source of random numbers. Without one, evaluation is a function of the data, and training uses the
                global generator.
            context: A vector for each sample, or one for all, for a conditional flow.
            prepared: What `prepare()` returned, if the caller has it.

        Returns:
            Samples as floats, and the log-determinants of the inverse map [batch].

        Raises:
            ConvergenceError: The solver did not reach its tolerance; the message names the samples.
        """
        self._check(z, self.latent_shape, "z")
        self._check_float(z, "z")
        with EXACT.products(self.device):
            draws, given, prepared = self._draws(z, generator), self._given(context, len(z)), prepared or self.prepare()
            x, after = self.body.pull(z, Call(draws.fold(1), prepared.body, given))
            x, before = self.preprocess.pull(x, Call(draws, prepared.preprocess, given))
        self._check_computed(z, "The inverse", x, before, after)
        return x, before + after

    def base_log_prob(self, z: Tensor) -> Tensor:
        """log N(z; 0, I), or the log-density of the mixture, per sample.

        Args:
            z: Latent codes [batch, *latent_shape].

        Returns:
            Log-densities [batch], in nats.
        """
        if self.base is not None:
            return self.base.log_prob(z.flatten(1))
        return -0.5 * (z.flatten(1).square().sum(1) + self.dims * math.log(2 * math.pi))

    def _latent(self, n: int, generator: torch.Generator | None, temperature: float) -> Tensor:
        if n < 0 or temperature <= 0:
            raise OptionError(f"n={n} must not be negative and temperature={temperature} must be positive.")
        if self.base is not None:
            return self.base.sample(n, generator, temperature).view(n, *self.latent_shape)
        z = torch.randn((n, *self.latent_shape), generator=generator, dtype=self.dtype, device=self.device)
        return z * temperature

    @torch.no_grad()
    def sample(
        self,
        n: int,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        context: Tensor | None = None,
        prepared: Prepared | None = None,
    ) -> Tensor:
        """n draws from the model: uint8 levels if it has any, otherwise floats, whole ones in columns of whole numbers.

        Args:
            n: Number of samples.
            generator: Source of the latent codes.
            temperature: Factor on the latent codes; below one, samples are closer to the centre.
            context: A vector for each sample, or one for all, for a conditional flow.
            prepared: What `prepare()` returned, if the caller has it.

        Returns:
            Samples [n, *shape].

        Raises:
            ConvergenceError: The solver did not reach its tolerance.
        """
        z, prepared = self._latent(n, generator, temperature), prepared or self.prepare()
        rows = max(LEAST_ROWS, NUMBERS // self.dims)  # at a time, so that memory does not grow with n
        own = context is not None and context.ndim == 2 and len(context) == n > 1
        given = torch.split(context, rows) if own and context is not None else [context] * max(1, -(-n // rows))
        x = torch.cat([self._decode(part, each, prepared) for part, each in zip(torch.split(z, rows), given, strict=True)])
        if self.cells is not None:
            return self.cells.floor(x)
        return x if self.levels is None else quantize(x, self.levels)

    def _decode(self, z: Tensor, context: Tensor | None, prepared: Prepared | None) -> Tensor:
        """The inverse alone, with no log-determinant."""
        with EXACT.products(self.device):
            draws, given, prepared = self._draws(z, None), self._given(context, len(z)), prepared or self.prepare()
            x, _ = self.body.pull(z, Call(draws, prepared.body, given, log_det=False))
            return self.preprocess.pull(x, Call(draws, prepared.preprocess, given, log_det=False))[0]

    def sample_and_log_prob(
        self, n: int, generator: torch.Generator | None = None, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """n draws as floats (levels or whole numbers plus noise), differentiable, and their log-densities.

        Args:
            n: Number of samples.
            generator: Source of the latent codes.
            context: A vector for each sample, or one for all, for a conditional flow.

        Returns:
            Samples [n, *shape] and their log-densities [n].

        Raises:
            ConvergenceError: The solver did not reach its tolerance.
        """
        z = self._latent(n, generator, 1.0)
        x, log_det = self.inverse(z, generator if self.training else None, context)
        return x, self.base_log_prob(z) - log_det
