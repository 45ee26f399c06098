"""Dense blocks on vectors, many of one shape prepared together: for each block one tensor with all that it is made of.

A small model spends its time on thousands of small operations. Here the weights of all blocks are normalised and folded in
batched operations, and a block is a function of two tensors, its input and its row of the pack, which is compiled once for all
blocks. Inside, a feature is a row and samples are columns: long rows suit vector units, and concatenation is a plain copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor

from idensenet.lipschitz.activations import Activation
from idensenet.lipschitz.dense import DenseLayer, concatenation_weights
from idensenet.lipschitz.linear import fresh_norms
from idensenet.lipschitz.networks import DenseBlock
from idensenet.lipschitz.scope import scope, under
from idensenet.lipschitz.update import fields

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Step:
    """One linear map of a block, and the activation behind it in a dense layer."""

    inputs: int
    outputs: int
    coeff: float
    lip: float | None
    kind: tuple[object, ...] | None  # what tells one activation from another
    activation: Activation | None = field(compare=False)
    parameters: int = 0  # of the activation, numbers each

    @property
    def sizes(self) -> list[int]:
        """Of its parts in a row: weight, bias, parameters of the activation."""
        return [self.outputs * self.inputs, self.outputs, *[1] * self.parameters]


@dataclass(frozen=True)
class Plan:
    """What a dense block on vectors is but for its numbers."""

    norm: float
    steps: tuple[Step, ...]

    @property
    def dims(self) -> int:
        return self.steps[0].inputs

    @property
    def hidden(self) -> int:
        """Numbers that go into an activation."""
        return sum(step.outputs for step in self.steps[:-1])

    @property
    def narrow(self) -> bool:
        """Whether `value_and_core` has smaller matrices than the Jacobian (that of two dimensions has a formula).

        It takes dense layers and a closing map; some blocks begin with a linear map.
        """
        layers = all(step.activation is not None for step in self.steps[:-1])
        return layers and self.hidden < self.dims and self.dims > 2

    @staticmethod
    def of(block: DenseBlock) -> Plan:
        """Kept with the block, and made anew when a layer or one of its constants was exchanged."""
        parts = [part for layer in block.layers for part in (layer, *layer._modules.values(), layer.__dict__.get("lip"))]
        parts += [linear.coeff for linear in block.maps()]
        known: tuple[list[object], Plan] | None = block.__dict__.get("_plan")
        if known is not None and known[0] == parts:
            return known[1]
        plan = Plan._of(block)
        block.__dict__["_plan"] = parts, plan
        return plan

    @staticmethod
    def _of(block: DenseBlock) -> Plan:
        steps = []
        for layer, linear in zip(block.layers, block.maps(), strict=True):
            outputs, inputs = linear.weight.shape
            if isinstance(layer, DenseLayer):
                act = layer.activation
                kind = (type(act), getattr(act, "scale", None))
                steps.append(Step(inputs, outputs, linear.coeff, layer.lip, kind, act, len(act._parameters)))
            else:
                steps.append(Step(inputs, outputs, linear.coeff, None, None, None))
        return Plan(block.norm, tuple(steps))


def packable(g: object) -> TypeGuard[DenseBlock]:
    """Whether g is a dense block on vectors, and no subclass that may do something else."""
    return type(g) is DenseBlock and g.maps()[0].weight.ndim == 2


@dataclass
class Numbers:
    """The numbers of one step, of many blocks: [blocks, *shape of one]."""

    weight: Tensor
    sigma: Tensor
    slope: Tensor | None  # d sigma / d weight, where gradients are recorded
    bias: Tensor
    k: Tensor | None
    own: list[Tensor]


def numbers(plan: Plan, blocks: Sequence[DenseBlock]) -> list[Numbers]:
    found = []
    columns = zip(*[block.layers for block in blocks], strict=True)
    for step, layers in zip(plan.steps, columns, strict=True):
        maps = [layer._modules["linear"] for layer in layers] if step.activation is not None else layers
        weight = torch.stack(fields(maps, "weight"))
        recorded = torch.is_grad_enabled() and weight.requires_grad
        found.append(
            Numbers(
                weight,
                torch.stack(fields(maps, "sigma")),
                torch.stack([m.norm_gradient() for m in maps]) if recorded else None,
                torch.stack(fields(maps, "bias")),
                torch.stack([layer.k for layer in layers]) if step.activation is not None else None,
                [torch.stack(each) for each in zip(*[layer.activation.parameters() for layer in layers], strict=True)]
                if step.parameters
                else [],
            )
        )
    return found


def pack(plan: Plan, found: Sequence[Numbers]) -> Tensor:
    """[blocks, numbers]: the weights in use with the concatenation in their columns, biases, parameters of activations.

    Tensor arithmetic only: a function to compile.
    """
    parts: list[Tensor] = []
    scale: Tensor | None = None
    for step, part in zip(plan.steps, found, strict=True):
        sigma = part.sigma
        if part.slope is not None:
            product = (part.slope * part.weight).sum((1, 2))
            sigma = sigma + (product - product.detach())
        factor = torch.clamp(sigma / step.coeff, min=1).reciprocal()[:, None]
        if scale is not None:
            factor = factor * scale
        parts += [(part.weight * factor[:, None]).flatten(1), part.bias, *[each[:, None] for each in part.own]]
        if step.activation is not None and part.k is not None and step.lip is not None:
            a, b = torch.split(step.lip * concatenation_weights(part.k, plan.norm), 1, 1)
            kept = a * scale if scale is not None else a.expand(-1, step.inputs)
            scale = torch.cat([kept, b.expand(-1, step.outputs * step.activation.expansion)], 1)
    return torch.cat(parts, 1)


def value_and_jacobian(x: Tensor, plan: Plan, row: Tensor) -> tuple[Tensor, Tensor]:
    """g(x) and its Jacobians [batch, D, D]: tensor arithmetic only, a function to compile."""
    n, dims = x.shape
    units = torch.eye(dims, dtype=x.dtype, device=x.device)[:, :, None].expand(dims, dims, n)
    rows = torch.cat([x.T[:, None], units], 1).flatten(1)  # [features, (1 + D) samples]: the value, then the tangents
    parts = iter(torch.split(row, [size for step in plan.steps for size in step.sizes]))
    for step in plan.steps:
        weight, bias, *own = (next(parts) for _ in step.sizes)
        moved = (weight.view(step.outputs, step.inputs) @ rows).view(step.outputs, 1 + dims, n)
        value, tangents = moved[:, 0] + bias[:, None], moved[:, 1:]
        if step.activation is None:
            rows = torch.cat([value[:, None], tangents], 1).flatten(1)
        else:
            values, slopes = step.activation.curves(value, *own)
            grown = [
                torch.cat([y[:, None], slope[:, None] * tangents], 1).flatten(1)
                for y, slope in zip(values, slopes, strict=True)
            ]
            rows = torch.cat([rows, *grown])
    out = rows.view(dims, 1 + dims, n)
    return out[:, 0].T, out[:, 1:].permute(2, 0, 1)


def closing_parts(plan: Plan, row: Tensor) -> tuple[Tensor, Tensor]:
    """The closing map is [A, U], with columns for x and for what the activations made: A and (I + A)^-1 U.

    A comes out of a map of norm below one, so I + A has an inverse.
    """
    dims = plan.dims
    weight = torch.split(row, [size for step in plan.steps for size in step.sizes])[-2].view(dims, -1)
    A, U = weight[:, :dims], weight[:, dims:]
    return A, torch.linalg.solve(torch.eye(dims, dtype=row.dtype, device=row.device) + A, U)


def value_and_core(x: Tensor, plan: Plan, row: Tensor, solved: Tensor) -> tuple[Tensor, Tensor]:
    """g(x), and matrices C [batch, hidden, hidden] with det(I + J) = det(I + A) det(I + C).

    With P(x) the Jacobian of what goes into the activations and S(x) their slopes, J = A + U S P, so C = P (I + A)^-1 U S.
    `solved` is (I + A)^-1 U.
    """
    dims, layers = plan.dims, plan.steps[:-1]
    parts = iter(torch.split(row, [size for step in plan.steps for size in step.sizes]))
    values = x.T
    weights: list[Tensor] = []
    slopes: list[tuple[Tensor, ...]] = []
    for step in layers:
        weight, bias, *own = (next(parts) for _ in step.sizes)
        weights.append(weight.view(step.outputs, step.inputs))
        assert step.activation is not None
        curves, found = step.activation.curves(weights[-1] @ values + bias[:, None], *own)
        values = torch.cat([values, *curves])
        slopes.append(found)
    closing, bias = parts
    value = closing.view(dims, -1) @ values + bias[:, None]
    # The part of P that comes from x directly has the same matrix for all samples,
    direct = torch.cat([weight[:, :dims] for weight in weights]) @ solved
    columns = iter(torch.split(direct, [step.outputs for step, found in zip(layers, slopes, strict=True) for _ in found], 1))
    base = []
    for found in slopes:
        first, *others = [next(columns)[:, :, None] * slope for slope in found]
        base.append(sum(others, first))
    # and the rest comes through the layers before.
    rows: list[Tensor] = []
    grown: list[Tensor] = []
    for weight, part, found in zip(weights, torch.split(torch.cat(base, 1), [*map(len, weights)]), slopes, strict=True):
        rows.append(part + (weight[:, dims:] @ torch.cat(grown).flatten(1)).view(part.shape) if grown else part)
        grown += [slope[:, None] * rows[-1] for slope in found]
    return value.T, torch.cat(rows).permute(2, 0, 1)


def packed(g: object, x: Tensor, compile: Compile | None = None) -> tuple[Plan, Tensor] | None:
    """The plan of a block and its row, made together with those of all like blocks of the model that is in use.

    None if g is no dense block on vectors.
    """
    recorded = torch.is_grad_enabled()
    if (id(g), recorded) not in scope.packs:
        if not packable(g):
            return None
        g.maps()[0].checked(x)
        with fresh_norms(g):
            plan = Plan.of(g)
            known = [b for b in under(scope.root, DenseBlock) if packable(b)] if scope.root is not None else []
            peers = [b for b in known if b is g or Plan.of(b) == plan]
            if not any(b is g for b in peers):
                peers = [g]
            rows = (compile(pack) if compile else pack)(plan, numbers(plan, peers)).unbind()
            scope.packs.update({(id(b), recorded): (plan, row) for b, row in zip(peers, rows, strict=True)})
            return plan, rows[next(i for i, b in enumerate(peers) if b is g)]
    found: tuple[Plan, Tensor] = scope.packs[id(g), recorded]
    return found
