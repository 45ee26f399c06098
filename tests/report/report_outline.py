"""Reading a page the way a program does."""

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "source", "br"}


class Outline(HTMLParser):
    """Tags that are open, addresses, pictures and the text of a page. Tags must close in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.alts, self.ids, self.words = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.addresses += [values[name] for name in ("src", "href", "srcset", "action") if name in values]
        self.ids += [values["id"]] if "id" in values else []
        if tag == "img":
            self.alts.append(values["alt"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"{tag} closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


def text_of(page):
    return " ".join(" ".join(Outline(page).words).split())


def values_of(page):
    """All numbers on the page that programs can read, and how they are shown."""
    return [(float(value), shown) for value, shown in re.findall(r'<data value="([^"]+)">([^<]+)</data>', page)]


def has_number(page, value, digits):
    return (value, f"{value:,.{digits}f}") in values_of(page)
