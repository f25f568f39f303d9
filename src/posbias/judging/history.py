"""Curves by day, in one Parquet file.

`History` holds one curve for each day. The file has a row for each day and rank, so that any tool can read it. posbias
reads it strictly, because a file can be damaged or edited. `History.check` compares the last days with a reference
period: it finds slow changes, which a comparison of each day with the week before does not see.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from posbias._arrays import FloatArray
from posbias._files import HISTORY, atomic_write, lock_file, special_file_kind
from posbias._json import RecordError
from posbias._stats import t_quantile
from posbias._text import format_ranks, listed, printable
from posbias._validate import as_path, integer, texts
from posbias.curves.curve import Curve, Position
from posbias.curves.files import MOST_RANKS, is_one, read_position
from posbias.errors import CurveError
from posbias.estimators.significance import Contrasts
from posbias.findings import wrap_printable
from posbias.harvesting.files import first_line, read_parquet
from posbias.judging.compare import ComparedCurve, Comparison, compare_curves
from posbias.progress import step
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
# The table shows at most this many ranks, each in a cell of this width.
_MAX_TABLE_RANKS, _CELL = 3, 20
# The level of `History.check`, and of the marks in the table, which compare a day with so many days before it.
CHECK_LEVEL, _DAYS_BEFORE = 0.9998, 7
# The spans that `History.span` distinguishes, each with the estimate from which the next longer one is taken; the
# median of χ² with one degree of freedom; and the number of differences that it needs.
_SPANS, _MEDIAN_SQUARE, _MIN_DIFFERENCES = {1: 2.5, 7: 12.0, 14: 24.0, 28: np.inf}, 0.455, 20
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

    @step("Comparing periods")
    def check(
        self,
        reference: tuple[date | str, date | str],
        *,
        days: int = 7,
        span: int | None = None,
        level: float = CHECK_LEVEL,
    ) -> Comparison:
        """Compare the curves of the last days with those of a reference period.

        At each rank, log p is averaged over the days of each period, weighted by impressions. The errors come from the
        intervals of the days. If the days of the reference period vary more than these say, the errors grow with them.

        Arguments:
            reference (pair of date or str): the first and the last day of a period without problems. Keep it fixed:
                a reference that moves along follows a slow change.
            days (int, default 7): the length of the last period, up to the last day of the history.
            span (int, default None): how many days of data each curve has. With 7, as for curves of a week that ends
                with the day, only every seventh curve is used, so that no data count twice. None for `span()`, which
                finds it by how little curves differ from one day to the next.
            level (float, default 0.9998): the level. At 0.9998, fewer than 5% of histories without a change have an
                alarm in 90 nightly checks.

        Returns:
            Comparison: the ratio of the last days to the reference at each rank.

        Example:
            >>> import posbias
            >>> history = History()
            >>> for day in range(1, 13):
            ...     world = posbias.World(queries=1000, max_rank=3, eta=1.0 if day < 9 else 1.3, seed=day)
            ...     harvest = posbias.harvest(posbias.ClickLog(posbias.simulate(world)), max_rank=3)
            ...     history = history.add(posbias.CrossFit().fit(harvest).curve(), f"2026-03-{day:02}")
            >>> found = history.check(("2026-03-01", "2026-03-07"), days=4)
            >>> found.names, found.differs
            (('reference', 'last 4 days'), True)
        """
        found = self.span() if span is None else integer("span", span, 1, error=CurveError)
        before, after = self._periods(reference, days, found)
        last = "last day" if days == 1 else f"last {days:,} days"
        compared = _compare_periods(before, after, level, ("reference", last))
        used = f"reference: {_describe_period(before)}; {last}: {_describe_period(after)}"
        if span is None and found > 1:
            used += f"; curves of neighbouring days share data, so those used are {found} days apart"
        return replace(compared, no_joint=used)

    def span(self) -> int:
        """Return how many days of data each curve has, as far as the curves show it: 1, 7, 14 or 28.

        From one day to the next, curves of single days differ as much as their errors say. Curves of the last seven
        days share six of them, and their squared differences are a seventh of that.
        """
        ratios = []
        for before, day in pairwise(self.days):
            if (day.date - before.date).days == 1 and day.estimated_with == before.estimated_with:
                first, second = ({rank: row for rank, *row in _known_errors(one)} for one in (before, day))
                for rank in first.keys() & second.keys():
                    (x, error), (y, other) = first[rank], second[rank]
                    ratios.append((y - x) ** 2 / (error**2 + other**2))
        if len(ratios) < _MIN_DIFFERENCES:
            return 1
        # The median is not moved by the days on which the curve changed.
        days = _MEDIAN_SQUARE / max(float(np.median(ratios)), 1e-6)
        return next((span for span, most in _SPANS.items() if days < most), [*_SPANS][-1])

    def _periods(
        self, reference: tuple[date | str, date | str], days: int, span: int
    ) -> tuple[Sequence[Day], Sequence[Day]]:
        """Return the days of the reference period and of the last period that share no data."""
        if not isinstance(reference, Sequence) or isinstance(reference, str) or len(reference) != 2:
            raise CurveError(
                f"reference must be two days, the first and the last, such as ('2026-03-01', '2026-03-14'), not "
                f"{reference!r}."
            )
        first, last = map(parse_date, reference)
        integer("days", days, 1, error=CurveError)
        if not self.days:
            raise CurveError("The history has no days yet: there is nothing to check.")
        end = self.days[-1].date
        before = _every(span, [day for day in self.days if first <= day.date <= last])
        after = _every(span, [day for day in self.days if day.date > end - timedelta(days=days)])
        if not before:
            raise CurveError(f"The history has no curve from {first} to {last}: choose another reference period.")
        if after[0].date - timedelta(days=span - 1) <= before[-1].date:
            raise CurveError(
                f"The last {days:,} days of the history begin with data of {after[0].date - timedelta(days=span - 1)}, "
                f"which is in the reference period (up to {before[-1].date}), if each curve has {span:,} "
                f"day{'s'[: span > 1]} of data. Check fewer days, add later days, or give another span."
            )
        settings = list(dict.fromkeys(day.estimated_with for day in (*before, *after)))
        if len(settings) > 1:
            raise CurveError(
                f"The days have different estimators or levels ({'; '.join(settings)}), which cannot be compared. "
                "Choose a reference period with the settings of the last days, or estimate its days again."
            )
        return before, after

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

    @classmethod
    def add_to_file(
        cls, path: str | os.PathLike[str], curve: Curve, on: date | str, findings: Sequence[str] = ()
    ) -> History:
        """Add the curve of a day to a file, which is created if needed, and return the history that it has then.

        Several processes may add days at once: each waits for the others, so that no day is lost.

        Arguments:
            path (str or path): the file.
            curve, on, findings: as in `add`.
        """
        with lock_file(path):
            history = cls.load(path, new=True).add(curve, on, findings)
            history.save(path)
        return history

    def to_dict(self) -> dict[str, Any]:
        """Return the history as `--json` prints it."""
        return {
            "format": FORMAT,
            "days": [asdict(day) | {"date": str(day.date), "findings": list(day.findings)} for day in self.days],
            "missing": list(map(str, self.missing)),
            "version": __version__,
        }

    def _changed_ranks(self) -> list[set[int]]:
        """Return for each day the ranks at which it differs from the week before it.

        In the week after a change, days are compared with the week before the change.
        """
        span, found, changed_on = self.span(), list[set[int]](), date.min
        for day in self.days:
            end = changed_on if (day.date - changed_on).days <= _DAYS_BEFORE else day.date
            first, last = end - timedelta(days=span + _DAYS_BEFORE - 1), end - timedelta(days=span)
            same = [one for one in self.days if first <= one.date <= last and one.estimated_with == day.estimated_with]
            found.append(self._differing_ranks(_every(span, same), day))
            if found[-1] and end == day.date:
                changed_on = day.date
        return found

    @staticmethod
    def _differing_ranks(before: Sequence[Day], day: Day) -> set[int]:
        """Return the ranks at which a day differs from some days before it."""
        if not before or not _errors(day):
            return set()
        inflation = _inflation(before)
        first, second = (_mean_curve(days, inflation, CHECK_LEVEL) for days in (before, [day]))
        ranks = min(first.max_rank, second.max_rank)
        value = (second.log_propensity[:ranks] - first.log_propensity[:ranks])[1:]
        covariances = first.covariance[1:ranks, 1:ranks], second.covariance[1:ranks, 1:ranks]
        contrasts = Contrasts.from_independent(value, covariances, (first.degrees[1:ranks], second.degrees[1:ranks]))
        # Bonferroni's correction for the number of ranks.
        quantile = t_quantile(contrasts.degrees, 1 - (1 - CHECK_LEVEL) / 2 / max(len(value), 1))
        return {int(k) + 2 for k in np.flatnonzero(np.abs(value) > quantile * contrasts.standard_error)}

    def to_text(self) -> str:
        """Return a table with a line for each day: some ranks with their intervals, changes marked, and findings."""
        if not self.days:
            return "The history has no days yet."
        ranks = _table_ranks(max(p.position for day in self.days for p in day.positions))
        lines = [f"{'date':<10}" + "".join(f"  {f'rank {k} (interval)':<{_CELL}}" for k in ranks).rstrip()]
        changed = self._changed_ranks()
        # A finding of every day is printed once, below the table.
        shared = [text for text in self.days[0].findings if all(text in day.findings for day in self.days)]
        shared = shared if len(self.days) > 1 else []
        before: date | None = None
        for day, marked in zip(self.days, changed, strict=True):
            lines += [] if before is None else _missing_lines(before, day.date)
            lines += [_table_row(day, ranks, marked), *_change_line(marked - {*ranks}), *_finding_lines(day, shared)]
            before = day.date
        if any(changed):
            lines += [
                "",
                f"* differs at the {100 * CHECK_LEVEL:g}% level from the {_DAYS_BEFORE} days before the change. After "
                f"{_DAYS_BEFORE} days",
                "  the new curve is the usual one.",
            ]
        if shared:
            lines += ["", *(line for text in shared for line in wrap_printable(f"Every day: {text}", "! ", "  "))]
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


@step("Writing the history")
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


@step("Reading the history")
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
    ([2, 4, 10], [2, 3])
    """
    if last - 1 <= _MAX_TABLE_RANKS:
        return list(range(2, last + 1))
    steps = [round(2 * (last / 2) ** (n / (_MAX_TABLE_RANKS - 1))) for n in range(_MAX_TABLE_RANKS)]
    return sorted(dict.fromkeys(steps))


