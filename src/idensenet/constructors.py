"""Flows by their main sizes: the front door for those who write Python. The builder is the one that recipes use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from idensenet.config import Config
from idensenet.flow import Flow
from idensenet.models import build_config

EXACT = 12  # features up to which a whole Jacobian costs less than an estimate of its log-determinant
ESTIMATED = {"method": "roulette", "eval_method": "krylov"}


def log_det_options(method: str | None, features: int) -> dict[str, str]:
    if method is None:
        method = "exact" if features <= EXACT else "roulette"
    return {"method": "exact", "eval_method": "exact"} if method == "exact" else {**ESTIMATED, "method": method}


def _vector_flow(features: int, context: int, blocks: int, lipschitz: float, log_det: str | None, **model: Any) -> Flow:
    return build_config(
        Config().replace(
            shape=(features,),
            context=context,
            blocks=(blocks,),
            coeff=lipschitz,
            lip=1 - 0.1 * (1 - lipschitz),
            logdet=log_det_options(log_det, features),
            **model,
        )
    )


def IDenseNet(
    features: int,
    context: int = 0,
    *,
    blocks: int = 10,
    depth: int = 3,
    growth: int = 64,
    activation: str = "clipswish",
    beta: float = 10.0,
    lipschitz: float = 0.99,
    log_det: str | None = None,
) -> Flow:
    r"""Returns an i-DenseNet on vectors: \(x \mapsto x + g(x)\) with dense networks \(g\) of Lipschitz constant below one.

    `idn.fit` trains it. For a loop of your own, call `flow.initialize(data)` and `flow.train()` before the first step.

    Args:
        features: Number of features of a sample.
        context: Length of the context vector of a conditional density p(x | c); 0 for an unconditional density.
        blocks: Number of residual blocks.
        depth: Number of dense layers in a block.
        growth: Number of features that a dense layer adds.
        activation: Name of the activation; `idn.register_activation` adds your own.
        beta: Initial sharpness of the swish activations.
        lipschitz: Bound on the norm of each linear map, between 0 and 1. Closer to one lets a block bend the space more.
        log_det: Estimator of log-determinants in training: "exact", "roulette", "series", "adaptive" or "krylov". By default
            exact up to 12 features, roulette beyond.

    Returns:
        An untrained flow in evaluation mode.

    Raises:
        InputError: If an option has a value that cannot be used.

    >>> import torch
    >>> flow = IDenseNet(features=2, blocks=2, growth=16)
    >>> flow.initialize(torch.randn(64, 2))
    >>> flow.log_prob(torch.zeros(5, 2)).shape
    torch.Size([5])
    """
    return _vector_flow(
        features,
        context,
        blocks,
        lipschitz,
        log_det,
        block="dense",
        depth=depth,
        growth=growth,
        activation=activation,
        beta=beta,
    )


def ResidualFlow(
    features: int,
    context: int = 0,
    *,
    blocks: int = 10,
    depth: int = 3,
    width: int = 128,
    activation: str = "lipswish",
    beta: float = 10.0,
    lipschitz: float = 0.99,
    log_det: str | None = None,
) -> Flow:
    r"""Returns a Residual Flow on vectors: \(x \mapsto x + g(x)\) with fully connected networks \(g\).

    Args:
        features: Number of features of a sample.
        context: Length of the context vector of a conditional density p(x | c); 0 for an unconditional density.
        blocks: Number of residual blocks.
        depth: Number of hidden layers in a block.
        width: Width of a hidden layer.
        activation: Name of the activation.
        beta: Initial sharpness of the swish activations.
        lipschitz: Bound on the norm of each linear map, between 0 and 1.
        log_det: Estimator of log-determinants in training, as for `IDenseNet`.

    Returns:
        An untrained flow in evaluation mode.

    Raises:
        InputError: If an option has a value that cannot be used.

    >>> ResidualFlow(features=3, blocks=2, width=16).num_parameters
    1344
    """
    return _vector_flow(
        features,
        context,
        blocks,
        lipschitz,
        log_det,
        block="residual",
        depth=depth,
        width=width,
        activation=activation,
        beta=beta,
    )


def MonotoneFlow(
    features: int,
    context: int = 0,
    *,
    blocks: int = 10,
    depth: int = 3,
    growth: int = 64,
    activation: str = "cpila",
    beta: float = 10.0,
    lipschitz: float = 0.99,
    log_det: str | None = None,
) -> Flow:
    r"""Returns a Monotone Flow on vectors (Ahn et al., 2022), with the dense networks \(g\) of an i-DenseNet.

    A block maps \(x = (w + g(w)) / \sqrt 2\) to \(y = (w - g(w)) / \sqrt 2\). It can stretch by \((1 + L) / (1 - L)\), where a
    residual block stretches by \(1 + L\), and solves a fixed-point equation in both directions.

    Args:
        features: Number of features of a sample.
        context: Length of the context vector of a conditional density p(x | c); 0 for an unconditional density.
        blocks: Number of monotone blocks.
        depth: Number of dense layers in a block.
        growth: Number of features that a dense layer adds.
        activation: Name of the activation.
        beta: Initial sharpness of the swish activations.
        lipschitz: Bound on the norm of each linear map, between 0 and 1.
        log_det: Estimator of log-determinants in training, as for `IDenseNet`.

    Returns:
        An untrained flow in evaluation mode.

    Raises:
        InputError: If an option has a value that cannot be used.

    >>> MonotoneFlow(features=2, blocks=1, depth=1, growth=4).stacks()[0].blocks
    1
    """
    return _vector_flow(
        features,
        context,
        blocks,
        lipschitz,
        log_det,
        block="monotone",
        depth=depth,
        growth=growth,
        activation=activation,
        beta=beta,
    )


def ImageFlow(
    shape: Sequence[int],
    *,
    levels: int = 256,
    blocks: Sequence[int] = (12, 6, 2),
    depth: int = 2,
    growth: int | Sequence[int] = (28, 40, 96),
    block: str = "dense",
    activation: str = "clipswish",
    beta: float = 16.0,
    lipschitz: float = 0.99,
    alpha: float = 0.05,
    classes: int | None = None,
) -> Flow:
    """Returns a multi-scale flow on images of integers, by default an i-DenseNet with the settings of `cifar10-best-tiny`.

    Each scale begins with a learned 1x1 convolution and ends with a squeeze, so the number of scales, `len(blocks)`, says how
    often both sides of the image are halved, plus one. Dequantisation is part of the flow.

    Args:
        shape: (channels, height, width) of an image.
        levels: Number of integer levels of a pixel, at most 256.
        blocks: Number of blocks at each scale.
        depth: Number of dense layers in a block.
        growth: Number of channels that a dense layer adds: one number, or one for each scale.
        block: Kind of block, as in `--model.block`.
        activation: Name of the activation.
        beta: Initial sharpness of the swish activations.
        lipschitz: Bound on the norm of each linear map, between 0 and 1.
        alpha: Margin of the logit in front of the flow.
        classes: Number of classes of a hybrid model, which also classifies; None for a density alone.

    Returns:
        An untrained flow in evaluation mode; call `flow.initialize(images)` before its first use.

    Raises:
        InputError: If an option has a value that cannot be used.
        ShapeError: If the image cannot be halved as often as there are scales.

    >>> flow = ImageFlow((1, 8, 8), levels=17, blocks=(1, 1), growth=8)
    >>> flow.shape, flow.latent_shape
    ((1, 8, 8), (4, 4, 4))
    """
    return build_config(
        Config().replace(
            shape=tuple(shape),
            levels=levels,
            preprocess="logit",
            alpha=alpha,
            blocks=tuple(blocks),
            block=block,
            depth=depth,
            growth=growth if isinstance(growth, int) else tuple(growth),
            activation=activation,
            beta=beta,
            coeff=lipschitz,
            lip=1 - 0.1 * (1 - lipschitz),
            mix="whiten",
            classes=classes,
            logdet=ESTIMATED,
        )
    )
