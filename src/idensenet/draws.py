"""Where random numbers come from.

Training draws from a `torch.Generator`. Evaluation must be a function of the data, so there every number is computed from
a key, and the key from (seed, content of the sample, path of the block). The keyed generator is counter-based: number i
under key k is mix(k + i * golden), with the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), in wrapping int64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch shifts int64 arithmetically."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """A bijection of int64 that scatters neighbouring values.

    >>> mix(torch.tensor([1, 2])).tolist()
    [6238072747940578789, -2606959012126976886]
    """
    x = (x ^ _shifted(x, 30)) * _MIX_1
    x = (x ^ _shifted(x, 27)) * _MIX_2
    return x ^ _shifted(x, 31)


def content_keys(x: Tensor, seed: int = 0) -> Tensor:
    """One int64 key per sample, from the bits of its values and the seed, whatever else is in the batch."""
    rows = x.detach().reshape(x.shape[0], math.prod(x.shape[1:]))  # also of an empty batch
    if rows.is_floating_point():
        rows = rows + 0.0  # one zero, not two
        width = torch.int32 if rows.element_size() == 4 else torch.int64 if rows.element_size() == 8 else torch.int16
        rows = rows.contiguous().view(width)
    place = torch.arange(1, rows.shape[1] + 1, device=x.device) * _GOLDEN
    return mix(mix(rows.long() + place).sum(1) + _signed(seed * 0x632BE59BD9B4E019 % (1 << 64)))


class Draws(ABC):
    """A source of random numbers for a batch. `fold` gives an independent source for a part of the computation."""

    @abstractmethod
    def fold(self, part: int) -> Draws: ...

    @abstractmethod
    def uniform(self, like: Tensor, copies: int = 1) -> Tensor:
        """Uniform on [0, 1), of shape [copies, *like.shape]."""

    @abstractmethod
    def normal(self, like: Tensor, copies: int = 1) -> Tensor: ...

    @abstractmethod
    def rademacher(self, like: Tensor, copies: int = 1) -> Tensor: ...

    @abstractmethod
    def lengths(self, batch: int, device: torch.device) -> Tensor:
        """Uniforms (float64) that decide how long a series runs: one for the whole batch, or one per sample."""


def _host_of(generator: torch.Generator) -> torch.Generator:
    """A generator on the host that follows from the state of another: itself, if it lives there."""
    if generator.device.type == "cpu":
        return generator
    if generator.device.type == "cuda":  # its state is known on the host: nothing waits
        state = generator.initial_seed() ^ generator.get_offset() * 0x9E3779B97F4A7C15
    else:
        state = int(torch.randint(1 << 62, (), generator=generator, device=generator.device))
    return torch.Generator().manual_seed(state % (1 << 63))


class GeneratorDraws(Draws):
    """Numbers from a generator (torch's own when none is given).

    The length of a series steers the program, so it is drawn on the host: from `host`, or from one that follows from
    `generator`. Nothing waits for CUDA.
    """

    def __init__(self, generator: torch.Generator | None = None, host: torch.Generator | None = None) -> None:
        self.generator = generator
        self.host = host if host is not None or generator is None else _host_of(generator)

    def fold(self, part: int) -> GeneratorDraws:
        return self

    def uniform(self, like: Tensor, copies: int = 1) -> Tensor:
        shape = (copies, *like.shape)
        return torch.rand(shape, generator=self.generator, dtype=like.dtype, device=like.device)

    def normal(self, like: Tensor, copies: int = 1) -> Tensor:
        shape = (copies, *like.shape)
        return torch.randn(shape, generator=self.generator, dtype=like.dtype, device=like.device)

    def rademacher(self, like: Tensor, copies: int = 1) -> Tensor:
        shape = (copies, *like.shape)
        signs = torch.randint(0, 2, shape, generator=self.generator, device=like.device, dtype=torch.int8)
        return signs.to(like.dtype) * 2 - 1

    def lengths(self, batch: int, device: torch.device) -> Tensor:
        return torch.rand(1, generator=self.host, dtype=torch.float64)


class KeyedDraws(Draws):
    """Numbers that are a function of one key per sample. Keys are computed when they are first needed."""

    def __init__(self, keys: Callable[[], Tensor]) -> None:
        self._keys = keys

    @cached_property
    def keys(self) -> Tensor:
        """[batch], int64."""
        return self._keys()

    @classmethod
    def of(cls, x: Tensor, seed: int = 0) -> KeyedDraws:
        """From the content of each sample and the seed."""
        return cls(lambda: content_keys(x, seed))

    def fold(self, part: int) -> KeyedDraws:
        return KeyedDraws(lambda: mix(self.keys + _signed((part + 1) * _GOLDEN % (1 << 64))))

    def _bits(self, stream: int, count: int) -> Tensor:
        keys = mix(self.keys ^ stream)
        counter = torch.arange(count, device=keys.device) * _GOLDEN
        return mix(keys[:, None] + counter)

    def _unit(self, stream: int, count: int) -> Tensor:
        return (_shifted(self._bits(stream, count), 11)).double() * 2.0**-53

    def _shaped(self, flat: Tensor, like: Tensor, copies: int) -> Tensor:
        batch, event = like.shape[0], like.shape[1:]
        return flat.reshape(batch, copies, *event).transpose(0, 1).to(like.dtype)

    def uniform(self, like: Tensor, copies: int = 1) -> Tensor:
        u = self._unit(1, copies * math.prod(like.shape[1:]))
        if like.dtype != torch.float64:
            u = torch.floor(u * 2.0**24) * 2.0**-24  # so that rounding never yields 1
        return self._shaped(u, like, copies)

    def normal(self, like: Tensor, copies: int = 1) -> Tensor:
        count = copies * math.prod(like.shape[1:])
        radius = torch.sqrt(-2 * torch.log1p(-self._unit(2, count)))
        return self._shaped(radius * torch.cos(2 * math.pi * self._unit(3, count)), like, copies)

    def rademacher(self, like: Tensor, copies: int = 1) -> Tensor:
        bits = self._bits(4, copies * math.prod(like.shape[1:]))
        return self._shaped(((bits >> 40) & 1) * 2 - 1, like, copies)

    def lengths(self, batch: int, device: torch.device) -> Tensor:
        return self._unit(5, 1)[:, 0]


def default_draws(x: Tensor, training: bool) -> Draws:
    """What a bijection uses when it is called on its own."""
    return GeneratorDraws() if training else KeyedDraws.of(x)
