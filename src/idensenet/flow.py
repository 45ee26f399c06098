"""Flow: a density in data space, its samples, its inverse, its certificate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from idensenet.bijections import Affine, Bijection, Call, Chain, ContractionStack, Logit, Split, Whiten
from idensenet.cells import POINTS, Cells
from idensenet.checks import check_computed, check_float, check_levels, check_range, check_tensor
from idensenet.config import Config
from idensenet.dequantization import dequantize, quantize
from idensenet.dequantizer import Dequantizer
from idensenet.draws import Draws, GeneratorDraws, KeyedDraws
from idensenet.errors import DtypeError, OptionError, ShapeError
from idensenet.guarantees import certificate, inverse_error
from idensenet.lipschitz import Certificate, DenseLayer, refresh_norms
from idensenet.mixture import Mixture
from idensenet.precision import EXACT, Precision

if TYPE_CHECKING:
    from idensenet.columns import Columns
    from idensenet.frozen import FrozenFlow

INDICATOR = 0.25  # the least scale of a context that is 0 or 1: a rare category is not blown up
MIXED = 50_000  # rows that a mixture is fitted to, of more


LEAST_ROWS, NUMBERS = 256, 1 << 18  # of samples that are decoded together


@dataclass(frozen=True)
class Prepared:
    """What the calls of a flow work with: weights, normalised and folded, in the number type of their products."""

    body: Any
    preprocess: Any
    precision: Precision = EXACT


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


def _scales(body: Bijection) -> list[Bijection]:
    """The parts of a body in order, also those behind a split."""
    parts = list(body) if isinstance(body, Chain) else [body]
    if parts and isinstance(parts[-1], Split):
        return [*parts[:-1], *_scales(parts[-1].rest)]
    return parts


class Flow(nn.Module):
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

    seed = 0
    points = POINTS  # of a cell of whole numbers, in evaluation
    config: Config | None = None  # what it was built from, if it was built from a configuration
    columns: Columns | None = None  # what its numbers stand for in the table that it was trained on, if that is known
    _anchor: Tensor

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

    # What goes in

    @property
    def dtype(self) -> torch.dtype:
        """The number type of the weights."""
        return self._anchor.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._anchor.device

    @property
    def num_parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(p.numel() for p in self.parameters())

    def _check(self, x: Tensor, shape: tuple[int, ...], what: str) -> None:
        check_tensor(x, shape, self.device, what)

    def _check_float(self, x: Tensor, what: str, look: bool = False) -> None:
        # checking values makes the host wait for an accelerator, so in training the trainer does it
        check_float(x, self.dtype, what, look=look or not self.training)

    def _check_computed(self, x: Tensor, what: str, *results: Tensor) -> None:
        if len(x) and not self.training and not torch.compiler.is_compiling():
            check_computed(x, what, *results)

    def _check_data(self, x: Tensor, dequantized: bool) -> None:
        self._check(x, self.shape, "x")
        if self.levels is None:
            self._check_float(x, "x")
        elif dequantized:
            self._check_float(x, "x")
            logits = [part for part in self.preprocess.modules() if isinstance(part, Logit)]
            if logits and len(x) and not self.training:
                check_range(x.detach(), self.levels, logits[0].alpha)
        else:
            check_levels(x, self.levels, look=not self.training)

    def _check_start(self, x: Tensor, context: Tensor | None) -> None:
        """Check data that initialises a model. Its values are checked in training mode as well."""
        self._check_data(x, False)
        if len(x) == 0:
            raise ShapeError(f"A model learns nothing from an empty batch, {tuple(x.shape)}; call this with data.")
        for values, what in ((x, "x"), (context, "context")):
            if values is not None and values.is_floating_point():
                self._check_float(values, what, look=True)

    def _given(self, context: Tensor | None, n: int) -> Tensor | None:
        """The context in the units of the model, one for each sample."""
        if self.context_scale is None:
            if context is not None:
                raise OptionError("This flow takes no context; build it with context=N, or leave the context out.")
            return None
        if context is None:
            raise OptionError(f"This flow is conditional: give it a context of {self.context} numbers for each sample.")
        if isinstance(context, Tensor) and context.ndim == 1:
            context = context[None]
        self._check(context, (self.context,), "context")
        self._check_float(context, "context")
        if len(context) not in (1, n):
            raise ShapeError(f"There are {n} samples but {len(context)} contexts; give one for each, or one for all.")
        loc, scale = self.context_scale.loc, self.context_scale.scale
        return ((context - loc) / scale).expand(n, -1)

    def _draws(self, x: Tensor, generator: torch.Generator | None) -> Draws:
        if generator is not None or self.training:
            return GeneratorDraws(generator)
        return KeyedDraws.of(x, self.seed)

    def dequantize(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """x plus the noise that `forward` adds to it; x itself if it has neither levels nor whole numbers.

        Args:
            x: Samples [batch, *shape]; integer levels as uint8 where the flow has levels.
            generator: Source of random numbers. Without one, evaluation is a function of the data, and training uses the
                global generator.

        Returns:
            Levels plus noise as floats, or x itself.
        """
        self._check_data(x, False)
        return self._dequantize(x, self._draws(x, generator))[0]

    def _dequantize(self, x: Tensor, draws: Draws) -> tuple[Tensor, Tensor | None]:
        """x plus noise u, and -log q(u | x), or None where u is uniform or there is none."""
        if self.cells is not None:
            return self.cells.noisy(x, draws.fold(0)), None
        if self.levels is None:
            return x, None
        if self.dequantizer is None:
            return dequantize(x, self.dtype, draws.fold(0)), None
        u, log_q = self.dequantizer(x, draws.fold(0), self.dtype)
        return x.to(self.dtype) + u, -log_q

    # The flow

    def _check_dtype(self) -> None:
        if self.dtype not in (torch.float32, torch.float64):
            raise DtypeError(
                f"A flow computes in float32 or float64, not in {str(self.dtype).removeprefix('torch.')}: norms and inverses "
                "need their digits; use flow.float(), and in training bfloat16 products with --train.precision bf16-mixed."
            )

    def prepare(self, precision: Precision = EXACT) -> Prepared:
        """Normalised weights for the weights as they are now. Every public call makes them, unless it is given some.

        Args:
            precision: How the products of the blocks are rounded; for training.

        Returns:
            Normalised weights, to be passed to other calls as `prepared`.
        """
        self._check_dtype()
        refresh_norms(self)
        with EXACT.products(self.device):  # the gradient of a norm is never rounded
            return Prepared(self.body.prepared(precision), self.preprocess.prepared(EXACT), precision)

    def initialize(self, batch: Tensor, context: Tensor | None = None) -> None:
        """Set every ActNorm from a batch of data, in order. Those that are initialised already stay as they are.

        Args:
            batch: Training data, some hundred samples.
            context: A vector for each sample, or one for all, for a conditional flow.

        Raises:
            ShapeError: The batch is empty or has another shape.
        """
        self._check_start(batch, context)
        with torch.no_grad(), EXACT.products(self.device):
            x = self.preprocess.encode(self.dequantize(batch))
            given = self._given(context, len(batch))
            self._initialize_body(x, Call(self._draws(batch, None), self.prepare().body, given, log_det=False, learn=True))

    def standardize(self, data: Tensor, context: Tensor | None = None, weight: Tensor | None = None) -> None:
        """Take mean and deviation per dimension from data (and contexts): for a model whose preprocessing is to standardise.

        A mixture in the base is fitted to the standardised rows, to 50,000 of them if there are more.

        Args:
            data: Rows.
            context: A context for each row, for a conditional flow.
            weight: How much each row counts; all the same by default.
        """
        self._check_start(data, context)
        if self.context_scale is not None:
            self._given(context, len(data))
            assert context is not None
            self.context_scale.fit(context)
            indicator = ((context == 0) | (context == 1)).all(0)
            self.context_scale.scale.clamp_(min=torch.where(indicator, INDICATOR, 0.0).to(self.dtype))
        if self.cells is not None:  # equal rows get different noise
            data = self.cells.noisy(data, GeneratorDraws(torch.Generator(self.device).manual_seed(self.seed)))
        rows = data
        for part in self.preprocess if isinstance(self.preprocess, Chain) else [self.preprocess]:
            if isinstance(part, Whiten):
                part.fit(rows, weight)
                break
            if isinstance(part, Affine) and part.loc.shape == self.shape:
                part.fit(rows, weight)
                break
            rows = part.encode(rows)
        else:
            raise OptionError("This flow does not standardise its data; build it with preprocess='standardize' or 'whiten'.")
        if self.base is not None:
            generator = torch.Generator(self.device).manual_seed(self.seed)
            some = torch.randperm(len(data), generator=generator, device=self.device)[:MIXED]
            known = None if weight is None else weight[some]
            self.base.fit(self.preprocess.encode(data[some]), known, generator=generator)

    def _initialize_body(self, x: Tensor, call: Call) -> None:
        self.body.push(x, call)

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

    # Samples

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

    # Guarantees

    def stacks(self) -> list[ContractionStack]:
        """The stacks of residual or monotone blocks, in order.

        Returns:
            The stacks.
        """
        return [module for module in self.body.modules() if isinstance(module, ContractionStack)]

    def named_blocks(self) -> list[tuple[str, ContractionStack, int]]:
        """The residual or monotone blocks in order, as (`scale.block`, stack, index in the stack).

        Returns:
            One triple for each block.
        """
        found = []
        for i, part in enumerate(_scales(self.body), 1):
            stacks = [m for m in part.modules() if isinstance(m, ContractionStack)]
            blocks = [(stack, k) for stack in stacks for k in range(stack.blocks)]
            found += [(f"{i}.{j}", stack, k) for j, (stack, k) in enumerate(blocks, 1)]
        return found

    def compile_blocks(self, on: bool = True) -> None:
        """Compile the residual blocks for training, or stop using compiled code; worth it for long runs.

        With exact log-determinants each stack becomes one compiled function; with the others the function of a block does.
        Results stay the same up to rounding. It needs a C++ compiler, and the first step takes a minute or two.

        Args:
            on: Whether to use compiled code.
        """
        for stack in self.stacks():
            stack.compile_blocks(on)

    def save_memory(self, on: bool = True) -> None:
        """Rebuild blocks in the backward pass instead of keeping them, or keep them. No number changes.

        Args:
            on: Whether to rebuild blocks.
        """
        for stack in self.stacks():
            stack.save = on

    def frozen(self, compile: bool = False) -> FrozenFlow:
        """The flow for serving: weights prepared once, nothing checked again; with `compile`, a compiled `log_prob`.

        Args:
            compile: Compile `log_prob`; for vectors with exact log-determinants.

        Returns:
            A copy that does not follow later changes of this flow.
        """
        from idensenet.frozen import FrozenFlow

        return FrozenFlow(self, compile)

    def certify(self) -> Certificate:
        """Guaranteed bounds: Lip(g) of every block, and the bi-Lipschitz constants of the flow after the preprocessing.

        Returns:
            The certificate; printing it shows one line for each block.
        """
        self._check_dtype()
        with torch.no_grad(), EXACT.products(self.device):
            refresh_norms(self.body)
            return certificate(self.named_blocks(), self.body)

    def inverse_error(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """How far the computed inverse of each z can be from the true one, in the certificate's norm, after the preprocessing.

        The bound follows from the residuals of the solvers and the certificate; the rounding of closed forms is not in it.

        Args:
            z: Latent codes [batch, *latent_shape].
            context: A vector for each sample, or one for all, for a conditional flow.

        Returns:
            Bounds [batch]; infinite where nothing bounds the error.
        """
        self._check(z, self.latent_shape, "z")
        self._check_float(z, "z")
        with torch.no_grad(), EXACT.products(self.device):
            call = Call(self._draws(z, None), self.prepare().body, self._given(context, len(z)), log_det=False)
            return inverse_error(self.named_blocks(), self.body, z, call)

    # The concatenation

    def learn_concatenation(self, on: bool = True) -> None:
        """Switch the learning of all concatenation weights on or off; off means no gradient at all.

        Args:
            on: Whether the weights learn.
        """
        for module in self.modules():
            if isinstance(module, DenseLayer):
                module.learn(on)
