"""Help texts in one form: a sentence and a default for each option; of many options, the rare ones on request."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

WIDTH, NAMES = 80, 25  # columns of the page, and of the names of options


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    return str(value)


def _entry(name: str, sentence: str) -> str:
    lines = textwrap.wrap(sentence, WIDTH - NAMES - 2)
    first = [f"  {name}"] if len(name) > NAMES - 4 else [f"  {name:<{NAMES - 2}}{lines.pop(0)}"]
    return "\n".join([*first, *[" " * NAMES + line for line in lines]])


def _option(action: argparse.Action) -> str:
    names = sorted(action.option_strings, key=len, reverse=True)[:2] if action.option_strings else [action.dest.upper()]
    name = ", ".join(each for each in names if not each.endswith("+"))
    sentence = str(action.help).rstrip(".")
    flag = action.nargs == 0 or action.default is argparse.SUPPRESS or not action.option_strings
    default = "" if flag or action.default in (None, (), []) else f" Default: {_value(action.default)}."
    return _entry(name, f"{sentence[0].upper()}{sentence[1:]}.{default}")


def _place(action: argparse.Action) -> str:
    """A word without dashes, in the first line."""
    forms = {"?": "[{}]", "*": "[{} ...]"}
    return forms.get(str(action.nargs), "{}").format(action.dest.upper())


def _shown(actions: Iterable[argparse.Action]) -> list[argparse.Action]:
    """Options with a value or a meaning of their own; whole groups from a file go by another name."""
    hidden = "_ActionConfigLoad", "_HelpAction"
    return [a for a in actions if a.help is not argparse.SUPPRESS and type(a).__name__ not in hidden]


def page(parser: argparse.ArgumentParser, titles: dict[str, str], common: Sequence[str] | None) -> str:
    """The help of a command, with its groups of options if it has any.

    Args:
        parser: The parser, with its groups added.
        titles: The title of each group, by its name.
        common: Names of the options to show, without dashes; None for all.
    """
    actions = [a for a in _shown(parser._actions) if common is None or a.dest in common or not a.option_strings]
    words = [_place(a) for a in actions if not a.option_strings]
    parts = [" ".join(["usage:", parser.prog, *words, "[options]"]), textwrap.fill(str(parser.description), WIDTH)]
    plain = [a for a in actions if a.dest.partition(".")[0] not in titles]
    parts.append("\n".join(_option(a) for a in plain))
    for group, title in titles.items():
        if own := [a for a in actions if a.dest.startswith(f"{group}.")]:
            parts.append("\n".join([f"{title}:", *[_option(a) for a in own]]))
    rest = len(_shown(parser._actions)) - len(actions)
    if common is not None and rest:
        parts.append(f"'{parser.prog} --help-all' lists {rest} more options.")
    parts.append(str(parser.epilog))
    return "\n\n".join(filter(None, parts)) + "\n"
