"""Stacks of networks g by their sizes: dense blocks and residual nets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from idensenet.errors import OptionError
from idensenet.lipschitz.activations import Activation, activation
from idensenet.lipschitz.convolution import LipschitzConv2d
from idensenet.lipschitz.dense import DenseLayer
from idensenet.lipschitz.linear import LipschitzLinear, LipschitzMap
from idensenet.lipschitz.networks import DenseBlock, ResidualNet


@dataclass(frozen=True)
class Pieces:
    """What the layers of a network have in common.

    Args:
        activation: Name of the activation.
        coeff: Bound on the norm of every linear map.
        lip: Bound on the Lipschitz constant of every dense layer.
        norm: The p-norm of all these bounds: 1, 2 or infinity.
        learnable: Whether the weights of the concatenation are parameters.
        beta: Where the beta of the swish activations starts.
    """

    activation: str = "clipswish"
    coeff: float = 0.98
    lip: float = 0.98
    norm: float = 2.0
    learnable: bool = True
    beta: float = 0.5

    def act(self, blocks: int = 1) -> Activation:
        """The activation of a layer."""
        made = activation(self.activation, blocks, self.norm)
        for name, parameter in made.named_parameters():
            if name == "beta":
                nn.init.constant_(parameter, self.beta)
        return made

    def linear(self, shape: Sequence[int], inputs: int, outputs: int, kernel: int, blocks: int) -> LipschitzMap:
        """Matrices for vectors, convolutions for maps."""
        if len(shape) == 1:
            return LipschitzLinear(inputs, outputs, self.coeff, self.norm, blocks)
        return LipschitzConv2d(inputs, outputs, kernel, (shape[1], shape[2]), self.coeff, self.norm, blocks)

    def filters(self, width: int, what: str) -> int:
        """How many outputs a linear map needs for a width after the activation."""
        expansion = self.act().expansion
        if width % expansion:
            raise OptionError(
                f"{what}={width} must be even with {self.activation!r}, which makes two channels of one; use {width + 1}."
            )
        return width // expansion


def dense_block(
    shape: Sequence[int],
    depth: int,
    growth: int,
    pieces: Pieces,
    first: int | None = None,
    kernel: int = 3,
    outputs: int | None = None,
    blocks: int = 1,
) -> DenseBlock:
    """A stack of `depth` dense layers of `growth` and a closing map, behind a linear map to `first` numbers if that is given.

    It closes to as many channels as came in, or to `outputs`.

    >>> sum(p.numel() for p in dense_block([2], 3, 16, Pieces("lipswish", 0.9)).parameters())
    1023
    """
    if depth < 1:
        raise OptionError(f"depth={depth} must be at least 1.")
    layers: list[LipschitzMap | Activation | DenseLayer] = []
    width = shape[0]
    if first is not None:
        layers.append(pieces.linear(shape, width, first, 1, blocks))
        width = first
    filters = pieces.filters(growth, "growth")
    for _ in range(depth):
        linear = pieces.linear(shape, width, filters, kernel, blocks)
        layers.append(DenseLayer(linear, pieces.act(blocks), pieces.learnable, pieces.lip))
        width += growth
    layers.append(pieces.linear(shape, width, outputs or shape[0], 1, blocks))
    return DenseBlock(layers)


def residual_net(
    shape: Sequence[int],
    widths: Sequence[int],
    kernels: Sequence[int],
    pieces: Pieces,
    activate_first: bool = True,
    small_last: bool = False,
    outputs: int | None = None,
    blocks: int = 1,
) -> ResidualNet:
    """A stack of linear maps to each of `widths` and back (or to `outputs`).

    An activation stands before each of them; `activate_first` decides about the first.
    """
    layers: list[LipschitzMap | Activation | DenseLayer] = []
    width = shape[0]
    for i, (target, kernel) in enumerate(zip([*widths, outputs or shape[0]], kernels, strict=True)):
        if i or activate_first:
            act = pieces.act(blocks)
            if i == 0:
                width *= act.expansion
            layers.append(act)
        filters = target if i == len(widths) else pieces.filters(target, "width")
        layers.append(pieces.linear(shape, width, filters, kernel, blocks))
        width = target
    if small_last:
        nn.init.constant_(layers[-1].weight, 1e-3)  # type: ignore[arg-type]
    return ResidualNet(layers)
