"""Parse an HTML page into a list of elements with their attributes and text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

# Elements that are never closed, and those whose end may be left out.
_EMPTY = {"meta", "br", "img", "link", "input", "hr"}
_IMPLIED = {"td", "th", "tr", "p", "li", "dt", "dd"}


@dataclass
class Element:
    """An HTML element: its tag, its attributes, and its text including that of nested elements."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    inside: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[Element] = []
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("td", "th", "tr", "tbody", "thead"):
            self._close({"td", "th"} if tag in ("td", "th") else {"td", "th", "tr"})
        made = Element(tag, {name: value or "" for name, value in attrs}, inside=[one.tag for one in self._open])
        self.found.append(made)
        if tag not in _EMPTY:
            self._open.append(made)

    def _close(self, tags: set[str]) -> None:
        while self._open and self._open[-1].tag in tags:
            self._open.pop()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _EMPTY:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open[-1].tag != tag:
            assert self._open[-1].tag in _IMPLIED, f"{self._open[-1].tag} is not closed before {tag}"
            self._open.pop()
        assert self._open, f"{tag} was never opened"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data


def elements(page: str) -> list[Element]:
    """Return all elements of a page; its tags must be balanced."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert not reader._open, reader._open
    return reader.found


def table(page: str, caption: str) -> list[list[str]]:
    """Return the rows of the table with a caption, header first."""
    found = elements(page)
    start = next(n for n, one in enumerate(found) if one.tag == "table" and one.text.strip().startswith(caption))
    rows: list[list[str]] = []
    for one in found[start + 1 :]:
        if one.tag == "table":
            break
        if one.tag == "tr":
            rows.append([])
        elif one.tag in ("td", "th"):
            rows[-1].append(one.text.strip())
    return rows
