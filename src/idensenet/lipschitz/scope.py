"""The public call that is under way: in it weights do not change, so norms are looked at once and blocks are prepared once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import nn

Kind = TypeVar("Kind", bound=nn.Module)


class Scope(threading.local):
    """The public call that is under way: its depth, the model it is about, and what was prepared for its blocks."""

    depth = 0
    root: nn.Module | None = None

    def __init__(self) -> None:
        self.packs: dict[Any, Any] = {}


scope = Scope()


@contextmanager
def norms_settled(root: nn.Module | None = None) -> Iterator[None]:
    """Inside, weights do not change, so their norms are not looked at again."""
    if scope.depth == 0:
        scope.root = root
    scope.depth += 1
    try:
        yield
    finally:
        scope.depth -= 1
        if scope.depth == 0:
            scope.root = None
            scope.packs.clear()


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
