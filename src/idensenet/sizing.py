"""How large a model on disk may be, known from its weights before anything of it is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from idensenet.config import Config

FREE = 1 << 23  # numbers that any model may take
FACTOR = 16  # numbers made while building, for each one in the weights
SCALES = 64
MAKERS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye, torch.arange, torch.randint)


def numbers_in(weights: Path) -> int:
    """How many numbers a safetensors file holds, from its header."""
    from safetensors import safe_open

    with safe_open(weights, "pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def _product(shape: Iterable[Any]) -> int:
    return math.prod(int(side) for side in shape)


class Limited(TorchFunctionMode):
    """Inside, no more numbers can be made than `limit`, all tensors taken together; a larger one is not even begun."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.made = limit, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in MAKERS:
            self.made += self._wanted(func, args, kwargs)
            if self.made > self.limit:
                raise ValueError(
                    f"it describes a model of {self.made:,} numbers or more, where its weights have room for {self.limit:,}"
                )
        return func(*args, **kwargs)

    def _wanted(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        given = args[0] if args else kwargs.get("size", 1)
        if func is torch.eye:
            return _product(args[:2]) if len(args) > 1 else int(given) ** 2
        if func is torch.arange:
            return max(abs(int(value)) for value in args)
        if func is torch.randint:
            given = next((value for value in args if isinstance(value, tuple | list)), kwargs.get("size", ()))
        return _product(given) if isinstance(given, tuple | list) else _product(a for a in args if type(a) is int)


def check_config(config: Config, numbers: int) -> None:
    """No count of a model can be larger than its weights; this is asked before a count is used for anything."""
    for name, value in vars(config.model).items():
        counts = [each for each in (value if isinstance(value, tuple) else (value,)) if type(each) is int]
        if len(counts) > SCALES or any(abs(count) > numbers + 4096 for count in counts):
            raise ValueError(f"model.{name} is larger than a model with {numbers:,} numbers can have")
