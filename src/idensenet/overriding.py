"""Replacing fields of nested dataclasses by name, with values of the right type or a sentence that says what is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from idensenet.errors import OptionError, nearest

GONE = {
    "recompute": "logdet.recompute is gone; use train.memory: keep or save",
    "bfloat16": "logdet.bfloat16 is gone; use train.precision: bf16-mixed",
}


def _fitting(name: str, value: Any, old: Any, kind: str) -> Any:
    """The value in the type of the one it replaces."""
    optional, number_or_more = "None" in kind, kind == "int | tuple[int, ...]"
    try:
        if value is None and optional:
            return None
        if kind.startswith("tuple[str, ...] | str"):
            return value if isinstance(value, str) else tuple(value)
        if number_or_more and isinstance(value, int | tuple | list):
            return value if isinstance(value, int) else tuple(value)
        if isinstance(old, tuple) or isinstance(value, list):
            return tuple(value)
        if isinstance(old, float):
            return float(value)  # also the text "inf"
        if old is None or type(value) is type(old):
            return value
    except (TypeError, ValueError):
        pass
    raise OptionError(f"{name}={value!r} cannot be used; something like {old!r} is expected.")


T = TypeVar("T")


def override(config: T, values: Mapping[str, Any]) -> T:
    """A dataclass with some fields replaced, nested ones too; an unknown name is an error."""
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    kinds = {f.name: str(f.type) for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            if name in GONE:
                raise OptionError(f"{GONE[name]}.")
            raise OptionError(f"There is no option {name!r}; {nearest(name, sorted(fields))}")
        old = fields[name]
        if dataclasses.is_dataclass(old) and not isinstance(old, type):
            if not isinstance(value, Mapping):
                raise OptionError(f"{name}={value!r} is a group of options; give a dictionary of them.")
            changed[name] = override(old, value)
        else:
            changed[name] = _fitting(name, value, old, kinds[name])
    return dataclasses.replace(config, **changed)  # type: ignore[type-var]
