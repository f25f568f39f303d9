"""What is drawn over a pair of axes: series of numbers with their intervals, and the legend above them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from posbias.curves.curve import Curve
from posbias.reporting.scales import Axis
from posbias.reporting.svgs import Point, band, dots, group, line, path, text
from posbias.wording import printable

# In points: on a phone a picture is about as wide as it was drawn, so that its words are as large as those beside it.
WIDTH, HEIGHT = 345.6, 237.6
LEFT, RIGHT, ABOVE, BELOW = 43.2, 5.8, 5.8, 34.0
# Ticks and their words, how far from the axes the words beside and below them stand, and half the width of a cap.
_TICK, _GAP, _BESIDE, _UNDER, _CAP = 3.5, 3.5, 29.5, 29.5, 3.0
# The legend: its rows, the width of a sample, and of a character, about.
_ROW, _SAMPLE, _CHARACTER = 15.0, 18.0, 5.8


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


def curve_series(
    curve: Curve, name: str, color: str, marker: str = "o", *, beside: float = 0.0, band: bool = False
) -> Series:
    """Return a curve with its intervals, so far beside its ranks."""
    ranks = [p.position + beside for p in curve.positions]
    y, low, high = (known(getattr(p, of) for p in curve.positions) for of in ("propensity", "low", "high"))
    return Series(printable(name), color, ranks, y, low, high, marker, band=band)


def known(values: Iterable[float | None]) -> list[float]:
    """Return numbers, NaN where there are none."""
    return [math.nan if value is None else value for value in values]


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


def _bar(x: float, low: float, high: float) -> str:
    caps = (line([(x - _CAP, y), (x + _CAP, y)]) for y in (low, high))
    return "".join([line([(x, low), (x, high)]), *caps])


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
