"""Stacks of linear layers whose norm never exceeds `coeff`: weight / max(1, sigma(weight) / coeff).

The norm is the operator's. It is saved with the weights (`left`, `right`, `sigma`) next to a fingerprint of the weights that
it belongs to. `refresh_norms` compares fingerprints once per public call: whatever wrote the weights (an optimiser, a load,
averaging, `.data`), the next use sees norms of these weights, and if they have not changed, nothing is computed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from idensenet.errors import NonFiniteError, OptionError, ShapeError
from idensenet.lipschitz import bounds, norms
from idensenet.lipschitz.fingerprint import fingerprints
from idensenet.precision import for_norms


class LipschitzMap(nn.Module, ABC):
    """K affine maps x -> W x + b with |W| <= coeff in the chosen p-norm.

    Inside a branch, values are `rows`: tensors in the layout that suits the map, with `channels` and `samples` as the
    dimensions of features and of samples. `product` and `product_back` work on the weight of one block.

    Args:
        weight: The parameters [K, outputs, inputs, ...], initialised here.
        coeff: The bound on the norm, strictly between 0 and 1.
        norm: 1, 2 or infinity.
        left: Buffer for the left singular vectors, [K, ...].
        right: Buffer for the right singular vectors, [K, ...].
    """

    channels: int
    samples: int
    event: int  # dimensions of a sample
    maps: tuple[int, int] | None = None  # the maps that a kernel acts on; None where the weight of a block is a matrix
    iterated = False  # whether norms are found by iteration; then torch.compile cannot trace `normalized` as one graph
    left: Tensor
    right: Tensor
    sigma: Tensor
    fingerprint: Tensor

    def __init__(self, weight: Tensor, coeff: float, norm: float, left: Tensor, right: Tensor) -> None:
        super().__init__()
        if not 0 < coeff < 1:
            raise OptionError(f"coeff={coeff} must lie strictly between 0 and 1, or the block may have no inverse.")
        self.coeff, self.norm = coeff, norms.checked_norm(norm)
        self.blocks, self.outputs, self.inputs = weight.shape[:3]
        bound = 1 / math.sqrt(max(1, weight[0, 0].numel()))
        self.weight = nn.Parameter(weight.uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(self.blocks, self.outputs).uniform_(-bound, bound))
        self.register_buffer("left", left)
        self.register_buffer("right", right)
        self.register_buffer("sigma", torch.ones(self.blocks))
        self.register_buffer("fingerprint", torch.tensor(-1))

    # How a map acts

    @staticmethod
    @abstractmethod
    def laid_out(x: Tensor) -> Tensor:
        """Samples [batch, *event] in memory as rows want them; blocks pass this layout on.

        Args:
            x: Samples [batch, *event].

        Returns:
            The same values in another layout.
        """

    @staticmethod
    @abstractmethod
    def enter(x: Tensor) -> Tensor:
        """Samples [batch, *event], or vectors [probes, batch, *event], as rows.

        Args:
            x: Samples or vectors.

        Returns:
            Rows.
        """

    @staticmethod
    @abstractmethod
    def leave(rows: Tensor, lead: Sequence[int]) -> Tensor:
        """Rows as a tensor [*lead, *event].

        Args:
            rows: Rows.
            lead: The leading dimensions of the result.

        Returns:
            The tensor.
        """

    @staticmethod
    @abstractmethod
    def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """W rows + b, for the weight and the bias of one block.

        Args:
            rows: Rows.
            weight: The normalised weight of one block.
            bias: Its bias, if there is one.

        Returns:
            Rows.
        """

    @staticmethod
    @abstractmethod
    def product_back(rows: Tensor, weight: Tensor) -> Tensor:
        """W' rows, for the weight of one block.

        Args:
            rows: Rows.
            weight: The weight of one block.

        Returns:
            Rows.
        """

    @abstractmethod
    def check(self, x: Tensor, expansion: int = 1) -> None:
        """Raises a ShapeError unless x has the shape that this map takes, behind an activation with this expansion.

        Args:
            x: Samples or vectors.
            expansion: How many numbers the activation in front makes of one.
        """

    # What its norm is

    def norm_product(self) -> Tensor:
        """u' W v of each block, [K], as a differentiable function of the weight with u and v held fixed.

        Returns:
            Norms [K].
        """
        if self.norm != 2:
            return norms.induced_norms(self.weight, self.norm, self.maps)
        left, right = self.left.clone(), self.right.clone()  # the buffers may change before the backward pass
        return ((left.flatten(1)[:, None] @ self.weight.flatten(2)) @ right.flatten(1)[:, :, None]).flatten()

    def compute_norms(self, back: bool) -> None:
        """Write `sigma`, `left` and `right` for the weights as they are; `back` picks one of two half-steps of iteration.

        Args:
            back: Which of two half-steps an iteration takes.
        """
        if self.norm != 2:
            self.sigma.copy_(norms.induced_norms(self.weight, self.norm, self.maps))
            return
        sigma, left, right = self.singular(back)
        found = [sigma, left.view_as(self.left), right.view_as(self.right)]
        torch._foreach_copy_([self.sigma, self.left, self.right], found)

    def singular(self, back: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The largest singular value of each block, with its vectors on the left and on the right.

        Args:
            back: Which of two half-steps an iteration takes.

        Returns:
            Norms [K], left and right singular vectors.
        """
        return norms.matrix_norms(self.weight.flatten(2))

    def bounds(self) -> list[float]:
        """A guaranteed upper bound on the norm of the map in use, for each block.

        Returns:
            One bound for each block.
        """
        return bounds.operator_bounds(self.normalized(), self.maps, self.norm, self.sigma.clamp(max=self.coeff))

    def estimated(self) -> bool:
        """Whether the norms are warm-started estimates from training that evaluation should recompute."""
        return False

    def normalized(self, columns: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """The weights in use, [K, ...].

        Args:
            columns: A factor for each input channel, [K, inputs] or [K, 1].
            rows: A factor for all outputs of a block, [K].

        Returns:
            Weights [K, outputs, inputs, ...].
        """
        sigma = self.sigma
        if torch.is_grad_enabled() and self.weight.requires_grad:
            product = self.norm_product()
            sigma = sigma + (product - product.detach())  # the value is the saved norm
        factor = torch.clamp(sigma / self.coeff, min=1).reciprocal()
        factor = (factor if rows is None else factor * rows)[:, None]
        factor = factor if columns is None else factor * columns
        return self.weight * factor.view(self.blocks, 1, -1, *[1] * (self.weight.ndim - 3))

    def normalized_weight(self) -> Tensor:
        """The weights in use, [K, ...], for the weights as they are now.

        Returns:
            Weights [K, outputs, inputs, ...].
        """
        refresh_norms(self)
        return self.normalized()

    def forward(self, x: Tensor, block: int = 0) -> Tensor:
        """W x + b of one block.

        Args:
            x: Samples [batch, *event].
            block: Which block.

        Returns:
            W x + b.
        """
        self.check(x)
        weight = self.normalized_weight()[block]
        return self.leave(self.product(self.enter(x), weight, self.bias[block]), x.shape[:1])

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        kept = {prefix + name: buffer for name, buffer in self.named_buffers(recurse=False)}
        if not kept.keys() <= state_dict.keys():  # norms follow from the weights, so a state is whole without them
            state_dict.update({**kept, f"{prefix}fingerprint": torch.full_like(self.fingerprint, -1)})
        super()._load_from_state_dict(state_dict, prefix, *rest)


class LipschitzLinear(LipschitzMap):
    """W x + b on vectors. The norm is exact.

    Args:
        inputs: Number of inputs.
        outputs: Number of outputs.
        coeff: Bound on the norm, strictly between 0 and 1.
        norm: p: 1, 2 or infinity.
        blocks: K, the number of blocks in the stack.

    >>> layer = LipschitzLinear(3, 2, coeff=0.9)
    >>> bool(torch.linalg.matrix_norm(layer.normalized_weight()[0], 2) <= 0.9 + 1e-6)
    True
    """

    channels, samples, event = 0, 1, 1  # long rows of samples suit vector units, and concatenation is a plain copy

    def __init__(self, inputs: int, outputs: int, coeff: float = 0.98, norm: float = 2.0, blocks: int = 1) -> None:
        weight = torch.empty(blocks, outputs, inputs)
        super().__init__(weight, coeff, norm, torch.zeros(blocks, outputs), torch.zeros(blocks, inputs))

    @staticmethod
    def laid_out(x: Tensor) -> Tensor:
        return x.mT.contiguous().mT

    @staticmethod
    def enter(x: Tensor) -> Tensor:
        return x.flatten(0, -2).mT

    @staticmethod
    def leave(rows: Tensor, lead: Sequence[int]) -> Tensor:
        return rows.mT.reshape(*lead, len(rows))

    @staticmethod
    def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return weight @ rows if bias is None else torch.addmm(bias[:, None], weight, rows)

    @staticmethod
    def product_back(rows: Tensor, weight: Tensor) -> Tensor:
        return weight.mT @ rows

    def check(self, x: Tensor, expansion: int = 1) -> None:
        want = self.inputs // expansion
        if x.shape[-1] != want:
            raise ShapeError(f"This layer takes vectors of {want} numbers, not a tensor of shape {tuple(x.shape)}.")


class Refreshing(nn.Module):
    """A module that may compute the norms of its maps itself, in the same compiled function that normalises their weights."""

    def refreshes(self) -> bool:
        """Whether it does so where this is asked.

        Returns:
            True if nobody else needs to.
        """
        return False


def maps_of(root: nn.Module) -> Iterator[LipschitzMap]:
    """All Lipschitz maps under a module, in order."""
    for module in root.modules():
        if isinstance(module, LipschitzMap):
            yield module


def without_norms(root: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state of `root` without norms and singular vectors, which are most of it for images; the first use computes them."""
    maps = [(name, module) for name, module in root.named_modules() if isinstance(module, LipschitzMap)]
    norms_of = {f"{name}.{buffer}" for name, module in maps for buffer, _ in module.named_buffers(recurse=False)}
    return {name: value for name, value in state.items() if name not in norms_of}


def refresh_norms(root: nn.Module) -> int:
    """Bring the norms of all maps under `root` up to date with their weights; returns how many stacks were not."""
    elsewhere = {m for each in root.modules() if isinstance(each, Refreshing) and each.refreshes() for m in maps_of(each)}
    maps = [m for m in maps_of(root) if m not in elsewhere]
    if not maps:
        return 0
    with for_norms(maps[0].weight):
        found = fingerprints([m.weight for m in maps])
        codes, known = found.tolist(), torch.stack([m.fingerprint for m in maps]).tolist()
        stale = [i for i, m in enumerate(maps) if codes[i] != known[i] or m.estimated()]
        if stale and not bool(torch.isfinite(torch.stack([maps[i].weight.sum().float() for i in stale])).all()):
            raise NonFiniteError("A weight is NaN or infinite, so it has no norm; go back to an earlier checkpoint.")
        for i in stale:
            # a bit of the fingerprint is as good as a coin, and the same after a resume and on every rank
            maps[i].compute_norms(back=bool(codes[i] & 1))
        if stale:
            fresh = found.unbind()
            torch._foreach_copy_([maps[i].fingerprint for i in stale], [fresh[i] for i in stale])
    return len(stale)
