"""Stacks of networks g for x + g(x): layers whose parameters have a leading axis of K blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from idensenet.errors import OptionError
from idensenet.lipschitz.activations import Activation, Folded, Mix, combined
from idensenet.lipschitz.branch import Branch, Plan, Step, pull, push
from idensenet.lipschitz.dense import DenseLayer
from idensenet.lipschitz.linear import LipschitzMap, Refreshing, maps_of, refresh_norms
from idensenet.precision import EXACT, Precision

LEAN: dict[str, Any] = {"size_asserts": False, "alignment_asserts": False}  # small blocks feel every call
Layer = LipschitzMap | Activation | DenseLayer
Norms = Callable[[LipschitzMap], list[float]]


def _steps(layers: Sequence[Layer]) -> tuple[Step, ...]:
    """How `push` computes the layers: each linear map with the activation behind it."""
    steps: list[Step] = []
    for layer in layers:
        if isinstance(layer, DenseLayer):
            steps.append(Step(layer.linear, layer.activation, layer))
        elif isinstance(layer, Activation):
            steps.append(Step(steps.pop().linear if steps else None, layer))
        else:
            steps.append(Step(layer))
    return tuple(steps)


class Stack:
    """What a public call works with: the tensors of K blocks, [K, ...] for each step, and the branches made of them."""

    def __init__(self, plan: Plan, steps: Sequence[Sequence[Tensor]]) -> None:
        self.plan, self.steps = plan, steps

    @cached_property
    def branches(self) -> list[Branch]:
        """g of each block. They keep the graph of the weights, also if the first to ask records no gradient."""
        with torch.inference_mode(False), torch.enable_grad():
            parts = [zip(*[tensor.unbind() for tensor in step], strict=True) for step in self.steps]
            return [Branch(self.plan, block) for block in zip(*parts, strict=True)]

    def __getitem__(self, block: int) -> Branch:
        return self.branches[block]

    def detached(self) -> Stack:
        """The same without a graph."""
        return Stack(self.plan, [[tensor.detach() for tensor in step] for step in self.steps])


class Network(Refreshing):
    """K networks g of one shape, as a chain of layers, the last a linear map; each layer has the parameters of all K.

    `prepare` normalises and folds the weights of all blocks together and returns K branches, which are functions of plain
    tensors. Nothing else computes a network.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        maps = list(maps_of(self))
        found = {m.norm for m in maps}
        if len(found) != 1:
            raise OptionError(f"The layers of a network must all be normalised in one norm, not in {sorted(found)}.")
        sizes = {m.blocks for m in maps} | {a.blocks for a in self.modules() if isinstance(a, Activation)}
        if len(sizes) != 1:
            raise OptionError(f"The layers of a network must all have the same number of blocks, not {sorted(sizes)}.")
        kinds = {type(m) for m in maps}
        if len(kinds) != 1:
            raise OptionError("The linear maps of a network must all be matrices or all convolutions.")
        self.norm: float = found.pop()
        self.blocks: int = sizes.pop()
        self.plan = Plan(kinds.pop(), _steps(layers))
        self.compiled: tuple[Callable[[], list[list[Tensor]]], Plan] | None = None  # `fold` and the plan, compiled

    def fold(self) -> list[list[Tensor]]:
        """The tensors [K, ...] of each step: normalised weights with all factors in them, biases, parameters of activations.

        Returns:
            A list of tensors for each step.
        """
        first = next(maps_of(self))
        one = torch.ones_like(first.bias[:, 0])
        steps: list[list[Tensor]] = []
        scale = one[:, None]  # [K, inputs] or [K, 1]: the factors of what reaches the next map,
        mixes: list[tuple[int, Mix | None]] = []  # how many of its inputs come from where, and how they are mixed
        for step in self.plan.steps:
            folded = Folded() if step.activation is None else step.activation.folded()
            inner, outer = (one if each is None else each for each in (folded.inner, folded.outer))
            if step.linear is None:
                made, tensors = first.inputs, [inner]
            else:
                made = step.linear.outputs * (1 if step.activation is None else step.activation.expansion)
                tensors = [_mixed(step.linear.normalized(scale, inner), mixes), step.linear.bias * inner[:, None]]
            steps.append([*tensors, *folded.own])
            if step.dense is None:
                scale, mixes = outer[:, None], [(made, folded.mix)]
            else:
                inputs = step.dense.linear.inputs
                a, b = torch.split(step.dense.lip * step.dense.eta(), 1, 1)
                scale = torch.cat([(a * scale).expand(-1, inputs), (b * outer[:, None]).expand(-1, made)], 1)
                mixes = [*(mixes or [(inputs, None)]), (made, folded.mix)]
        return steps

    def fold_anew(self) -> list[list[Tensor]]:
        """The same, with norms that are computed first. They are marked as unknown, so that any other use computes them again.

        Returns:
            A list of tensors for each step.
        """
        with torch.no_grad():
            for linear in maps_of(self):
                linear.compute_norms(False)
                linear.fingerprint.fill_(-1)
        return self.fold()

    def refreshes(self) -> bool:
        return self.compiled is not None and not self._iterated() and torch.is_grad_enabled()

    def _iterated(self) -> bool:
        return any(m.iterated for m in maps_of(self))

    def prepared(self, precision: Precision = EXACT) -> Stack:
        """The K branches, given norms that are up to date.

        Args:
            precision: How products are rounded.

        Returns:
            The branches.
        """
        # evaluation and solvers meet one batch size after another, and each would be compiled anew
        fold, plan = self.compiled if self.compiled and torch.is_grad_enabled() else (self.fold, self.plan)
        with EXACT.products(next(self.parameters()).device):  # norms and their gradients are never rounded
            steps = fold()
        stack = Stack(plan, [[precision.rounded(tensor) for tensor in step] for step in steps])
        return stack if torch.is_grad_enabled() else stack.detached()  # parameters among them need a gradient

    def prepare(self, precision: Precision = EXACT) -> Stack:
        """The K branches, for the weights as they are now.

        Args:
            precision: How products are rounded.

        Returns:
            The branches.
        """
        refresh_norms(self)
        return self.prepared(precision)

    def compile_functions(self, on: bool = True) -> None:
        """Compile the functions of this stack, or stop using compiled ones. No other stack shares the compiled code.

        Args:
            on: Whether to use compiled code.
        """
        if not on:
            self.compiled = None
            return
        plan = replace(self.plan, push=compiled(push), pull=compiled(pull))
        # where norms are iterated, the pieces of `fold` would be compiled, and stacks would share them
        self.compiled = self.fold if self._iterated() else compiled(type(self).fold_anew, self), plan

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "compiled": None}  # compiled functions stay behind

    def check(self, x: Tensor) -> None:
        """Raises a ShapeError unless x has the shape that this network takes.

        Args:
            x: Samples [batch, *event].
        """
        first = self.layers[0]
        next(maps_of(self)).check(x, first.expansion if isinstance(first, Activation) else 1)

    def forward(self, x: Tensor, block: int = 0) -> Tensor:
        """g(x) of one block.

        Args:
            x: Samples [batch, *event].
            block: Which block.

        Returns:
            g(x).
        """
        self.check(x)
        return self.prepare()[block](x)

    def lipschitz(self, norms: Norms) -> list[float]:
        """A bound on Lip(g) of each block, given bounds on the norms of its linear maps.

        Args:
            norms: Certified norms of linear maps.

        Returns:
            One bound for each block.
        """
        bounds = [1.0] * self.blocks
        for layer in self.layers:
            if isinstance(layer, DenseLayer):
                found = layer.lipschitz(norms(layer.linear))
            elif isinstance(layer, LipschitzMap):
                found = norms(layer)
            else:
                assert isinstance(layer, Activation)
                found = [layer.lipschitz(self.norm)] * self.blocks
            bounds = [a * b for a, b in zip(bounds, found, strict=True)]
        return bounds


