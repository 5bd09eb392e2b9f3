"""Checks that every generated page has to pass."""

import html.parser
import re


class Outline(html.parser.HTMLParser):
    VOID = frozenset({"meta", "img", "br", "hr", "path", "use", "rect", "image", "link", "input"})

    def __init__(self):
        super().__init__()
        self.open, self.references, self.headings, self.figures, self.scripts = [], [], [], 0, 0
        self.ids, self.mismatched = [], []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.figures += tag == "figure"
        self.scripts += tag == "script"
        for key in ("src", "href", "xlink:href", "srcset", "poster", "data"):
            if key in values:
                self.references.append(values[key])
        if "id" in values:
            self.ids.append(values["id"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        if not self.open or self.open[-1] != tag:
            self.mismatched.append(tag)
        elif self.open:
            self.open.pop()

    def handle_data(self, text):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(text)


def outline(page):
    parsed = Outline()
    parsed.feed(page)
    return parsed


def check_self_contained(page):
    parsed = outline(page)
    assert parsed.references, "there are inlined pictures"
    assert all(reference.startswith(("data:", "#")) for reference in parsed.references)
    assert parsed.scripts == 0
    outside = [address for address in re.findall(r"https?://[^\s\"'<>)]+", page) if "w3.org" not in address]
    assert outside == [], "name spaces aside, no address at all"
    assert "@import" not in page


def check_well_formed(page):
    parsed = outline(page)
    assert parsed.mismatched == []
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids)), "figures do not share ids"
