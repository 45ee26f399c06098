"""A table: pairs of columns of samples and of data, and the rows that the model finds least likely."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idensenet.data.store import Array
from idensenet.errors import MissingDataError, OptionError
from idensenet.explore.query import Query, plain, spread
from idensenet.explore.subject import Subject
from idensenet.training.evaluation import first_rows, score_rows, taken

MOST_ROWS = 2000
MOST_COLUMNS = 500
OVERVIEW = 5  # columns whose pairs are shown together


def distance(first: Array, second: Array) -> float:
    """The largest difference of two empirical distribution functions (Kolmogorov-Smirnov).

    Args:
        first: Values.
        second: Other values.

    Returns:
        A number from 0, for the same distribution, to 1.
    """
    every = np.concatenate([first, second])
    shares = [np.searchsorted(np.sort(each), every, side="right") / len(each) for each in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


class Table:
    """Answers about a model of a table.

    Args:
        subject: The model.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.answers = {"pair": self.pair, "overview": self.overview, "least": self.least}
        self._drawn: tuple[tuple[int, float], list[Array]] | None = None

    # Columns as they are shown: nominal ones as the numbers of their categories

    @cached_property
    def columns(self) -> list[dict[str, Any]]:
        """The name of each column, and its categories if it is nominal."""
        known = self.subject.flow.columns
        if known is None:
            return [{"name": name, "labels": None} for name in self.subject.names]
        labels = [None if each.categories is None else [str(value) for value in each.categories] for each in known.columns]
        return [{"name": name, "labels": each} for name, each in zip(known.names, labels, strict=True)]

    def shown(self, x: Tensor, context: Tensor | None) -> list[Array]:
        """The columns of some rows, as numbers.

        Args:
            x: Rows as the flow takes them.
            context: Their contexts.

        Returns:
            One array for each column.
        """
        numbers, known = x.detach().cpu().double().numpy(), self.subject.flow.columns
        if known is None:
            return list(numbers.T)
        found: list[Array] = [np.empty(0)] * len(known.columns)
        for place, values in zip(known.amounts, known.in_units(numbers), strict=True):
            found[place] = np.asarray(values, np.float64)
        if known.categories is not None:
            assert context is not None
            codes = known.categories.codes(context.cpu().numpy())
            for place, each in zip(known.of("nominal"), codes.T, strict=True):
                found[place] = each.astype(np.float64)
        return found

    @cached_property
    def held_out(self) -> list[Array] | None:
        """The columns of the first held-out rows; None if the data cannot be read."""
        source = self.subject.source
        if source is None:
            return None
        rows = source.test.batch(first_rows(source.test, MOST_ROWS))
        return self.shown(*taken(self.subject.flow, rows.x, rows.context))

    def drawn(self, query: Query) -> list[Array]:
        """The columns of samples, of which the last ones are kept.

        Args:
            query: `temperature` and `seed`.

        Returns:
            One array for each column.

        Raises:
            MissingDataError: The model is conditional, and its data, which has the contexts, cannot be read.
        """
        flow, source = self.subject.flow, self.subject.source
        seed, temperature = query.integer("seed", 0, 0, 2**31), query.number("temperature", 1.0, 0.05, 2.0)
        if self._drawn is None or self._drawn[0] != (seed, temperature):
            count, given = MOST_ROWS, None
            if flow.columns is not None and flow.columns.categories is not None:
                categories = flow.columns.draw(count, np.random.default_rng(seed))
                given = torch.from_numpy(categories).to(flow.device, flow.dtype)
            elif flow.context:
                if source is None:
                    raise MissingDataError("Samples of a conditional model need the contexts of its data, which is not there.")
                rows = source.test.batch(np.arange(count) % len(source.test))
                given = taken(flow, rows.x, rows.context)[1]
            generator = torch.Generator(flow.device).manual_seed(seed)
            made = flow.sample(count, generator, temperature, given, prepared=self.subject.prepared)
            self._drawn = ((seed, temperature), self.shown(made, given))
        return self._drawn[1]

    def about(self) -> dict[str, Any]:
        """The columns of the table.

        Returns:
            Plain values for JSON.

        Raises:
            OptionError: There are too many columns for a page.
        """
        if len(self.columns) > MOST_COLUMNS:
            raise OptionError(f"A page shows up to {MOST_COLUMNS} columns, and this table has {len(self.columns)}.")
        known, source = self.subject.flow.columns, self.subject.source
        own = known is not None and known.categories is not None  # the model draws its contexts itself
        return {"columns": self.columns, "context": [] if source is None or own else list(source.context)}

    # Answers

    def pair(self, query: Query) -> dict[str, Any]:
        """Two columns of samples and of data.

        Args:
            query: `i` and `j`, the places of the columns; `n`, `temperature` and `seed` of samples.

        Returns:
            Values of both columns in both sets, their ranges, and how far apart their distributions are.
        """
        last, count = len(self.columns) - 1, query.integer("n", 1000, 1, MOST_ROWS)
        chosen = [query.integer("i", 0, 0, last), query.integer("j", min(1, last), 0, last)]
        made, real = self.drawn(query), self.held_out
        sets = [made] if real is None else [real, made]
        return {
            "samples": [plain(made[i][:count]) for i in chosen],
            "data": None if real is None else [plain(real[i][:count]) for i in chosen],
            "ranges": [plain(self._range(i, [each[i] for each in sets])) for i in chosen],
            "distances": None if real is None else [plain(distance(real[i], made[i])) for i in chosen],
            "rows": [len(made[0]), 0 if real is None else len(real[0])],
        }

    def _range(self, place: int, arrays: list[Array]) -> tuple[float, float]:
        labels = self.columns[place]["labels"]
        return (-0.5, len(labels) - 0.5) if labels is not None else spread(arrays)

    def overview(self, query: Query) -> dict[str, Any]:
        """The first columns of samples and of data, for pictures of all their pairs.

        Args:
            query: `n`, `temperature` and `seed`.

        Returns:
            Columns of both sets, and their ranges.
        """
        count, some = query.integer("n", 300, 1, MOST_ROWS), range(min(OVERVIEW, len(self.columns)))
        made, real = self.drawn(query), self.held_out
        sets = [made] if real is None else [real, made]
        return {
            "samples": [plain(made[i][:count]) for i in some],
            "data": None if real is None else [plain(real[i][:count]) for i in some],
            "ranges": [plain(self._range(i, [each[i] for each in sets])) for i in some],
        }

    @cached_property
    def scores(self) -> Array:
        """Log-densities of the first held-out rows.

        Raises:
            MissingDataError: The data cannot be read.
        """
        source = self.subject.source
        if source is None:
            raise MissingDataError(f"The data of this model cannot be read: {self.subject.missing}")
        found: Tensor = score_rows(self.subject.flow, source.test, first_rows(source.test, MOST_ROWS))["log_prob"]
        return found.double().cpu().numpy()

    def least(self, query: Query) -> dict[str, Any]:
        """The least likely of the held-out rows.

        Args:
            query: `n`.

        Returns:
            Their values, log-densities and places, and for each the column whose value is furthest in a tail.
        """
        scores, real, source = self.scores, self.held_out, self.subject.source
        assert real is not None
        assert source is not None
        order = np.argsort(scores)[: query.integer("n", 10, 1, 50)]
        tails = np.stack([self._tails(i, values)[order] for i, values in enumerate(real)], 1)
        places = None if source.places is None else source.places[len(source.train) + order]
        return {
            "rows": [plain([values[row] for values in real]) for row in order],
            "log_prob": plain(scores[order]),
            "place": (order if places is None else places).tolist(),
            "of_file": places is not None,
            "oddest": tails.argmin(1).tolist(),
            "scored": len(scores),
            "median": plain(np.median(scores)),
        }

    def _tails(self, place: int, values: Array) -> Array:
        """The share of rows that are at least as far out on the same side, or as rare a category."""
        ordered = np.sort(values)
        below = np.searchsorted(ordered, values, side="right") / len(values)
        above = 1 - np.searchsorted(ordered, values, side="left") / len(values)
        if self.columns[place]["labels"] is not None:
            return below + above - 1  # how often it occurs
        return np.minimum(below, above)
