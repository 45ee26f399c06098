"""Replacing fields of nested dataclasses by name, with values of the right type or a sentence that says what is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from idensenet.errors import OptionError, nearest

GONE = {
    "recompute": "logdet.recompute is gone; use train.memory: keep or save",
    "bfloat16": "logdet.bfloat16 is gone; use train.precision: bf16-mixed",
}


def _fitted(value: Any, kind: Any) -> Any:
    """The value as one of this type, all of it; a ValueError if it is none."""
    parts = get_args(kind)
    if isinstance(kind, UnionType):
        for part in parts:
            try:
                return _fitted(value, part)
            except ValueError:
                continue
    elif get_origin(kind) is tuple and isinstance(value, tuple | list):
        if parts[-1] is Ellipsis:
            return tuple(_fitted(each, parts[0]) for each in value)
        if len(parts) == len(value):
            return tuple(map(_fitted, value, parts))
    elif get_origin(kind) is dict and isinstance(value, Mapping):
        return {_fitted(key, parts[0]): _fitted(each, parts[1]) for key, each in value.items()}
    elif kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        return float(value)  # also the text "inf"
    elif (kind is int and type(value) is int and abs(value) < 1 << 63) or (
        kind in (bool, str, NoneType) and type(value) is kind
    ):
        return value
    raise ValueError


def shown(value: Any) -> str:
    """A value in an error message, which is short whatever the value is."""
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"


def _fitting(name: str, value: Any, old: Any, kind: Any) -> Any:
    """The value in the type of the one it replaces."""
    try:
        return _fitted(value, kind)
    except (ValueError, OverflowError, RecursionError):
        raise OptionError(f"{name}={shown(value)} cannot be used; something like {old!r} is expected.") from None


T = TypeVar("T")


def override(config: T, values: Mapping[str, Any]) -> T:
    """A dataclass with some fields replaced, nested ones too; an unknown name is an error."""
    if not isinstance(values, Mapping):
        raise OptionError(f"{shown(values)} are no options; give a dictionary of them.")
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    kinds = get_type_hints(type(config))
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            if isinstance(name, str) and name in GONE:
                raise OptionError(f"{GONE[name]}.")
            raise OptionError(f"There is no option {shown(name)}; {nearest(str(name)[:80], sorted(fields))}")
        old = fields[name]
        if dataclasses.is_dataclass(old) and not isinstance(old, type):
            if not isinstance(value, Mapping):
                raise OptionError(f"{name}={shown(value)} is a group of options; give a dictionary of them.")
            changed[name] = override(old, value)
        else:
            changed[name] = _fitting(name, value, old, kinds[name])
    return dataclasses.replace(config, **changed)  # type: ignore[type-var]
