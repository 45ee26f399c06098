"""The code of a documentation page, taken from its fences. `python tests/page_blocks.py PAGE ...` runs pages in full."""

import contextlib
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.M | re.S)
SHORTER = [  # what a test shortens: everything else runs as the reader sees it
    (re.compile(r"^(steps\b[^=\n]*= )\d+", re.M), r"\g<1>3"),
    (re.compile(r"max_iter=\d+"), "max_iter=3"),
    (re.compile(r"\b(Flow(?:Density|OutlierDetector|Classifier)\()(?![^)]*max_iter)"), r"\1max_iter=3, "),
    (re.compile(r"\.repeat\(20, 1\)"), ".repeat(1, 1)"),
]
NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d*)?(e[-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fence of Python, its line in the page, and the output that the page shows below it."""

    code: str
    line: int
    output: str | None


def blocks(page: Path) -> list[Block]:
    """The Python fences of a page, in order."""
    text = page.read_text()
    fences = list(FENCE.finditer(text))
    found = []
    for i, fence in enumerate(fences):
        if fence[1] != "python":
            continue
        after = fences[i + 1] if i + 1 < len(fences) else None
        follows = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        found.append(Block(fence[2], text[: fence.start(2)].count("\n"), after[2] if follows else None))
    return found


def shortened(code: str) -> str:
    """The code with few steps."""
    for pattern, instead in SHORTER:
        code = pattern.sub(instead, code)
    return code


def run(page: Path, given: dict[str, object], short: bool = True) -> list[tuple[Block, str]]:
    """Runs the blocks of a page in one namespace; returns each with what it printed."""
    namespace: dict[str, object] = {"__name__": "page", **given}
    printed = []
    for block in blocks(page):
        code = shortened(block.code) if short else block.code
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * block.line + code, str(page), "exec"), namespace)
        printed.append((block, out.getvalue()))
    return printed


def form(text: str) -> list[str]:
    """Output without its numbers and without the spaces that depend on them."""
    return [" ".join(NUMBER.sub("#", line).split()) for line in text.strip().splitlines()]


def filled(page: Path, given: dict[str, object]) -> str:
    """The text of a page with the outputs of a full run."""
    text = page.read_text()
    for block, printed in run(page, given, short=False):
        if block.output is not None:
            text = text.replace(f"{block.code}```\n\n```text\n{block.output}", f"{block.code}```\n\n```text\n{printed}", 1)
    return text


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name).resolve()
        path.write_text(filled(path, {}))
        print(f"{name}: outputs are written")
