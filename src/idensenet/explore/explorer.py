"""Everything that a page can ask about a model, one question at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from idensenet.errors import OptionError, UnknownNameError, nearest
from idensenet.explore.images import Images
from idensenet.explore.plane import Plane
from idensenet.explore.query import Query, plain
from idensenet.explore.subject import Subject
from idensenet.explore.table import Table
from idensenet.lipschitz import Certificate
from idensenet.report.concatenation import block_titles, heat_maps
from idensenet.report.markup import data_uri
from idensenet.threads import suited_to

AT_ONCE = 100  # samples that are computed together
QUICK = 256  # dimensions up to which the certificate is computed at once; for an image model it takes a while
VIEWS: dict[str, type[Plane] | type[Table] | type[Images]] = {"plane": Plane, "table": Table, "images": Images}


class Explorer:
    """Answers questions about a model.

    Args:
        subject: The model and its data.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.view = VIEWS[subject.kind](subject)
        self._working = threading.Lock()  # held while an answer is computed
        self._closed = False
        self._answers = {
            "about": self.about,
            "certificate": self.certificate,
            "concatenation": self.concatenation,
            **self.view.answers,
        }

    def answer(self, name: str, values: Mapping[str, str]) -> dict[str, Any]:
        """The answer to one question. Only one is computed at a time.

        Args:
            name: What is asked for.
            values: Its parameters.

        Returns:
            Plain values for JSON.

        Raises:
            UnknownNameError: Nothing has this name.
            InputError: A parameter has a value that cannot be used.
            ArithmeticError: The model cannot compute it.
        """
        if name not in self._answers:
            raise UnknownNameError(f"There is nothing called {name[:40]!r}; {nearest(name[:40], list(self._answers))}")
        with self._working, suited_to(self.subject.flow, AT_ONCE):
            if self._closed:
                raise OptionError("The page has ended; start 'idensenet explore' again.")
            return self._answers[name](Query(values))

    @property
    def busy(self) -> bool:
        """Whether an answer is being computed."""
        return self._working.locked()

    def close(self) -> None:
        """Wait for the answer that is being computed; there are no others afterwards."""
        self._closed = True
        with self._working:
            pass

    def about(self, query: Query) -> dict[str, Any]:
        """What the page needs to begin with.

        Args:
            query: Nothing is asked for.

        Returns:
            Plain values for JSON.
        """
        return {**self.subject.about(), **self.view.about(), "certified": self.subject.flow.dims <= QUICK}

    @cached_property
    def _certificate(self) -> Certificate:
        return self.subject.flow.certify()

    def certificate(self, query: Query) -> dict[str, Any]:
        """The guaranteed Lipschitz constant of every block.

        Args:
            query: Nothing is asked for.

        Returns:
            The largest L, whether every block is contractive, and each block by name.
        """
        found, titles = self._certificate, block_titles(self.subject.flow)
        blocks = [{"name": titles.get(b.name, b.name), "L": plain(b.L), "contractive": b.contractive} for b in found.blocks]
        largest = plain(found.L) if found.blocks else None
        return {"L": largest, "contractive": found.contractive, "blocks": blocks}

    @cached_property
    def _maps(self) -> list[dict[str, Any]]:
        found = heat_maps(self.subject.flow)
        return [{"light": data_uri(d.light), "dark": data_uri(d.dark or d.light), "words": words} for d, words in found]

    def concatenation(self, query: Query) -> dict[str, Any]:
        """Heat maps of the weights of the concatenation.

        Args:
            query: Nothing is asked for.

        Returns:
            Two pictures for each scale in both themes, and what they show in words; none without dense layers.
        """
        return {"maps": self._maps}
