"""The public call that is under way: in it weights do not change, so norms are looked at once and blocks are prepared once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

Kind = TypeVar("Kind", bound=nn.Module)


class Scope(threading.local):
    """The public call that is under way: its depth, the model it is about, and what was prepared for its blocks."""

    depth = 0
    root: nn.Module | None = None

    def __init__(self) -> None:
        self.packs: dict[Any, Any] = {}
        self.parts: set[int] = set()  # of the model, named once somebody asks

    def covers(self, module: nn.Module) -> bool:
        """Whether the call that is under way is about this module; one about no model in particular is about all."""
        if self.root is None or module is self.root:
            return True
        if not self.parts:
            self.parts.update(map(id, self.root.modules()))
        return id(module) in self.parts


class Updates:
    """How often norms were written, of whatever model and by whatever thread."""

    count = 0


scope, updates = Scope(), Updates()


@lru_cache(maxsize=1)
def _cuda() -> bool:
    return torch.cuda.is_available()


@contextmanager
def all_digits() -> Iterator[None]:
    """Convolutions are those of float32, not of the shorter numbers that CUDA takes for them unless told otherwise: norms and
    inverses need the digits."""
    if not _cuda():
        yield
        return
    place: Any = torch.backends.cudnn
    name, exact = "allow_tf32", cast(Any, False)
    if hasattr(place, "conv"):  # where there is the newer switch, the older one may not be read
        place, name, exact = place.conv, "fp32_precision", "ieee"
    before = getattr(place, name)
    setattr(place, name, exact)
    try:
        yield
    finally:
        setattr(place, name, before)


@contextmanager
def without_autocast(device: torch.device) -> Iterator[None]:
    """What follows needs all the digits of its tensors."""
    if not torch.is_autocast_enabled(device.type):
        yield
        return
    with torch.autocast(device.type, enabled=False):
        yield


@contextmanager
def own_precision(weight: Tensor) -> Iterator[None]:
    """Norms stay when the call is over, so neither autocast nor inference mode has a part in them, unless the weight has."""
    with ExitStack() as stack:
        stack.enter_context(without_autocast(weight.device))
        if torch.is_inference_mode_enabled() and not weight.is_inference():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(all_digits())
        yield


@contextmanager
def norms_settled(root: nn.Module | None = None) -> Iterator[None]:
    """Inside, weights do not change, so their norms are not looked at again."""
    if scope.depth > 0:
        scope.depth += 1
        try:
            yield
        finally:
            scope.depth -= 1
        return
    scope.root, scope.depth = root, 1
    try:
        with all_digits():
            yield
    finally:
        scope.root, scope.depth = None, 0
        scope.packs.clear()
        scope.parts.clear()


def under(root: nn.Module, kind: type[Kind]) -> list[Kind]:
    """All modules of a kind, each once, in order, and none inside another. It is asked for in every step, and `root.modules()`
    takes its time to name them."""
    found: dict[int, Kind] = {}
    waiting: list[nn.Module] = [root]
    while waiting:
        module = waiting.pop()
        if isinstance(module, kind):
            found[id(module)] = module
        else:
            waiting.extend(m for m in reversed(module._modules.values()) if m is not None)
    return list(found.values())