def compiled(function: Any, owner: Any = None, **options: Any) -> Any:
    """The compiled function, or method of `owner`, with a code object of its own.

    Compiled code is found by code object, and torch limits the number of versions of each, so nobody shares one.
    """
    own = FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    return torch.compile(own if owner is None else MethodType(own, owner), dynamic=False, options={**LEAN, **options})


class DenseBlock(Network):
    """[a linear map,] dense layers, and a closing linear map: the g of an i-DenseNet.

    Args:
        layers: Linear maps and dense layers, the last a linear map.

    Raises:
        OptionError: The layers do not fit together.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        if not layers or isinstance(layers[-1], DenseLayer):
            raise OptionError(
                "A dense block ends with a closing linear map, whose weight takes the factors of the concatenation."
            )
        if any(isinstance(layer, Activation) for layer in layers):
            raise OptionError("A dense block is made of linear maps and dense layers; an activation belongs into a layer.")
        super().__init__(layers)


def _mixed(weight: Tensor, mixes: Sequence[tuple[int, Mix | None]]) -> Tensor:
    """The weight of a map of activations as a weight of their cores: the columns of each group times its mix."""
    if not any(mix for _, mix in mixes):
        return weight
    found: list[Tensor] = []
    for columns, (_, mix) in zip(torch.split(weight, [size for size, _ in mixes], 2), mixes, strict=True):
        if mix is None:
            found.append(columns)
        else:
            found += [combined(factors, columns.chunk(len(mix), 2)) for factors in zip(*mix, strict=True)]
    return torch.cat(found, 2)


class ResidualNet(Network):
    """Linear maps with activations in between, and perhaps one in front: the g of an i-ResNet or a Residual Flow.

    Args:
        layers: Linear maps and activations in turns, the last a linear map.

    Raises:
        OptionError: The layers do not fit together.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        linear = [isinstance(layer, LipschitzMap) for layer in reversed(layers)]
        if linear != [i % 2 == 0 for i in range(len(layers))]:
            raise OptionError("In a residual net linear maps and activations take turns, and a linear map is the last.")
        super().__init__(layers)
