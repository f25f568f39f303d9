"""Draw charts as SVG that stands in a page, whose style sheet (`page.css`) sets colours and lines.

Marks are invisible areas of a chart that show their numbers to a pointer, a finger, the keyboard and screen readers.
Lengths are in points. On a phone a chart is about as wide as it is drawn, so that its texts are as large as the others.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby

import numpy as np
import numpy.typing as npt

from posbias._charts import ARC_HEIGHT, SHADES, Axis, CellMap, Chart, Color, Rule, Series
from posbias._text import printable

Point = tuple[float, float]
# The shape of each marker: the number of its spikes, how far out it is cut between them, and by how much of a spike it
# is turned.
_SHAPES = {
    "s": (4, math.sqrt(0.5), 0.5),
    "^": (3, 0.5, 0.0),
    "D": (4, math.sqrt(0.5), 0.0),
    "v": (3, 0.5, 0.5),
    "P": (4, 0.4, 0.0),
    "X": (4, 0.4, 0.5),
    "*": (5, 0.45, 0.0),
}
_WIDTH = 345.6
# A chart that is one inch high in matplotlib has this height here.
_INCH = 66.0
# The space around the frame, and the length of the sides of a map.
_LEFT, _RIGHT, _ABOVE, _BELOW, _MAP = 46.0, 5.8, 5.8, 34.0, 250.0
# The length of ticks, the gap to their texts, the distance of axis labels below and to the left, and half the width of
# the cap of a bar.
_TICK, _GAP, _LABEL_BELOW, _LABEL_LEFT, _CAP = 3.5, 3.5, 29.5, 37.5, 3.0
# The legend: the height of a row, the width of a sample, and about that of a character.
_ROW, _SAMPLE, _CHARACTER = 15.0, 18.0, 5.8
# How far the mark of a point reaches: a point itself is too small for a finger.
_REACH = 6.0
# The largest number of cells in a row of a map that a screen can show, and the place and width of the scale beside it.
_MOST_CELLS, _SCALE_GAP, _SCALE_WIDTH = 500, 7.0, 11.0
# The height of a line of text in a cell.
_CELL_LINE = 9.0
# Lines leave the area by at most so many of its heights: browsers draw very long dashed lines as solid ones.
_OUTSIDE = 20.0


@dataclass(frozen=True)
class Mark:
    """A part of a chart that shows a text: a column at x, a row at y, the surroundings of a point, or a cell."""

    text: str
    x: float | None = None
    y: float | None = None
    cell: bool = False


def draw_svg(chart: Chart, marks: Sequence[Mark], *, key: str, title: str, text: str) -> str:
    """Return a chart as SVG.

    Arguments:
        chart (Chart): the chart.
        marks (sequence of Mark): the parts that show their numbers.
        key (str): what its ids in the page begin with.
        title, text (str): what a screen reader says of the chart.
    """
    legend, rows = _legend(chart)
    top = _ABOVE + rows * _ROW
    width, height = _WIDTH - _LEFT - _RIGHT, _INCH * chart.height - _ABOVE - _BELOW
    if chart.cells is not None:
        width, height = _MAP, _MAP if chart.cells.square else height
    frame = Frame(chart.x, chart.y, _LEFT, _LEFT + width, top, top + height)
    inside = [
        _cells(chart.cells, frame) if chart.cells is not None else "",
        _group(0, [_arc(*ends, width, frame) for ends, width in chart.arcs.items()]) if chart.arcs else "",
        *(_series(one, frame) for one in chart.series),
        *(_rule(rule, frame) for rule in chart.rules),
    ]
    scale = chart.cells.scale if chart.cells is not None else None
    outside = _axes(frame, grid=chart.grid) + legend + (_shades(scale, frame) if scale is not None else "")
    area = _box(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top)
    # A pointer shows the title of a mark even without the script.
    shown = [f'<path d="{_outline(mark, frame)}"><title>{escape(mark.text)}</title></path>' for mark in marks]
    return (
        f'<svg viewBox="0 0 {_short(_WIDTH)} {_short(frame.bottom + _BELOW)}" role="group" '
        f'aria-labelledby="{key}-title {key}-text" class="chart"><title id="{key}-title">{escape(title)}</title>'
        f'<desc id="{key}-text">{escape(text)}</desc><g aria-hidden="true">'
        f'<clipPath id="{key}-area"><path d="{area}"/></clipPath>{outside}'
        f'<g clip-path="url(#{key}-area)">{"".join(inside)}</g></g><g class="marks">{"".join(shown)}</g></svg>'
    )


@dataclass(frozen=True)
class Frame:
    """The axes of a chart and where they lie, in points from the upper left."""

    x: Axis
    y: Axis
    left: float
    right: float
    top: float
    bottom: float

    def at(self, x: float, y: float) -> Point:
        """Return the place of a pair of numbers."""
        share = max(-_OUTSIDE, min(self.y.share(y), _OUTSIDE)) if math.isfinite(y) else math.nan
        return (
            self.left + self.x.share(x) * (self.right - self.left),
            self.bottom + share * (self.top - self.bottom),
        )

    def points(self, x: Iterable[float], y: Iterable[float]) -> list[Point]:
        """Return the places of pairs of numbers."""
        return [self.at(*pair) for pair in zip(x, y, strict=True)]


def _outline(mark: Mark, frame: Frame) -> str:
    if mark.x is not None and mark.y is not None and not mark.cell:
        x, y = frame.at(mark.x, mark.y)
        return _box(x - _REACH, y - _REACH, 2 * _REACH, 2 * _REACH)
    left, right, top, bottom = frame.left, frame.right, frame.top, frame.bottom
    if mark.x is not None:
        ends = [frame.at(mark.x + half, frame.y.low)[0] for half in (-0.5, 0.5)]
        left, right = max(ends[0], left), min(ends[1], right)
    if mark.y is not None:
        top, bottom = sorted(frame.at(frame.x.low, mark.y + half)[1] for half in (-0.5, 0.5))
    return _box(left, top, right - left, bottom - top)


# ---- Parts of a chart


def _axes(frame: Frame, *, grid: bool) -> str:
    texts, lines, ticks = [], "", ""
    for value, word in frame.x.ticks.items():
        place = frame.at(value, frame.y.low)[0]
        lines += _line([(place, frame.bottom), (place, frame.top)])
        ticks += _line([(place, frame.bottom), (place, frame.bottom + _TICK)])
        texts.append(_text(word, place, frame.bottom + _TICK + _GAP + 7.5, "mid"))
    for value, word in frame.y.ticks.items():
        place = frame.at(frame.x.low, value)[1]
        lines += _line([(frame.left, place), (frame.right, place)])
        ticks += _line([(frame.left, place), (frame.left - _TICK, place)])
        texts.append(_text(word, frame.left - _TICK - _GAP, place + 3.5, "end"))
    corner = (frame.left, frame.bottom)
    edges = _line([(frame.left, frame.top) if frame.y.ticks else corner, corner, (frame.right, frame.bottom)])
    across, down = (frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2
    texts += [
        _text(frame.x.label, across, frame.bottom + _LABEL_BELOW, "mid"),
        _text(frame.y.label, -down, frame.left - _LABEL_LEFT, "mid", transform="rotate(-90)"),
    ]
    return "".join([_path("grid", lines) if grid else "", _path("axis", edges + ticks), *texts])


def _legend(chart: Chart) -> tuple[str, int]:
    """Return samples of the series and rules with their names, and the number of rows that they take."""
    samples = [(one.name, _sample(one)) for one in chart.series if one.name]
    samples += [
        (rule.name, Series("", rule.color, [0, 1], [0, 0], line=rule.line)) for rule in chart.rules if rule.name
    ]
    if chart.note:
        samples.append((chart.note, Series("", "ink", [], [])))
    axis = Axis("", 0, 1, lambda low, high: {})
    shapes, x, row = [], _LEFT, 0
    for name, series in samples:
        words = printable(name)
        width = _SAMPLE + 5 + _CHARACTER * len(words)
        if x > _LEFT and x + width > _WIDTH - _RIGHT:
            x, row = _LEFT, row + 1
        y = _ABOVE + row * _ROW + 4
        frame = Frame(axis, axis, x, x + _SAMPLE, y - 4, y)
        shapes += [_series(series, frame), _text(words, x + _SAMPLE + 5, y + 3.5)]
        x += width + 12
    return "".join(shapes), row + 1 if samples else 0


def _sample(series: Series) -> Series:
    """Return a sample of a series for the legend: its line, with its marker and its bar in the middle."""
    low, high = ([math.nan, -1, math.nan], [math.nan, 1, math.nan]) if series.low else ([], [])
    line = replace(series, x=[0, 0.5, 1], y=[0, 0, 0], low=low, high=high)
    return replace(line, marked=[1], band=False, across=False)


def _series(one: Series, frame: Frame) -> str:
    points = frame.points(one.x, one.y)
    if one.columns:
        corners = [(frame.at(x - 0.35, 0), frame.at(x + 0.35, y)) for x, y in zip(one.x, one.y, strict=True)]
        columns = (_box(left, top, right - left, bottom - top) for (left, bottom), (right, top) in corners)
        return _group(one.color, [_path("dot", "".join(columns))])
    low, high = (
        [] if not ends else frame.points(ends, one.y) if one.across else frame.points(one.x, ends)
        for ends in (one.low, one.high)
    )
    bars = [_bar(*ends, one.across) for ends in zip(points, low, high, strict=True)] if one.bars and low else []
    chosen = points if one.marked is None else [points[place] for place in one.marked]
    marked = [point for point in chosen if all(map(math.isfinite, point))] if one.marker else []
    shapes = [
        _path("band", _band(low, high)) if one.band else "",
        _stroke(one.line, points) if one.line else "",
        _path("whisker", "".join(bars)),
        _path("hollow" if one.hollow else "dot", "".join(_marker(*at, one.marker, one.size / 2) for at in marked)),
    ]
    return _group(one.color, shapes, one.opacity)


def _bar(middle: Point, low: Point, high: Point, across: bool) -> str:
    (x, y), (x_low, y_low), (x_high, y_high) = middle, low, high
    if not math.isfinite(sum((*middle, *low, *high))):
        return ""
    # The percentiles of a low level may both lie on one side of the estimate.
    if across:
        ends = [(min(x, x_low), y), (max(x, x_high), y)]
        caps = (_line([(end, y - _CAP), (end, y + _CAP)]) for end, _ in ends)
    else:
        ends = [(x, max(y, y_low)), (x, min(y, y_high))]
        caps = (_line([(x - _CAP, end), (x + _CAP, end)]) for _, end in ends)
    return "".join([_line(ends), *caps])


def _rule(rule: Rule, frame: Frame) -> str:
    x, y = frame.at(rule.value if rule.axis == "x" else frame.x.low, rule.value if rule.axis == "y" else frame.y.low)
    ends = [(x, frame.bottom), (x, frame.top)] if rule.axis == "x" else [(frame.left, y), (frame.right, y)]
    note = _text(rule.note, frame.right, y - 3, "end") if rule.note else ""
    return _group(rule.color, [_stroke(rule.line, ends)]) + note


def _arc(first: int, last: int, width: float, frame: Frame) -> str:
    (left, bottom), (right, _), (_, top) = (
        frame.at(*place) for place in ((first, 0), (last, 0), (first, ARC_HEIGHT * (last - first)))
    )
    radii = f"A{_short((right - left) / 2)} {_short(bottom - top)} 0 0 1"
    outline = f"M{_short(left)} {_short(bottom)}{radii} {_short(right)} {_short(bottom)}"
    return _path("arc", outline, stroke_width=_short(width))


def _cells(cells: CellMap, frame: Frame) -> str:
    scale = cells.scale
    if scale is None:
        return ""
    kept = np.ix_(*(np.unique(np.linspace(0, size - 1, _MOST_CELLS).astype(int)) for size in cells.values.shape))
    shown, filled = np.where(cells.filled, cells.values, scale.low)[kept], cells.filled[kept]
    low, high, own = (np.log(v) if scale.log else v for v in (scale.low, scale.high, shown))
    shares = np.clip((own - low) / (high - low), 0, 1)
    levels = np.where(filled, 1 + np.rint(254 * shares), 0).astype(np.uint8)
    texts = []
    for row, column, text, light in cells.texts:
        x, y = frame.at(column, row)
        lines = text.split("\n")
        for number, line in enumerate(lines):
            place = y + 2.6 + _CELL_LINE * (number - (len(lines) - 1) / 2)
            texts.append(_text(line, x, place, "on-light" if light else "on-dark"))
    return _image(levels, frame.left, frame.top, _MAP, frame.bottom - frame.top, "cells") + "".join(texts)


def _shades(scale: Axis, frame: Frame) -> str:
    """Return the scale beside a map: its shades and some of the counts that they stand for."""
    left, height = frame.right + _SCALE_GAP, frame.bottom - frame.top
    ticks, texts = "", ""
    for count, word in scale.ticks.items():
        y = frame.bottom - scale.share(count) * height
        ticks += _line([(left + _SCALE_WIDTH, y), (left + _SCALE_WIDTH + _TICK, y)])
        texts += _text(word, left + _SCALE_WIDTH + 6, y + 3.5)
    levels = np.arange(255, 0, -1, dtype=np.uint8)[:, None]
    return _image(levels, left, frame.top, _SCALE_WIDTH, height, "shades") + _path("axis", ticks) + texts


def _image(levels: npt.NDArray[np.uint8], x: float, y: float, width: float, height: float, kind: str) -> str:
    data = base64.b64encode(_png(levels)).decode()
    return (
        f'<image class="{kind}" x="{_short(x)}" y="{_short(y)}" width="{_short(width)}" height="{_short(height)}" '
        f'preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'
    )


def _png(levels: npt.NDArray[np.uint8]) -> bytes:
    """Return shades, (rows, columns), as a PNG of one pixel each; 0 is transparent.

    >>> _png(np.array([[0, 255]], dtype=np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    anchors = np.array([[*bytes.fromhex(shade[1:])] for shade in SHADES])
    places = np.linspace(0, len(anchors) - 1, 255)
    colors = np.stack([np.interp(places, np.arange(len(anchors)), anchors[:, i]) for i in range(3)], axis=1)
    palette = bytes(3) + np.rint(colors).astype(np.uint8).tobytes()
    # Each row begins with the number of its filter, 0 for none.
    rows = np.pad(levels, ((0, 0), (1, 0))).tobytes()
    head = struct.pack(">IIBBBBB", levels.shape[1], levels.shape[0], 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", palette), (b"tRNS", b"\0"), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


# ---- Shapes


def _line(points: Iterable[Point]) -> str:
    """Return a line through points, broken where one is not known.

    >>> _line([(0, 1), (2, 3), (math.nan, 0), (4, 5), (6, 7)])
    'M0 1L2 3M4 5L6 7'
    """
    return "".join("M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in part) for part in _unbroken(points))


def _unbroken(points: Iterable[tuple[float, ...]]) -> list[list[tuple[float, ...]]]:
    return [[*part] for finite, part in groupby(points, key=lambda point: all(map(math.isfinite, point))) if finite]


def _band(lower: Sequence[Point], upper: Sequence[Point]) -> str:
    """Return the area between two lines over the same places, broken where one is not known."""
    both = [(x, low, high) for (x, low), (_, high) in zip(lower, upper, strict=True)]
    return "".join(
        _line([(x, low) for x, low, _ in part] + [(x, high) for x, _, high in reversed(part)]) + "z"
        for part in _unbroken(both)
    )


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{_short(x)} {_short(y)}h{_short(width)}v{_short(height)}h{_short(-width)}z"


def _marker(x: float, y: float, marker: str, radius: float) -> str:
    if marker == "o":
        r = round(radius, 1)
        half, across = f"a{_short(r)} {_short(r)} 0 0 0", _short(2 * r)
        return f"M{_short(x - r)} {_short(y)}{half} {across} 0{half} -{across} 0z"
    spikes, cut, turned = _SHAPES[marker]
    corners = []
    for i in range(2 * spikes):
        # A little larger, to look as large as a circle.
        far, angle = radius * 1.3 * (cut if i % 2 else 1), (i / 2 + turned) * 2 * math.pi / spikes
        corners.append((x + far * math.sin(angle), y - far * math.cos(angle)))
    return f"{_line(corners)}z"


def _short(number: float) -> str:
    """Return a length with as many decimals as can be seen.

    >>> _short(58.004), _short(-129.34), _short(-0.01)
    ('58', '-129.3', '0')
    """
    return f"{round(number, 1) + 0.0:.1f}".removesuffix(".0")


def _stroke(line: str, points: Iterable[Point]) -> str:
    return _path(f"line {line}".removesuffix(" solid"), _line(points))


def _path(kind: str, outline: str, **attributes: object) -> str:
    return f'<path class="{kind}" d="{outline}"{_attributes(attributes)}/>' if outline else ""


def _attributes(attributes: Mapping[str, object]) -> str:
    return "".join(f' {name.replace("_", "-")}="{escape(str(value))}"' for name, value in attributes.items())


def _group(color: Color, shapes: Iterable[str], opacity: float = 1.0) -> str:
    kind = f"c{color}" if isinstance(color, int) else color
    faint = {} if opacity == 1 else {"opacity": opacity}
    return f'<g class="{kind}"{_attributes(faint)}>{"".join(shapes)}</g>'


def _text(words: str, x: float, y: float, kind: str = "", **attributes: object) -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{_short(x)}" y="{_short(y)}"{_attributes(attributes)}>{escape(words)}</text>'
