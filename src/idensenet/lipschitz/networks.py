"""Stacks of networks g for x + g(x): layers whose parameters have a leading axis of K blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from idensenet.errors import OptionError
from idensenet.lipschitz.activations import Activation, Folded, Mix, combined
from idensenet.lipschitz.branch import Branch, Plan, Pull, Push, Step, pull, push
from idensenet.lipschitz.dense import DenseLayer
from idensenet.lipschitz.linear import LipschitzMap, maps_of, refresh_norms
from idensenet.precision import EXACT, Precision

LEAN: dict[str, Any] = {"size_asserts": False, "alignment_asserts": False}  # small blocks feel every call
Layer = LipschitzMap | Activation | DenseLayer
Norms = Callable[[LipschitzMap], list[float]]


def _step(layer: Layer) -> Step:
    """How `push` computes a layer."""
    if isinstance(layer, DenseLayer):
        return Step(True, layer.activation, dense=True)
    return Step(False, layer) if isinstance(layer, Activation) else Step(True, None)


@dataclass(frozen=True)
class Run:
    """The functions that compute a stack, compiled or not."""

    fold: Callable[[], list[list[Tensor]]]
    push: Push = push
    pull: Pull = pull


class Stack:
    """What a public call works with: the tensors of K blocks, [K, ...] for each step, and the branches made of them."""

    def __init__(self, plan: Plan, steps: Sequence[Sequence[Tensor]], push: Push = push, pull: Pull = pull) -> None:
        self.plan, self.steps = plan, steps
        self._run = push, pull

    @cached_property
    def branches(self) -> list[Branch]:
        """g of each block. They keep the graph of the weights, also if the first to ask records no gradient."""
        with ExitStack() as outside:
            if torch.is_inference_mode_enabled():
                outside.enter_context(torch.inference_mode(False))
            outside.enter_context(torch.enable_grad())
            parts = [list(zip(*[tensor.unbind() for tensor in step], strict=True)) for step in self.steps]
        empty: list[tuple[Tensor, ...]] = [()] * len(next(step[0] for step in self.steps if step))
        return [Branch(self.plan, block, *self._run) for block in zip(*[part or empty for part in parts], strict=True)]

    def __getitem__(self, block: int) -> Branch:
        return self.branches[block]

    def detached(self) -> Stack:
        """The same without a graph."""
        return Stack(self.plan, [[tensor.detach() for tensor in step] for step in self.steps], *self._run)


class Network(nn.Module):
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
        self.plan = Plan(kinds.pop(), tuple(_step(layer) for layer in layers))
        self.compile_functions(False)

    def fold(self) -> list[list[Tensor]]:
        """The tensors [K, ...] of each step: normalised weights with all factors in them, biases, parameters of activations.

        Returns:
            A list of tensors for each step.
        """
        steps: list[list[Tensor]] = []
        layers: list[Any] = [*self.layers, None]
        scale: Tensor | None = None  # [K, inputs] or [K, 1]: the factors of what reaches the next map,
        mixes: list[tuple[int, Mix | None]] = []  # how many of its inputs come from where, and how they are mixed
        for i, (layer, after) in enumerate(pairwise(layers)):
            if isinstance(layer, Activation):
                folded = layer.folded(behind=i > 0)
                steps.append(list(folded.own))
                scale = None if folded.outer is None else folded.outer[:, None]
                mixes = [(after.inputs, folded.mix)]
            elif isinstance(layer, DenseLayer):
                linear, folded = layer.linear, layer.activation.folded()
                steps.append([*_linear(linear, scale, mixes, folded), *folded.own])
                a, b = torch.split(layer.lip * layer.eta(), 1, 1)
                b = b if folded.outer is None else b * folded.outer[:, None]
                kept = a.expand(-1, linear.inputs) if scale is None else a * scale
                made = linear.outputs * layer.activation.expansion
                scale = torch.cat([kept, b.expand(-1, made)], 1)
                mixes = [*(mixes or [(linear.inputs, None)]), (made, folded.mix)]
            else:
                steps.append(_linear(layer, scale, mixes, after.folded() if isinstance(after, Activation) else Folded()))
                scale, mixes = None, []
        return steps

    def prepared(self, precision: Precision = EXACT) -> Stack:
        """The K branches, given norms that are up to date.

        Args:
            precision: How products are rounded.

        Returns:
            The branches.
        """
        # evaluation and solvers meet one batch size after another, and each would be compiled anew
        run = self.run if torch.is_grad_enabled() else Run(self.fold)
        steps = [[precision.rounded(tensor) for tensor in step] for step in run.fold()]
        stack = Stack(self.plan, steps, run.push, run.pull)
        return stack if torch.is_grad_enabled() else stack.detached()  # biases are the parameters themselves

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
            self.run = Run(self.fold)
            return
        whole = all(m.traceable for m in maps_of(self))  # else the pieces would be compiled, and stacks would share them
        self.run = Run(compiled(type(self).fold, self) if whole else self.fold, compiled(push), compiled(pull))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "run": None}  # compiled functions stay behind

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.compile_functions(False)

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

    @property
    def dense_layers(self) -> list[DenseLayer]:
        """The dense layers, in order."""
        return [layer for layer in self.layers if isinstance(layer, DenseLayer)]


def _linear(
    linear: LipschitzMap, columns: Tensor | None, mixes: Sequence[tuple[int, Mix | None]], behind: Folded
) -> list[Tensor]:
    """Weight and bias of a map, with factors and mixes of what stands before it and the inner factor of what is behind it."""
    weight = linear.normalized(columns, behind.inner)
    if any(mix for _, mix in mixes):
        groups = zip(torch.split(weight, [size for size, _ in mixes], 2), mixes, strict=True)
        weight = torch.cat([part for group, (_, mix) in groups for part in _unmixed(group, mix)], 2)
    return [weight, linear.bias if behind.inner is None else linear.bias * behind.inner[:, None]]


def _unmixed(weight: Tensor, mix: Mix | None) -> list[Tensor]:
    """The columns W mix, part by part: what the map does to an activation, as a map of the activation's core."""
    if mix is None:
        return [weight]
    parts = weight.chunk(len(mix), 2)
    return [combined(factors, parts) for factors in zip(*mix, strict=True)]


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
