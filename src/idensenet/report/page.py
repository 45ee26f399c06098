"""The page of a run: one HTML file with everything in it."""

from __future__ import annotations

from html import escape
from pathlib import Path

from idensenet.data.source import Source
from idensenet.files import write_atomically
from idensenet.report import sections
from idensenet.report.markup import document
from idensenet.report.samples import samples
from idensenet.report.story import Story, tell
from idensenet.threads import suited_to
from idensenet.training.run import RunFolder

AT_ONCE = 100  # samples that are computed together


def write_report(run: RunFolder, source: Source | None = None, step: int | str = "last") -> Path:
    """Write RUN/report.html about a run, with the model of its last or another checkpoint.

    `source` is its data; by default it is opened by its name.
    """
    story = tell(run, source, step)
    with suited_to(story.flow, AT_ONCE):
        page = _page(story)
    path = run.path / "report.html"
    write_atomically(path, page)
    return path


def _page(story: Story) -> str:
    certificate = sections.certified(story)
    recipe = story.recipe
    subtitle = f"{recipe.description}; " if recipe else ""
    subtitle += f"trained until step {story.step:,}, {story.written}"
    parts = [
        f"<header><h1>{escape(story.title)}</h1><p>{escape(subtitle)}</p></header>\n",
        sections.alarm(story, certificate),
        sections.enough(story),
        sections.headline(story, certificate),
        sections.overview(story),
        samples(story),
        sections.training(story),
        sections.score(story),
        sections.concatenation(story),
        sections.certificate_table(story, certificate),
        sections.repeat(story),
    ]
    return document(story.title, "".join(parts))
