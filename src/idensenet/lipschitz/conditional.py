"""Networks g(x, c) that are Lipschitz in x for every context c, which itself enters without any constraint.

The context goes through a network of its own, an embedding with no bound on its weights, and joins x at the input of a
Lipschitz network: its constant in (x, embedding) bounds the one in x, whatever the context is. So norms, certificate,
log-determinants and solvers of networks without a context hold for each context as they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from idensenet.errors import OptionError, ShapeError
from idensenet.lipschitz.linear import LipschitzMap
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.lipschitz.networks import Network


def embedding(context: int, width: int, outputs: int) -> nn.Sequential:
    """A small network without bounds."""
    return nn.Sequential(nn.Linear(context, width), nn.SiLU(), nn.Linear(width, outputs))


class InputMap(LinearMap):
    """The first `dims` columns of a Jacobian: the derivative in x alone."""

    def __init__(self, inner: LinearMap, dims: int, more: int) -> None:
        self.inner, self.dims, self.more = inner, dims, more

    def matvec(self, v: Tensor) -> Tensor:
        return self.inner.matvec(nn.functional.pad(v, (0, self.more)))

    def rmatvec(self, u: Tensor) -> Tensor:
        return self.inner.rmatvec(u)[..., : self.dims]

    def take(self, index: Tensor) -> InputMap:
        return InputMap(self.inner.take(index), self.dims, self.more)


class ConditionalNetwork(nn.Module):
    """`inner` on (x, embed(c)); it takes vectors of `dims` and as many numbers more as the embedding has."""

    def __init__(self, inner: Network, embed: nn.Module, dims: int, features: int) -> None:
        super().__init__()
        self.inner, self.embed, self.dims, self.features = inner, embed, dims, features
        self.norm = inner.norm

    def lipschitz(self, norm_of: Callable[[LipschitzMap], float]) -> float:
        """A bound on Lip(g) in x, for every context."""
        return self.inner.lipschitz(norm_of)

    def given(self, context: Tensor | None) -> Given:
        """g at these contexts, one for each sample."""
        if context is None:
            raise OptionError("This flow is conditional: give it a context for each sample.")
        return Given(self, context)


class Given:
    """A conditional network at a context: what estimators and solvers take for a network."""

    def __init__(self, net: ConditionalNetwork, context: Tensor) -> None:
        self.net, self.context, self.norm = net, context, net.norm
        self._embedded: Tensor | None = None  # where no gradient is recorded

    def parameters(self) -> Iterator[Tensor]:
        """What a gradient may be asked for: the weights, and the context."""
        yield from self.net.parameters()
        yield self.context

    def _joined(self, x: Tensor) -> Tensor:
        if len(x) != len(self.context):
            raise ShapeError(f"There are {len(x)} samples but {len(self.context)} contexts; give one for each.")
        if torch.is_grad_enabled():
            return torch.cat([x, self.net.embed(self.context)], 1)
        if self._embedded is None:  # a solver asks again and again
            self._embedded = self.net.embed(self.context)
        return torch.cat([x, self._embedded], 1)

    def __call__(self, x: Tensor) -> Tensor:
        value: Tensor = self.net.inner(self._joined(x))
        return value

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        y, J = self.net.inner.linearize(self._joined(x))
        return y, InputMap(J, self.net.dims, self.net.features)

    def push(self, x: Tensor, v: Tensor, low: bool = False) -> tuple[Tensor, Tensor, LinearMap]:
        y, product, J = self.net.inner.push(self._joined(x), nn.functional.pad(v, (0, self.net.features)), low)
        return y, product, InputMap(J, self.net.dims, self.net.features)

    def take(self, index: Tensor) -> Given:
        """At the contexts of some samples only."""
        return Given(self.net, self.context[index])
