"""Things that options call by name, and how a user adds one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from idensenet.errors import OptionError, UnknownNameError, nearest

Made = TypeVar("Made")


class Registry(Generic[Made]):
    """Makers by name: `registry[name]` returns one, or raises an error that suggests the nearest name."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._known: dict[str, Callable[..., Made]] = {}

    def register(self, name: str, make: Callable[..., Made]) -> Callable[..., Made]:
        """Add a maker under a new name, for use in every option that takes such a name."""
        if name in self._known and self._known[name] is not make:
            raise OptionError(f"The {self.what} {name!r} exists already; choose another name.")
        self._known[name] = make
        return make

    def __getitem__(self, name: str) -> Callable[..., Made]:
        if name not in self._known:
            raise UnknownNameError(f"There is no {self.what} {name!r}; {nearest(name, sorted(self._known))}")
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
