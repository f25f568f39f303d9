"""Pictures as parts of a page: no styles, ids or links of their own that could meet those of others."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from posbias.extras import optional
from posbias.pictures import ALARM, COLORS

_NAMESPACE = re.compile(r"^\{[^}]*\}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
# XML knows no such characters, not even as references.
_UNKNOWN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
# Colours that a page has another shade of in the dark.
_NAMED = {"#000000": "ink", "#ffffff": "paper", "#b0b0b0": "grid", ALARM.lower(): "alarm"}
_NAMED |= {color.lower(): f"c{number}" for number, color in enumerate(COLORS)}
_COLOR = re.compile(r"#[0-9a-f]{6}\b", re.IGNORECASE)
_DROPPED = ("font-family",)
_COMMAND = re.compile(r" ?\b([MLCQZz])\b ?")
_LENGTHS = ("d", "x", "y", "width", "height", "transform")
# Groups of fewer are not worth a word.
_FEW = 4
# Decimals beyond the first, which are less than a tenth of a pixel.
_NUMBER = re.compile(r"-?\d+\.\d{2,}")


@dataclass
class Styles:
    """The styles of all pictures of a page, each once, as classes of its one style sheet; and their ids."""

    classes: dict[str, str] = field(default_factory=dict)
    ids: dict[tuple[str, str], str] = field(default_factory=dict)

    def named(self, style: str) -> str | None:
        """Return the class that stands for a style; None where nothing is left of it."""
        kept = [part.strip() for part in style.split(";") if part.strip()]
        kept = [part for part in kept if part.split(":")[0].strip() not in _DROPPED]
        if not kept:
            return None
        rule = ";".join(_COLOR.sub(_shade, part) for part in kept)
        return self.classes.setdefault(rule, f"s{len(self.classes)}")

    def identified(self, key: str, name: str) -> str:
        """Return an id of one picture as one that no other has."""
        return self.ids.setdefault((key, name), f"i{len(self.ids)}")

    @property
    def sheet(self) -> str:
        """The rules of all classes."""
        return "\n".join(f".{name}{{{rule}}}" for rule, name in self.classes.items())


def _shade(found: re.Match[str]) -> str:
    name = _NAMED.get(found[0].lower())
    return found[0] if name is None else f"var(--{name})"


@dataclass(frozen=True)
class Mark:
    """A place of a picture that tells its numbers: a rectangle, in points from the upper left."""

    x: float
    y: float
    width: float
    height: float
    text: str


def inline(figure: Any, key: str, styles: Styles, *, title: str, text: str, marks: Iterable[Mark]) -> str:
    """Return a figure as SVG to stand in a page, with its marks over it; all of its ids begin with the key."""
    file = io.StringIO()
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_facecolor("none")
    # `savefig` would draw everything twice, the first time to measure it.
    canvas = optional("matplotlib.backends.backend_svg", "Reports need").FigureCanvasSVG(figure)
    canvas.print_svg(file, metadata={"Date": None})
    drawn = ElementTree.fromstring(_UNKNOWN.sub("\ufffd", file.getvalue()))
    _, _, width, height = drawn.get("viewBox", "0 0 1 1").split()
    picture = ElementTree.Element("g", {"aria-hidden": "true"})
    for child in drawn:
        if _name(child) not in ("metadata", "defs") or child.find("{*}style") is None:
            picture.append(child)
    for gone in picture.findall("{*}metadata"):
        picture.remove(gone)
    _clean(picture, key, styles)
    root = ElementTree.Element(
        "svg",
        {
            "viewBox": f"0 0 {width} {height}",
            "role": "group",
            "aria-labelledby": f"{key}-title {key}-text",
            "class": "chart",
        },
    )
    ElementTree.SubElement(root, "title", {"id": f"{key}-title"}).text = _legal(title)
    ElementTree.SubElement(root, "desc", {"id": f"{key}-text"}).text = _legal(text)
    root.append(picture)
    _add_marks(root, list(marks))
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")


def _name(element: ElementTree.Element) -> str:
    return _NAMESPACE.sub("", element.tag)


def _legal(text: str) -> str:
    return _UNKNOWN.sub("\ufffd", text)


def _clean(picture: ElementTree.Element, key: str, styles: Styles) -> None:
    """Take namespaces, styles and unused ids off all elements, and give the other ids the key."""
    used = {
        name
        for element in picture.iter()
        for value in element.attrib.values()
        for name in [*_REFERENCE.findall(value), *([value[1:]] if value.startswith("#") else [])]
    }
    for element in picture.iter():
        element.tag = _name(element)
        # Text that breaks lines between elements says nothing.
        if element.tag not in ("text", "tspan"):
            element.text = None
        element.tail = None
        kept = {}
        for name, value in element.attrib.items():
            name = _NAMESPACE.sub("", name)
            if name == "id":
                if value in used:
                    kept[name] = styles.identified(key, value)
            elif name == "style":
                if (found := styles.named(value)) is not None:
                    kept["class"] = found
            elif name == "href" and value.startswith("#"):
                kept[name] = f"#{styles.identified(key, value[1:])}"
            elif name not in ("space", "type") and not (name == "transform" and value.startswith("rotate(-0 ")):
                value = _REFERENCE.sub(lambda found: f"url(#{styles.identified(key, found[1])})", value)
                kept[name] = _short(value) if name in _LENGTHS else value
        element.attrib.clear()
        element.attrib.update(kept)
    _flatten(picture)
    for element in picture.iter("g"):
        _gather(element)


def _gather(group: ElementTree.Element) -> None:
    """Say once of a group what all that is in it have in common, such as the dots of a curve."""
    if len(group) < _FEW or len({child.tag for child in group}) > 1:
        return
    for name in ("class", "clip-path"):
        shared = {child.get(name) for child in group}
        if name not in group.attrib and len(shared) == 1 and None not in shared:
            group.set(name, str(shared.pop()))
            for child in group:
                del child.attrib[name]


def _flatten(element: ElementTree.Element) -> None:
    """Put what stands in groups that say nothing in their place, and drop those that are empty."""
    children: list[ElementTree.Element] = []
    for child in element:
        _flatten(child)
        children += [*child] if child.tag == "g" and not child.attrib and len(child) < _FEW else [child]
    element[:] = children


def _short(numbers: str) -> str:
    """Return coordinates with as many characters as they need.

    >>> _short("M 58.004 10.000000 L 64.12 -129.34 \\nz")
    'M58 10L64.1 -129.3z'
    """
    numbers = _COMMAND.sub(r"\1", " ".join(numbers.split()))
    return _NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), " ".join(numbers.split()))


def _add_marks(root: ElementTree.Element, marks: list[Mark]) -> None:
    """Lay marks over a picture, each named by its numbers, which a pointer shows even where there is no script."""
    if not marks:
        return
    group = ElementTree.SubElement(root, "g", {"class": "marks"})
    for mark in marks:
        outline = f"M{mark.x:.1f} {mark.y:.1f}h{mark.width:.1f}v{mark.height:.1f}h{-mark.width:.1f}z"
        shown = ElementTree.SubElement(group, "path", {"d": outline})
        ElementTree.SubElement(shown, "title").text = _legal(mark.text)
