"""Curves by day, in one Parquet file.

`History` holds one curve for each day. The file has a row for each day and rank, so that any tool can read it. posbias
reads it strictly, because a file can be damaged or edited.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from itertools import groupby, pairwise
from typing import Any

from posbias._files import HISTORY, atomic_write, special_file_kind
from posbias._json import RecordError
from posbias._text import listed, printable
from posbias._validate import as_path, texts
from posbias.curves.curve import Curve, Position
from posbias.curves.files import MOST_RANKS, is_one, read_position
from posbias.errors import CurveError
from posbias.findings import wrap_printable
from posbias.harvesting.files import first_line, read_parquet
from posbias.version import __version__

FORMAT = 1
# The key in the metadata of a Parquet file that marks it as a history.
METADATA_KEY = b"posbias.history"
_DAY_COLUMNS = ("date", "estimator", "level", "findings")
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
_POSITION_COLUMNS = tuple(name for name in _COLUMNS if name not in (*_DAY_COLUMNS, "rank"))
_NEVER_NULL = ("date", "estimator", "findings", "rank", "impressions", "clicks")
_WIDTH = 80
# The table shows at most this many ranks.
_MAX_TABLE_RANKS = 5
# Up to this many missing days in a row have a line each.
_MAX_MISSING_LINES = 7
# At most this many changes of the estimator are listed, the last ones.
_MAX_LISTED_CHANGES = 3


@dataclass(frozen=True)
class History:
    """One curve for each day, in order of date.

    Of a curve with segments, only the curve of all segments is kept. A history is a value: `add` returns a new one.

    Attributes:
        days (tuple of Day): the days, in order.

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
        """Return the history with the curve of a day; a day that it has already is replaced.

        Arguments:
            curve (Curve): the curve.
            on (date or str): the day, such as "2026-03-01". Days may be added in any order.
            findings (sequence of str, default ()): the findings of that day. The notes of the curve are added to them.
        """
        if not isinstance(curve, Curve):
            raise CurveError(
                f"A history keeps curves, not a {type(curve).__name__}. Give the curve() of a fitted estimator."
            )
        if not curve.positions:
            raise CurveError("The curve has no ranks. Estimate it again.")
        all_findings = tuple(dict.fromkeys((*texts("findings", findings, error=CurveError), *curve.notes)))
        added = Day(parse_date(on), curve.estimator, curve.level, curve.positions, all_findings)
        others = [day for day in self.days if day.date != added.date]
        return replace(self, days=tuple(sorted([*others, added], key=lambda day: day.date)))

    def day(self, on: date | str) -> Day | None:
        """Return a day, or None if the history does not have it."""
        wanted = parse_date(on)
        return next((day for day in self.days if day.date == wanted), None)

    @property
    def missing(self) -> tuple[date, ...]:
        """The days between the first and the last that have no curve."""
        if not self.days:
            return ()
        present = {day.date for day in self.days}
        first, last = self.days[0].date, self.days[-1].date
        calendar = (first + timedelta(days=n) for n in range((last - first).days))
        return tuple(day for day in calendar if day not in present)

    @property
    def changes(self) -> tuple[Day, ...]:
        """The days with another estimator or level than the day before, which cannot be compared with it."""
        return tuple(day for before, day in pairwise(self.days) if day.estimated_with != before.estimated_with)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the history as a Parquet file; an interrupted write leaves the old file unchanged."""
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, new: bool = False) -> History:
        """Load a history from a Parquet file.

        Arguments:
            path (str or path): the file.
            new (bool, default False): return an empty history if there is no such file.
        """
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
        """Return a table with a line for each day: the propensities of some ranks, and the findings."""
        if not self.days:
            return "The history has no days yet."
        ranks = _table_ranks(max(p.position for day in self.days for p in day.positions))
        lines = [f"{'date':<10}" + "".join(f"{f'rank {k}':>9}" for k in ranks) + "  findings"]
        before: date | None = None
        for day in self.days:
            lines += [] if before is None else _missing_lines(before, day.date)
            lines.append(_table_row(day, ranks))
            before = day.date
        if self.changes:
            listed_days = (self.days[0], *self.changes[-_MAX_LISTED_CHANGES:])
            settings = "; ".join(f"{day.estimated_with} from {day.date} on" for day in listed_days)
            more = f" ({len(self.changes):,} times)" if len(self.changes) > _MAX_LISTED_CHANGES else ""
            note = f"The estimator or the level changed{more}. Do not compare days across a change: {settings}."
            lines += ["", *wrap_printable(note, "! ", "  ")]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


@dataclass(frozen=True)
class Day:
    """The curve of one day.

    Attributes:
        date (date): the day.
        estimator (str): the estimator of the curve.
        level (float or None): the level of its intervals; None if it has none.
        positions (tuple of Position): the curve, rank by rank.
        findings (tuple of str): the findings of that day, as text.
    """

    date: date
    estimator: str
    level: float | None
    positions: tuple[Position, ...]
    findings: tuple[str, ...] = ()

    @property
    def estimated_with(self) -> str:
        """The estimator and the level of the intervals, as text."""
        return f"{self.estimator}, {'no' if self.level is None else f'{100 * self.level:.4g}%'} interval"


def parse_date(day: date | str) -> date:
    """Return a day, which may be an ISO date as text."""
    try:
        return date.fromisoformat(day) if isinstance(day, str) else date(day.year, day.month, day.day)
    except (ValueError, AttributeError):
        raise CurveError(f"Expected a day such as 2026-03-01, not {day!r}.") from None


# ---- The file


def save(history: History, path: str | os.PathLike[str]) -> None:
    """Save a history as a Parquet file, with a row for each day and rank."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_file_row(day, position) for day in history.days for position in day.positions]
    types = {"date32[day]": pa.date32(), "string": pa.string(), "double": pa.float64(), "int64": pa.int64()}
    types["list<element: string>"] = pa.list_(pa.field("element", pa.string()))
    schema = pa.schema([(name, types[kind]) for name, kind in _COLUMNS.items()], {METADATA_KEY: str(FORMAT).encode()})
    with atomic_write(path, HISTORY) as part:
        pq.write_table(pa.Table.from_pylist(rows, schema), part, compression="zstd", write_page_checksum=True)


