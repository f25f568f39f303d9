"""The curves of many days as one value, and one Parquet file: what was estimated each day, and what was found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from itertools import pairwise
from typing import Any

from posbias.arguments import as_path, texts
from posbias.curves.curve import Curve, Position
from posbias.errors import CurveError
from posbias.findings import wrapped
from posbias.version import __version__
from posbias.wording import printable

FORMAT = 1
# So many ranks fit a table.
_MOST_RANKS = 5
_WIDTH = 80
# So many days without a curve have a line each.
_MOST_GAPS = 7
# So many days from which on curves are estimated otherwise are told, the last ones.
_MOST_CHANGES = 3


@dataclass(frozen=True)
class Day:
    """One day's curve, rank by rank, and what was found that day, in words."""

    date: date
    estimator: str
    level: float | None
    positions: tuple[Position, ...]
    findings: tuple[str, ...] = ()

    @property
    def made_by(self) -> str:
        """How the curve was estimated, in words."""
        return f"{self.estimator}, {'no' if self.level is None else f'{100 * self.level:.4g}%'} interval"


@dataclass(frozen=True)
class History:
    """Curves by day, one of each, in order; a day that is added again is replaced, a late one goes where it belongs.

    Of a curve with segments only the one of all is kept.

    Example:
        >>> import datetime, posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=500, max_rank=3)))
        >>> curve = posbias.CrossFit().fit(posbias.harvest(log, max_rank=3)).curve()
        >>> history = History().add(curve, "2026-03-03").add(curve, "2026-03-01")
        >>> [str(day.date) for day in history.days], list(map(str, history.missing))
        (['2026-03-01', '2026-03-03'], ['2026-03-02'])
    """

    days: tuple[Day, ...] = ()

    def add(self, curve: Curve, on: date | str, findings: Sequence[str] = ()) -> History:
        """Return the history with the curve of a day, whose notes are among what was found."""
        if not isinstance(curve, Curve):
            raise CurveError(
                f"A history keeps curves, not a {type(curve).__name__}. Give that of an estimator, curve()."
            )
        if not curve.positions:
            raise CurveError("The curve has no rank at all, and says nothing of a day. Estimate it again.")
        told = tuple(dict.fromkeys((*texts("findings", findings, error=CurveError), *curve.notes)))
        day = Day(as_date(on), curve.estimator, curve.level, curve.positions, told)
        kept = [one for one in self.days if one.date != day.date]
        return replace(self, days=tuple(sorted([*kept, day], key=lambda one: one.date)))

    def day(self, on: date | str) -> Day | None:
        """Return what is known of a day."""
        wanted = as_date(on)
        return next((day for day in self.days if day.date == wanted), None)

    @property
    def missing(self) -> tuple[date, ...]:
        """The days between the first and the last that have no curve."""
        if not self.days:
            return ()
        held = {day.date for day in self.days}
        first, last = self.days[0].date, self.days[-1].date
        every = (first + timedelta(days=n) for n in range((last - first).days))
        return tuple(one for one in every if one not in held)

    @property
    def changes(self) -> tuple[Day, ...]:
        """The days whose curve was estimated otherwise than that of the day before, and is not like it."""
        return tuple(day for before, day in pairwise(self.days) if day.made_by != before.made_by)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the history to one Parquet file, whole or not at all."""
        from posbias.judging.history_files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, new: bool = False) -> History:
        """Read a history back, checking that it is one; with `new`, an empty one where there is no file yet."""
        from posbias.judging.history_files import load

        name = as_path("path", path, CurveError)
        return cls() if new and not os.path.lexists(name) else load(name)

    def to_dict(self) -> dict[str, Any]:
        """Return the history as `--json` prints it."""
        return {
            "format": FORMAT,
            "days": [asdict(day) | {"date": str(day.date), "findings": list(day.findings)} for day in self.days],
            "missing": list(map(str, self.missing)),
            "version": __version__,
        }

    def to_text(self) -> str:
        """Return the history as a table: a line for each day, for some ranks, and what was found."""
        if not self.days:
            return "No day yet."
        ranks = _chosen(max(p.position for day in self.days for p in day.positions))
        lines = [f"{'date':<10}" + "".join(f"{f'rank {k}':>9}" for k in ranks) + "  found"]
        before: date | None = None
        for day in self.days:
            lines += [] if before is None else _gap(before, day.date)
            lines.append(_line(day, ranks))
            before = day.date
        if self.changes:
            told = "; ".join(
                f"{day.made_by} from {day.date} on" for day in (self.days[0], *self.changes[-_MOST_CHANGES:])
            )
            more = f", changed {len(self.changes):,} times" if len(self.changes) > _MOST_CHANGES else ""
            note = f"Not all days were estimated alike, and are not to be compared across that{more}: {told}."
            lines += ["", *wrapped(note, "! ", "  ")]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


def as_date(given: date | str) -> date:
    """Return a day, from the form of ISO where it is a text."""
    try:
        return date.fromisoformat(given) if isinstance(given, str) else date(given.year, given.month, given.day)
    except (ValueError, AttributeError):
        raise CurveError(f"A day is written as 2026-03-01, not as {given!r}.") from None


def _chosen(last: int) -> list[int]:
    """Return some ranks of which the table tells.

    >>> _chosen(10), _chosen(3)
    ([2, 3, 4, 7, 10], [2, 3])
    """
    if last - 1 <= _MOST_RANKS:
        return list(range(2, last + 1))
    steps = [round(2 * (last / 2) ** (n / (_MOST_RANKS - 1))) for n in range(_MOST_RANKS)]
    return sorted(dict.fromkeys(steps))


def _gap(before: date, after: date) -> list[str]:
    """Return a line for each day between two, or one for many: a day with a mistyped year may lie centuries away."""
    days = [before + timedelta(days=n) for n in range(1, min((after - before).days, _MOST_GAPS + 2))]
    if len(days) > _MOST_GAPS:
        return [f"{days[0]}{'–':>9}  missing, and {(after - before).days - 2:,} days after it"]
    return [f"{on}{'–':>9}  missing" for on in days]


def _line(day: Day, ranks: Iterable[int]) -> str:
    known = {p.position: p.propensity for p in day.positions}
    cells = [known.get(k) for k in ranks]
    line = f"{day.date}" + "".join(f"{'–' if p is None else f'{p:.3f}':>9}" for p in cells)
    found = printable("; ".join(day.findings))
    room = _WIDTH - len(line) - 2
    return f"{line}  {found if len(found) <= room else f'{found[: room - 1]}…'}".rstrip()
