"""SVG charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import NamedTuple

from posbias._plotstyle import round_ranks
from posbias._text import printable
from posbias.curves.curve import Curve

Point = tuple[float, float]
# Spikes, how deep it is cut between them, and by how much of a spike it is turned; a square is cut down to its sides.
_STARS = {
    "s": (4, math.sqrt(0.5), 0.5),
    "^": (3, 0.5, 0.0),
    "D": (4, math.sqrt(0.5), 0.0),
    "v": (3, 0.5, 0.5),
    "P": (4, 0.4, 0.0),
    "X": (4, 0.4, 0.5),
    "*": (5, 0.45, 0.0),
}
# So many numbers are written beside a picture, and such a part of what is drawn is left free at both ends.
_MOST, _MARGIN = 7, 0.05
# Numbers that are closer to each other than this, or to nothing, are not told apart.
_LEAST = 1e-6
# In points: on a phone a picture is about as wide as it was drawn, so that its words are as large as those beside it.
WIDTH, HEIGHT = 345.6, 237.6
LEFT, RIGHT, ABOVE, BELOW = 43.2, 5.8, 5.8, 34.0
# Ticks and their words, how far from the axes the words beside and below them stand, and half the width of a cap.
_TICK, _GAP, _BESIDE, _UNDER, _CAP = 3.5, 3.5, 29.5, 29.5, 3.0
# The legend: its rows, the width of a sample, and of a character, about.
_ROW, _SAMPLE, _CHARACTER = 15.0, 18.0, 5.8
# A point is too small for a finger.
_REACH = 6.0
# The outline of a place that tells its numbers, and these.
Mark = tuple[str, str]


def rank_axis(ranks: Sequence[int], label: str = "Rank") -> Axis:
    """Return an axis of ranks, with half a rank more on either side."""
    return Axis(label, ranks[0] - 0.5, ranks[-1] + 0.5, {rank: f"{rank}" for rank in round_ranks(ranks[0], ranks[-1])})


@dataclass(frozen=True)
class Axis:
    """What a picture is drawn over in one direction: from a number to another, and what is written beside some.

    Where numbers are compared by their ratios, `log` has equal ones equally far apart.
    """

    label: str
    low: float
    high: float
    ticks: Mapping[float, str]
    log: bool = False

    def share(self, value: float) -> float:
        """Return where a number lies, from 0 at the one end to 1 at the other; nowhere if it has no ratio to others."""
        if self.log and value <= 0:
            return -math.inf
        low, high, own = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (own - low) / (high - low)


def number_axis(
    label: str, values: Iterable[float], *, bottom: float | None = None, top: float = math.inf, log: bool = False
) -> Axis:
    """Return an axis that holds all of the finite values up to the top, and begins at the bottom if there is one."""
    found = [v for v in values if math.isfinite(v) and (v > _LEAST or not log)] or [1.0]
    low, high = min(found) if bottom is None else bottom, max(found)
    if log:
        beyond = (high / low) ** _MARGIN if high > low * (1 + _LEAST) else 1.1
        low, high = low / beyond, high * beyond
    else:
        size = max(abs(low), abs(high), 1.0)
        beyond = _MARGIN * (high - low) if high - low > _LEAST * size else 0.1 * size
        low, high = low - beyond, high + beyond
    low, high = low if bottom is None else bottom, min(high, top)
    ticks = round_ratios(low, high) if log else round_numbers(low, high)
    return Axis(label, low, high, ticks, log)


def round_ratios(low: float, high: float) -> dict[float, str]:
    """Return round numbers between two that are compared by their ratio.

    >>> for low, high in ((0.09, 1.2), (0.6, 2.1), (0.8, 1.3)):
    ...     print(*round_ratios(low, high).values())
    0.1 0.2 0.5 1
    0.7 1 1.5 2
    0.8 0.9 1.0 1.1 1.2 1.3
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        found = [float(f"{step}e{power}") for power in powers for step in steps]
        held = [value for value in found if low <= value <= high]
        if len(held) > 2:
            return {value: f"{value:g}" for value in held[:: math.ceil(len(held) / _MOST)]}
    return round_numbers(low, high)


