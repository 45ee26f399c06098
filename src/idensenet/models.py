"""Recipe -> Flow: the only builder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from idensenet.bijections import (
    ActNorm,
    Affine,
    Bijection,
    Chain,
    ConditionalAffine,
    Coupling,
    Flatten,
    Invert,
    InvertibleConv1x1,
    Logit,
    ResidualBlock,
    Split,
    Squeeze,
    Whiten,
    channel_mask,
    checkerboard_mask,
    coupling_net,
)
from idensenet.config import Config, LogDetConfig, SolverConfig, recipe
from idensenet.errors import OptionError, ShapeError, nearest
from idensenet.flow import Flow
from idensenet.hybrid import Classifier, Head, HybridFlow, VectorHead
from idensenet.lipschitz import Network, Pieces, dense_block, residual_net
from idensenet.lipschitz.conditional import ConditionalNetwork, embedding
from idensenet.lipschitz.norms import checked_norm
from idensenet.logdet import (
    AdaptiveLogDet,
    ExactLogDet,
    Geometric,
    KrylovLogDet,
    Law,
    LogDet,
    Poisson,
    RouletteLogDet,
    SeriesLogDet,
)
from idensenet.logdet.series import Probe
from idensenet.solve import Anderson, Newton, Picard, Solver


def _choose(what: str, name: str, options: dict[str, Callable[[], Any]]) -> Any:
    if name not in options:
        raise OptionError(f"{what}={name!r} is not known; {nearest(name, sorted(options))}")
    return options[name]()


def make_log_det(config: LogDetConfig, evaluation: bool = False) -> LogDet:
    """The estimator that a configuration asks for, in training or in evaluation."""
    probe: Probe = _choose("logdet.probe", config.probe, {"rademacher": lambda: "rademacher", "gaussian": lambda: "gaussian"})
    probes = config.eval_probes if evaluation else config.probes
    low = config.bfloat16 and not evaluation
    if low and config.method not in ("series", "roulette"):
        raise OptionError(f"logdet.bfloat16 is for the methods series and roulette, not for {config.method!r}; leave it out.")
    law: Law = _choose(
        "logdet.law",
        config.law,
        {"poisson": lambda: Poisson(config.law_parameter), "geometric": lambda: Geometric(config.law_parameter)},
    )
    chosen: LogDet = _choose(
        "logdet.eval_method" if evaluation else "logdet.method",
        config.eval_method if evaluation else config.method,
        {
            "exact": ExactLogDet,
            "series": lambda: SeriesLogDet(config.eval_terms if evaluation else config.terms, probes, probe, low),
            "roulette": lambda: RouletteLogDet(
                law, config.eval_terms if evaluation else config.exact_terms, probes, probe, low
            ),
            "adaptive": lambda: AdaptiveLogDet(config.tolerance, probes=probes, probe=probe),
            "krylov": lambda: KrylovLogDet(config.tolerance, 30 if evaluation else config.terms, probes=probes, probe=probe),
        },
    )
    return chosen


def make_solver(config: SolverConfig) -> Solver:
    kinds: dict[str, Callable[[], Any]] = {"picard": lambda: Picard, "anderson": lambda: Anderson, "newton": lambda: Newton}
    solver: Solver = _choose("solver.method", config.method, kinds)(config.tol, config.max_steps)
    return solver


class Builder:
    """Builds the parts of one flow."""

    def __init__(self, config: Config) -> None:
        self.config, self.model = config, config.model
        m = self.model
        checked_norm(m.norm)
        self.pieces = Pieces(m.activation, m.coeff, m.lip, m.norm, m.learnable_concatenation, m.beta)
        self.built = 0  # blocks so far: the very first one differs
        self.growths = (m.growth,) * len(m.blocks) if isinstance(m.growth, int) else m.growth
        if len(self.growths) != len(m.blocks):
            raise OptionError(f"growth={m.growth} must be one number, or one for each of the {len(m.blocks)} scales.")

    def _residual(self, g: Network | ConditionalNetwork) -> ResidualBlock:
        logdet = self.config.logdet
        return ResidualBlock(
            g,
            make_log_det(logdet),
            make_log_det(logdet, evaluation=True),
            make_solver(self.config.solver),
            logdet.recompute,
        )

    def _conditional_network(self, dims: int, growth: int) -> ConditionalNetwork:
        m = self.model
        shape = [dims + m.context_features]
        if m.block == "dense":
            inner: Network = dense_block(shape, m.depth, growth, self.pieces, outputs=dims)
        else:
            widths = [m.width] * m.depth
            inner = residual_net(shape, widths, [1] * (m.depth + 1), self.pieces, small_last=True, outputs=dims)
        return ConditionalNetwork(inner, embedding(m.context, m.context_width, m.context_features), dims, m.context_features)

    def _network(self, shape: Sequence[int], image: bool, growth: int) -> Network | ConditionalNetwork:
        m, c = self.model, shape[0]
        activate = self.built > 0 or not image
        if m.context:
            return self._conditional_network(c, growth)
        if m.block == "dense":
            return dense_block(shape, m.depth, growth, self.pieces)
        if m.block == "extended":
            widths = [c + growth * (i + 1) for i in range(m.depth)]
            return residual_net(shape, widths, [*[3] * m.depth, 1], self.pieces, activate, small_last=not image)
        if image:
            return residual_net(shape, [m.width] * 2, [3, 1, 3], self.pieces, activate)
        return residual_net(shape, [m.width] * m.depth, [1] * (m.depth + 1), self.pieces, activate, small_last=True)

    def _fc_network(self, dims: int) -> Network:
        m = self.model
        if m.block == "dense":
            return dense_block([dims], m.depth, m.fc_growth, self.pieces, first=m.fc_first)
        if m.block == "extended":
            widths = [m.fc_first + m.fc_growth * i for i in range(m.depth + 1)]
        else:
            widths = [m.fc_width] * 2
        return residual_net([dims], widths, [1] * (len(widths) + 1), self.pieces)

    def block(self, shape: Sequence[int], scale: int) -> list[Bijection]:
        """One block of a scale, and the ActNorms that stand around it."""
        m = self.model
        parts: list[Bijection] = [ActNorm(shape[0])] if m.actnorm and self.built == 0 else []
        if m.context and self.built == 0:
            parts.append(ConditionalAffine(shape[0], m.context, m.context_width))
        if m.block in ("coupling", "glow"):
            if m.block == "glow":
                parts.append(InvertibleConv1x1(shape[0]))
            mask = (checkerboard_mask if scale == 0 and len(shape) == 3 else channel_mask)(shape, self.built % 2 == 1)
            parts.append(Coupling(coupling_net(shape, m.width), mask))
        else:
            parts.append(self._residual(self._network(shape, len(shape) == 3, self.growths[scale])))
        self.built += 1
        return [*parts, ActNorm(shape[0])] if m.actnorm else parts

    def fully_connected(self, shape: Sequence[int]) -> Chain:
        m, dims = self.model, math.prod(shape)
        parts: list[Bijection] = [Flatten(shape)]
        for i in range(m.fc_blocks):
            if m.block in ("coupling", "glow"):
                parts.append(Coupling(coupling_net([dims], m.fc_width), channel_mask([dims], i % 2 == 1)))
            else:
                parts.append(self._residual(self._fc_network(dims)))
            if m.actnorm:
                parts.append(ActNorm(dims))
        return Chain([*parts, Invert(Flatten(shape))])

    def body(self) -> tuple[Chain, list[tuple[int, ...]]]:
        """The scales, and the shape after each of them."""
        m = self.model
        shape = m.shape
        scales: list[Chain] = []
        shapes: list[tuple[int, ...]] = []
        for i, count in enumerate(m.blocks):
            parts = [part for _ in range(count) for part in self.block(shape, i)]
            if i < len(m.blocks) - 1:
                if len(shape) != 3 or shape[1] % 2 or shape[2] % 2:
                    raise ShapeError(
                        f"{len(m.blocks)} scales halve the image {len(m.blocks) - 1} times, which {tuple(m.shape)} does not "
                        f"allow: both sides must be multiples of {2 ** (len(m.blocks) - 1)}."
                    )
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
            rest = Chain([scales[i], Split(shapes[i], rest)])
        return rest, [(math.prod(m.shape),)]

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

    def flow(self) -> Flow:
        m = self.model
        known = ("dense", "residual", "extended", "coupling", "glow")
        if m.block not in known:
            raise OptionError(f"block={m.block!r} is not known; {nearest(m.block, list(known))}")
        if len(m.shape) not in (1, 3) or min(m.shape) < 1 or not m.blocks or min(m.blocks) < 1:
            raise ShapeError(
                f"shape={tuple(m.shape)} must be (D,) or (channels, height, width), and blocks={tuple(m.blocks)} positive."
            )
        if m.context and (m.context < 0 or len(m.shape) != 1 or m.block not in ("dense", "residual") or m.levels):
            raise OptionError("A conditional model (context) needs vectors without levels, and dense or residual blocks.")
        body, shapes = self.body()
        if m.classes is None:
            return Flow(body, m.shape, shapes[-1], self.preprocess(), m.levels, m.context)
        if len(m.shape) == 1:
            heads = Classifier({0: VectorHead(m.shape[0], m.head_width)}, m.classes)
            return HybridFlow(body, heads, m.shape, shapes[-1], self.preprocess(), m.levels, m.context)
        if m.factor_out or m.levels is None:
            raise OptionError("A hybrid model (classes) of images needs levels, and factor_out=False.")
        scales = len(m.blocks)
        taps = [*range(scales - 1), len(shapes) - 1]
        classifier = Classifier({i: Head(shapes[i][0], m.head_width) for i in taps}, m.classes)
        return HybridFlow(body, classifier, m.shape, shapes[-1], self.preprocess(), m.levels)


def build(name: str, **overrides: Any) -> Flow:
    """An untrained model of a recipe, with overrides of its options.

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
