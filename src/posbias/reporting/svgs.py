"""The shapes of pictures as SVG to stand in a page, whose style sheet says how they look."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

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


def path(kind: str, outline: str, **attributes: object) -> str:
    """Return an outline, filled or drawn as its kind is."""
    return f'<path class="{kind}" d="{outline}"{_written(attributes)}/>' if outline else ""


def text(words: str, x: float, y: float, kind: str = "", **attributes: object) -> str:
    """Return words at a place."""
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{short(x)}" y="{short(y)}"{_written(attributes)}>{escape(words)}</text>'


def _written(attributes: dict[str, object]) -> str:
    return "".join(f' {name.replace("_", "-")}="{escape(str(value))}"' for name, value in attributes.items())


def group(kind: str, shapes: Iterable[str], **attributes: object) -> str:
    """Return shapes that have something in common."""
    return f'<g class="{kind}"{_written(attributes)}>{"".join(shapes)}</g>'


def short(number: float) -> str:
    """Return a length with no more decimals than an eye sees.

    >>> short(58.004), short(-129.34), short(-0.01)
    ('58', '-129.3', '0')
    """
    return f"{round(number, 1) + 0.0:.1f}".removesuffix(".0")


def line(points: Iterable[Point]) -> str:
    """Return a line through points, broken where one of them is not known.

    >>> line([(0, 1), (2, 3), (math.nan, 0), (4, 5), (6, 7)])
    'M0 1L2 3M4 5L6 7'
    """
    return "".join("M" + "L".join(f"{short(x)} {short(y)}" for x, y in part) for part in _unbroken(points))


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


def _unbroken(points: Iterable[tuple[float, ...]]) -> list[list[tuple[float, ...]]]:
    return [[*part] for known, part in groupby(points, key=lambda point: all(map(math.isfinite, point))) if known]


def box(x: float, y: float, width: float, height: float) -> str:
    """Return a rectangle, from its upper left."""
    return f"M{short(x)} {short(y)}h{short(width)}v{short(height)}h{short(-width)}z"


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
