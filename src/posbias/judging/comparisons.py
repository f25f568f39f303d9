"""A comparison of two curves as a value: for people as a table, for programs as JSON, as a picture."""

from __future__ import annotations

import re
import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from posbias.curves.reasons import spans
from posbias.version import __version__
from posbias.wording import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from posbias.judging.contrasts import JointTest

FORMAT = 1
_WIDTH = 80
# A name's column is so wide at least, and at most: an estimator's own name fits.
_NAME, _LONGEST = 10, 14
# What stays on one line.
_HELD = re.compile(r"F\(\d+, \d+\) = |p [<=] ")
ALONE = "each interval is of one {what} alone; p allows for there being several"


@dataclass(frozen=True)
class Difference:
    """What one rank did; what is not known is None, and `reason` says why, or what makes it weak.

    Attributes:
        rank: k.
        before, after: p_k / p_1 of the first and of the second.
        ratio: after / before, with its interval from `low` to `high`.
        degrees_of_freedom: of the interval.
        p_value: how often chance alone would make any rank differ as much as this one.
        differs: whether that is less than 1 − level.
        reason: why there is no answer, or what makes it a weak one.
    """

    rank: int
    before: float | None
    after: float | None
    ratio: float | None
    low: float | None
    high: float | None
    degrees_of_freedom: float | None
    p_value: float | None
    differs: bool
    reason: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Two curves side by side, and whether they differ by more than chance.

    Attributes:
        names: of the first and of the second.
        estimators: of both.
        level: of the intervals and of the test.
        paired: whether errors were paired by bucket of queries, or the curves taken for independent.
        joint: an F test of all ranks at once; None where there are too few queries for one.
        differences: rank by rank, from the second.
        page_views: of both.
        notes: what is to be known of the comparison.
    """

    names: tuple[str, str]
    estimators: tuple[str, str]
    level: float
    paired: bool
    joint: JointTest | None
    differences: tuple[Difference, ...]
    page_views: tuple[int, int]
    notes: tuple[str, ...] = ()

    @property
    def p_value(self) -> float:
        """How often chance alone would make the curves differ as much, at the rank where they differ most."""
        return min((d.p_value for d in self.differences if d.p_value is not None), default=1.0)

    @property
    def differs(self) -> bool:
        """Whether any rank differs by more than chance, allowing for there being several."""
        return any(d.differs for d in self.differences)

    @property
    def same(self) -> bool:
        """Whether both are one and the same: whatever queries are left out, no rank ever differs."""
        tested = [d for d in self.differences if d.p_value is not None]
        rest = [d for d in self.differences if d.p_value is None]
        return bool(tested) and all(d.low == d.high for d in tested) and all(d.before == d.after for d in rest)

    @property
    def alone(self) -> str:
        """Why an interval may leave 1 out where the p-value finds no difference, if there are several ranks."""
        several = sum(d.p_value is not None for d in self.differences) > 1
        return ALONE.format(what="rank") if several and not self.same else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as `--json` prints it."""
        return {
            "format": FORMAT,
            "names": list(self.names),
            "estimators": list(self.estimators),
            "level": self.level,
            "paired": self.paired,
            "differs": self.differs,
            "p_value": self.p_value,
            "joint": None if self.joint is None else asdict(self.joint) | {"degrees": list(self.joint.degrees)},
            "differences": [asdict(d) for d in self.differences],
            "page_views": list(self.page_views),
            "notes": list(self.notes),
            "version": __version__,
        }

    def to_text(self) -> str:
        """Return the comparison as a table, after what comes of it."""
        first, second = (_cut(name) for name in self.names)
        wide = max(_NAME, len(first), len(second))
        lines = [wrapped(self.verdict), wrapped(self.how)]
        lines.append(f"rank {first:>{wide}} {second:>{wide}}    ratio  {f'{100 * self.level:g}% interval':<16}    p")
        lines += [_line(d, wide) for d in self.differences]
        if self.alone:
            lines.append(self.alone)
        lines += [wrapped(f"! {note}") for note in (*self._weak, *self.notes)]
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """What comes of it, in a sentence."""
        if self.same:
            return f"{self.names[0]} and {self.names[1]} have one and the same curve: there is nothing to test."
        found = sorted((d for d in self.differences if d.differs), key=lambda d: d.p_value or 0.0)
        if not found:
            return f"No rank differs beyond chance from {self.names[0]} to {self.names[1]} ({p_text(self.p_value)})."
        named = [f"rank {d.rank} by {percent(d.ratio)}" for d in found[:_MOST_NAMED]]
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return (
            f"The curves differ ({p_text(self.p_value)}): from {self.names[0]} to {self.names[1]}, "
            f"{', '.join(named)}{more}."
        )

    @property
    def _weak(self) -> list[str]:
        """What makes ranks that have an answer weak, said once of all that have the same."""
        ranks: dict[str, list[int]] = {}
        for d in self.differences:
            if d.ratio is not None and d.reason is not None:
                ranks.setdefault(d.reason, []).append(d.rank)
        return [f"Rank{'s'[: len(own) > 1]} {spans(own)}: {reason}." for reason, own in ranks.items()]

    @property
    def how(self) -> str:
        """How it was found, in a line."""
        how = "paired by bucket of queries" if self.paired else "taken for independent"
        joint = "; too few queries for a test of all ranks at once" if not self.same else ""
        if self.joint is not None:
            degrees = f"{self.joint.degrees[0]}, {self.joint.degrees[1]:.0f}"
            joint = f"; all ranks at once F({degrees}) = {self.joint.statistic:.2f}, {p_text(self.joint.p_value)}"
        estimators = " and ".join(dict.fromkeys(self.estimators))
        return f"{estimators}, {how}{joint}"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the ratio by rank with its intervals, and return the Axes."""
        from posbias.judging.pictures import draw_comparison

        return draw_comparison(self, ax)

    def save_plot(self, path: str) -> None:
        """Write the picture as PNG, SVG or PDF, whole or not at all."""
        from posbias.pictures import save_picture

        save_picture(self.plot().figure, path)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


_MOST_NAMED = 4


def _line(d: Difference, wide: int) -> str:
    before, after = (f"{'–' if p is None else f'{p:.3f}':>{wide}}" for p in (d.before, d.after))
    if d.ratio is None:
        return wrapped(f"{d.rank:>4} {before} {after}        –  {d.reason or ''}")
    ends = f"{d.low:.3f} – {d.high:.3f}"
    mark = "  differs" if d.differs else ""
    return f"{d.rank:>4} {before} {after} {d.ratio:>8.3f}  {ends:<16} {number(d.p_value)}{mark}"


def _cut(name: str) -> str:
    """Return a name as a column's head, its end where it is long: files differ there."""
    shown = printable(name)
    return shown if len(shown) <= _LONGEST else f"…{shown[1 - _LONGEST :]}"


def wrapped(text: str) -> str:
    """Return a text as lines within the width of a terminal."""
    held = _HELD.sub(lambda found: found[0].replace(" ", "\xa0"), printable(text))
    return textwrap.fill(held, _WIDTH, subsequent_indent="  ", break_on_hyphens=False).replace("\xa0", " ")


def percent(ratio: float | None) -> str:
    """Return a ratio as what it adds.

    >>> percent(1.1), percent(0.934)
    ('+10%', '−6.6%')
    """
    change = 100 * ((ratio or 1.0) - 1)
    return f"{'−' if change < 0 else '+'}{float(f'{abs(change):.2g}'):g}%"


def number(p_value: float | None) -> str:
    """Return a p-value as a table shows it."""
    if p_value is None:
        return "–"
    return "<.001" if p_value < 0.001 else f"{p_value:.3f}"


def p_text(p_value: float) -> str:
    """Return a p-value as a sentence shows it."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
