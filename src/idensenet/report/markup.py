"""The pieces of an HTML page that carries everything with it."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from html import escape
from importlib import resources

from idensenet.report.drawing import Drawing

Cell = str  # markup; text goes through escape first
SCROLLED = ("wide", "heat")  # pictures that keep their size on a phone, where their text would be too small
NARROW = 3  # columns of a table that fit on a phone
HINT = '<p class="hint" aria-hidden="true">Scroll sideways for more &rarr;</p>'


def data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def png_size(png: bytes) -> tuple[int, int]:
    """Width and height, from the header."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def picture(drawing: Drawing, alt: str) -> str:
    width, height = png_size(drawing.light)
    image = f'<img src="{data_uri(drawing.light)}" width="{width}" height="{height}" alt="{escape(alt)}">'
    if drawing.dark is None:
        return image
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{data_uri(drawing.dark)}">'
    return f"<picture>{dark}{image}</picture>"


def figure(drawing: Drawing, alt: str, title: str = "", caption: str = "", kind: str = "") -> str:
    """A picture with a title over it and a caption under it."""
    top = f"<b>{escape(title)}</b>" if title else ""
    bottom = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    if kind in SCROLLED:
        return f'<div>{HINT}<figure class="{kind}" tabindex="0">{top}{picture(drawing, alt)}{bottom}</figure></div>'
    return f'<figure class="{kind or "plain"}">{top}{picture(drawing, alt)}{bottom}</figure>'


def number(value: float, digits: int = 4) -> Cell:
    """A number to read, and all its digits for programs."""
    return f'<data value="{value!r}">{value:,.{digits}f}</data>'


def table(header: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell]]], label: str, text_columns: int = 1) -> str:
    """Rows of (class, cells) that scroll inside their box. All but the first `text_columns` columns are numbers."""

    def kind(i: int) -> str:
        return "number" if i >= text_columns else "keep"

    head = "".join(f'<th scope="col" class="{kind(i)}">{escape(name)}</th>' for i, name in enumerate(header))
    body = "".join(
        f'<tr class="{row_class or "row"}">'
        + "".join(f'<td class="{kind(i)}">{cell}</td>' for i, cell in enumerate(cells))
        + "</tr>"
        for row_class, cells in rows
    )
    tall = " tall" if len(rows) > 16 else ""
    hint = HINT if len(header) > NARROW else ""
    return (
        f'{hint}<div class="scroll{tall}" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def facts(pairs: Sequence[tuple[str, Cell]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in pairs) + "</dl>"


def tile(value: Cell, label: Cell, kind: str = "plain") -> str:
    return f'<div class="tile {kind}"><b>{value}</b><span>{label}</span></div>'


def section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}"><h2>{escape(title)}</h2>{body}</section>\n'


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def document(title: str, body: str) -> str:
    """A whole page; nothing in it can load anything from elsewhere."""
    css = (resources.files("idensenet") / "report" / "page.css").read_text()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
    return page.encode("ascii", "xmlcharrefreplace").decode()  # the same in every encoding
