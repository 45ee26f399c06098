"""The path of samples through a flow, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from idensenet.bijections import Bijection, Call, Chain, ContractionStack
from idensenet.flow import Flow, Prepared
from idensenet.precision import EXACT


@dataclass(frozen=True)
class Step:
    """One part of a flow and what it did.

    Args:
        name: What the part is, in words.
        value: The samples behind it.
        log_det: Its log-determinant for each sample.
    """

    name: str
    value: Tensor
    log_det: Tensor


def _blocks(stack: ContractionStack, x: Tensor, call: Call, steps: list[Step]) -> Tensor:
    """The blocks of a stack one by one, each with the ActNorm behind it."""
    method = stack.log_det if stack.training else stack.eval_log_det
    stack.g.check(x)
    y = stack.g.plan.kind.laid_out(x)
    scales = [None] * stack.blocks if stack.norm is None else stack.norm.rows()
    for k, (g, scale) in enumerate(zip(stack.branches(call), scales, strict=True)):
        y, measured = stack.forward_block(g, y, method, call.draws.fold(k))
        assert measured is not None
        log_det = method.total(measured[None], stack.series).value
        if scale is not None and stack.norm is not None:
            log_det = log_det + stack.norm.log_det(y, scale[0])
            y = stack.norm.affine(y, *scale)
        steps.append(Step(f"block {sum(step.name.startswith('block') for step in steps) + 1}", y, log_det))
    return y


def _part(part: Bijection, x: Tensor, call: Call, steps: list[Step]) -> Tensor:
    if isinstance(part, Chain):
        for i, each in enumerate(part):
            x = _part(each, x, call.part(i), steps)
        return x
    if isinstance(part, ContractionStack):
        return _blocks(part, x, call, steps)
    y, log_det = part.push(x, call)
    steps.append(Step(type(part).__name__, y, log_det))
    return y


@torch.no_grad()
def journey(flow: Flow, x: Tensor, prepared: Prepared | None = None) -> list[Step]:
    """Where samples are after each part of a flow, and what each part adds to the log-determinant.

    Args:
        flow: An unconditional flow without levels, in evaluation mode.
        x: Samples [batch, *shape].
        prepared: What `flow.prepare()` returned, if the caller has it.

    Returns:
        The samples themselves, then a step for the preprocessing, if there is any, and one for each block or other part. The
        last value is z, and the log-determinants add up to the one that `flow(x)` returns.
    """
    ready = prepared or flow.prepare()
    steps = [Step("data", x, torch.zeros(len(x), dtype=x.dtype, device=x.device))]
    with EXACT.products(flow.device):
        y, before, call = flow._before(x, None, False, None, ready)
        if not isinstance(flow.preprocess, Chain) or len(flow.preprocess):
            steps.append(Step("preprocessing", y, before.total))
        _part(flow.body, y, call, steps)
    return steps
