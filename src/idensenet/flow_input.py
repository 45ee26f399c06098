"""What goes into a flow: data and contexts, checked and in its number type, noise, and weights that are ready for use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from idensenet.bijections import Affine, Bijection, Call, Chain, Logit, Whiten
from idensenet.cells import POINTS, Cells
from idensenet.checks import check_computed, check_float, check_levels, check_range, check_tensor
from idensenet.config import Config
from idensenet.dequantization import dequantize
from idensenet.dequantizer import Dequantizer
from idensenet.draws import Draws, GeneratorDraws, KeyedDraws
from idensenet.errors import DtypeError, OptionError, ShapeError
from idensenet.lipschitz import refresh_norms
from idensenet.mixture import Mixture
from idensenet.precision import EXACT, Precision

if TYPE_CHECKING:
    from idensenet.columns import Columns

INDICATOR = 0.25  # the least scale of a context that is 0 or 1: a rare category is not blown up
MIXED = 50_000  # rows that a mixture is fitted to, of more


@dataclass(frozen=True)
class Prepared:
    """What the calls of a flow work with: weights, normalised and folded, in the number type of their products."""

    body: Any
    preprocess: Any
    precision: Precision = EXACT


class FlowInput(nn.Module):
    """The part of a `Flow` that takes data: what it is built of, its checks, its noise, and its start from data."""

    body: Bijection
    preprocess: Bijection
    base: Mixture | None
    shape: tuple[int, ...]
    latent_shape: tuple[int, ...]
    levels: int | None
    dequantizer: Dequantizer | None
    dims: int
    context: int
    integers: tuple[int, ...]
    cells: Cells | None
    context_scale: Affine | None
    seed = 0
    points = POINTS  # of a cell of whole numbers, in evaluation
    config: Config | None = None  # what it was built from, if it was built from a configuration
    columns: Columns | None = None  # what its numbers stand for in the table that it was trained on, if that is known
    _anchor: Tensor

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

    def _check_dtype(self) -> None:
        if self.dtype not in (torch.float32, torch.float64):
            raise DtypeError(
                f"A flow computes in float32 or float64, not in {str(self.dtype).removeprefix('torch.')}: norms and inverses "
                "need their digits; use flow.float(), and in training bfloat16 products with --train.precision bf16-mixed."
            )

    # Weights, and what they take from data

    def prepare(self, precision: Precision = EXACT) -> Prepared:
        """Normalised weights for the weights as they are now. Every public call computes them, unless you pass some.

        Args:
            precision: How the products of the blocks are rounded; for training.

        Returns:
            Normalised weights, to be passed to other calls as `prepared`.
        """
        self._check_dtype()
        refresh_norms(self)
        return Prepared(self.body.prepared(precision), self.preprocess.prepared(EXACT), precision)

    def initialize(self, batch: Tensor, context: Tensor | None = None) -> None:
        """Set every ActNorm from a batch of data, in order. ActNorms that are initialised already do not change.

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
