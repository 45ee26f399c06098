"""Recipe -> Flow: the only builder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from idensenet.bijections import (
    ActNorm,
    Affine,
    Bijection,
    Bounded,
    Chain,
    ConditionalAffine,
    ContractionStack,
    Flatten,
    Invert,
    InvertibleConv1x1,
    Logit,
    ResidualBlock,
    Split,
    Squeeze,
    Whiten,
)
from idensenet.blocks import BLOCKS, CONDITIONAL
from idensenet.config import Config, recipe
from idensenet.dequantizer import Dequantizer
from idensenet.errors import OptionError, ShapeError
from idensenet.flow import Flow
from idensenet.hybrid import Classifier, Head, HybridFlow, VectorHead
from idensenet.lipschitz import LipschitzMap, Network, Pieces
from idensenet.lipschitz.conditional import ConditionalNetwork, Embedding
from idensenet.lipschitz.norms import checked_norm
from idensenet.methods import chosen, make_log_det, make_solver
from idensenet.mixture import Mixture

NEAR = 0.05  # factor of the closing weights of a block that starts near the identity


class Builder:
    """Builds the parts of one flow."""

    def __init__(self, config: Config) -> None:
        self.config, self.model = config, config.model
        m = self.model
        checked_norm(m.norm)
        self.pieces = Pieces(m.activation, m.coeff, m.lip, m.norm, m.learnable_concatenation, m.beta)
        self.built = 0  # blocks so far: the very first one differs
        self.kind: type[ContractionStack] = ResidualBlock
        self.growths = (m.growth,) * len(m.blocks) if isinstance(m.growth, int) else m.growth
        if len(self.growths) != len(m.blocks):
            raise OptionError(f"growth={m.growth} must be one number, or one for each of the {len(m.blocks)} scales.")

    def growth(self, scale: int) -> int:
        """The growth of a scale; -1 stands for the fully connected blocks at the end of an image model."""
        return self.model.fc_growth if scale < 0 else self.growths[scale]

    def stack(self, g: Network | ConditionalNetwork, channels: int, norm: bool = True) -> ContractionStack:
        """Blocks with these networks, and an ActNorm behind each if the model has them."""
        m, logdet = self.model, self.config.logdet
        if m.start == "identity":
            closing = (g.inner if isinstance(g, ConditionalNetwork) else g).layers[-1]
            assert isinstance(closing, LipschitzMap)
            with torch.no_grad():
                closing.weight.mul_(NEAR)
                closing.bias.zero_()
        return self.kind(
            g,
            make_log_det(logdet),
            make_log_det(logdet, evaluation=True),
            make_solver(self.config.solver),
            ActNorm(channels, g.blocks) if m.actnorm and norm else None,
            self.config.train.memory == "save",
        )

    def conditional(self, inner: Network, dims: int) -> ConditionalNetwork:
        """The network on (x, embedding of the context)."""
        m = self.model
        return ConditionalNetwork(inner, Embedding(m.context, m.context_width, m.context_features, inner.blocks), dims)

    def blocks(self, shape: Sequence[int], count: int, scale: int) -> list[Bijection]:
        """The blocks of a scale, with the ActNorm and the conditional shift before the very first."""
        m = self.model
        parts: list[Bijection] = [ActNorm(shape[0])] if m.actnorm and self.built == 0 else []
        if m.context and self.built == 0:
            parts.append(ConditionalAffine(shape[0], m.context, m.context_width))
        parts += chosen("block", m.block, BLOCKS)(self, shape, count, scale)
        self.built += count
        return parts

    def fully_connected(self, shape: Sequence[int]) -> Chain:
        """The fully connected blocks at the end of an image model."""
        blocks = self.blocks([math.prod(shape)], self.model.fc_blocks, -1)
        return Chain([Flatten(shape), *blocks, Invert(Flatten(shape))])

    def body(self) -> tuple[Chain, list[tuple[int, ...]]]:
        """The scales, and the shape after each of them."""
        m = self.model
        shape = m.shape
        scales: list[Chain] = []
        shapes: list[tuple[int, ...]] = []
        halvings = m.squeezes + len(m.blocks) - 1
        if halvings and (len(shape) != 3 or shape[1] % 2**halvings or shape[2] % 2**halvings):
            raise ShapeError(
                f"{m.squeezes} squeezes and {len(m.blocks)} scales halve the image {halvings} times, which {tuple(m.shape)} "
                f"does not allow: both sides must be multiples of {2**halvings}."
            )
        front: list[Bijection] = [Squeeze() for _ in range(m.squeezes)]
        shape = (4**m.squeezes * shape[0], *[side // 2**m.squeezes for side in shape[1:]])
        for i, count in enumerate(m.blocks):
            mixing = [InvertibleConv1x1(shape[0], whiten=True)] if m.mix == "whiten" else []
            parts = [*front, *mixing, *self.blocks(shape, count, i)]
            front = []
            if i < len(m.blocks) - 1:
                parts.append(Squeeze())
                shape = (4 * shape[0], shape[1] // 2, shape[2] // 2)
                if m.factor_out:
                    scales.append(Chain(parts))
                    shapes.append(shape)
                    shape = (shape[0] - shape[0] // 2, *shape[1:])
                    continue
            scales.append(Chain(parts))
            shapes.append(shape)
        if m.fc_blocks:
            scales.append(self.fully_connected(shape))
            shapes.append(shape)
        if not m.factor_out or len(m.blocks) == 1:
            return Chain(scales), shapes
        rest = Chain(scales[len(m.blocks) - 1 :])
        for i in reversed(range(len(m.blocks) - 1)):
            rest = Chain([scales[i], Split(shapes[i], rest, m.factor_prior == "conditional")])
        return rest, [(math.prod(m.shape),)]

    def bounded(self) -> Bounded:
        m = self.model
        if len(m.shape) != 1 or m.levels is not None or len(m.bounds) != m.shape[0]:
            raise OptionError(f"bounds={m.bounds} must have a pair for each of the columns of a table; the shape is {m.shape}.")
        return Bounded(m.bounds)

    def preprocess(self) -> Chain:
        m = self.model
        if m.preprocess not in ("none", "logit", "normalize", "standardize", "whiten"):
            raise OptionError(
                f"preprocess={m.preprocess!r} is not known; use 'none', 'logit', 'normalize', 'standardize' or 'whiten'."
            )
        parts: list[Bijection] = []
        if m.levels is not None:
            if not 2 <= m.levels <= 256:
                raise OptionError(f"levels={m.levels} must lie between 2 and 256.")
            parts.append(Affine(torch.zeros(()), torch.tensor(float(m.levels))))
        if m.bounds:
            parts.append(self.bounded())
        if m.preprocess == "logit":
            parts.append(Logit(m.alpha))
        elif m.preprocess == "standardize":
            parts.append(Affine(torch.zeros(m.shape), torch.ones(m.shape)))
        elif m.preprocess == "whiten":
            if len(m.shape) != 1:
                raise OptionError("preprocess='whiten' is for tables; use 'normalize' or 'logit' for images.")
            parts.append(Whiten(m.shape[0]))
        elif m.preprocess == "normalize":
            if len(m.mean) != m.shape[0] or len(m.std) != m.shape[0]:
                raise OptionError(f"mean and std need one number for each of the {m.shape[0]} channels.")
            parts.append(Affine.normalize(m.mean, m.std))
        return Chain(parts)

    def dequantizer(self) -> Dequantizer | None:
        """The learned noise of a model that has any."""
        m = self.model
        if m.dequantization not in ("uniform", "variational"):
            raise OptionError(f"dequantization={m.dequantization!r} is not known; use 'uniform' or 'variational'.")
        if m.dequantization == "uniform":
            return None
        if m.levels is None:
            raise OptionError("dequantization='variational' needs images with levels.")
        return Dequantizer(m.shape, m.levels, m.dequantization_width)

    def base(self) -> Mixture | None:
        m = self.model
        fitted = len(m.shape) == 1 and m.classes is None and m.preprocess in ("standardize", "whiten")
        if m.components < 1 or (m.components > 1 and not fitted):
            raise OptionError(
                f"components={m.components} must be positive, and 1 unless the model is a density of tables with "
                "preprocess='standardize' or 'whiten'."
            )
        return Mixture(m.components, m.shape[0]) if m.components > 1 else None

    def flow(self) -> Flow:
        m = self.model
        chosen("block", m.block, BLOCKS)
        if m.start not in ("random", "identity"):
            raise OptionError(f"start={m.start!r} is not known; use 'random' or 'identity'.")
        if m.factor_prior not in ("standard", "conditional"):
            raise OptionError(f"factor_prior={m.factor_prior!r} is not known; use 'standard' or 'conditional'.")
        if m.squeezes < 0:
            raise OptionError(f"squeezes={m.squeezes} must not be negative.")
        if m.mix not in ("none", "whiten"):
            raise OptionError(f"mix={m.mix!r} is not known; use 'none' or 'whiten'.")
        if len(m.shape) not in (1, 3) or min(m.shape) < 1 or not m.blocks or min(m.blocks) < 1:
            raise ShapeError(
                f"shape={tuple(m.shape)} must be (D,) or (channels, height, width), and blocks={tuple(m.blocks)} positive."
            )
        if m.context and (m.context < 0 or len(m.shape) != 1 or m.block not in CONDITIONAL or m.levels):
            raise OptionError(
                f"A conditional model (context) needs vectors without levels, and one of {', '.join(CONDITIONAL)}."
            )
        if m.integers and (len(m.shape) != 1 or m.levels or not {*m.integers} <= {*range(m.shape[0])}):
            raise OptionError(f"integers={m.integers} must be numbers of columns of a table; the shape is {m.shape}.")
        (body, shapes), noise, base = self.body(), self.dequantizer(), self.base()
        if m.classes is None:
            return Flow(body, m.shape, shapes[-1], self.preprocess(), m.levels, m.context, m.integers, noise, base)
        if len(m.shape) == 1:
            inputs = m.shape[0] + m.context
            heads = Classifier({0: VectorHead(inputs, m.head_width)}, m.classes, inputs)
            return HybridFlow(body, heads, m.shape, shapes[-1], self.preprocess(), m.levels, m.context, m.integers)
        if m.factor_out or m.levels is None:
            raise OptionError("A hybrid model (classes) of images needs levels, and factor_out=False.")
        scales = len(m.blocks)
        taps = [*range(scales - 1), len(shapes) - 1]
        classifier = Classifier({i: Head(shapes[i][0], m.head_width) for i in taps}, m.classes)
        return HybridFlow(body, classifier, m.shape, shapes[-1], self.preprocess(), m.levels, dequantizer=noise)


def build(name: str, **overrides: Any) -> Flow:
    """An untrained model of a recipe, with overrides of its options.

    Args:
        name: Name of a recipe; `recipes()` lists them.
        **overrides: Options of the model by name, or of a group: `depth=2`, `logdet={"method": "roulette"}`.

    Returns:
        The flow, in evaluation mode.

    Raises:
        UnknownNameError: There is no such recipe or option.
        OptionError: An option has a value that cannot be used.

    >>> build("toy-idensenet").num_parameters
    10230
    >>> build("toy-idensenet", depth=2, logdet={"method": "roulette"}).num_parameters
    4280
    """
    return build_config(recipe(name).config.replace(**overrides))


def build_config(config: Config) -> Flow:
    flow = Builder(config).flow().eval()
    flow.config = config
    return flow
