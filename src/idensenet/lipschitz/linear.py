"""Linear layers whose norm never exceeds `coeff`: weight / max(1, sigma(weight) / coeff).

The norm is that of the operator. It is kept with the weights (`left`, `right`, `sigma`: saved state) beside a fingerprint
of the weights it belongs to, and `fresh_norms` brings it up to date on entry of every public call: whatever wrote the
weights (an optimiser, a load, averaging, `.data`), the next use sees norms for these weights, and if they have not
changed, nothing is computed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from idensenet.errors import NonFiniteError, OptionError, ShapeError
from idensenet.lipschitz import norms
from idensenet.lipschitz.fingerprint import SKETCH, fingerprints
from idensenet.lipschitz.linearmap import ConvolutionMap, LinearMap, MatrixMap, convolve
from idensenet.lipschitz.scope import norms_settled, own_precision, scope, under, updates
from idensenet.lipschitz.update import ROUNDING, at_once, fields, update_norms


def normalized(weight: Tensor, slope: Tensor, sigma: Tensor, coeff: float, scale: Tensor | None = None) -> Tensor:
    """weight / max(1, sigma / coeff), with slope = d sigma / d weight in its gradient; and a scale for each of its columns."""
    product = (slope * weight).sum()
    sigma = sigma + (product - product.detach())
    result = weight / torch.clamp(sigma / coeff, min=1)
    return result if scale is None else result * scale.view(1, -1, *[1] * (weight.ndim - 2))


class LipschitzMap(nn.Module, ABC):
    """An affine map x -> W x + b with |W| <= coeff in the chosen norm."""

    weight: nn.Parameter
    bias: nn.Parameter
    left: Tensor
    right: Tensor
    sigma: Tensor
    fingerprint: Tensor

    def __init__(self, weight: Tensor, coeff: float, norm: float, left: Tensor, right: Tensor) -> None:
        super().__init__()
        if not 0 < coeff < 1:
            raise OptionError(f"coeff={coeff} must lie strictly between 0 and 1, or the block may have no inverse.")
        self.coeff, self.norm = coeff, norms.checked_norm(norm)
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(weight.new_zeros(len(weight)))
        self.register_buffer("left", left)
        self.register_buffer("right", right)
        self.register_buffer("sigma", torch.ones(()))
        self.register_buffer("fingerprint", torch.tensor(-1))
        self._gradient: Tensor | None = None
        self._normalized: Tensor | None = None
        self._cached_for: int | None = None  # the fingerprint of the weight that the two caches belong to
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        bound = 1 / math.sqrt(weight[0].numel())
        nn.init.uniform_(self.bias, -bound, bound)

    @property
    def alike(self) -> tuple[object, ...]:
        """What maps must have in common, beside the shape of their weights, to be normalised together."""
        return type(self), self.norm, self.size, self.__dict__.get("tolerance", 0.0)

    @property
    @abstractmethod
    def as_matrix(self) -> bool:
        """Whether the operator's norm is that of the weight as a matrix."""

    @property
    @abstractmethod
    def size(self) -> tuple[int, int] | None:
        """The map a convolution acts on; None for a matrix."""

    @abstractmethod
    def checked(self, x: Tensor) -> Tensor:
        """x, if it has the shape that this layer takes."""

    @abstractmethod
    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]: ...

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor: ...

    def forget_unless(self, fingerprint: int) -> None:
        """Drop what was cached for another weight: a copy of all saved state brings its own norms, and no update follows."""
        if self._cached_for != fingerprint:
            self.remember(None)
            self.__dict__["_cached_for"] = fingerprint

    def remember(self, gradient: Tensor | None) -> None:
        """Begin the caches anew. Past nn.Module.__setattr__, which would take longer than all the rest for small layers."""
        self.__dict__["_gradient"], self.__dict__["_normalized"] = gradient, None

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.remember(None)

    def norm_gradient(self) -> Tensor:
        """d sigma / d weight with the singular vectors held fixed; sigma is its inner product with the weight."""
        if self._gradient is None or self._gradient.device != self.weight.device or self._gradient.dtype != self.weight.dtype:
            with own_precision(self.weight), torch.enable_grad():
                if self.norm != 2:
                    weight = self.weight.detach().requires_grad_()
                    (self._gradient,) = torch.autograd.grad(norms.induced_norm(weight, self.norm, self.size), weight)
                elif self.as_matrix:
                    self._gradient = torch.outer(self.left.flatten(), self.right.flatten()).view_as(self.weight)
                else:
                    self._gradient = norms.convolution_norm_gradient(self.left, self.right, self.weight.shape[-1])
        return self._gradient

    def scaled_weight(self, scale: Tensor, run: Callable[..., Tensor] = normalized) -> Tensor:
        """The weight in use, with a factor for each of its columns."""
        if not torch.is_grad_enabled() or not self.weight.requires_grad or torch.compiler.is_compiling():
            weight = self.normalized_weight()
            return weight * scale.view(1, -1, *[1] * (weight.ndim - 2))
        ensure_fresh(self)
        weight = self.weight.view_as(self.weight)  # no parameter, whose shape a compiler would take for fixed
        return run(weight, self.norm_gradient(), self.sigma, self.coeff, scale)

    def normalized_weight(self) -> Tensor:
        """The weight in use. It carries a graph where gradients are recorded, and is cached where they are not."""
        compiling = torch.compiler.is_compiling()
        if not compiling:
            ensure_fresh(self)
        if torch.is_grad_enabled() and self.weight.requires_grad:
            return normalized(self.weight, self.norm_gradient(), self.sigma, self.coeff)
        cached = self._normalized
        if (
            compiling
            or cached is None
            or cached.device != self.weight.device
            or cached.dtype != self.weight.dtype
            or (cached.is_inference() and not torch.is_inference_mode_enabled())
        ):
            cached = self.weight.detach() / torch.clamp(self.sigma / self.coeff, min=1)
            if not compiling:
                self._normalized = cached
        return cached

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_gradient": None, "_normalized": None}


