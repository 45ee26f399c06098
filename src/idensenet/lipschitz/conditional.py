"""Networks g(x, c) that are Lipschitz in x for every context c, which itself enters without any constraint.

The context goes through an embedding with no bound on its weights, and joins x at the input of a Lipschitz network: the
constant of that network in (x, embedding) bounds its constant in x, whatever the context is. So norms, certificates,
log-determinants and solvers of networks without a context hold for each context as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from idensenet.errors import OptionError, ShapeError
from idensenet.lipschitz.branch import Branch
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.lipschitz.networks import Network, Norms, Stack
from idensenet.precision import EXACT, Precision


class Embedding(nn.Module):
    """K small networks without bounds: linear, SiLU, linear."""

    def __init__(self, context: int, width: int, outputs: int, blocks: int = 1) -> None:
        super().__init__()
        self.context, self.width, self.outputs, self.blocks = context, width, outputs, blocks
        sizes = ((context, width), (width, outputs))

        def uniform(limit: float, *size: int) -> Tensor:
            return torch.empty(blocks, *size).uniform_(-limit, limit)

        self.weights = nn.ParameterList(uniform(inputs**-0.5, inputs, made) for inputs, made in sizes)
        self.biases = nn.ParameterList(uniform(inputs**-0.5, 1, made) for inputs, made in sizes)

    def forward(self, context: Tensor) -> Tensor:
        """[batch, context] -> [K, batch, outputs]."""
        rows = context.expand(self.blocks, *context.shape)
        hidden = nn.functional.silu(torch.baddbmm(self.biases[0], rows, self.weights[0]))
        return torch.baddbmm(self.biases[1], hidden, self.weights[1])


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
    """`inner` on (x, embed(c)): it takes vectors of `dims` numbers and the outputs of the embedding."""

    def __init__(self, inner: Network, embed: Embedding, dims: int) -> None:
        super().__init__()
        if embed.blocks != inner.blocks:
            raise OptionError(f"The embedding has {embed.blocks} blocks but the network {inner.blocks}; give both the same.")
        self.inner, self.embed, self.dims = inner, embed, dims
        self.norm, self.blocks, self.plan = inner.norm, inner.blocks, inner.plan

    def prepared(self, precision: Precision = EXACT) -> Stack:
        """The branches in (x, embedding), given norms that are up to date."""
        return self.inner.prepared(precision)

    def compile_functions(self, on: bool = True) -> None:
        """Compile the functions of the network, or stop using compiled ones."""
        self.inner.compile_functions(on)

    def check(self, x: Tensor) -> None:
        """Raises a ShapeError unless x has the shape that this network takes."""
        if x.shape[1:] != (self.dims,):
            raise ShapeError(f"This layer takes vectors of {self.dims} numbers, not a tensor of shape {tuple(x.shape)}.")

    def lipschitz(self, norms: Norms) -> list[float]:
        """A bound on Lip(g) in x of each block, for every context."""
        return self.inner.lipschitz(norms)

    def embedded(self, context: Tensor | None) -> Tensor:
        """[K, batch, features], for contexts [batch, numbers]."""
        if context is None:
            raise OptionError("This flow is conditional: give it a context for each sample.")
        found: Tensor = self.embed(context)
        return found


class Given:
    """A conditional branch at the embedded contexts of a batch."""

    def __init__(self, inner: Branch, embedded: Tensor) -> None:
        self.inner, self.embedded = inner, embedded

    def _joined(self, x: Tensor) -> Tensor:
        if len(x) != len(self.embedded):
            raise ShapeError(f"There are {len(x)} samples but {len(self.embedded)} contexts; give one for each.")
        return torch.cat([x, self.embedded], 1)

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner(self._joined(x))

    def linearize(self, x: Tensor) -> tuple[Tensor, LinearMap]:
        y, J = self.inner.linearize(self._joined(x))
        return y, InputMap(J, x.shape[1], self.embedded.shape[1])

    def push(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, LinearMap]:
        y, product, J = self.inner.push(self._joined(x), nn.functional.pad(v, (0, self.embedded.shape[1])))
        return y, product, InputMap(J, x.shape[1], self.embedded.shape[1])

    def tensors(self) -> list[Tensor]:
        return [*self.inner.tensors(), self.embedded]

    def replaced(self, tensors: Sequence[Tensor]) -> Given:
        return Given(self.inner.replaced(tensors[:-1]), tensors[-1])

    def eager(self) -> Given:
        """The same without compiled functions."""
        return Given(self.inner.eager(), self.embedded)

    def take(self, index: Tensor) -> Given:
        """At the contexts of some samples only."""
        return Given(self.inner, self.embedded[index])
