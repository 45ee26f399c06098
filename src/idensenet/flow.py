"""Flow: a density in data space, its samples, its inverse, its certificate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from idensenet.bijections import Affine, Bijection, Chain, Logit, ResidualBlock, Split, Whiten
from idensenet.checks import check_float, check_levels, check_range, check_tensor
from idensenet.config import Config
from idensenet.data.dequantization import dequantize, quantize
from idensenet.draws import Draws, GeneratorDraws, KeyedDraws
from idensenet.errors import OptionError, ShapeError
from idensenet.guarantees import certificate, inverse_error
from idensenet.lipschitz import Certificate, fresh_norms
from idensenet.lipschitz.dense import DenseLayer
from idensenet.lipschitz.networks import RowNetwork
from idensenet.logdet import ExactLogDet


def bits_per_dim(log_prob: Tensor, dims: int) -> Tensor:
    """-log_prob / (D ln 2).

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
    """p(x) = N(F(x); 0, I) |det J_F(x)|.

    Without `levels`, x is a float tensor of shape [batch, *shape]. With `levels`, x holds integers (uint8) from 0 to
    levels - 1; dequantisation is part of the flow, so that a log-density counts every term from the integers on.

    With `context`, it is a density p(x | c) for each vector c of so many numbers, and everything that looks at data takes a
    `context` with it: [batch, context], or one vector for all.

    Out of training, everything is a function of the data: all noise comes from (`seed`, content of the sample, block).
    In training it comes from a generator.
    """

    seed = 0
    config: Config | None = None  # what it was built from, if it was built from a configuration
    _anchor: Tensor

    def __init__(
        self,
        body: Bijection,
        shape: Sequence[int],
        latent_shape: Sequence[int] | None = None,
        preprocess: Bijection | None = None,
        levels: int | None = None,
        context: int = 0,
    ) -> None:
        super().__init__()
        self.body, self.preprocess = body, preprocess or Chain([])
        self.shape, self.latent_shape = tuple(shape), tuple(latent_shape or shape)
        self.levels = levels
        self.dims = math.prod(self.shape)
        self.context = context
        self.context_scale = Affine(torch.zeros(context), torch.ones(context)) if context else None
        self.register_buffer("_anchor", torch.zeros(()), persistent=False)  # knows device and dtype

    # What goes in

    @property
    def dtype(self) -> torch.dtype:
        return self._anchor.dtype

    @property
    def device(self) -> torch.device:
        return self._anchor.device

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def _check(self, x: Tensor, shape: tuple[int, ...], what: str) -> None:
        check_tensor(x, shape, self.device, what)

    def _check_float(self, x: Tensor, what: str, look: bool = False) -> None:
        # a look at the values makes the host wait for an accelerator, so in training that is left to the trainer
        check_float(x, self.dtype, what, look=look or not self.training)

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
        """What sets the state of a model for good is looked at in training too."""
        self._check_data(x, False)
        if len(x) == 0:
            raise ShapeError(f"A model learns nothing from an empty batch, {tuple(x.shape)}; call this with data.")
        for values, what in ((x, "x"), (context, "context")):
            if values is not None and values.is_floating_point():
                self._check_float(values, what, look=True)

    def _given(self, context: Tensor | None, n: int) -> dict[str, Tensor]:
        """The context in the units of the model, for those parts that take one."""
        if self.context_scale is None:
            if context is not None:
                raise OptionError("This flow takes no context; build it with context=N, or leave the context out.")
            return {}
        if context is None:
            raise OptionError(f"This flow is conditional: give it a context of {self.context} numbers for each sample.")
        if isinstance(context, Tensor) and context.ndim == 1:
            context = context[None]
        self._check(context, (self.context,), "context")
        self._check_float(context, "context")
        if len(context) not in (1, n):
            raise ShapeError(f"There are {n} samples but {len(context)} contexts; give one for each, or one for all.")
        return {"context": self.context_scale.encode(context).expand(n, -1)}

    def _draws(self, x: Tensor, generator: torch.Generator | None) -> Draws:
        if generator is not None or self.training:
            return GeneratorDraws(generator)
        return KeyedDraws.of(x, self.seed)

    def dequantize(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """x plus the noise that `forward` adds to it; x itself if there are no levels."""
        self._check_data(x, False)
        return x if self.levels is None else dequantize(x, self.dtype, self._draws(x, generator).fold(0))

    # The flow

    def initialize(self, batch: Tensor, context: Tensor | None = None) -> None:
        """Set every ActNorm from a batch of data, in order. Those that are initialised already stay as they are."""
        self._check_start(batch, context)
        with torch.no_grad(), fresh_norms(self):
            self._initialize_body(self.preprocess.encode(self.dequantize(batch)), **self._given(context, len(batch)))

    def standardize(self, data: Tensor, context: Tensor | None = None) -> None:
        """Take mean and deviation per dimension from data (and contexts): for a model whose preprocessing is to standardise."""
        self._check_start(data, context)
        if self.context_scale is not None:
            self._given(context, len(data))
            assert context is not None
            self.context_scale.fit(context)
        for part in self.preprocess.modules():
            if isinstance(part, Affine | Whiten) and part.loc.shape == self.shape:
                part.fit(data)
                return
        raise OptionError("This flow does not standardise its data; build it with preprocess='standardize' or 'whiten'.")

    def _initialize_body(self, x: Tensor, **given: Tensor) -> None:
        self.body.initialize(x, **given)

    def _prepare(self, x: Tensor, generator: torch.Generator | None, dequantized: bool) -> tuple[Tensor, Tensor, Draws]:
        """The input of the body, the log-determinant so far, and the noise for the body."""
        self._check_data(x, dequantized)
        draws = self._draws(x, generator)
        if self.levels is not None and not dequantized:
            x = dequantize(x, self.dtype, draws.fold(0))
        x, log_det = self.preprocess(x, draws)
        return x, log_det, draws.fold(1)

    def _encode(
        self, x: Tensor, generator: torch.Generator | None, dequantized: bool, context: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """z, the log-determinant of the preprocessing, and that of the body."""
        with fresh_norms(self):
            x, before, draws = self._prepare(x, generator, dequantized)
            z, after = self.body(x, draws, **self._given(context, len(x)))
        return z, before, after

    def forward(
        self,
        x: Tensor,
        generator: torch.Generator | None = None,
        dequantized: bool = False,
        context: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """z = F(x) and log|det J_F(x)|, from the integer levels on if there are any."""
        z, before, after = self._encode(x, generator, dequantized, context)
        return z, before + after

    def inverse(
        self, z: Tensor, generator: torch.Generator | None = None, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """x with F(x) = z (levels plus noise, for images), and the log-determinant of the inverse map."""
        self._check(z, self.latent_shape, "z")
        self._check_float(z, "z")
        with fresh_norms(self):
            draws = self._draws(z, generator)
            x, after = self.body.inverse(z, draws.fold(1), **self._given(context, len(z)))
            x, before = self.preprocess.inverse(x, draws)
        return x, before + after

    def base_log_prob(self, z: Tensor) -> Tensor:
        """log N(z; 0, I), per sample."""
        return -0.5 * (z.flatten(1).square().sum(1) + self.dims * math.log(2 * math.pi))

    def log_prob(
        self,
        x: Tensor,
        generator: torch.Generator | None = None,
        dequantized: bool = False,
        context: Tensor | None = None,
    ) -> Tensor:
        """log p(x) per sample in nats, in data space, every term counted."""
        z, before, after = self._encode(x, generator, dequantized, context)
        return self.base_log_prob(z) + before + after

    def log_prob_terms(
        self, x: Tensor, generator: torch.Generator | None = None, context: Tensor | None = None
    ) -> dict[str, Tensor]:
        """What log p(x) is made of, per sample: the terms add up to `log_prob`."""
        z, before, after = self._encode(x, generator, False, context)
        levels = torch.full_like(before, -self.dims * math.log(self.levels) if self.levels else 0.0)
        return {"base": self.base_log_prob(z), "log_det": after, "preprocess": before - levels, "levels": levels}

    def bits_per_dim(self, x: Tensor, generator: torch.Generator | None = None, context: Tensor | None = None) -> Tensor:
        """-log p(x) / (D ln 2), per sample."""
        return bits_per_dim(self.log_prob(x, generator, context=context), self.dims)

    # Samples

    def _latent(self, n: int, generator: torch.Generator | None, temperature: float) -> Tensor:
        if n < 0 or temperature <= 0:
            raise OptionError(f"n={n} must not be negative and temperature={temperature} must be positive.")
        z = torch.randn((n, *self.latent_shape), generator=generator, dtype=self.dtype, device=self.device)
        return z * temperature

    @torch.no_grad()
    def sample(
        self,
        n: int,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        context: Tensor | None = None,
    ) -> Tensor:
        """n draws from the model: uint8 levels if it has any, otherwise floats."""
        z = self._latent(n, generator, temperature)
        with fresh_norms(self):
            x = self.preprocess.decode(self.body.decode(z, **self._given(context, n)))
        return x if self.levels is None else quantize(x, self.levels)

    def sample_and_log_prob(
        self, n: int, generator: torch.Generator | None = None, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """n draws as floats (levels plus noise, for images), differentiable, and their log-densities."""
        z = self._latent(n, generator, 1.0)
        x, log_det = self.inverse(z, generator if self.training else None, context)
        return x, self.base_log_prob(z) - log_det

    # Guarantees

    def named_blocks(self) -> list[tuple[str, ResidualBlock]]:
        """The residual blocks as `scale.block`, in order."""
        return [
            (f"{i}.{j}", block)
            for i, part in enumerate(_scales(self.body), 1)
            for j, block in enumerate((m for m in part.modules() if isinstance(m, ResidualBlock)), 1)
        ]

    def compile_blocks(self, on: bool = True, whole: bool = False) -> None:
        """Compile what training spends its time on beside products: worth it for long runs, as it takes half a minute once.

        Blocks with an exact log-determinant, or with a series in up to four dimensions, become one compiled function; of the
        others the elementwise steps become one pass each. Results stay the same up to rounding. It needs a C++ compiler.

        With `whole`, all dense blocks in such few dimensions become one function: less time for a step, minutes to compile.
        """
        for module in self.modules():
            if isinstance(module, Chain):
                module.compiled = on and whole
        for _, block in self.named_blocks():
            if isinstance(block.log_det, ExactLogDet):
                block.log_det.compiled = on
            elif isinstance(block.g, RowNetwork):
                block.g.compiled = on

    def certify(self) -> Certificate:
        """Guaranteed bounds: Lip(g) of every block, and the bi-Lipschitz constants of the flow after the preprocessing."""
        with torch.no_grad(), fresh_norms(self):
            return certificate(self.named_blocks(), self.body)

    def inverse_error(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """How far the computed inverse of each z can be from the true one, in the certificate's norm, after the preprocessing.

        The bound follows from the residuals of the solvers and the certificate; the rounding of closed forms is not in it.
        """
        self._check(z, self.latent_shape, "z")
        self._check_float(z, "z")
        with torch.no_grad(), fresh_norms(self):
            return inverse_error(self.named_blocks(), self.body, z, self._given(context, len(z)))

    # The concatenation

    def learn_concatenation(self, on: bool = True) -> None:
        """Switch the learning of all concatenation weights on or off; off means no gradient at all."""
        for module in self.modules():
            if isinstance(module, DenseLayer):
                module.learn(on)
