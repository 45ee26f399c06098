"""What an experiment is: the runs it needs, what it makes of them, and how its numbers compare with the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from idensenet.reproduce.runs import Trained

BUDGETS = {
    "smoke": "seconds, on data that comes with the package: shows that the experiment works, not what comes out of it",
    "cpu": "what two cores do in hours, on the real data",
    "paper": "the published length and size; images need several GPUs for days",
}


def judges(budget: str) -> bool:
    """Whether results of a budget say anything about the paper. A budget of seconds only shows that the experiment works."""
    return budget != "smoke"


@dataclass(frozen=True)
class Plan:
    """A training run: a recipe, and options of `idensenet train` that differ from it."""

    name: str
    recipe: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        words = [self.recipe]
        for name, value in self.options.items():
            words += [f"--{name}", _word(value)]
        return words


def _word(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Cell:
    """A number of ours with its standard error, and the paper's."""

    ours: float | None = None
    error: float | None = None
    paper: float | None = None


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    digits: int = 2

    def cell(self, row: str, column: str) -> Cell:
        return dict(self.rows)[row][self.columns.index(column)]


@dataclass(frozen=True)
class Claim:
    """Something that the paper says; whether our numbers bear it out, None if they cannot tell."""

    text: str
    holds: bool | None
    because: str

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "does not show"}[self.holds]


def lower(text: str, difference: float, error: float, unit: str, significant: float = 2.0) -> Claim:
    """The claim that a difference is negative, by so many standard errors."""
    holds = None if abs(difference) < significant * error else difference < 0
    return Claim(text, holds, f"difference {difference:+.4f} +- {error:.4f} {unit}")


@dataclass(frozen=True)
class Result:
    """What comes out of an experiment."""

    tables: tuple[Table, ...]
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    figure: Callable[[], Figure] | None = None


@dataclass(frozen=True)
class Work:
    """What an experiment works with once its runs are done."""

    budget: str
    runs: Mapping[str, Trained]
    report: Callable[[str], None] = lambda text: None


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper."""

    name: str
    title: str
    place: str  # in the paper
    collect: Callable[[Work], Result]
    plans: Callable[[str], Sequence[Plan]] = lambda budget: ()
    budget: Callable[[str], str] = lambda budget: "in full"  # what is run, in words
    alone: bool = False  # it measures times, so nothing is trained meanwhile