def _file_row(day: Day, position: Position) -> dict[str, Any]:
    return {
        **{name: getattr(day, name) for name in _DAY_COLUMNS},
        "findings": list(day.findings),
        "rank": position.position,
        **{name: getattr(position, name) for name in _POSITION_COLUMNS},
    }


def load(path: str | os.PathLike[str]) -> History:
    """Load a history from a Parquet file, and refuse a file that is damaged or not a history."""
    name = as_path("path", path, CurveError)
    if not os.path.exists(name):
        raise CurveError(f"There is no file {name!r}. Create it by adding the curve of a day: posbias history add.")
    try:
        if (kind := "a folder" if os.path.isdir(name) else special_file_kind(name)) is not None:
            raise RecordError(f"it is {kind}")
        return _read_table(read_parquet(name))
    except RecordError as error:
        raise CurveError(
            f"{name!r} is not a history, or is damaged: {printable(str(error))}. Restore it from a backup, or start a "
            "new one."
        ) from None


def _read_table(table: Any) -> History:
    version = (table.schema.metadata or {}).get(METADATA_KEY)
    if version is None:
        raise RecordError("its metadata does not say that it is a history")
    if not version.isdigit() or not 1 <= int(version) <= FORMAT:
        raise RecordError(
            f"it has format {printable(version.decode('ascii', 'replace'))}, and this posbias reads {FORMAT}"
        )
    found = {field.name: str(field.type) for field in table.schema}
    if found != _COLUMNS:
        raise RecordError(
            f"it has the columns {listed(found)} instead of {listed(_COLUMNS)}, or some of them have another type"
        )
    for name in _NEVER_NULL:
        if table.column(name).null_count:
            raise RecordError(f"its column {name} has no value in {table.column(name).null_count:,} rows")
    try:
        rows = table.to_pylist()
    except UnicodeDecodeError:
        raise RecordError("it has a text that is not UTF-8") from None
    except (ValueError, OverflowError) as error:
        raise RecordError(f"it has an invalid date ({first_line(error)})") from None
    days = [_read_day(day, list(group)) for day, group in groupby(rows, key=lambda row: row["date"])]
    if any(day.date >= following.date for day, following in pairwise(days)):
        raise RecordError("its days are not in order, or one occurs twice")
    return History(tuple(days))