def round_numbers(low: float, high: float) -> dict[float, str]:
    """Return round numbers between two, with as many decimals as all of them need.

    >>> for low, high in ((0, 1.04), (0.913, 1.21), (0, 42)):
    ...     print(*round_numbers(low, high).values())
    0.0 0.2 0.4 0.6 0.8 1.0
    0.95 1.00 1.05 1.10 1.15 1.20
    0 10 20 30 40
    """
    power = math.floor(math.log10((high - low) / _MOST))
    for factor in (1, 2, 5, 10, 20):
        step = factor * 10.0**power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < _MOST:
            break
    decimals = max(0, -power - (factor >= 10))
    return {float(f"{i * step:.{decimals}f}"): f"{i * step:.{decimals}f}" for i in range(first, last + 1)}


def curve_series(
    curve: Curve, name: str, color: str, marker: str = "o", *, beside: float = 0.0, band: bool = False
) -> Series:
    """Return a curve with its intervals, so far beside its ranks."""
    ranks = [p.position + beside for p in curve.positions]
    y, low, high = (known(getattr(p, of) for p in curve.positions) for of in ("propensity", "low", "high"))
    return Series(printable(name), color, ranks, y, low, high, marker, band=band)


@dataclass(frozen=True)
class Series:
    """Numbers in a row.

    Attributes:
        name: as the legend has it; without one it is not there.
        color: "c0" to "c7", "alarm" or "ink", of which a page has another shade in the dark.
        x, y: where they are; NaN where they are not known.
        low, high: the ends of their intervals, where they have any.
        marker: of each number, as `posbias.pictures` has them, if any; hollow if it says so.
        line: through them, "solid", "dashed" or "dotted", if any.
        band: whether the intervals are filled.
        bars: whether they are bars with caps, which a narrow one needs to be seen.
        size: of a marker, in points.
    """

    name: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    marker: str = ""
    line: str = "solid"
    band: bool = False
    bars: bool = True
    hollow: bool = False
    size: float = 4.5

    @property
    def values(self) -> Iterator[float]:
        """All numbers that are to be seen."""
        yield from (*self.y, *self.low, *self.high)


def line(points: Iterable[Point]) -> str:
    """Return a line through points, broken where one of them is not known.

    >>> line([(0, 1), (2, 3), (math.nan, 0), (4, 5), (6, 7)])
    'M0 1L2 3M4 5L6 7'
    """
    return "".join("M" + "L".join(f"{short(x)} {short(y)}" for x, y in part) for part in _unbroken(points))


def short(number: float) -> str:
    """Return a length with no more decimals than an eye sees.

    >>> short(58.004), short(-129.34), short(-0.01)
    ('58', '-129.3', '0')
    """
    return f"{round(number, 1) + 0.0:.1f}".removesuffix(".0")


def _unbroken(points: Iterable[tuple[float, ...]]) -> list[list[tuple[float, ...]]]:
    return [[*part] for known, part in groupby(points, key=lambda point: all(map(math.isfinite, point))) if known]


def known(values: Iterable[float | None]) -> list[float]:
    """Return numbers, NaN where there are none."""
    return [math.nan if value is None else value for value in values]


def band(lower: Sequence[Point], upper: Sequence[Point]) -> str:
    """Return what lies between two lines over the same places, broken where one of them is not known."""
    both = [
        (low[0], low[1], high[1]) if math.isfinite(high[1]) else (low[0], math.nan, math.nan)
        for low, high in zip(lower, upper, strict=True)
    ]
    return "".join(
        line([(x, low) for x, low, _ in part] + [(x, high) for x, _, high in reversed(part)]) + "z"
        for part in _unbroken(both)
    )


def plotted(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    height: float = HEIGHT,
    grid: bool = True,
    behind: Callable[[Frame], str] = lambda frame: "",
) -> Drawing:
    """Return series drawn over axes, under a legend of those that have names, which makes the picture higher.

    What is `behind` them is drawn into the frame that they get.
    """
    samples, rows = _legend([one for one in series if one.name])
    top = ABOVE + rows * _ROW
    frame = Frame(x, y, LEFT, WIDTH - RIGHT, top, top + height - ABOVE - BELOW)
    return Drawing(
        frame, "".join([behind(frame), *(_drawn(one, frame) for one in series)]), axes(frame, grid=grid) + samples
    )


