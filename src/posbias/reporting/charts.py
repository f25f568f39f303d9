"""The pictures of a report: each with what it shows in words, a mark for each rank, and the table behind it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from posbias.extras import optional
from posbias.pictures import new_axes
from posbias.reporting.svgs import Mark, Styles, inline

# In inches: on a phone a picture is about as wide as it was drawn, so that its words are as large as those beside it.
WIDTH, HEIGHT = 4.8, 3.3
_SETTINGS = {"font.size": 10.0, "svg.fonttype": "none", "svg.hashsalt": "posbias"}
# Margins, in inches, and how far from the axes the words beside and below them stand.
_LEFT, _RIGHT, _ABOVE, _BELOW = 0.6, 0.08, 0.08, 0.5
_BESIDE, _UNDER = 0.41, 0.31
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


Placed = Callable[[Any], Iterator[Mark]]


@contextmanager
def drawing() -> Iterator[None]:
    """Have pictures drawn for pages: words as words, the same each time."""
    matplotlib = optional("matplotlib", "Reports need")
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # Words are drawn by whoever shows the page, with the fonts there.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def draw(
    key: str,
    title: str,
    text: str,
    table: Table,
    styles: Styles,
    paint: Callable[[Any], object],
    marks: Placed,
    *,
    height: float = HEIGHT,
    right: float = _RIGHT,
) -> Chart:
    """Return a picture that is painted into new axes."""
    figure, axes = new_axes(WIDTH, height)
    figure.set_dpi(72)
    # To measure every word, so that margins fit, takes as long as all else.
    figure.set_layout_engine("none")
    left, wide, high = _LEFT / WIDTH, 1 - (_LEFT + right) / WIDTH, 1 - (_ABOVE + _BELOW) / height
    axes.set_position((left, _BELOW / height, wide, high))
    axes.yaxis.set_label_coords(-_BESIDE / (wide * WIDTH), 0.5)
    axes.xaxis.set_label_coords(0.5, -_UNDER / (high * height))
    paint(axes)
    # The page says it in words of its own.
    axes.set_title("")
    svg = inline(figure, key, styles, title=title, text=text, marks=marks(axes))
    return Chart(key, title, text, svg, table)


def at_ranks(ranks: Sequence[float], texts: Sequence[str]) -> Placed:
    """Return marks over the whole height of a picture, one for each rank."""

    def placed(axes: Any) -> Iterator[Mark]:
        box, height = axes.bbox, axes.figure.bbox.height
        for rank, text in zip(ranks, texts, strict=True):
            ends = [axes.transData.transform((rank + side, 0))[0] for side in (-0.5, 0.5)]
            left, right = max(ends[0], box.x0), min(ends[1], box.x1)
            yield Mark(left, height - box.y1, right - left, box.height, text)

    return placed


def at_rows(rows: Sequence[int], texts: Sequence[str]) -> Placed:
    """Return marks over the whole width of a picture, one for each row of a map."""

    def placed(axes: Any) -> Iterator[Mark]:
        box, height = axes.bbox, axes.figure.bbox.height
        for row, text in zip(rows, texts, strict=True):
            low, high = sorted(height - axes.transData.transform((1, row + side))[1] for side in (-0.5, 0.5))
            yield Mark(box.x0, low, box.width, high - low, text)

    return placed


def at_points(points: Sequence[tuple[float, float]], texts: Sequence[str]) -> Placed:
    """Return marks around points."""

    def placed(axes: Any) -> Iterator[Mark]:
        height = axes.figure.bbox.height
        for point, text in zip(points, texts, strict=True):
            x, y = axes.transData.transform(point)
            yield Mark(x - _REACH, height - y - _REACH, 2 * _REACH, 2 * _REACH, text)

    return placed