def _read_day(day: date, rows: list[dict[str, Any]]) -> Day:
    first = rows[0]
    if any(row[name] != first[name] for row in rows for name in _DAY_COLUMNS):
        raise RecordError(f"the rows of {day} differ in {', '.join(_DAY_COLUMNS[1:-1])} or {_DAY_COLUMNS[-1]}")
    if any(row["rank"] >= following["rank"] for row, following in pairwise(rows)):
        raise RecordError(f"the ranks of {day} are not in order, or one occurs twice")
    if first["level"] is not None and not 0 < first["level"] < 1:
        raise RecordError(f"the level of {day} is {first['level']} where a share between 0 and 1 was expected")
    if None in first["findings"]:
        raise RecordError(f"the findings of {day} have a missing text")
    positions = tuple(_read_position(day, row) for row in rows)
    return Day(day, first["estimator"], first["level"], positions, tuple(first["findings"]))


def _read_position(day: date, row: dict[str, Any]) -> Position:
    where = f"rank {row['rank']} of {day}"
    position = read_position(row | {"position": row["rank"]}, MOST_RANKS, where)
    if position.position == 1 and not is_one(position.propensity):
        raise RecordError(f"{where} has the propensity {position.propensity}, and all are relative to that of rank 1")
    if position.low is None:
        if (position.high, position.degrees_of_freedom) != (None, None):
            raise RecordError(f"{where} has an interval without a lower end")
    elif row["level"] is None or position.propensity is None:
        raise RecordError(f"{where} has an interval without a level or a propensity")
    elif position.high is not None and position.low > position.high:
        raise RecordError(f"{where} has an interval whose lower end {position.low} is above its upper end")
    return position


# ---- The table


def _table_ranks(last: int) -> list[int]:
    """Return the ranks that the table shows, evenly spaced on a log scale.

    >>> _table_ranks(10), _table_ranks(3)
    ([2, 3, 4, 7, 10], [2, 3])
    """
    if last - 1 <= _MAX_TABLE_RANKS:
        return list(range(2, last + 1))
    steps = [round(2 * (last / 2) ** (n / (_MAX_TABLE_RANKS - 1))) for n in range(_MAX_TABLE_RANKS)]
    return sorted(dict.fromkeys(steps))


def _missing_lines(before: date, after: date) -> list[str]:
    """Return a line for each day between two, or one line for many: a mistyped year may be centuries away."""
    days = [before + timedelta(days=n) for n in range(1, min((after - before).days, _MAX_MISSING_LINES + 2))]
    if len(days) > _MAX_MISSING_LINES:
        return [f"{days[0]}{'–':>9}  missing, and {(after - before).days - 2:,} days after it"]
    return [f"{day}{'–':>9}  missing" for day in days]


def _table_row(day: Day, ranks: Iterable[int]) -> str:
    propensity = {p.position: p.propensity for p in day.positions}
    values = [propensity.get(k) for k in ranks]
    row = f"{day.date}" + "".join(f"{'–' if p is None else f'{p:.3f}':>9}" for p in values)
    findings = printable("; ".join(day.findings))
    room = _WIDTH - len(row) - 2
    return f"{row}  {findings if len(findings) <= room else f'{findings[: room - 1]}…'}".rstrip()
