"""The networks g of x + g(x): chains of linear maps, activations and dense layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from idensenet.errors import OptionError
from idensenet.lipschitz.activations import Activation, activation
from idensenet.lipschitz.block import DenseBlockMap, apply, biased, laid_out, per_sample
from idensenet.lipschitz.dense import DenseLayer
from idensenet.lipschitz.linear import LipschitzConv2d, LipschitzLinear, LipschitzMap, fresh_norms
from idensenet.lipschitz.linearmap import Composition, LinearMap


class Network(nn.Module):
    """A chain of layers, each of which can be linearised and has a Lipschitz bound."""

    def __init__(self, layers: Sequence[LipschitzMap | Activation | DenseLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        found = {m.norm for m in self.modules() if isinstance(m, LipschitzMap)}
        if len(found) != 1:
            raise OptionError(f"The layers of a network must all be normalised in one norm, not in {sorted(found)}.")
        self.norm: float = found.pop()

    def forward(self, x: Tensor) -> Tensor:
        with fresh_norms(self):
            for layer in self.layers:
                x = layer(x)
        return x

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        """g(x) and the linear map J_g(x)."""
        if torch.compiler.is_compiling():  # the norms are looked at outside, before the compiled call
            return self._linearize(x)
        with fresh_norms(self):
            return self._linearize(x)

    def push(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, LinearMap]:
        """g(x), the product J v with vectors [probes, *x.shape], and J itself."""
        y, J = self.linearize(x)
        return y, J.matvec(v), J

    def _linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        maps: list[LinearMap] = []
        for layer in self.layers:
            x, each = layer.linearize(x)  # type: ignore[operator]
            maps.append(each)
        return x, Composition(maps)

    def lipschitz(self, norm_of: Callable[[LipschitzMap], float]) -> float:
        """A bound on Lip(g), given bounds on the norms of its linear maps."""
        bound = 1.0
        for layer in self.layers:
            if isinstance(layer, LipschitzMap):
                bound *= norm_of(layer)
            elif isinstance(layer, DenseLayer):
                bound *= layer.lipschitz(norm_of(layer.linear))
            elif isinstance(layer, Activation):
                bound *= layer.lipschitz(self.norm)
        return bound


class DenseBlock(Network):
    """[a linear map,] dense layers, and a closing linear map: the g of an i-DenseNet. See block.py for how it is computed."""

    @property
    def dense_layers(self) -> list[DenseLayer]:
        return [layer for layer in self.layers if isinstance(layer, DenseLayer)]

    def _folded(self) -> tuple[Tensor | None, list[Tensor]]:
        """The weight of the first linear map, if there is one, and the others with the concatenation in their columns."""
        head, *_ = self.layers
        first = head.normalized_weight() if isinstance(head, LipschitzMap) else None
        scale, weights = None, []
        for layer in self.dense_layers:
            weight = layer.linear.normalized_weight()
            if scale is None:
                scale = weight.new_ones(weight.shape[1])
            else:
                weight = weight * scale.view(1, -1, *[1] * (weight.ndim - 2))
            weights.append(weight)
            a, b = (layer.lip * layer.eta()).unbind()
            scale = torch.cat([a * scale, b.expand(weight.shape[0] * layer.activation.expansion)])
        closing = self._closing.normalized_weight()
        assert scale is not None
        return first, [*weights, closing * scale.view(1, -1, *[1] * (closing.ndim - 2))]

    @property
    def _closing(self) -> LipschitzMap:
        closing = self.layers[-1]
        assert isinstance(closing, LipschitzMap)
        return closing

    def _checked(self, x: Tensor) -> Tensor:
        head = self.layers[0]
        linear = head if isinstance(head, LipschitzMap) else self.dense_layers[0].linear
        return linear.checked(x)

    def forward(self, x: Tensor) -> Tensor:
        with fresh_norms(self):
            first, weights = self._folded()
            rows = laid_out(self._checked(x))
            if first is not None:
                rows = biased(apply(rows, first), self.layers[0].bias)  # type: ignore[arg-type]
            for layer, weight in zip(self.dense_layers, weights, strict=False):
                rows = torch.cat([rows, layer.activation(biased(apply(rows, weight), layer.linear.bias))], 1)
            return biased(apply(rows, weights[-1]), self._closing.bias)

    def _linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        y, _, J = self._push(x, None)
        return y, J

    def push(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, LinearMap]:
        if torch.compiler.is_compiling():
            y, product, J = self._push(x, v)
        else:
            with fresh_norms(self):
                y, product, J = self._push(x, v)
        assert product is not None
        return y, product, J

    def _push(self, x: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor | None, LinearMap]:
        """Value and tangents travel together: the rows of x, then those of the probes, through one product per layer."""
        first, weights = self._folded()
        n, slopes = len(x), []
        rows = laid_out(self._checked(x) if v is None else torch.cat([self._checked(x), v.flatten(0, 1)]))

        def moved(rows: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
            value, tangent = torch.split(apply(rows, weight), [n, len(rows) - n])
            return biased(value, bias), tangent

        if first is not None:
            rows = torch.cat(moved(rows, first, self.layers[0].bias))  # type: ignore[arg-type]
        for layer, weight in zip(self.dense_layers, weights, strict=False):
            value, tangent = moved(rows, weight, layer.linear.bias)
            value, slope = layer.activation.linearize(value)
            slopes.append(slope)
            grown = value if v is None else torch.cat([value, per_sample(slope.matvec, tangent, n)])
            rows = torch.cat([rows, grown], 1)
        value, tangent = moved(rows, weights[-1], self._closing.bias)
        return value, None if v is None else tangent.view(v.shape), DenseBlockMap(first, weights, slopes, n)


class ResidualNet(Network):
    """Linear maps with activations in between: the g of an i-ResNet or a Residual Flow."""


@dataclass(frozen=True)
class Pieces:
    """What the layers of a network have in common."""

    activation: str = "clipswish"
    coeff: float = 0.98
    lip: float = 0.98
    norm: float = 2.0
    learnable: bool = True

    def act(self) -> Activation:
        return activation(self.activation, self.norm)

    def linear(self, shape: Sequence[int], inputs: int, outputs: int, kernel: int = 1) -> LipschitzMap:
        """A matrix for vectors, a convolution for maps."""
        if len(shape) == 1:
            return LipschitzLinear(inputs, outputs, self.coeff, self.norm)
        return LipschitzConv2d(inputs, outputs, kernel, (shape[1], shape[2]), self.coeff, self.norm)

    def filters(self, width: int, what: str) -> int:
        """How many outputs a linear map needs for a width after the activation."""
        expansion = self.act().expansion
        if width % expansion:
            raise OptionError(
                f"{what}={width} must be even with {self.activation!r}, which makes two channels of one; use {width + 1}."
            )
        return width // expansion


def dense_block(
    shape: Sequence[int], depth: int, growth: int, pieces: Pieces, first: int | None = None, kernel: int = 3
) -> DenseBlock:
    """`depth` dense layers of `growth` and a closing map, behind a linear map to `first` numbers if that is given.

    >>> sum(p.numel() for p in dense_block([2], 3, 16, Pieces("lipswish", 0.9)).parameters())
    1023
    """
    if depth < 1:
        raise OptionError(f"depth={depth} must be at least 1.")
    layers: list[LipschitzMap | Activation | DenseLayer] = []
    width = shape[0]
    if first is not None:
        layers.append(pieces.linear(shape, width, first))
        width = first
    filters = pieces.filters(growth, "growth")
    for _ in range(depth):
        linear = pieces.linear(shape, width, filters, kernel)
        layers.append(DenseLayer(linear, pieces.act(), pieces.learnable, pieces.lip))
        width += growth
    layers.append(pieces.linear(shape, width, shape[0]))
    return DenseBlock(layers)


def residual_net(
    shape: Sequence[int],
    widths: Sequence[int],
    kernels: Sequence[int],
    pieces: Pieces,
    activate_first: bool = True,
    small_last: bool = False,
) -> ResidualNet:
    """Linear maps to each of `widths` and back, an activation before each of them but perhaps the first."""
    layers: list[LipschitzMap | Activation | DenseLayer] = []
    width = shape[0]
    for i, (target, kernel) in enumerate(zip([*widths, shape[0]], kernels, strict=True)):
        if i or activate_first:
            act = pieces.act()
            if i == 0:
                width *= act.expansion
            layers.append(act)
        filters = target if i == len(widths) else pieces.filters(target, "width")
        layers.append(pieces.linear(shape, width, filters, kernel))
        width = target
    if small_last:
        nn.init.constant_(layers[-1].weight, 1e-3)  # type: ignore[arg-type]
    return ResidualNet(layers)