def _missing_lines(before: date, after: date) -> list[str]:
    """Return a line for each day between two, or one line for many: a mistyped year may be centuries away."""
    days = [before + timedelta(days=n) for n in range(1, min((after - before).days, _MAX_MISSING_LINES + 2))]
    if len(days) > _MAX_MISSING_LINES:
        return [f"{days[0]}  – missing, and {(after - before).days - 2:,} days after it"]
    return [f"{day}  – missing" for day in days]


def _table_row(day: Day, ranks: Iterable[int], changed: set[int]) -> str:
    positions = {p.position: p for p in day.positions}
    cells = (_cell(positions.get(k), k in changed) for k in ranks)
    return (f"{day.date}" + "".join(f"  {cell:<{_CELL}}" for cell in cells)).rstrip()


def _cell(position: Position | None, changed: bool) -> str:
    if position is None or position.propensity is None:
        return "–"
    ends = "" if position.low is None else f" {position.low:.3f}–{_upper_end(position)}"
    return f"{position.propensity:.3f}{ends}{'*' * changed}"


def _upper_end(position: Position) -> str:
    return "∞" if position.high is None else f"{position.high:.3f}"


def _change_line(ranks: set[int]) -> list[str]:
    """Return the ranks that changed and are not in the table."""
    return [f"            * also at {format_ranks(sorted(ranks))}"] if ranks else []


