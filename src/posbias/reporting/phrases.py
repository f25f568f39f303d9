"""Numbers and names as the pictures and tables of a report have them."""

from __future__ import annotations

from collections.abc import Iterable

from posbias.curves.curve import Position
from posbias.wording import printable

# So many characters of a name fit a legend.
_NAME = 22


def short_names(names: Iterable[str]) -> list[str]:
    """Return names as a legend has room for them, no two alike.

    >>> short_names(["phone", "a very long name of a segment", "a very long name of a segment too"])
    ['phone', 'a very long name of a…', 'a very long name … (2)']
    """
    found: list[str] = []
    for name in map(printable, names):
        own = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
        count = 1
        while own in found:
            count += 1
            own = f"{name[: _NAME - 5]}… ({count})"
        found.append(own)
    return found


def told(p: Position, level: float | None) -> str:
    """Return what there is to know of one rank of a curve, in a few lines."""
    lines = [f"Rank {p.position}"]
    if p.propensity is None:
        lines.append("no number")
    else:
        lines.append(f"seen {p.propensity:.3f} times as often as rank 1")
    if p.low is not None and p.position > 1:
        lines.append(f"{100 * (level or 0):g}% interval {interval(p)}")
    lines.append(f"{p.impressions:,} impressions, {p.clicks:,} clicks")
    return "\n".join([*lines, *([p.reason] if p.reason else [])])


def number(value: float | None) -> str:
    """Return a number as a table shows it."""
    return "–" if value is None or value != value else f"{value:.3f}"


def between(low: float | None, high: float | None) -> str:
    """Return the ends of an interval as a table shows them."""
    return "" if low is None else f"{low:.3f} – {'∞' if high is None else f'{high:.3f}'}"


def interval(p: Position) -> str:
    """Return the interval of a rank; that of rank 1 is 1 by definition."""
    return "" if p.position == 1 else between(p.low, p.high)


def bracketed(p: Position) -> str:
    """Return the interval of a rank after its number, in brackets."""
    return f" ({between(p.low, p.high)})" if p.low is not None and p.position > 1 else ""
