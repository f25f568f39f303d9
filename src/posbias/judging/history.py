"""Curves by day, kept in one Parquet file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from itertools import groupby, pairwise
from typing import Any

from posbias._files import HISTORY, odd_kind, written_whole
from posbias._json import RecordError
from posbias._text import listed, printable
from posbias._validate import as_path, texts
from posbias.curves.curve import Curve, Position
from posbias.curves.files import MOST_RANKS, is_one, is_ratio
from posbias.errors import CurveError
from posbias.findings import wrapped
from posbias.harvesting.files import first_line, read_parquet
from posbias.version import __version__

FORMAT = 1
# So many ranks fit a table.
_MOST_RANKS = 5
_WIDTH = 80
# So many days without a curve have a line each.
_MOST_GAPS = 7
# So many days from which on curves are estimated otherwise are told, the last ones.
_MOST_CHANGES = 3
# Where a Parquet file that is a history says so.
METADATA_KEY = b"posbias.history"
_KEYS = ("date", "estimator", "level", "findings")
_COLUMNS = {
    "date": "date32[day]",
    "estimator": "string",
    "level": "double",
    "findings": "list<element: string>",
    "rank": "int64",
    "propensity": "double",
    "low": "double",
    "high": "double",
    "degrees_of_freedom": "double",
    "impressions": "int64",
    "clicks": "int64",
    "reason": "string",
}
_NEVER_NULL = ("date", "estimator", "findings", "rank", "impressions", "clicks")


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
        day = Day(parse_date(on), curve.estimator, curve.level, curve.positions, told)
        kept = [one for one in self.days if one.date != day.date]
        return replace(self, days=tuple(sorted([*kept, day], key=lambda one: one.date)))

    def day(self, on: date | str) -> Day | None:
        """Return what is known of a day."""
        wanted = parse_date(on)
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
        return tuple(day for before, day in pairwise(self.days) if day.estimated_with != before.estimated_with)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the history to one Parquet file, whole or not at all."""
        pass

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, new: bool = False) -> History:
        """Read a history back, checking that it is one; with `new`, an empty one where there is no file yet."""
        pass

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
                f"{day.estimated_with} from {day.date} on" for day in (self.days[0], *self.changes[-_MOST_CHANGES:])
            )
            more = f", changed {len(self.changes):,} times" if len(self.changes) > _MOST_CHANGES else ""
            note = f"Not all days were estimated alike, and are not to be compared across that{more}: {told}."
            lines += ["", *wrapped(note, "! ", "  ")]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


@dataclass(frozen=True)
class Day:
    """One day's curve, rank by rank, and what was found that day, in words."""

    date: date
    estimator: str
    level: float | None
    positions: tuple[Position, ...]
    findings: tuple[str, ...] = ()

    @property
    def estimated_with(self) -> str:
        """How the curve was estimated, in words."""
        return f"{self.estimator}, {'no' if self.level is None else f'{100 * self.level:.4g}%'} interval"


def parse_date(given: date | str) -> date:
    """Return a day, from the form of ISO where it is a text."""
    try:
        return date.fromisoformat(given) if isinstance(given, str) else date(given.year, given.month, given.day)
    except (ValueError, AttributeError):
        raise CurveError(f"A day is written as 2026-03-01, not as {given!r}.") from None


