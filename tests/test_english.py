"""The words of an old dialect stay away from code and documentation."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXTS = sorted(
    path
    for folder in ("src", "docs", "examples", "benchmarks", "tests", "results")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".yaml", ".html") and path != Path(__file__)
)
PATTERNS = [
    r"\bthose of\b",
    r"\bthat of\b",
    r"\b(is|are|was|were) told\b",
    r"\blook(s|ed|ing)? (at|for)\b",
    r"\ba look at\b",
    r"\bwhat is made of\b",
    r"\bbeside\b",
    r"\bthe own\b",
    r"\bas from\b",
    r"\bthat nobody knows\b",
]


def dialect(text):
    return [
        f"{text[: found.start()].count(chr(10)) + 1}: {found[0]}"
        for each in PATTERNS
        for found in re.finditer(each, text, re.I)
    ]


@pytest.mark.parametrize("path", [*TEXTS, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_no_word_of_the_old_dialect(path):
    assert dialect(path.read_text()) == []


def test_the_patterns_find_old_sentences():
    old = "Of a run it is that of the last checkpoint.\nOptions that nobody knows are told beside the own one."
    assert dialect(old) == ["1: that of", "2: are told", "2: beside", "2: the own", "2: that nobody knows"]
