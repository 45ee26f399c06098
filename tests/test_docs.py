"""The documentation: its code runs and prints what it says, its links lead somewhere, the site builds without a warning."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import torch

import idensenet as idn
from idensenet.blocks import BLOCKS
from idensenet.cli import COMMANDS, main
from idensenet.lipschitz.activations import ACTIVATIONS
from idensenet.methods import LOG_DETS  # the modules that fill both, before the fixture takes a copy
from idensenet.structure import CLASSES
from page_blocks import DOCS, blocks, form, run
from public_docstrings import left_out, public

ROOT = DOCS.parent
PAGES = sorted(DOCS.rglob("*.md"))
WITH_CODE = [page for page in PAGES if blocks(page)]
TEXTS = [*PAGES, *[ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]]
TEXTS += [ROOT / "benchmarks" / "README.md", *sorted((ROOT / "results").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def given(page: Path) -> dict[str, object]:
    """The names that the guide, which is about the reader's own data, uses without defining them."""
    if page.name != "guide.md":
        return {}
    random = np.random.default_rng(0)
    rows, more = random.normal(size=(24, 2)), random.normal(size=(5, 2))
    normal = torch.distributions.Normal(torch.zeros(2), torch.ones(2))
    tables = {"X": rows, "X_normal": rows, "X_new": more, "C": rows[:, ::-1] + 1, "C_new": more, "w": np.ones(24)}
    base = torch.distributions.Independent(normal, 1)
    return {**tables, "y": np.arange(24) % 2, "flow": idn.load("moons"), "base": base}


@pytest.fixture
def registries():
    """Puts the tables of names back as they were."""
    tables = [ACTIVATIONS._known, BLOCKS._known, LOG_DETS._known, CLASSES]
    before = [dict(table) for table in tables]
    yield
    for table, known in zip(tables, before, strict=True):
        table.clear()
        table.update(known)


@pytest.mark.filterwarnings("ignore")  # a fit of three steps has not converged, and says so
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page, tmp_path, monkeypatch, registries):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("idensenet.allocator.keep_freed_memory", lambda: True)  # it would stay so for all later tests
    for block, printed in run(page, given(page)):
        if block.output is not None:
            shown, found = (list(dict.fromkeys(form(text))) for text in (block.output, printed))
            assert shown == found, f"{page.name}, line {block.line}"


def test_the_tutorials_and_the_pages_on_extending_all_have_code():
    chapters = [page for folder in ("tutorials", "extending") for page in (DOCS / folder).glob("*.md")]
    assert {page.name for page in chapters if page not in WITH_CODE} == {"index.md"}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: str(text.relative_to(ROOT)))
def test_no_relative_link_of_a_text_is_dead(text):
    code = re.compile(r"^```.*?^```$", re.M | re.S)
    for target in LINK.findall(code.sub("", text.read_text())):
        parts = urlsplit(target)
        if not parts.scheme and parts.path:
            assert (text.parent / unquote(parts.path)).exists(), target


def test_files_that_pages_name_exist():
    named = re.compile(r"`((?:tests|benchmarks|examples|docs|idensenet)/[\w./-]*\.(?:py|md|yaml))`")
    found = [(page, name) for page in PAGES for name in named.findall(page.read_text())]
    missing = [f"{page.name}: {name}" for page, name in found if not ((ROOT / name).exists() or (ROOT / "src" / name).exists())]
    assert len(found) > 20
    assert not missing


class Links(HTMLParser):
    """What a page of the site refers to, and the places in it that others can refer to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.page, self.targets, self.places = page, [], {""}
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.places.add(values.get("id") or "")
        kind = "loaded" if tag in ("img", "script", "link") else "linked"
        self.targets += [(kind, values[name]) for name in ("href", "src") if values.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return built, {page.resolve(): Links(page) for page in folder.rglob("*.html")}


@pytest.mark.xdist_group("site")
def test_the_site_builds_without_a_warning(site):
    built, pages = site
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    assert len(pages) > len(PAGES)


@pytest.mark.xdist_group("site")
def test_no_link_of_the_site_is_dead_and_nothing_is_loaded_from_elsewhere(site):
    _, pages = site
    for page, links in pages.items():
        for kind, target in links.targets:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "mailto") or parts.netloc:
                assert kind == "linked", f"{page.name} loads {target}"
            elif not (parts.path.startswith("/") or page.name == "404.html"):
                found = (page.parent / unquote(parts.path)).resolve() if parts.path else page
                found = found / "index.html" if found.is_dir() else found
                assert found.exists(), f"{page}: {target}"
                if parts.fragment and found in pages:
                    assert unquote(parts.fragment) in pages[found].places, f"{page}: {target}"


@pytest.mark.xdist_group("site")
def test_mathematics_is_rendered_and_results_are_included(site):
    _, pages = site
    texts = {str(page): page.read_text() for page in pages}
    assert all("arithmatex" not in text for text in texts.values())
    start = next(text for name, text in texts.items() if name.endswith("/reference/flows/index.html"))
    assert "<math" in start
    toy = next(text for name, text in texts.items() if name.endswith("/paper/table-toy/index.html"))
    for number in re.findall(r"\d\.\d{3} ± \d\.\d{3}", (ROOT / "results" / "table-toy.md").read_text()):
        assert number in toy


def test_every_public_name_is_documented_with_its_arguments_and_what_it_returns():
    missing = {name: found for name, thing, doc in public() if (found := left_out(thing, doc))}
    assert not missing, f"{len(missing)} public names leave something out: {missing}"
    assert sum(1 for _ in public()) > 300


def test_every_public_name_is_on_a_page_of_the_reference():
    pages = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    named = set(re.findall(r"^::: idensenet\.(\w+)$", pages, re.M))
    assert set(idn.__all__) - named == set(), "add a line '::: idensenet.NAME' to a page in docs/reference"


SHELL = re.compile(r"^    (?:srun |\S.* -m )?idensenet (\w+) ?((?:[^\n\\]|\\\n)*)", re.M)


@pytest.mark.parametrize("name", [*COMMANDS])
def test_every_option_of_a_command_on_a_page_exists(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help-all" if name == "train" else "--help"])
    known = {*re.findall(r"^  (--[\w.-]+)", capsys.readouterr().out, re.M), "--help", "--help-all", "--devices"}
    typed = [(text, found[2]) for text in TEXTS for found in SHELL.finditer(text.read_text()) if found[1] == name]
    assert typed, "no page shows this command"
    for text, rest in typed:
        for option in re.findall(r"(--[\w.-]+)", re.split(r"\s#\s| -- ", rest)[0]):
            assert option in known, f"{text.name}: idensenet {name} {rest}"
