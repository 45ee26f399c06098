"""The norms of layers that are alike, computed together and written into their state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from idensenet.lipschitz import norms
from idensenet.lipschitz.fingerprint import sketch
from idensenet.lipschitz.scope import updates

if TYPE_CHECKING:
    from idensenet.lipschitz.linear import LipschitzConv2d, LipschitzMap

AT_ONCE = 1 << 23  # bytes of singular vectors, in the computation of norms
ROUNDING = 1e-6  # of its length: as far as another number type moves a weight
JUMP, DRIFT = 0.1, 0.2  # of its length: a kernel that has moved so far, at once or in all, is looked at anew


def fields(maps: Sequence[LipschitzMap], name: str) -> list[Tensor]:
    """A parameter or buffer of each, past nn.Module.__getattr__, which would take longer than the rest for small layers."""
    return [m.__dict__["_parameters" if name in ("weight", "bias") else "_buffers"][name] for m in maps]


def at_once(layer: LipschitzMap) -> int:
    """How many layers like this one have their norms computed together: that memory must not grow with the depth of a model."""
    return max(1, AT_ONCE // max(1, (layer.left.numel() + layer.right.numel()) * layer.left.element_size()))


def update_norms(maps: list[LipschitzMap], found: Tensor, back: bool) -> None:
    """New norms and singular vectors for maps that are alike; `found` are the fingerprints of their weights."""
    updates.count += 1
    first, weights = maps[0], fields(maps, "weight")
    gradients: list[Tensor | None] = [None] * len(maps)
    if first.norm != 2:
        sigma = torch.stack([norms.induced_norm(w, first.norm, first.size) for w in weights])
        left, right = torch.stack([m.left for m in maps]), torch.stack([m.right for m in maps])
    elif first.as_matrix:
        weight = torch.stack(weights)
        sigma, left, right = norms.matrix_norms(weight.flatten(2))
        gradients = list((left[:, :, None] * right[:, None]).view_as(weight).unbind())
    else:
        sigma, left, right = _convolution_norms(cast("list[LipschitzConv2d]", maps), weights, back)
    copies = ((sigma, "sigma"), (left, "left"), (right, "right"), (found, "fingerprint"))
    for values, name in copies:
        kept = fields(maps, name)
        torch._foreach_copy_(kept, list(values.view(len(maps), *kept[0].shape).unbind()))
    # the gradients here rather than at their first use, which may be inside a compiled function
    for m, gradient in zip(maps, gradients, strict=True):
        m.remember(gradient)
        if gradient is None and m.weight.requires_grad and not m.weight.is_inference():
            m.norm_gradient()


def _convolution_norms(maps: list[LipschitzConv2d], weights: list[Tensor], back: bool) -> tuple[Tensor, Tensor, Tensor]:
    (last, looked), now = torch.stack([m.sketch for m in maps], 1), torch.stack([sketch(w) for w in weights])
    # a part of the weight may have grown that v does not see: then, and where no further step follows, it is looked for
    jump, drift = (JUMP, DRIFT) if all(m.training for m in maps) else (ROUNDING, ROUNDING)
    near = (now - last).norm(dim=1) < jump * last.norm(dim=1)
    near &= (now - looked).norm(dim=1) < drift * looked.norm(dim=1)
    known = torch.where(near, torch.stack([m.sigma for m in maps]), math.inf)
    left, right = torch.stack([m.left for m in maps]), torch.stack([m.right for m in maps])
    sketches = torch.stack([now, torch.where(near[:, None], looked, now)], 1)
    torch._foreach_copy_([m.sketch for m in maps], list(sketches.unbind()))
    return norms.convolution_norms(weights, right, maps[0].tolerance, known, 1000, left, back)
