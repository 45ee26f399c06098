"""Flow: a density in data space, its samples, its inverse, its certificate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from idensenet.bijections import Affine, Bijection, Call, Chain
from idensenet.cells import Cells
from idensenet.dequantizer import Dequantizer
from idensenet.errors import OptionError
from idensenet.flow_blocks import FlowBlocks
from idensenet.flow_input import Prepared
from idensenet.flow_samples import FlowSamples
from idensenet.mixture import Mixture

if TYPE_CHECKING:
    from idensenet.frozen import FrozenFlow

__all__ = ["Flow", "Prepared", "bits_per_dim"]


class Before(NamedTuple):
    """What a log-density counts before the body: the log-determinant of the preprocessing, and -log q of learned noise."""

    log_det: Tensor
    noise: Tensor | None

    @property
    def total(self) -> Tensor:
        return self.log_det if self.noise is None else self.log_det + self.noise


def bits_per_dim(log_prob: Tensor, dims: int) -> Tensor:
    """Returns -log_prob / (D ln 2).

    Args:
        log_prob: Log-densities in nats.
        dims: D, the number of dimensions of a sample.

    Returns:
        Bits per dimension, in the shape of `log_prob`.

    >>> bits_per_dim(torch.tensor(-8 * 3072 * math.log(2)), 3072)
    tensor(8.)
    """
    return -log_prob / (dims * math.log(2))


class Flow(FlowSamples, FlowBlocks):
    """p(x) = N(F(x); 0, I) |det J_F(x)|, or with a mixture of Gaussians in place of the N.

    Without `levels`, x is a float tensor of shape [batch, *shape]. With `levels`, x holds integers (uint8) from 0 to
    levels - 1; dequantisation is part of the flow, so that a log-density counts every term from the integers on. With a
    `dequantizer` the noise is learned, and a log-density is a lower bound on average over the noise.

    With `context`, it is a density p(x | c) for each vector c of so many numbers, and every method that takes data takes a
    `context` with it: [batch, context], or one vector for all.

    With `integers`, these columns of x hold whole numbers, and p(x) is a density in the other columns times the probability of
    these numbers: uniform noise spreads k over the cell [k, k + 1), and the density is integrated over the cell. In training,
    one draw of the noise stands for the integral; its log-density is a lower bound in expectation. In evaluation, it is the
    average over `points` places in the cell, in probability space. That is unbiased for any number of them; its logarithm is a
    lower bound in expectation, and tight where the density varies little within a cell. Numbers that are not whole have
    probability zero.

    Out of training, everything is a function of the data: all noise comes from (`seed`, content of the sample, block).
    In training it comes from a generator.

    Args:
        body: The bijection from preprocessed data to latents.
        shape: Shape of a sample.
        latent_shape: Shape of a latent code; by default the shape of a sample.
        preprocess: A fixed bijection in front of the body, such as a logit or a standardisation.
        levels: Number of integer levels of a pixel; None for real numbers.
        context: Length of the context vector; 0 for an unconditional density.
        integers: Positions of columns that hold whole numbers.
        dequantizer: Learned noise of integer levels; None for uniform noise.
        base: A mixture of Gaussians as the distribution of latent codes; None for the standard normal.
    """

    def __init__(
        self,
        body: Bijection,
        shape: Sequence[int],
        latent_shape: Sequence[int] | None = None,
        preprocess: Bijection | None = None,
        levels: int | None = None,
        context: int = 0,
        integers: Sequence[int] = (),
        dequantizer: Dequantizer | None = None,
        base: Mixture | None = None,
    ) -> None:
        super().__init__()
        self.body, self.preprocess, self.base = body, preprocess or Chain([]), base
        self.shape, self.latent_shape = tuple(shape), tuple(latent_shape or shape)
        self.levels, self.dequantizer = levels, dequantizer
        self.dims = math.prod(self.shape)
        self.context = context
        self.integers = tuple(integers)
        self.cells = Cells(self.integers, self.shape[0]) if self.integers else None
        self.context_scale = Affine(torch.zeros(context), torch.ones(context)) if context else None
        self.register_buffer("_anchor", torch.zeros(()), persistent=False)  # knows device and dtype

    def _before(
        self,
        x: Tensor,
        generator: torch.Generator | None,
        dequantized: bool,
        context: Tensor | None,
        prepared: Prepared,
        log_det: bool = True,
        sample: int = 0,
        draw: int = 0,
    ) -> tuple[Tensor, Before, Call]:
        """The input of the body, the terms so far, and the call for the body.

        `sample` counts draws of the noise, and `draw` counts draws of probe vectors in the body.
        """
        self._check_data(x, dequantized)
        draws, noise = self._draws(x, generator), None
        draws = draws.fold(1 + sample) if sample else draws
        if not dequantized:
            x, noise = self._dequantize(x, draws)
        given = self._given(context, len(x))
        x, before = self.preprocess.push(x, Call(draws, prepared.preprocess, given))
        return x, Before(before, noise), Call(draws.fold(1 + draw), prepared.body, given, log_det)

    def _encode(
        self,
        x: Tensor,
        generator: torch.Generator | None,
        dequantized: bool,
        context: Tensor | None,
        prepared: Prepared | None,
        sample: int = 0,
        draw: int = 0,
    ) -> tuple[Tensor, Before, Tensor]:
        """z, the terms of what comes before the body, and the body's log-determinant."""
        prepared = prepared or self.prepare()
        with prepared.precision.products(self.device):
            x, before, call = self._before(x, generator, dequantized, context, prepared, sample=sample, draw=draw)
            z, after = self.body.push(x, call)
        self._check_computed(x, "F(x)", z, after)
        return z, before, after

    def forward(
        self,
        x: Tensor,
        generator: torch.Generator | None = None,
        dequantized: bool = False,
        context: Tensor | None = None,
        prepared: Prepared | None = None,
    ) -> tuple[Tensor, Tensor]:
        """z = F(x) and log|det J_F(x)|, from the integer levels on if there are any; less log q of learned noise.

        Args:
            x: Samples [batch, *shape]; integer levels as uint8 where the flow has levels.
            generator: Source of random numbers. Without one, evaluation is a function of the data, and training uses the
                global generator.
            dequantized: Whether x holds levels plus noise already.
            context: A vector for each sample, or one for all, for a conditional flow.
            prepared: What `prepare()` returned, if the caller has it.

        Returns:
            The latent codes [batch, *latent_shape], and the log-determinants [batch].

        Raises:
            UninitializedError: An ActNorm has seen no data; call `initialize` first.
        """
        z, before, after = self._encode(x, generator, dequantized, context, prepared)
        return z, before.total + after

    def log_prob(
        self,
        x: Tensor,
        generator: torch.Generator | None = None,
        dequantized: bool = False,
        context: Tensor | None = None,
        prepared: Prepared | None = None,
        importance: int = 1,
    ) -> Tensor:
        """log p(x) per sample in nats, in data space, every term counted.

        Of integer levels it is a bound: the expectation over the noise is at most log p(x). With more samples of the noise,
        log of the mean of p(x + u) / q(u | x), it comes closer.

        Args:
            x: Samples; integer levels as uint8 where the flow has levels.
            generator: Source of random numbers. Without one, evaluation is a function of the data.
            dequantized: Whether x holds levels, or whole numbers, plus noise already.
            context: A vector for each sample, or one for all, for a conditional flow.
            prepared: What `prepare()` returned, if the caller has it.
            importance: Samples of the noise of each image.

        Returns:
            Log-densities [batch].
        """
        if importance < 1:
            raise OptionError(f"importance={importance} must be at least 1.")
        if self.averages and not dequantized:
            return self._over_cells(x, generator, context, prepared)[0]
        prepared, found = prepared or self.prepare(), []
        for sample in range(importance if self.levels is not None and not dequantized else 1):
            z, before, after = self._encode(x, generator, dequantized, context, prepared, sample)
            base = self.base_log_prob(z)
            self._check_computed(x, "log p(x)", base)
            found.append(base + before.total + after)
        return found[0] if len(found) == 1 else torch.logsumexp(torch.stack(found), 0) - math.log(len(found))

    @property
    def averages(self) -> bool:
        """Whether a log-density is the average over points of a cell."""
        return self.cells is not None and not self.training

    def _over_cells(
        self, x: Tensor, generator: torch.Generator | None, context: Tensor | None, prepared: Prepared | None
    ) -> tuple[Tensor, list[Tensor]]:
        """log p(x), and what `_terms` returns at the points of each cell, [points, batch]."""
        assert self.cells is not None
        self._check_data(x, False)
        ready = prepared or self.prepare()

        def terms(places: Tensor, copies: int) -> tuple[Tensor, ...]:
            given = context if context is None or context.ndim == 1 or len(context) == 1 else context.repeat(copies, 1)
            return self._terms(places, generator, given, ready)

        return self.cells.average(x, self._draws(x, generator).fold(0), self.points, terms)

    def _terms(
        self, x: Tensor, generator: torch.Generator | None, context: Tensor | None, prepared: Prepared
    ) -> tuple[Tensor, ...]:
        """Base, flow and preprocessing of samples that noise has been added to; they add up to the log-density."""
        z, before, after = self._encode(x, generator, True, context, prepared)
        return self.base_log_prob(z), after, before.total

    def log_prob_terms(
        self,
        x: Tensor,
        generator: torch.Generator | None = None,
        context: Tensor | None = None,
        draw: int = 0,
        prepared: Prepared | None = None,
    ) -> dict[str, Tensor]:
        """What log p(x) is made of, per sample: the terms add up to `log_prob`; `noise` is -log q(u | x) of learned noise.

        For whole numbers, the terms are taken at the likeliest point of the cell, and `levels` is what the average over the
        cell adds to them.

        Args:
            x: Samples.
            generator: Source of random numbers. Without one, evaluation is a function of the data.
            context: A vector for each sample, or one for all, for a conditional flow.
            draw: Which probes to take for stochastic log-determinants: any number is a function of the data, and the values for
                different ones are independent. `log_prob` takes 0.
            prepared: What `prepare()` returned, if the caller has it.

        Returns:
            `base`, `log_det`, `preprocess`, `levels` and, with learned noise, `noise`, each [batch], in nats.
        """
        if self.averages:
            log_prob, parts = self._over_cells(x, generator, context, prepared)
            best = (parts[0] + parts[1] + parts[2]).argmax(0, keepdim=True)
            base, after, front = (part.gather(0, best)[0] for part in parts[:3])
            rest = log_prob - base - after - front
            return {"base": base, "log_det": after, "preprocess": front, "levels": rest.nan_to_num(nan=0.0, neginf=-math.inf)}
        z, before, after = self._encode(x, generator, False, context, prepared, draw=draw)
        levels = torch.full_like(after, -self.dims * math.log(self.levels) if self.levels else 0.0)
        base = self.base_log_prob(z)
        self._check_computed(x, "log p(x)", base)
        terms = {"base": base, "log_det": after, "preprocess": before.log_det - levels, "levels": levels}
        return terms if before.noise is None else {**terms, "noise": before.noise}

    def bits_per_dim(self, x: Tensor, generator: torch.Generator | None = None, context: Tensor | None = None) -> Tensor:
        """-log p(x) / (D ln 2), per sample.

        Args:
            x: Samples [batch, *shape]; integer levels as uint8 where the flow has levels.
            generator: Source of random numbers. Without one, evaluation is a function of the data, and training uses the
                global generator.
            context: A vector for each sample, or one for all, for a conditional flow.

        Returns:
            Bits per dimension [batch].
        """
        return bits_per_dim(self.log_prob(x, generator, context=context), self.dims)

    def frozen(self, compile: bool = False) -> FrozenFlow:
        """The flow for serving: weights prepared once, nothing checked again; with `compile`, a compiled `log_prob`.

        Args:
            compile: Compile `log_prob`; for vectors with exact log-determinants.

        Returns:
            A copy that does not follow later changes of this flow.
        """
        from idensenet.frozen import FrozenFlow

        return FrozenFlow(self, compile)
