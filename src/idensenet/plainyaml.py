"""YAML of runs: plain values, without references from one part to another, which make small files large."""

from __future__ import annotations

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has references (*name), which no run writes")
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


def parse_yaml(text: str | bytes) -> Any:
    """What YAML text says.

    Raises:
        ValueError: It is not YAML, or has references, or is nested too deeply.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
