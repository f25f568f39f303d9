"""The pictures of a report: each with what it shows in words, a mark for each rank, and the table behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from posbias.reporting.drawings import WIDTH, Drawing, Frame
from posbias.reporting.svgs import box, group, short

# A point is too small for a finger.
_REACH = 6.0


@dataclass(frozen=True)
class Table:
    """Heads and rows, all of them words, as they stand in a page."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Chart:
    """A picture as SVG, what it is and shows in words, and its numbers."""

    key: str
    title: str
    text: str
    svg: str
    table: Table


# The outline of a place that tells its numbers, and these.
Mark = tuple[str, str]
Placed = Callable[[Frame], Iterator[Mark]]


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