class LipschitzLinear(LipschitzMap):
    """W x + b on vectors, the norm exact.

    >>> layer = LipschitzLinear(3, 2, coeff=0.9)
    >>> bool(torch.linalg.matrix_norm(layer.normalized_weight(), 2) <= 0.9 + 1e-6)
    True
    """

    def __init__(self, inputs: int, outputs: int, coeff: float = 0.98, norm: float = 2.0) -> None:
        super().__init__(torch.empty(outputs, inputs), coeff, norm, torch.zeros(outputs), torch.zeros(inputs))

    @property
    def as_matrix(self) -> bool:
        return True

    @property
    def size(self) -> None:
        return None

    def checked(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.weight.shape[1]:
            raise ShapeError(
                f"This layer takes vectors of {self.weight.shape[1]} numbers, not a tensor of shape {tuple(x.shape)}."
            )
        return x

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(self.checked(x), self.normalized_weight(), self.bias)

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        weight = self.normalized_weight()
        return torch.nn.functional.linear(self.checked(x), weight, self.bias), MatrixMap(weight)


class LipschitzConv2d(LipschitzMap):
    """A zero-padded convolution that keeps the map's size; `size` is that size, known at construction."""

    sketch: Tensor  # of the last weight, and of the one for which the singular vectors were looked for everywhere

    def __init__(
        self, inputs: int, outputs: int, kernel: int, size: tuple[int, int], coeff: float = 0.98, norm: float = 2.0
    ) -> None:
        if kernel % 2 == 0:
            raise OptionError(f"kernel={kernel} must be odd, so that the convolution keeps the size of its map.")
        maps = (1, 1) if kernel == 1 else size
        start = torch.Generator().manual_seed(0)  # the same on every rank, and no draw from anybody's generator
        right = torch.randn(inputs, *maps, generator=start)
        super().__init__(
            torch.empty(outputs, inputs, kernel, kernel), coeff, norm, torch.zeros(outputs, *maps), right / right.norm()
        )
        self._size = size
        self.tolerance = 1e-3
        self.register_buffer("sketch", torch.zeros(2, SKETCH))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        if state_dict.pop(prefix + "length", None) is not None:  # of an earlier version, which kept less
            state_dict[prefix + "sketch"] = torch.zeros_like(self.sketch)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @property
    def as_matrix(self) -> bool:
        return self.weight.shape[-1] == 1

    @property
    def size(self) -> tuple[int, int]:
        return self._size

    def checked(self, x: Tensor) -> Tensor:
        if x.shape[-3:] != (self.weight.shape[1], *self._size):
            want = (self.weight.shape[1], *self._size)
            raise ShapeError(f"This convolution takes maps of shape {want}, not a tensor of shape {tuple(x.shape)}.")
        return x

    def forward(self, x: Tensor) -> Tensor:
        return convolve(self.checked(x), self.normalized_weight()) + self.bias[:, None, None]

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        weight = self.normalized_weight()
        return convolve(self.checked(x), weight) + self.bias[:, None, None], ConvolutionMap(weight)


def followed_only(maps: Sequence[LipschitzMap]) -> set[LipschitzMap]:
    """Convolutions out of training whose singular vectors were last followed, in training, and not looked for."""
    those = [m for m in maps if isinstance(m, LipschitzConv2d) and not m.training and m.norm == 2 and not m.as_matrix]
    if not those:
        return set()
    last, looked = torch.stack(fields(those, "sketch"), 1)
    moved = (last - looked).norm(dim=1) > ROUNDING * looked.norm(dim=1)
    return {m for m, far in zip(those, moved.tolist(), strict=True) if far}


def refresh_norms(root: nn.Module) -> int:
    """Bring the norms of all maps under `root` up to date with their weights; returns how many were not."""
    maps = under(root, LipschitzMap)  # type: ignore[type-abstract]
    if not maps:
        return 0
    with own_precision(maps[0].weight):
        weights = fields(maps, "weight")
        found = fingerprints(weights)
        known = torch.stack(fields(maps, "fingerprint"))
        groups = defaultdict(list)
        codes = found.tolist()
        followed = followed_only(maps)
        for i, (now, before) in enumerate(zip(codes, known.tolist(), strict=True)):
            m = maps[i]
            m.forget_unless(now)
            if now != before or m in followed:
                groups[m.alike, weights[i].shape, weights[i].dtype].append(i)
        stale = [weights[i] for members in groups.values() for i in members]
        if stale and not bool(torch.isfinite(torch.stack([w.sum().float() for w in stale])).all()):
            raise NonFiniteError("A weight is NaN or infinite, so it has no norm; go back to an earlier checkpoint.")
        for members in groups.values():
            # a bit of the fingerprint is as good as a coin, and the same after a resume and on every rank
            back = bool(codes[members[0]] & 1)
            together = at_once(maps[members[0]])
            for part in (members[i : i + together] for i in range(0, len(members), together)):
                update_norms([maps[i] for i in part], found[part], back)
    return sum(map(len, groups.values()))


@contextmanager
def fresh_norms(root: nn.Module) -> Iterator[None]:
    """Norms under `root` are those of the weights, inside. Nested uses cost nothing, unless they are about another model."""
    if scope.depth == 0 or not scope.covers(root):
        refresh_norms(root)
    with norms_settled(root):
        yield


@contextmanager
def norms_as_of(count: int, root: nn.Module) -> Iterator[None]:
    """The norms that a forward pass used, whose `updates.count` is given: they need no look if none was written since."""
    with norms_settled() if updates.count == count else fresh_norms(root):
        yield


def ensure_fresh(layer: LipschitzMap) -> None:
    if scope.depth == 0:
        refresh_norms(layer)