def save(history: History, path: str | os.PathLike[str]) -> None:
    """Write a history to one Parquet file, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_row(day, position) for day in history.days for position in day.positions]
    types = {"date32[day]": pa.date32(), "string": pa.string(), "double": pa.float64(), "int64": pa.int64()}
    types["list<element: string>"] = pa.list_(pa.field("element", pa.string()))
    schema = pa.schema([(name, types[kind]) for name, kind in _COLUMNS.items()], {METADATA_KEY: str(FORMAT).encode()})
    with written_whole(path, HISTORY) as part:
        pq.write_table(pa.Table.from_pylist(rows, schema), part, compression="zstd", write_page_checksum=True)


def _row(day: Day, position: Position) -> dict[str, Any]:
    own = {name: getattr(day, name) for name in _KEYS if name != "findings"}
    return own | {
        "findings": list(day.findings),
        "rank": position.position,
        **{name: getattr(position, name) for name in _COLUMNS if name not in (*_KEYS, "rank")},
    }


def load(path: str | os.PathLike[str]) -> History:
    """Read a history back, checking that it is one and that it is whole."""
    name = as_path("path", path, CurveError)
    if not os.path.exists(name):
        raise CurveError(f"There is no file {name!r}. Make it by adding the curve of a day: posbias history add.")
    try:
        if (kind := "a folder" if os.path.isdir(name) else odd_kind(name)) is not None:
            raise RecordError(f"it is {kind}")
        return _read(read_parquet(name))
    except RecordError as error:
        raise CurveError(
            f"{name!r} is not a history, or is damaged: {printable(str(error))}. Take it from a backup, or begin "
            "another."
        ) from None


def _read(table: Any) -> History:
    version = (table.schema.metadata or {}).get(METADATA_KEY)
    if version is None:
        raise RecordError("its metadata does not say that it is one")
    if not version.isdigit() or not 1 <= int(version) <= FORMAT:
        raise RecordError(
            f"it has format {printable(version.decode('ascii', 'replace'))}, and this posbias reads {FORMAT}"
        )
    found = {field.name: str(field.type) for field in table.schema}
    if found != _COLUMNS:
        raise RecordError(f"it has the columns {listed(found)} in place of {listed(_COLUMNS)}, or some of another type")
    for name in _NEVER_NULL:
        if table.column(name).null_count:
            raise RecordError(f"its column {name} has no value in {table.column(name).null_count:,} rows")
    try:
        rows = table.to_pylist()
    except UnicodeDecodeError:
        raise RecordError("it has a text that is not in UTF-8") from None
    except (ValueError, OverflowError) as error:
        raise RecordError(f"it has a date that is none ({first_line(error)})") from None
    days = [_day(on, list(own)) for on, own in groupby(rows, key=lambda row: row["date"])]
    if any(one.date >= after.date for one, after in pairwise(days)):
        raise RecordError("its days are not in order, or one is there twice")
    return History(tuple(days))


def _day(on: date, rows: list[dict[str, Any]]) -> Day:
    first = rows[0]
    if any(row[name] != first[name] for row in rows for name in _KEYS):
        raise RecordError(f"the rows of {on} differ in {', '.join(_KEYS[1:-1])} or {_KEYS[-1]}")
    if any(one["rank"] >= after["rank"] for one, after in pairwise(rows)):
        raise RecordError(f"the ranks of {on} are not in order, or one is there twice")
    if first["level"] is not None and not 0 < first["level"] < 1:
        raise RecordError(f"the level of {on} is {first['level']}, which is no share between 0 and 1")
    if None in first["findings"]:
        raise RecordError(f"what was found on {on} has a text that is not there")
    for row in rows:
        _check(on, row)
    positions = tuple(
        Position(position=row["rank"], **{name: row[name] for name in _COLUMNS if name not in (*_KEYS, "rank")})
        for row in rows
    )
    return Day(on, first["estimator"], first["level"], positions, tuple(first["findings"]))


def _check(on: date, row: dict[str, Any]) -> None:
    """Refuse numbers that cannot be."""
    of = f"rank {row['rank']} of {on}"
    numbers = [row[name] for name in ("propensity", "low", "high", "degrees_of_freedom") if row[name] is not None]
    if not all(math.isfinite(number) and number >= 0 and is_ratio(number) for number in numbers):
        raise RecordError(f"{of} has a number that is not one, or cannot be")
    if not 1 <= row["rank"] <= MOST_RANKS:
        raise RecordError(f"{of} is no rank from 1 to {MOST_RANKS:,}")
    if not 0 <= row["clicks"] <= row["impressions"]:
        raise RecordError(f"{of} has {row['clicks']} clicks on {row['impressions']} impressions")
    if row["rank"] == 1 and not is_one(row["propensity"]):
        raise RecordError(f"{of} has the propensity {row['propensity']}, and those of others are relative to it")
    without = row["low"] is None
    if (without and (row["high"], row["degrees_of_freedom"]) != (None, None)) or (
        not without and (row["level"] is None or row["propensity"] is None)
    ):
        raise RecordError(f"{of} has a part of an interval, or one without a level or a propensity")
    if not without and row["high"] is not None and row["low"] > row["high"]:
        raise RecordError(f"{of} has an interval with its ends exchanged")


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