class Frame(NamedTuple):
    """The axes of a picture, and where they lie in it, in points from the upper left."""

    x: Axis
    y: Axis
    left: float
    right: float
    top: float
    bottom: float

    @property
    def height(self) -> float:
        """How high a picture is whose frame this is."""
        return self.bottom + BELOW

    def at(self, x: float, y: float) -> Point:
        """Return the place of two numbers."""
        return (
            self.left + self.x.share(x) * (self.right - self.left),
            self.bottom + self.y.share(y) * (self.top - self.bottom) if math.isfinite(y) else math.nan,
        )

    def points(self, x: Iterable[float], y: Iterable[float]) -> list[Point]:
        """Return the places of a row of numbers."""
        return [self.at(*both) for both in zip(x, y, strict=True)]


@dataclass(frozen=True)
class Drawing:
    """A frame, with what is drawn in it, clipped to it, and around it."""

    frame: Frame
    within: str
    around: str


def _legend(named: Sequence[Series]) -> tuple[str, int]:
    """Return samples of series with their names, one after the other, and how many rows they take."""
    shapes, x, row = [], LEFT, 0
    for one in named:
        wide = _SAMPLE + 5 + _CHARACTER * len(one.name)
        if x > LEFT and x + wide > WIDTH - RIGHT:
            x, row = LEFT, row + 1
        y = ABOVE + row * _ROW + 4
        middle = x + _SAMPLE / 2
        sample = (
            path(f"line {one.line}".removesuffix(" solid"), line([(x, y), (x + _SAMPLE, y)])) if one.line else "",
            path("whisker", _bar(middle, y - 4, y + 4)) if one.bars and one.low else "",
            path("hollow" if one.hollow else "dot", dots([(middle, y)], one.marker, one.size)) if one.marker else "",
        )
        shapes += [group(one.color, sample), text(one.name, x + _SAMPLE + 5, y + 3.5)]
        x += wide + 12
    return "".join(shapes), row + 1 if named else 0


def path(kind: str, outline: str, **attributes: object) -> str:
    """Return an outline, filled or drawn as its kind is."""
    return f'<path class="{kind}" d="{outline}"{_written(attributes)}/>' if outline else ""


def _written(attributes: dict[str, object]) -> str:
    return "".join(f' {name.replace("_", "-")}="{escape(str(value))}"' for name, value in attributes.items())


def _bar(x: float, low: float, high: float) -> str:
    caps = (line([(x - _CAP, y), (x + _CAP, y)]) for y in (low, high))
    return "".join([line([(x, low), (x, high)]), *caps])


def dots(points: Iterable[Point], marker: str, size: float) -> str:
    """Return a mark at each of the points that are known: "o" is round, others are as `posbias.pictures` has them."""
    return "".join(_dot(x, y, marker, size / 2) for x, y in points if math.isfinite(x) and math.isfinite(y))


def _dot(x: float, y: float, marker: str, radius: float) -> str:
    if marker == "o":
        r = round(radius, 1)
        half, across = f"a{short(r)} {short(r)} 0 0 0", short(2 * r)
        return f"M{short(x - r)} {short(y)}{half} {across} 0{half} -{across} 0z"
    spikes, cut, turned = _STARS[marker]
    corners = []
    for i in range(2 * spikes):
        # As large to the eye as what is round.
        far, angle = radius * 1.3 * (cut if i % 2 else 1), (i / 2 + turned) * 2 * math.pi / spikes
        corners.append((x + far * math.sin(angle), y - far * math.cos(angle)))
    return f"{line(corners)}z"


def group(kind: str, shapes: Iterable[str], **attributes: object) -> str:
    """Return shapes that have something in common."""
    return f'<g class="{kind}"{_written(attributes)}>{"".join(shapes)}</g>'


def text(words: str, x: float, y: float, kind: str = "", **attributes: object) -> str:
    """Return words at a place."""
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{short(x)}" y="{short(y)}"{_written(attributes)}>{escape(words)}</text>'


def _drawn(one: Series, frame: Frame) -> str:
    points = frame.points(one.x, one.y)
    lower, upper = (frame.points(one.x, ends) if ends else [] for ends in (one.low, one.high))
    # Percentiles of a narrow level may lie beside the estimate.
    ends = zip(points, lower, upper, strict=True) if one.bars and lower else ()
    bars = [(x, max(y, low), min(y, high)) for (x, y), (_, low), (_, high) in ends if math.isfinite(y + low + high)]
    shapes = (
        path("band", band(lower, upper)) if one.band else "",
        path(f"line {one.line}".removesuffix(" solid"), line(points)) if one.line else "",
        path("whisker", "".join(_bar(*one) for one in bars)),
        path("hollow" if one.hollow else "dot", dots(points, one.marker, one.size)) if one.marker else "",
    )
    return group(one.color, shapes)


