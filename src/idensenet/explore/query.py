"""What a page asks for: numbers by name, each within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from idensenet.errors import OptionError

DIGITS = 6  # of numbers that are drawn


class Query:
    """The parameters of one request.

    Args:
        values: Words by name.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = dict(values)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number.

        Args:
            name: The name of the parameter.
            default: Its value if it was not given.
            low: The least value that is allowed.
            high: The largest one.

        Returns:
            The number.

        Raises:
            OptionError: It is no whole number, or out of bounds.
        """
        word = self.values.get(name)
        if word is None:
            return default
        try:
            value = int(word) if len(word) <= 20 else None
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise OptionError(f"{name}={word[:40]!r} must be a whole number from {low} to {high}.")
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A finite number.

        Args:
            name: The name of the parameter.
            default: Its value if it was not given.
            low: The least value that is allowed.
            high: The largest one.

        Returns:
            The number.

        Raises:
            OptionError: It is no number, or out of bounds.
        """
        word = self.values.get(name)
        if word is None:
            return default
        try:
            value = float(word) if len(word) <= 40 else math.nan
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise OptionError(f"{name}={word[:40]!r} must be a number from {low:g} to {high:g}.")
        return value


def plain(values: Any) -> Any:
    """Arrays as lists for JSON, rounded to what a picture shows; what is not finite becomes null.

    Args:
        values: An array of any shape.

    Returns:
        Nested lists of numbers.
    """
    numbers = np.asarray(values, np.float64)
    if numbers.ndim == 0:
        value = float(numbers)
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return [plain(each) for each in numbers]


def spread(arrays: Sequence[Any], margin: float = 0.05) -> tuple[float, float]:
    """Where nearly all values of some arrays are, with a margin.

    Args:
        arrays: Arrays of numbers.
        margin: Room on either side, as a fraction of the range.

    Returns:
        The lower and the upper end.
    """
    values = np.concatenate([np.asarray(each, np.float64).ravel() for each in arrays])
    values = values[np.isfinite(values)]
    if not len(values):
        return -1.0, 1.0
    low, high = (float(end) for end in np.quantile(values, [0.001, 0.999]))
    room = margin * (high - low) or max(abs(high), 1.0) * margin
    return low - room, high + room
