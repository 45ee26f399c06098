"""Whether a weight is still the one it was, an integer from all of its bits, the same on every device; and how far it moved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from idensenet.draws import mix

_ROW = 1 << 14  # words of a weight that are done at once
SKETCH = 64  # numbers in a sketch


@lru_cache(maxsize=8)
def _multipliers(device: torch.device) -> Tensor:
    """Odd random numbers, one for each word of a row."""
    return mix(torch.arange(1, _ROW + 1, device=device)) | 1


def _words(weight: Tensor) -> Tensor:
    """The bits in words of at most 32, so that 64-bit sums of products also notice a change of the highest ones."""
    return weight.detach().reshape(-1).view(torch.int16 if weight.element_size() == 2 else torch.int32)


def _fingerprint(weight: Tensor) -> Tensor:
    words, multiplier = _words(weight), _multipliers(weight.device)
    if len(words) <= _ROW:
        return (words * multiplier[: len(words)]).sum()
    whole = words[: len(words) // _ROW * _ROW].view(-1, _ROW)
    rows = [(part * multiplier).sum(1) for part in torch.split(whole, 16)]  # a part at a time stays in the processor's cache
    rest = words[whole.numel() :]
    sums = torch.cat([*rows, (rest * multiplier[: len(rest)]).sum()[None]])
    return mix(sums + mix(torch.arange(1, len(sums) + 1, device=words.device))).sum()


def fingerprints(weights: Sequence[Tensor]) -> Tensor:
    """One int64 per weight, from all its bits; changing any one number changes it. The same on every device."""
    return torch.stack([_fingerprint(weight) for weight in weights])


@lru_cache(maxsize=64)
def _coins(count: int, device: torch.device) -> Tensor:
    return (mix(torch.arange(count, device=device)) & 1).bool()


def sketch(weights: Tensor) -> Tensor:
    """[K, SKETCH]: sums of the numbers of each weight with fixed random signs.

    A sketch is linear, and as long as the weight to some ten percent, so two sketches tell how far a weight has moved in any
    direction at all.
    """
    flat = weights.detach().flatten(1)
    signed = torch.where(_coins(flat.shape[1], flat.device), flat, -flat)
    return pad(signed, (0, -flat.shape[1] % SKETCH)).view(len(flat), -1, SKETCH).sum(1)
