"""The networks g of x + g(x): chains of linear maps, activations and dense layers."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from idensenet.errors import OptionError
from idensenet.lipschitz.activations import Activation
from idensenet.lipschitz.block import (
    DenseBlockMap,
    ResidualNetMap,
    activate,
    apply,
    biased,
    fused,
    grow,
    laid_out,
    products,
)
from idensenet.lipschitz.dense import DenseLayer
from idensenet.lipschitz.linear import LipschitzMap, fresh_norms, normalized
from idensenet.lipschitz.linearmap import Composition, LinearMap, rounding
from idensenet.lipschitz.scope import scope
from idensenet.lipschitz.step import dense_step

AT_ONCE = 1 << 26  # bytes of features, where none is kept: more is no faster


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

    def push(self, x: Tensor, v: Tensor, low: bool = False) -> tuple[Tensor, Tensor, LinearMap]:
        """g(x), the product J v with vectors [probes, *x.shape], and J itself, for use without gradients.

        With `low` the products that J v is made of are in bfloat16.
        """
        y, J = self.linearize(x)
        with rounding(low, v):
            product = J.matvec(v)
        return y, product.to(v.dtype), J

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


class RowNetwork(Network):
    """A network that takes values and tangents through together. See block.py for how it is computed.

    With `compiled`, its elementwise steps are compiled into one pass each: the same result up to rounding, half a minute once.
    """

    compiled = False

    @abstractmethod
    def _push(self, rows: Tensor, n: int, low: bool = False) -> tuple[Tensor, LinearMap]:
        """n rows of values and any number of tangents through the network; and the Jacobian at the values."""

    def _linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        return self._push(laid_out(x), len(x))

    def push(self, x: Tensor, v: Tensor, low: bool = False) -> tuple[Tensor, Tensor, LinearMap]:
        rows, n = laid_out(torch.cat([x, v.flatten(0, 1)])), len(x)
        if torch.compiler.is_compiling():
            rows, J = self._push(rows, n, low)
        else:
            with fresh_norms(self):
                rows, J = self._push(rows, n, low)
        value, tangent = torch.split(rows, [n, len(rows) - n])
        return value, tangent.view(*v.shape[:2], *tangent.shape[1:]), J


def _biased_values(rows: Tensor, bias: Tensor, n: int) -> Tensor:
    """The bias on the values only."""
    if len(rows) == n:
        return biased(rows, bias)
    value, tangent = torch.split(rows, [n, len(rows) - n])
    return torch.cat([biased(value, bias), tangent])


class DenseBlock(RowNetwork):
    """[a linear map,] dense layers, and a closing linear map: the g of an i-DenseNet."""

    @property
    def dense_layers(self) -> list[DenseLayer]:
        return [layer for layer in self.layers if isinstance(layer, DenseLayer)]

    def maps(self) -> list[LipschitzMap]:
        """[first,] one for each dense layer, closing."""
        return [layer.linear if isinstance(layer, DenseLayer) else layer for layer in self.layers]  # type: ignore[misc]

    def _folded(self) -> list[Tensor]:
        """The weights of the linear maps, with the concatenation in their columns."""
        scale, weights, run = None, [], fused(normalized, self.compiled)
        for layer, linear in zip(self.layers, self.maps(), strict=True):
            weights.append(linear.normalized_weight() if scale is None else linear.scaled_weight(scale, run))
            if isinstance(layer, DenseLayer):
                outputs, inputs = weights[-1].shape[:2]
                a, b = (layer.lip * layer.eta()).unbind()
                kept = a.expand(inputs) if scale is None else a * scale
                scale = torch.cat([kept, b.expand(outputs * layer.activation.expansion)])
        return weights

    def _value_parts(self) -> list[tuple[Tensor, Tensor]]:
        """Weights and biases for values alone: the factors of the activations are in them too, and no pass is left over."""
        parts, scale = [], None
        for layer, linear in zip(self.layers, self.maps(), strict=True):
            weight: Tensor = linear.normalized_weight() if scale is None else linear.scaled_weight(scale)
            bias: Tensor = linear.bias
            if isinstance(layer, DenseLayer):
                inner, outer = layer.activation.factors()
                a, b = (layer.lip * layer.eta()).unbind()
                kept = a.expand(weight.shape[1]) if scale is None else a * scale
                scale = torch.cat([kept, (b * outer).expand(weight.shape[0] * layer.activation.expansion)])
                weight, bias = weight * inner, bias * inner
            parts.append((weight, bias))
        return parts

    def forward(self, x: Tensor) -> Tensor:
        with fresh_norms(self):
            key = (id(self), "values")  # a solver asks again and again
            parts = self._value_parts() if torch.is_grad_enabled() or key not in scope.packs else scope.packs[key]
            if not torch.is_grad_enabled():
                scope.packs[key] = parts
            size = parts[-1][0].shape[1] * math.prod(x.shape[2:]) * x.element_size()  # of the widest features of a sample
            if torch.is_grad_enabled() or len(x) * size <= AT_ONCE:
                return self._values(x, parts)
            pieces = -(-len(x) * size // AT_ONCE)
            return torch.cat([self._values(part, parts) for part in torch.split(x, -(-len(x) // pieces))])

    def _values(self, x: Tensor, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
        rows, step = laid_out(x), _grown
        if self.compiled and not torch.is_grad_enabled() and len(x) > 1:
            step = fused(beside, True)
        for layer, linear, (weight, bias) in zip(self.layers, self.maps(), parts, strict=True):
            moved = apply(linear.checked(rows), weight, bias)
            rows = step(rows, moved, layer.activation) if isinstance(layer, DenseLayer) else moved
        return rows

    def _push(self, rows: Tensor, n: int, low: bool = False) -> tuple[Tensor, LinearMap]:
        weights, slopes, step = self._folded(), [], fused(grow, self.compiled)
        as_one = step is not grow and len(rows) > n
        for layer, linear, weight in zip(self.layers, self.maps(), weights, strict=True):
            linear.checked(rows)
            if not isinstance(layer, DenseLayer):
                rows = _biased_values(products(rows, weight, n, low), linear.bias, n)
                continue
            if as_one:
                rows, slope = dense_step(rows, weight, linear.bias, layer.activation, n, low)
            else:
                rows, slope = step(rows, products(rows, weight, n, low), linear.bias, layer.activation, n)
            slopes.append(slope)
        return rows, DenseBlockMap(weights, slopes, n, self.compiled)


def beside(rows: Tensor, moved: Tensor, activation: Activation) -> Tensor:
    """[rows ; the activation of what a dense layer makes of them]."""
    return torch.cat([rows, *activation.core(moved)], 1)


def _grown(rows: Tensor, moved: Tensor, activation: Activation) -> Tensor:
    """The same; without gradients nothing is written twice."""
    if torch.is_grad_enabled():
        return beside(rows, moved, activation)
    old = rows.shape[1]
    wide = _room(rows, old + activation.expansion * moved.shape[1])
    wide[:, :old].copy_(rows)
    activation.core_into(moved, wide[:, old:])
    return wide


def _room(rows: Tensor, channels: int) -> Tensor:
    """Memory for features that a call of g needs for a moment: the same for the next call, since fresh memory is slow."""
    key = ("room", channels, rows.shape[2:], rows.dtype, rows.device)
    room: Tensor | None = scope.packs.get(key)
    if room is None or len(room) < len(rows):
        layout = torch.channels_last if rows.ndim == 4 else torch.contiguous_format
        shape = (len(rows), channels, *rows.shape[2:])
        room = scope.packs[key] = torch.empty(shape, dtype=rows.dtype, device=rows.device, memory_format=layout)
    return room[: len(rows)]


class ResidualNet(RowNetwork):
    """Linear maps with activations in between, and perhaps one in front: the g of an i-ResNet or a Residual Flow."""

    def __init__(self, layers: Sequence[LipschitzMap | Activation | DenseLayer]) -> None:
        super().__init__(layers)
        linear = [isinstance(layer, LipschitzMap) for layer in reversed(layers)]
        if linear != [i % 2 == 0 for i in range(len(layers))]:
            raise OptionError("In a residual net linear maps and activations take turns, and a linear map is the last.")

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(laid_out(x))

    def _push(self, rows: Tensor, n: int, low: bool = False) -> tuple[Tensor, LinearMap]:
        weights, slopes, bias, step = [], [], None, fused(activate, self.compiled)
        for layer in self.layers:
            if isinstance(layer, LipschitzMap):
                weights.append(layer.normalized_weight())
                rows = products(layer.checked(rows), weights[-1], n, low)
                bias = layer.bias  # which waits for the activation: one pass
            elif isinstance(layer, Activation):
                rows, slope = step(rows, bias, layer, n)
                slopes.append(slope)
        assert bias is not None
        rows = _biased_values(rows, bias, n)
        return rows, ResidualNetMap(weights, slopes, n, self.compiled)
