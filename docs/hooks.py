"""What MkDocs does for this site beyond its configuration.

- Files of the repository outside of docs/ become pages: the changelog, the benchmarks, the example scripts.
- Links to them, which work in the repository, are turned into links that work on the site.
- A line that is nothing but a link to a file in results/ is replaced by that file, so that no figure is written twice.
- Mathematics becomes MathML, which browsers render without a script, and pictures become links to themselves.
"""

import ast
import html
import os
import re
from pathlib import Path, PurePosixPath

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {  # files of the repository, and where they are on the site
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/scaling.png": "scaling.png",
    "results/README.md": "reproduction.md",
    "examples": "examples/scripts.md",
    "LICENSE": "LICENSE.txt",
}
COPIED = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "benchmarks/scaling.png",
    "LICENSE",
)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RESULTS = [
    path
    for path in sorted((ROOT / "results").glob("*"))
    if path.suffix in (".md", ".png") and path.stem != "README"
]
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
INCLUDED = re.compile(r"^\[[^\]]+\]\(((?:\.\./)+results/[\w-]+\.md)\)$", re.M)
PICTURE = re.compile(r'(?<=<p>)(<img [^>]*src="([^"]+)"[^>]*>)(?=</p>)')
MATH = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)


def site_path(path: str) -> str | None:
    """The place on the site of a file of the repository; None if it is not there."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in PAGES:
        return PAGES[path]
    name = PurePosixPath(path)
    if name.parent == PurePosixPath("results"):
        return f"paper/{name.name}"
    if name.parent == PurePosixPath("examples") and name.suffix == ".py":
        return f"examples/scripts.md#{name.stem}"
    return None


def origin(page: str) -> str:
    """The file of the repository that a page of the site is made of."""
    return next((path for path in COPIED if PAGES[path] == page), f"docs/{page}")


def relinked(markdown: str, source: str, page: str) -> str:
    """The text of a file of the repository with its relative links as links from a page of the site."""

    def replace(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        found = site_path(os.path.normpath(os.path.join(os.path.dirname(source), target)))
        if found is None:
            return match[0]  # MkDocs reports it
        found = os.path.relpath(found, os.path.dirname(page) or ".")
        return f"{match[1]}{found}{f'#{anchor}' if anchor else ''}{match[3]}"

    return LINK.sub(replace, markdown)


def examples_page() -> str:
    """All example scripts on one page."""
    parts = [
        "# Example scripts\n\nEach script runs as it stands: `python examples/NAME.py [picture.png] [steps]`.\n"
    ]
    for path in EXAMPLES:
        text = path.read_text()
        about = (ast.get_docstring(ast.parse(text)) or "").split(" Usage:")[0]
        code = text.split('"""\n', 1)[1].strip()
        picture = ROOT / "docs" / "examples" / f"{path.stem}.png"
        shown = f"\n![{about}]({picture.name})\n" if picture.is_file() else ""
        parts.append(
            f"## {path.stem} {{ #{path.stem} }}\n\n{about}\n{shown}\n```{{ .python }}\n{code}\n```\n"
        )
    return "\n".join(parts)


def on_files(files, config):
    """Adds the pages and pictures that are made of files outside of docs/."""
    for path in COPIED:
        files.append(File.generated(config, PAGES[path], abs_src_path=str(ROOT / path)))
    for path in RESULTS:
        if path.suffix == ".png":
            files.append(File.generated(config, f"paper/{path.name}", abs_src_path=str(path)))
    files.append(File.generated(config, "examples/scripts.md", content=examples_page()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Includes results and turns links to files of the repository into links on the site."""
    uri = page.file.src_uri

    def include(match: re.Match[str]) -> str:
        source = os.path.normpath(os.path.join(os.path.dirname(f"docs/{uri}"), match[1]))
        text = (ROOT / source).read_text().split("\n", 1)[1].strip()  # without its title
        return relinked(text, source, uri)

    if uri == "examples/scripts.md" or uri.startswith("reference/"):
        return markdown
    pieces, last = [], 0
    for match in INCLUDED.finditer(markdown):
        pieces += [relinked(markdown[last : match.start()], origin(uri), uri), include(match)]
        last = match.end()
    return "".join([*pieces, relinked(markdown[last:], origin(uri), uri)])


def on_page_content(content, page, config, files):
    """Renders mathematics, and makes each picture a link to itself: on a phone they are small."""

    def mathml(match: re.Match[str]) -> str:
        return convert(html.unescape(match[3]), display="block" if match[2] == "[" else "inline")

    return PICTURE.sub(r'<a href="\2">\1</a>', MATH.sub(mathml, content))