def axes(frame: Frame, *, grid: bool = True) -> str:
    """Return the two axes of a frame with their numbers and words."""
    shapes, lines, ticks = [], "", ""
    for value, word in frame.x.ticks.items():
        place = frame.at(value, frame.y.low)[0]
        lines += line([(place, frame.bottom), (place, frame.top)])
        ticks += line([(place, frame.bottom), (place, frame.bottom + _TICK)])
        shapes.append(text(word, place, frame.bottom + _TICK + _GAP + 7.5, "mid"))
    for value, word in frame.y.ticks.items():
        place = frame.at(frame.x.low, value)[1]
        lines += line([(frame.left, place), (frame.right, place)])
        ticks += line([(frame.left, place), (frame.left - _TICK, place)])
        shapes.append(text(word, frame.left - _TICK - _GAP, place + 3.5, "end"))
    corner = (frame.left, frame.bottom)
    edges = line([(frame.left, frame.top) if frame.y.ticks else corner, corner, (frame.right, frame.bottom)])
    across, down = (frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2
    return "".join(
        [
            path("grid", lines) if grid else "",
            path("axis", edges + ticks),
            *shapes,
            text(frame.x.label, across, frame.bottom + _UNDER, "mid"),
            text(frame.y.label, -down, frame.left - _BESIDE, "mid", transform="rotate(-90)"),
        ]
    )


def chart(key: str, title: str, text: str, table: Table, drawn: Drawing, marks: Placed) -> Chart:
    """Return a drawing with its words, as SVG to stand in a page; all of its ids begin with the key."""
    frame = drawn.frame
    area = box(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top)
    # A pointer shows the title of a mark even where there is no script.
    told = [f'<path d="{outline}"><title>{escape(said)}</title></path>' for outline, said in marks(frame)]
    svg = (
        f'<svg viewBox="0 0 {short(WIDTH)} {short(frame.height)}" role="group" '
        f'aria-labelledby="{key}-title {key}-text" class="chart"><title id="{key}-title">{escape(title)}</title>'
        f'<desc id="{key}-text">{escape(text)}</desc><g aria-hidden="true">'
        f'<clipPath id="{key}-area"><path d="{area}"/></clipPath>{drawn.around}'
        f'<g clip-path="url(#{key}-area)">{drawn.within}</g></g>{group("marks", told)}</svg>'
    )
    return Chart(key, title, text, svg, table)


@dataclass(frozen=True)
class Table:
    """Heads and rows, all of them words, as they stand in a page."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Placed = Callable[[Frame], Iterator[Mark]]


@dataclass(frozen=True)
class Chart:
    """A picture as SVG, what it is and shows in words, and its numbers."""

    key: str
    title: str
    text: str
    svg: str
    table: Table


def box(x: float, y: float, width: float, height: float) -> str:
    """Return a rectangle, from its upper left."""
    return f"M{short(x)} {short(y)}h{short(width)}v{short(height)}h{short(-width)}z"


def at_ranks(ranks: Sequence[float], texts: Sequence[str]) -> Placed:
    """Return marks over the whole height of a picture, one for each rank."""

    def placed(frame: Frame) -> Iterator[Mark]:
        for rank, text in zip(ranks, texts, strict=True):
            ends = [frame.at(rank + side, frame.y.low)[0] for side in (-0.5, 0.5)]
            left, right = max(ends[0], frame.left), min(ends[1], frame.right)
            yield box(left, frame.top, right - left, frame.bottom - frame.top), text

    return placed


def at_rows(rows: Sequence[int], texts: Sequence[str]) -> Placed:
    """Return marks over the whole width of a picture, one for each row of a map."""

    def placed(frame: Frame) -> Iterator[Mark]:
        for row, text in zip(rows, texts, strict=True):
            low, high = sorted(frame.at(frame.x.low, row + side)[1] for side in (-0.5, 0.5))
            yield box(frame.left, low, frame.right - frame.left, high - low), text

    return placed


def at_points(points: Sequence[tuple[float, float]], texts: Sequence[str]) -> Placed:
    """Return marks around points."""

    def placed(frame: Frame) -> Iterator[Mark]:
        for point, text in zip(points, texts, strict=True):
            x, y = frame.at(*point)
            yield box(x - _REACH, y - _REACH, 2 * _REACH, 2 * _REACH), text

    return placed