def _finding_lines(day: Day, shared: Sequence[str]) -> list[str]:
    """Return the findings of a day, except those that all days share."""
    own = [finding for finding in day.findings if finding not in shared]
    return [line for finding in own for line in wrap_printable(finding, "            ! ", " " * 14)]


# ---- Periods compared


def _every(span: int, days: Sequence[Day]) -> list[Day]:
    """Return days that are at least `span` days apart, from the last one back, in order."""
    chosen: list[Day] = []
    for day in reversed(days):
        if not chosen or (chosen[-1].date - day.date).days >= span:
            chosen.append(day)
    return chosen[::-1]


def _errors(day: Day) -> dict[int, tuple[float, float]]:
    """Return the standard error of log p and its degrees of freedom, by rank, where a day has an interval."""
    errors = {}
    for p in day.positions:
        if p.position > 1 and p.propensity and p.low and p.high and day.level is not None:
            # A percentile interval has no degrees of freedom.
            degrees = np.inf if p.degrees_of_freedom is None else p.degrees_of_freedom
            quantile = float(t_quantile(np.array([degrees]), (1 + day.level) / 2)[0])
            errors[p.position] = (float(np.log(p.high / p.low)) / 2 / quantile, degrees)
    return {rank: error for rank, error in errors.items() if error[0] > 0}


