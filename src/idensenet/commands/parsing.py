"""Options from dataclasses: names, help, defaults and YAML files, with jsonargparse."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, set_parsing_settings

from idensenet.commands.help import page
from idensenet.config import Config, recipe, recipes
from idensenet.errors import OptionError, UnknownNameError, nearest
from idensenet.overriding import GONE

set_parsing_settings(docstring_parse_attribute_docstrings=True)


KINDS = {  # of values, in words
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "tuple": "a list such as '[a, b]'",
    "str": "a word",
}


class Parser(ArgumentParser):
    """Bad input is an exception with one sentence, never an exit of its own."""

    def __init__(self, command: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"idensenet {command}", description=description, epilog=f"example: {example}", exit_on_error=False
        )

        self.titles: dict[str, str] = {}  # of groups of options
        self.common: tuple[str, ...] | None = None  # what --help shows of them; None for everything

    def format_help(self, formatter: argparse.HelpFormatter | None = None) -> str:
        return page(self, self.titles, self.common)

    def read(self, arguments: list[str]) -> Any:
        if self.common is not None and "--help-all" in arguments:
            self.common, arguments = None, ["--help"]
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
            if (gone := option.rpartition(".")[2]) in GONE and option.startswith("--logdet."):
                return f"{GONE[gone]}. See '{self.prog} --help'."
            known = [s for action in self._actions for s in action.option_strings if s.startswith("--")]
            return f"There is no option {option!r}; {nearest(option, known)} See '{self.prog} --help'."
        group = re.search(r"Group 'logdet' does not accept option '(\w+)'", text)
        if group and group[1] in GONE:
            return f"{GONE[group[1]]}. See '{self.prog} --help'."
        if wrong := re.search(r'Parser key "([^"]+)": .*(?:Given|Got) value: (.*)', text):
            kinds = [KINDS[kind] for kind in dict.fromkeys(re.findall(r"Expected a <class '(\w+)'>", text)) if kind in KINDS]
            if kinds:
                text = f"--{wrong[1]} {wrong[2].rstrip('.')} cannot be used: it must be {' or '.join(kinds)}"
        return f"{text.rstrip('.')}. See '{self.prog} --help'."


def recipe_in_file(arguments: list[str]) -> list[str]:
    """A file of options may name a recipe, and may be the record of a run: the words that say the same on the command line."""
    import yaml

    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    if "--config" not in words[:-1]:
        return words
    place = words.index("--config") + 1
    try:
        values = yaml.safe_load(Path(words[place]).read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return words  # the parser knows what to say
    if not isinstance(values, dict) or not {"recipe", "config"} & values.keys():
        return words
    named = values.pop("recipe", None)
    if isinstance(values.get("config"), dict):  # config.yaml of a run has all of its options
        named, values = None, {**values["config"], "output": {**values["config"].get("output", {}), "dir": None}}
    rest = [*words[: place - 1], *words[place + 1 :]]
    text = yaml.safe_dump(values, default_flow_style=True, width=math.inf)
    return [*([str(named)] if named else []), "--config", text, *rest]


def add_groups(parser: Parser, config: Config, groups: tuple[str, ...] | None = None) -> None:
    """The option groups of a configuration, with its values as defaults."""
    for field in dataclasses.fields(config):
        if groups is None or field.name in groups:
            value = getattr(config, field.name)
            parser.titles[field.name] = str(type(value).__doc__).rstrip(".")
            parser.add_argument(f"--{field.name}", type=type(value), default=value, help=type(value).__doc__)


def config_of(values: Any) -> Config:
    return Config(**{field.name: getattr(values, field.name) for field in dataclasses.fields(Config)})


def recipe_config(name: str) -> Config:
    if name not in recipes():
        raise UnknownNameError(f"There is no recipe {name!r}; {nearest(name, recipes())} 'idensenet recipes' lists them.")
    return recipe(name).config
