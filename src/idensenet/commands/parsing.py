"""Options from dataclasses: names, help, defaults and YAML files, with jsonargparse."""

from __future__ import annotations

import argparse
import dataclasses
import re
from typing import Any

from jsonargparse import ArgumentParser, set_parsing_settings

from idensenet.config import Config, recipe, recipes
from idensenet.errors import OptionError, UnknownNameError, nearest

set_parsing_settings(docstring_parse_attribute_docstrings=True)


class Parser(ArgumentParser):
    """Bad input is an exception with one sentence, never an exit of its own."""

    def __init__(self, command: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"idensenet {command}", description=description, epilog=f"example: {example}", exit_on_error=False
        )

    def read(self, arguments: list[str]) -> Any:
        words = [re.sub(r"(^|=)inf(inity)?$", r"\1.inf", word) for word in arguments]  # YAML's way of writing it
        try:
            return self.instantiate(self.parse_args(words))
        except argparse.ArgumentError as error:
            raise OptionError(self._sentence(str(error))) from None

    def _sentence(self, text: str) -> str:
        text = " ".join(text.split())
        marker = "unrecognized arguments: "
        if marker in text.lower():
            option = text[text.lower().index(marker) + len(marker) :].split()[0].split("=")[0]
            known = [s for action in self._actions for s in action.option_strings if s.startswith("--")]
            return f"There is no option {option!r}; {nearest(option, known)} See '{self.prog} --help'."
        return f"{text.rstrip('.')}. See '{self.prog} --help'."


def add_groups(parser: Parser, config: Config, groups: tuple[str, ...] | None = None) -> None:
    """The option groups of a configuration, with its values as defaults."""
    for field in dataclasses.fields(config):
        if groups is None or field.name in groups:
            value = getattr(config, field.name)
            parser.add_argument(f"--{field.name}", type=type(value), default=value, help=type(value).__doc__)


def config_of(values: Any) -> Config:
    return Config(**{field.name: getattr(values, field.name) for field in dataclasses.fields(Config)})


def recipe_config(name: str) -> Config:
    if name not in recipes():
        raise UnknownNameError(f"There is no recipe {name!r}; {nearest(name, recipes())} 'idensenet recipes' lists them.")
    return recipe(name).config