def _known_errors(day: Day) -> Iterator[tuple[int, float, float]]:
    """Yield each rank that has an interval, with log p and its standard error."""
    errors = _errors(day)
    for p in day.positions:
        if p.position in errors and p.propensity:
            yield p.position, float(np.log(p.propensity)), errors[p.position][0]


def _compare_periods(before: Sequence[Day], after: Sequence[Day], level: float, names: tuple[str, str]) -> Comparison:
    """Compare two periods of days that share no data, by the mean of log p at each rank.

    The ranks of a day have errors that depend on each other, in a way that a history does not keep. Treated as
    independent, they give p-values that are too large, if anything.
    """
    inflation = _inflation(before)
    first, second = (_mean_curve(days, inflation, level) for days in (before, after))
    return replace(compare_curves(first, second, level, names), joint=None)


def _describe_period(days: Sequence[Day]) -> str:
    dates = f"{days[0].date} to {days[-1].date}" if len(days) > 1 else str(days[0].date)
    return f"{dates} ({len(days):,} curve{'s'[: len(days) > 1]})"


def _inflation(days: Sequence[Day]) -> dict[int, float]:
    """Return how much more log p varies between days than its errors say, by rank: 1 or more.

    It is at least that of all ranks together, which is better known.
    """
    squares, degrees = {}, {}
    for rank, values, errors, weights, _ in _by_rank(days):
        squares[rank] = float((((values - weights @ values) / errors) ** 2).sum())
        degrees[rank] = len(values) - 1
    together = sum(squares.values()) / max(sum(degrees.values()), 1)
    return {rank: max(1.0, together, squares[rank] / max(degrees[rank], 1)) for rank in squares}


def _mean_curve(days: Sequence[Day], inflation: Mapping[int, float], level: float) -> ComparedCurve:
    """Return the mean of the curves of some days, with the errors of a mean."""
    last = max(p.position for day in days for p in day.positions)
    x, variance, degrees = np.full(last, np.nan), np.full(last, np.nan), np.full(last, np.nan)
    x[0], variance[0], degrees[0] = 0.0, 0.0, np.inf
    for rank, values, errors, weights, own_degrees in _by_rank(days):
        parts = (weights * errors) ** 2
        x[rank - 1] = weights @ values
        variance[rank - 1] = inflation.get(rank, 1.0) * parts.sum()
        # Welch and Satterthwaite.
        degrees[rank - 1] = (
            parts.sum() ** 2 / (parts**2 / own_degrees).sum() if np.isfinite(own_degrees).any() else np.inf
        )
    counts = {p.position: [0, 0] for day in days for p in day.positions}
    for p in (p for day in days for p in day.positions):
        counts[p.position][0] += p.impressions
        counts[p.position][1] += p.clicks
    positions = tuple(
        Position(k, float(np.exp(x[k - 1])) if np.isfinite(x[k - 1]) else None, None, None, n, clicks, None)
        for k, (n, clicks) in sorted(counts.items())
    )
    curve = Curve(days[0].estimator, last, level, None, None, positions, {})
    return ComparedCurve(x, np.diag(variance), degrees, curve)


def _by_rank(days: Sequence[Day]) -> Iterator[tuple[int, FloatArray, FloatArray, FloatArray, FloatArray]]:
    """Yield each rank with log p, its errors, its weights and its degrees of freedom on the days that have them."""
    errors = [_errors(day) for day in days]
    for rank in sorted({rank for each in errors for rank in each}):
        rows = [
            (p.propensity or 1.0, *each[rank], p.impressions)
            for day, each in zip(days, errors, strict=True)
            for p in day.positions
            if p.position == rank and rank in each
        ]
        value, error, degrees, impressions = np.array(rows, dtype=np.float64).T
        # Weights by impressions, not by errors: these are smaller where p happened to be large.
        yield rank, np.log(value), error, impressions / impressions.sum(), degrees
