"""Check the rows of a log: which rows can be counted, and what is wrong with the others.

- `profile_log` and `count_rows` count rows, impressions and clicks by ranker and position in a first scan.
- `find_defects` scans the log for rows that cannot be counted, each kind of defect with its number of rows, an example
  and a remedy. `explain_unusable` makes an error of them.
- `find_contradicted_ranks`, `find_non_functional` and the like report rows that were left out, or counted by a rule.
  Their numbers add up when the harvests of several days are merged.
- `find_click_defects` and `find_missing_rows` report what clicks and positions show of a filter before posbias.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from posbias._text import Arguments, listed
from posbias.engines import OpenLog
from posbias.engines.files import parquet_float_columns, read_csv_head
from posbias.errors import LogError
from posbias.findings import Finding, Severity, UnusableLogError
from posbias.harvesting.tables import PositionCounts
from posbias.logs.click_log import Weighting
from posbias.logs.schema import Schema, check_count_sums, check_rankers, guess_column, rounded_ids
from posbias.sql import exposures as exposure_sql
from posbias.sql import signatures as signature_sql
from posbias.sql.dialects import FLOATS, INTEGERS, Dialect
from posbias.sql.plan import QueryPlan, Step, render
from posbias.sql.signatures import BEYOND, CONTRADICTED, UNUSABLE

if TYPE_CHECKING:
    from posbias._arrays import IntArray

# A sample has about this many rows: enough to find what happens to one page view in some thousands.
SAMPLE_ROWS = 2**17
# Checks that need many columns read only this many rows from the beginning of a large log.
_FIRST_ROWS = 2**15
MIXED_ENGINES = Finding(
    "mixed-engines",
    "warning",
    "The harvests come from engines, or from versions of posbias, that assign queries to different buckets, so "
    "intervals may be a little too narrow: a query that occurs in both is resampled as if it were two",
    remedy="Harvest all parts with the same engine and version.",
)
UNITS_NOT_COUNTED = Finding(
    "units-not-counted",
    "info",
    "Intervals cluster by query alone, not by unit: the log names no ranker, or has too many segments and ranks to "
    "count them by unit. If few units have most of the page views, intervals may be too narrow",
    remedy="Name the ranker, or log each ranker's rank (ranks or rankings): then intervals cluster by both.",
)
MIXED_UNITS = Finding(
    "mixed-units",
    "warning",
    "Some of the harvests have no counts by unit, or by another column, so intervals cluster by query alone",
    remedy="Harvest all parts with the same unit.",
)
# Rows are missing if the busiest position has fewer results than this share of the page view ids.
_NEARLY_ALL = 0.98
# With this many results at a position, at least one should not be clicked.
_ENOUGH_RESULTS = 100
# Where this share of the results of a position is clicked, all results of another one may be.
_MOST_CLICKED = 0.9
# An example of a row shows up to this many columns.
_MAX_EXAMPLE_COLUMNS = 10
# Time is cut into this many windows, each with as many different times. Rankers overlap in time if they do so in these
# windows nearly as much as if page views were split at random: where one of them grows from none to all of the traffic,
# the overlap is about 0.7. They follow one another below the second number; a window helps above the third.
TIME_WINDOWS, _ENOUGH_OVERLAP, _HALF_OVERLAP, _SOME_OVERLAP = 8, 0.9, 0.5, 0.05
# Ids as texts are looked at in so many rows of each CSV file, of so many files.
_HEAD_ROWS, _MAX_HEADS = 200, 1000
_WHOLE, _WITH_FRACTION = re.compile(r"-?\d+"), re.compile(r"-?\d+\.0+")
_SCIENTIFIC = re.compile(r"-?\d(\.\d+)?[eE]\+\d+")
_DROP = "Leave such rows out, or fix the job that writes the log."


# ---- Rows that can be counted


def count_rows(opened: OpenLog, plan: QueryPlan) -> tuple[LogProfile, RowCounts]:
    """Return the profile of a log, and how many of its rows can be counted."""
    if not plan.rankers:
        profile = profile_log(opened, plan)
        return profile, RowCounts.by_profile(profile)
    answer = opened.table(signature_sql.row_counts(skip_rank_checks(opened, plan)), "Comparing positions with ranks")
    counts = RowCounts.by_code(answer["code_0"], answer["row_count"])
    # This answer does not have dropped duplicates, the names of rankers without known ranks, or the positions of rows
    # that contradict their ranker. Only the log has them.
    incomplete = counts.rows_contradicted or counts.rows_unusable
    if plan.schema.drop_duplicates or incomplete or (answer["shown_by"] < 0).any():
        return profile_log(opened, plan), counts
    position = answer["code_0"].clip(min=0)
    columns = [answer["shown_by"], position, *(answer[name] for name in ("row_count", "impressions", "clicks"))]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    profile = LogProfile(tuple(ProfileEntry(plan.rankers[ranker], *rest) for ranker, *rest in rows))
    check_count_sums(plan.schema, profile.impressions)
    return profile, counts


def profile_log(opened: OpenLog, plan: QueryPlan) -> LogProfile:
    """Count rows, impressions and clicks of a log by ranker and position."""
    found = opened.rows(exposure_sql.profile(plan), "Looking at the rankers")
    profile = LogProfile(tuple(ProfileEntry(*row) for row in found))
    check_rankers(opened.schema, profile.rankers)
    check_count_sums(opened.schema, profile.impressions)
    return profile


@dataclass(frozen=True)
class LogProfile:
    """Rows, impressions and clicks by ranker and position."""

    entries: tuple[ProfileEntry, ...]

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(entry.rows for entry in self.entries)

    @property
    def rows_counted(self) -> int:
        """Rows within the top M."""
        return sum(entry.rows for entry in self.entries if entry.position > 0)

    @property
    def rows_beyond(self) -> int:
        """Rows below the top M."""
        return sum(entry.rows for entry in self.entries if entry.position == 0)

    @property
    def rows_unusable(self) -> int:
        """Rows that cannot be counted."""
        return sum(entry.rows for entry in self.entries if entry.position < 0)

    @cached_property
    def rankers(self) -> tuple[str, ...]:
        """The rankers that were shown, sorted."""
        return tuple(sorted({entry.ranker for entry in self.entries if entry.ranker is not None}))

    @property
    def impressions(self) -> int:
        """All impressions."""
        return sum(entry.impressions or 0 for entry in self.entries)

    @property
    def max_impressions(self) -> int:
        """The most impressions of one ranker at one position of the top M."""
        return max((entry.impressions for entry in self.entries if entry.position > 0), default=0)

    @cached_property
    def positions(self) -> tuple[PositionCounts, ...]:
        """Impressions and clicks at each position of the top M, over all rankers."""
        counts: dict[int, PositionCounts] = {}
        for entry in self.entries:
            if entry.position > 0:
                so_far = counts.get(entry.position, PositionCounts(entry.position, 0, 0))
                counts[entry.position] = PositionCounts(
                    entry.position, so_far.impressions + entry.impressions, so_far.clicks + entry.clicks
                )
        return tuple(counts[position] for position in sorted(counts))

    @cached_property
    def page_views(self) -> dict[str, int]:
        """The page views of each ranker."""
        import numpy as np

        from posbias.harvesting.tables import count_page_views

        depth = max((entry.position for entry in self.entries), default=0)
        impressions = np.zeros((len(self.rankers), max(depth, 1)), dtype=np.int64)
        for entry in self.entries:
            if entry.position > 0 and entry.ranker is not None:
                impressions[self.rankers.index(entry.ranker), entry.position - 1] += entry.impressions
        return dict(zip(self.rankers, count_page_views(impressions).tolist(), strict=True))


class ProfileEntry(NamedTuple):
    """Counts of one ranker at one position. Position 0 stands for all below the top M, -1 for unusable rows."""

    ranker: str | None
    position: int
    rows: int
    impressions: int
    clicks: int


@dataclass(frozen=True)
class RowCounts:
    """How many rows a harvest counts and leaves out.

    Attributes:
        rows (int): all rows.
        rows_counted (int): rows that are counted.
        rows_beyond (int): rows shown below the top M.
        rows_contradicted (int): rows shown at another position than the rank of their own ranker.
        non_functional_pairs (int): (query, document) pairs that one ranker showed at several ranks.
        rows_unusable (int): rows that cannot be counted.
    """

    rows: int
    rows_counted: int
    rows_beyond: int
    rows_contradicted: int = 0
    non_functional_pairs: int = 0
    rows_unusable: int = 0

    @classmethod
    def by_code(cls, code: IntArray, rows: IntArray) -> RowCounts:
        """Return the counts of an answer by signature, where rows that are not counted have a negative code."""

        def with_code(value: int) -> int:
            return int(rows[code == value].sum())

        return cls(
            rows=int(rows.sum()),
            rows_counted=int(rows[code >= 0].sum()),
            rows_beyond=with_code(BEYOND),
            rows_contradicted=with_code(CONTRADICTED),
            rows_unusable=with_code(UNUSABLE),
        )

    @classmethod
    def by_profile(cls, profile: LogProfile) -> RowCounts:
        """Return the counts of a replay."""
        return cls(profile.rows, profile.rows_counted, profile.rows_beyond, rows_unusable=profile.rows_unusable)

    def to_dict(self) -> dict[str, int]:
        """Return the counts that a harvest keeps: all but the unusable rows, of which it has none."""
        return {name: n for name, n in asdict(self).items() if name != "rows_unusable"}


def skip_rank_checks(opened: OpenLog, plan: QueryPlan) -> QueryPlan:
    """Return a plan that does not check the ranks of each row, if file statistics show that all are valid."""
    types, columns = plan.schema.types, list(plan.schema.rank_columns.values())
    whole = bool(columns) and all(types[column] in INTEGERS for column in columns)
    least = opened.known_minimum(columns) if whole else None
    return replace(plan, ranks_valid=least is not None and least >= 1)


# ---- Samples


@dataclass(frozen=True)
class Sample:
    """A sample of page views: one in `one_in` by a hash of their ids, so that pages are whole, or the `first` rows.

    Attributes:
        one_in (int, default 1): the interval of the sample, a power of 2; 1 takes all page views.
        first (int or None, default None): if given, the sample is this many rows from the beginning of the log.
        rows_of (str, default "log"): the table to sample from.
    """

    one_in: int = 1
    first: int | None = None
    rows_of: str = "log"

    @property
    def source(self) -> str:
        """The SQL table that the rows come from."""
        return self.rows_of if self.first is None else f"(SELECT * FROM {self.rows_of} LIMIT {self.first}) beginning"

    def denser(self, share: float) -> Sample:
        """Return a sample with as many rows from a part of the log, with this share of its rows, as this one has."""
        return replace(self, one_in=sampling_interval(int(self.one_in * share), 1))

    @property
    def beginning(self) -> Sample:
        """The first rows of the log, for checks that need more columns; all rows if this is a sample of all."""
        return self if self == ALL_ROWS else Sample(first=_FIRST_ROWS)

    def condition(self, dialect: Dialect, identity: str) -> str:
        """Return the SQL condition that a row is in the sample, by a hash of `identity`."""
        return f"{dialect.hash(identity)} & {self.one_in - 1} = 0" if self.one_in > 1 else "TRUE"

    def query(self, plan: QueryPlan, columns: Iterable[str]) -> str:
        """Return the query of some columns of the sampled rows.

        Half of them are whole page views and half whole queries: of an id that many page views share, by mistake, the
        sample by hash of ids has all rows or none. Without ids of page views, all are whole queries.
        """
        d, names = plan.dialect, [name for name in (plan.schema.impression, plan.schema.query) if name]
        each = self if self.one_in == 1 else replace(self, one_in=len(names) * self.one_in)
        rows = " OR ".join(each.condition(d, d.quote(name)) for name in names)
        return f"SELECT {', '.join(map(d.quote, columns))}\nFROM {self.source}\nWHERE {rows}"

    def __str__(self) -> str:
        if self.first is not None:
            return f"in the first {self.first:,} rows, "
        return f"in a sample of one in {self.one_in:,}, " if self.one_in > 1 else ""


ALL_ROWS = Sample()


def small_sample(opened: OpenLog, rows: int) -> Sample:
    """Return a sample for checks of page views: small enough to cost little beside counting `rows` rows."""
    if rows <= SAMPLE_ROWS:
        return ALL_ROWS
    # Reading a text file again costs as much as counting it, so only its beginning is read.
    return Sample(first=SAMPLE_ROWS) if opened.is_text else whole_pages_sample(rows)


def whole_pages_sample(rows: int) -> Sample:
    """Return a sample by hash of the query from a log of `rows` rows: its page views are whole in any order of rows."""
    return Sample(one_in=sampling_interval(rows, SAMPLE_ROWS))


def sampling_interval(rows: int, wanted: int) -> int:
    """Return the interval, a power of 2, of a sample with about `wanted` of `rows` rows.

    >>> sampling_interval(10_000_000, 1_000_000), sampling_interval(900_000, 1_000_000)
    (8, 1)
    """
    return 1 << max(0, (rows // wanted).bit_length() - 1)


# ---- Rows that are left out or counted by a rule


def find_contradicted_ranks(counts: RowCounts) -> list[Finding]:
    """Report rows whose position is not the rank of their ranker; raise an error if there are no other rows."""
    if not counts.rows_contradicted:
        return []
    if counts.rows_counted == 0:
        raise LogError(
            f"The ranks contradict the positions in all {counts.rows_contradicted:,} rows within the top ranks: the "
            "position is not the rank that the ranker gives to the document. Ranks must count from 1 like positions. "
            "Check the columns named by ranks, or the table of rankings."
        )
    return [
        Finding(
            "contradicted-rank",
            "warning",
            "{count} of {rows} rows were left out: their position is not the rank that their ranker gives to the "
            "document",
            counts.rows_contradicted,
            evidence={"rows": counts.rows},
            remedy="`posbias check` shows examples.",
        )
    ]


def find_non_functional(count: int, pairs: int) -> list[Finding]:
    """Report (query, document) pairs that one ranker showed at several ranks."""
    if not count:
        return []
    return [
        Finding(
            "non-functional-ranker",
            "warning",
            "{count} of {pairs} (query, document) pairs were shown at several ranks by the same ranker; each rank "
            "counts by its share",
            count,
            evidence={"pairs": pairs},
            remedy="Add to the query id what the ranking depends on: user, day, filters. A ranker that shuffles on "
            "purpose does no harm.",
        )
    ]


def check_non_functional(non_functional: str, count: int, pairs: int) -> None:
    """Raise an error for rankers that are not a function of the query, if `non_functional` is "refuse"."""
    if count and non_functional == "refuse":
        raise LogError(
            f"{count:,} of {pairs:,} (query, document) pairs were shown at several ranks by the same ranker, so the "
            "ranker is not a function of the query. Add to the query id what the ranking depends on (user, day, "
            "filters), or count such pairs by their shares.",
            {"non_functional": "share"},
        )


def check_non_functional_setting(natural: bool, non_functional: str) -> None:
    """Reject `non_functional="refuse"` for a log that names no ranker."""
    if natural and non_functional == "refuse":
        raise LogError(
            "non_functional='refuse' needs a log that names its rankers, and this log names none. Name the column of "
            "the ranker (ranker), or leave non_functional out."
        )


def find_several_ranks(opened: OpenLog, plan: QueryPlan) -> list[Finding]:
    """Report (query, document) pairs for which a ranker is not a function of the query."""
    schema, d, m = plan.schema, plan.dialect, plan.max_rank
    names = {"q": schema.query, "d": schema.doc, "r": schema.ranker}
    if schema.window is not None:
        names["w"] = schema.window
    source, columns = "log", [schema.position]
    if schema.layout.ranks_in == "columns":
        del names["r"]
        columns = [schema.rank_columns[name] for name in plan.rankers]
    elif schema.layout.ranks_in == "table":
        source, columns = "rankings", [schema.rank]
    types = schema.rankings if source == "rankings" else schema.types
    typed = [d.integer(d.quote(c), types[c]) for c in columns]
    # Ranks below the top M are not counted, so different ranks there do not matter.
    places = [f"CASE WHEN {t} BETWEEN 1 AND {m} THEN {t} ELSE 0 END AS place_{i}" for i, t in enumerate(typed)]
    keys = [f"{d.quote(column)} AS {short}" for short, column in names.items()]
    within = "" if schema.layout.ranks_known else " WHERE place_0 > 0"
    differ = " OR ".join(f"MIN(place_{i}) <> MAX(place_{i})" for i in range(len(columns)))
    label = (
        f"{d.literal(f'{schema.query}=')} || {d.as_text('q')} || {d.literal(f', {schema.doc}=')} || {d.as_text('d')}"
    )
    sql = render(
        [
            Step("places", "Ranks within the top M.", f"SELECT {', '.join([*keys, *places])}\nFROM {source}"),
            Step(
                "pairs",
                "Each (query, document), by one ranker or with all its ranks.",
                f"SELECT q, d, ({differ}) AS differs\nFROM places{within}\nGROUP BY {', '.join(names)}",
            ),
            Step(
                "non_functional",
                "Those with several ranks.",
                "SELECT COUNT(*), COUNT(CASE WHEN differs THEN 1 END), "
                f"MIN(CASE WHEN differs THEN {label} END)\nFROM (SELECT q, d, MAX(differs) AS differs FROM pairs "
                "WHERE q IS NOT NULL AND d IS NOT NULL GROUP BY q, d) t",
            ),
        ]
    )
    pairs, count, example = opened.rows(sql, "Checking for several ranks of a pair")[0]
    if not count:
        return []
    return [
        Finding(
            "non-functional-ranker",
            "warning",
            f"{{count}} of {{pairs}} (query, document) pairs {schema.layout.several_ranks}: a ranker is not a function "
            "of the query",
            int(count),
            example,
            {"pairs": int(pairs)},
            "Add to the query id what the ranking depends on (user, day, filters). "
            f"{schema.layout.several_ranks_remedy}"
            + ("" if schema.layout.ranks_known else " A ranker that shuffles on purpose does no harm."),
        )
    ]


def find_no_ranker(schema: Schema) -> list[Finding]:
    """Report that a log names no ranker, with the assumption that this needs."""
    if not schema.natural:
        return []
    # A user who did not name a column that is called "ranker" needs no suggestion.
    unused = [c for c in schema.types if c not in schema.roles.values()] if "ranker" not in schema.types else []
    return [no_ranker_finding(schema.window, unused)]


def no_ranker_finding(window: str | None, columns: Iterable[str] = ()) -> Finding:
    """Return the finding of a log that names no ranker, with a suggestion from its unused columns."""
    suggestion = guess_column("ranker", "ranker", columns)
    remedy = "" if window else "To be safer, compare only within a day or week: name its column (window). "
    named = f"If column {suggestion!r} says which ranker was shown, name it (ranker)." if suggestion else ""
    return Finding(
        "no-ranker",
        "warning",
        "The log names no ranker: each document is compared with itself at all ranks where it was shown"
        + (f" within one {window!r}" if window else "")
        + ". This is right unless documents moved because they became more or less relevant",
        remedy=(remedy + named).strip(),
        arguments={"ranker": suggestion} if suggestion else {} if window else {"window": "COLUMN"},
    )


def find_ranker_overlap(opened: OpenLog, plan: QueryPlan) -> list[Finding]:
    """Report whether the rankers served at the same time; nothing if the log has no time.

    If the rankers served one after the other, a document is compared with itself, or with others, at another time.
    Where ranks are known, rankers are usually drawn at random: their time is looked at if it was named.
    """
    schema, d = plan.schema, plan.dialect
    if schema.natural or len(plan.rankers) < 2:
        return []
    if schema.window is not None and not schema.layout.ranks_known:
        return [_find_shared_windows(opened, plan, schema.window)]
    if schema.time is None:
        return []
    time, type_ = d.quote(schema.time), schema.types[schema.time]
    position = d.integer(d.quote(schema.position), schema.types[schema.position])
    # Hours are fine enough, and are few.
    moment = f"date_trunc('hour', {time})" if type_ in ("TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP_MS") else time
    # A text such as 1/2/2026 has no order, and is a window of its own.
    order = d.try_cast("moment", "TIMESTAMP") if type_ == "VARCHAR" else "moment"
    window = f"CAST(FLOOR((place - 1) * {TIME_WINDOWS}.0 / places) AS INTEGER)"
    sql = render(
        [
            Step(
                "moments",
                "The first results that each ranker showed at each time: one for each page view.",
                f"SELECT {moment} AS moment, {d.quote(schema.ranker)} AS ranker, COUNT(*) AS n\nFROM log\n"
                f"WHERE {position} = 1 AND {time} IS NOT NULL AND {d.quote(schema.ranker)} IS NOT NULL\nGROUP BY 1, 2",
            ),
            Step(
                "ordered",
                "Times in order.",
                f"SELECT *, DENSE_RANK() OVER (ORDER BY {order}, moment) AS place\nFROM moments",
            ),
            Step(
                "counted",
                "With their number, and whether all of them have an order.",
                f"SELECT *, MAX(place) OVER () AS places,\n"
                f"  MIN(CASE WHEN {order} IS NULL THEN 0 ELSE 1 END) OVER () AS has_order\nFROM ordered",
            ),
            Step(
                "windows",
                "The same by window of time.",
                f"SELECT CASE WHEN has_order = 1 THEN {window} ELSE CAST(place AS INTEGER) END AS w, ranker, "
                f"{d.total('n')} AS n\nFROM counted\nGROUP BY 1, 2",
            ),
        ]
    )
    counts: dict[object, Counter[str]] = {}
    for window, ranker, n in opened.rows(sql, "Comparing rankers over time"):
        counts.setdefault(window, Counter())[str(ranker)] += int(n)
    # The chance that two page views of one window are of different rankers, over that of any two page views.
    whole: Counter[str] = sum(counts.values(), Counter())
    different = _different_rankers(whole)
    several = [window for window in counts.values() if window.total() > 1]
    if len(counts) < 2 or not several or not different:
        return []
    views = sum(window.total() for window in several)
    overlap = sum(window.total() * _different_rankers(window) for window in several) / views / different
    # Its standard error for a random split among two rankers: it is 1 less a χ² of the windows over the page views.
    error = math.sqrt(2 * len(several)) / views
    evidence = {"overlap": round(overlap, 3), "windows": len(counts)}
    of_random = f"{overlap:.0%} of the overlap of a random split"
    if overlap - 2 * error >= _ENOUGH_OVERLAP:
        message = f"The rankers overlap in time ({schema.time!r}): {of_random}"
        return [Finding("rankers-overlap", "info", message, evidence=evidence)]
    # In a small log, rankers that were drawn at random may seem to follow one another.
    if overlap + 2 * error >= _ENOUGH_OVERLAP:
        return []
    # Windows are compared in replay alone.
    in_windows = overlap > _SOME_OVERLAP and not schema.layout.ranks_known
    arguments: Arguments = {"window": schema.time} if in_windows and not type_.startswith("TIME") else {}
    replaced = "followed one another in time" if overlap < _HALF_OVERLAP else "overlap only in part in time"
    return [
        Finding(
            "rankers-replaced",
            "warning",
            f"The rankers {replaced} ({schema.time!r}: {of_random}). The curve compares different times, and is wrong "
            "if relevance, prices or demand changed meanwhile",
            evidence=evidence,
            remedy="Compare documents only within a day or week in which both rankers served (window), or let both "
            "rankers serve at the same time for a while."
            if in_windows
            else "No test shows it. Let both rankers serve at the same time for a while.",
            arguments=arguments,
        )
    ]


def _find_shared_windows(opened: OpenLog, plan: QueryPlan, window: str) -> Finding:
    """Report whether any window has page views of two rankers."""
    d = plan.dialect
    names = f"{d.quote(window)} AS w, {d.quote(plan.schema.ranker)} AS r"
    sql = (
        "SELECT COUNT(*), COUNT(CASE WHEN low <> high THEN 1 END) FROM (SELECT MIN(r) AS low, MAX(r) AS high "
        f"FROM (SELECT {names} FROM log) s WHERE w IS NOT NULL GROUP BY w) t"
    )
    windows, shared = opened.rows(sql, "Comparing rankers over time")[0]
    if shared:
        return Finding("rankers-overlap", "info", f"Each document is compared with itself within one {window!r} only")
    return Finding(
        "rankers-replaced",
        "warning",
        f"None of {{windows}} values of {window!r} has page views of two rankers: the rankers followed one another, so "
        "there is nothing to compare within one of them",
        evidence={"windows": int(windows), "shared_windows": 0},
        remedy="Use a longer window, in which two rankers served (window), or let both rankers serve at the same time "
        "for a while.",
    )


def _different_rankers(counts: Counter[str]) -> float:
    """Return the probability that two page views drawn at random, one after the other, are of different rankers."""
    total = counts.total()
    return sum(n * (total - n) for n in counts.values()) / (total * (total - 1)) if total > 1 else 0.0


def find_biased_weighting(weighting: Weighting) -> list[Finding]:
    """Report that the weighting "traffic" is biased in replay."""
    if weighting != "traffic":
        return []
    return [
        Finding(
            "biased-weighting",
            "warning",
            "The weighting 'traffic' is biased in replay if rankers have unequal traffic and queries rarely recur: a "
            "pair is used only if both rankers happened to serve it",
            remedy="Use the default, 'harmonic', which does not have this bias.",
        )
    ]


# ---- Filters that removed rows


def find_click_defects(positions: Sequence[PositionCounts]) -> Iterator[Finding]:
    """Report that nothing was shown, that nothing or everything was clicked, or that position 1 is missing."""
    impressions = sum(counts.impressions for counts in positions)
    clicks = sum(counts.clicks for counts in positions)
    if not impressions:
        yield Finding(
            "nothing-shown",
            "warning",
            "nothing was shown within the top ranks",
            remedy="Check the column of positions (position), that impressions are counted, and the number of ranks "
            "(max_rank).",
        )
    if impressions and positions[0].position > 1:
        yield Finding(
            "no-first-position",
            "warning",
            f"nothing was shown at position 1; the first position is {positions[0].position}",
            remedy="Propensities are relative to position 1 and cannot be estimated without it. Check that positions "
            "count from 1 and that no filter removed the top of the page. If results always begin lower, such as below "
            "an advertisement, count positions and ranks from there (sql).",
        )
    if impressions and not clicks:
        yield Finding(
            "no-clicks",
            "error",
            "there is not a single click on {impressions} results shown",
            evidence={"impressions": impressions},
            remedy="Check the column of clicks (click), and that clicks were joined to the results shown.",
        )
    if impressions and impressions == clicks:
        yield Finding(
            "only-clicks",
            "error",
            "all {count} results were clicked",
            clicks,
            remedy="The log must also have the results that were shown and not clicked. Check the column of clicks "
            "(click), and that no filter removed the others.",
        )
    else:
        yield from _find_clicked_positions(positions)


def _find_clicked_positions(positions: Sequence[PositionCounts]) -> Iterator[Finding]:
    """Report positions where all results were clicked, unless users click nearly all results of other positions too."""
    full = [counts for counts in positions if counts.impressions == counts.clicks >= _ENOUGH_RESULTS]
    others = [counts.clicks / counts.impressions for counts in positions if counts.clicks < counts.impressions]
    if full and max(others, default=0.0) < _MOST_CLICKED:
        at = ", ".join(str(counts.position) for counts in full)
        yield Finding(
            "only-clicks-at-position",
            "warning",
            f"all {{count}} results at position{'s' * (len(full) > 1)} {at} were clicked",
            sum(counts.clicks for counts in full),
            evidence={"positions": [counts.position for counts in full]},
            remedy="Some results should not be clicked: check that no filter removed those that were shown there and "
            "not clicked. The propensity there would be too high.",
        )


def find_missing_rows(by_ids: int, by_positions: int) -> list[Finding]:
    """Report missing rows: there are more page view ids than results at any position."""
    if by_positions >= _NEARLY_ALL * by_ids:
        return []
    return [
        Finding(
            "missing-rows",
            "warning",
            "rows are missing: there are {page_views} page view ids, but the busiest position has only {counted} "
            "results",
            by_ids - by_positions,
            evidence={"page_views": by_ids, "counted": by_positions},
            remedy="Find out which filter removed the rows. Page views are counted at the busiest position, so "
            "traffic, the forecasts of a plan and the exposure of documents never shown are too small. If rows are "
            "missing because of clicks, the curve is wrong too.",
        )
    ]


# ---- Rows that cannot be counted


def explain_unusable(opened: OpenLog, plan: QueryPlan, unusable: int, rows: int) -> UnusableLogError:
    """Return an error that explains why rows of a log cannot be counted."""
    # A file that lacks a column explains why its rows have no value there, so mixed files come first.
    found = [*find_mixed_files(opened), *find_defects(opened, plan)]
    reasons = [finding for finding in found if finding.severity == "error"]
    # `unusable` may count only the first kind of defect.
    bad = " OR ".join(f"({defect.condition})" for defect in _defects(plan) if defect.severity == "error")
    unusable = max(unusable, opened.rows(f"SELECT COUNT(*) FROM log WHERE {bad}")[0][0])
    if not reasons:
        # Only a missing document is left: it matters only where documents are compared.
        reasons = _find_in_rows(opened, "log", [_without_document(plan, "error")], row_text(plan.schema, plan.dialect))
    return UnusableLogError(*reasons, lead=f"{unusable:,} of {rows:,} rows of the log cannot be used:")


def find_rounded_ids(opened: OpenLog) -> list[Finding]:
    """Report ids that lost digits: floats that are too large to be exact, and texts that were written from floats."""
    schema = opened.schema
    names = [name for name in (schema.query, schema.doc, schema.impression, schema.unit) if name is not None]
    ranked = {name: schema.rankings[name] for name in (schema.query, schema.doc) if name in schema.rankings}
    return [
        *_find_rounded(opened, "log", {name: schema.types[name] for name in names}, _file_of_floats),
        *_find_rounded(opened, "rankings", ranked, "the rankings table"),
        *_find_ids_written_from_floats(opened, names),
    ]


def refuse_rounded_ids(opened: OpenLog, table: str, ids: Mapping[str, str], where: str) -> None:
    """Reject a table with ids, given with their types, that are stored as floats and too large to be exact."""
    found = list(_find_rounded(opened, table, ids, where))
    if found:
        raise UnusableLogError(*found)


def _find_rounded(
    opened: OpenLog, table: str, ids: Mapping[str, str], where: str | Callable[[OpenLog, str], str]
) -> Iterator[Finding]:
    """Yield a finding for each id of a table that is stored as a float and too large to be exact."""
    d = opened.dialect
    floats = {name: type_ for name, type_ in ids.items() if type_ in FLOATS}
    if floats:
        counts = [f"COUNT(CASE WHEN {d.is_rounded(d.quote(name), type_)} THEN 1 END)" for name, type_ in floats.items()]
        [row] = opened.rows(f"SELECT {', '.join(counts)} FROM {table}", "Looking for rounded ids")
        for (name, type_), count in zip(floats.items(), row, strict=True):
            if count:
                yield rounded_ids(name, type_, int(count), where if isinstance(where, str) else where(opened, name))


def _file_of_floats(opened: OpenLog, name: str) -> str:
    """Return the file that has an id as a float, for a message; the column may have another type in other files."""
    types = opened.file_columns()
    files = [file for file in opened.files if not types or types[file].get(name) in FLOATS]
    return "" if not files else repr(files[0]) + (f" and {len(files) - 1:,} more files" if files[1:] else "")


def _find_ids_written_from_floats(opened: OpenLog, names: Sequence[str]) -> Iterator[Finding]:
    """Yield findings about texts that were written from floats: 7.0 beside 7, or 1.2e+18.

    A program writes a whole column one way, so the first rows of each CSV file show it. Floats of a Parquet file become
    texts if the column is text in another file.
    """
    texts = [name for name in names if opened.schema.types[name] == "VARCHAR"]
    examples: dict[str, dict[str, tuple[str, str]]] = {name: {} for name in texts}
    for file in opened.files[:_MAX_HEADS] if texts else ():
        for name in parquet_float_columns(file, texts):
            yield _written_two_ways(name, "text or whole numbers", "another file", file, "")
        for name, values in read_csv_head(file, texts, _HEAD_ROWS).items():
            for value in values:
                kind = "whole" if _WHOLE.fullmatch(value) else "fraction" if _WITH_FRACTION.fullmatch(value) else ""
                kind = kind or ("scientific" if _SCIENTIFIC.fullmatch(value) else "")
                examples[name].setdefault(kind, (value, file))
    for name, kinds in examples.items():
        if "scientific" in kinds:
            value, file = kinds["scientific"]
            yield Finding(
                "rounded-ids",
                "error",
                f"Ids in {name!r} of {file!r} were written from fractions, which do not hold all their digits: "
                "different ids became one",
                example=f"{name}={value}",
                remedy="Write the column as whole numbers or as text at the source: a cast of this file is too late.",
            )
        elif {"whole", "fraction"} <= kinds.keys():
            (whole, whole_file), (fraction, file) = kinds["whole"], kinds["fraction"]
            example = f"{name}={whole} and {name}={fraction}"
            yield _written_two_ways(name, "whole numbers", repr(whole_file), file, example)


def _written_two_ways(name: str, what: str, where: str, file: str, example: str) -> Finding:
    return Finding(
        "ids-written-two-ways",
        "error",
        f"Ids in {name!r} are {what} in {where} and fractions such as 7.0 in {file!r}, so one id counts as two",
        example=example or None,
        remedy="Write the column as whole numbers in all files. Missing values turn it into fractions in pandas: use "
        "the type Int64 there.",
    )


def find_copied_files(opened: OpenLog) -> list[Finding]:
    """Report files that are copies of other files of a log."""
    copies = opened.copied_files()
    if not copies:
        return []
    return [
        Finding(
            "copied-files",
            "error",
            "{count} files of the log are copies of other files, so their rows would be counted twice",
            len(copies),
            f"{copies[0][0]} is the same as {copies[0][1]}",
            remedy="Give each file once.",
        )
    ]


def find_mixed_files(opened: OpenLog) -> list[Finding]:
    """Report columns in use whose type differs between the files of a log, or that some file lacks."""
    files = opened.file_columns()
    schema = opened.schema
    ranks = list(schema.rank_columns.values())
    findings = []
    for column in [*schema.roles.values(), *ranks]:
        types = {file: columns.get(column, "missing") for file, columns in files.items()}
        counts = Counter(types.values())
        if len(counts) < 2:
            continue
        types_found = "; ".join(f"{t} in {n:,} of {len(files):,}" for t, n in counts.most_common())
        rarest = counts.most_common()[-1][0]
        lacking = "missing" in counts
        # The column of a ranker that did not exist yet may be missing: the ranker ranks nothing there.
        harmless = not lacking or column in ranks or (column == schema.impression and not schema.drop_duplicates)
        findings.append(
            Finding(
                "mixed-files",
                "warning" if harmless else "error",
                f"the files disagree on column {column!r}: {types_found}",
                counts[rarest],
                f"{rarest} in {next(file for file, t in types.items() if t == rarest)}",
                {"files": len(files)},
                _mixed_files_remedy(schema.types[column], lacking, column in ranks),
            )
        )
    return findings


def _mixed_files_remedy(type_: str, lacking: bool, rank: bool) -> str:
    if rank and lacking:
        return "In files without it, the ranker counts as ranking nothing in the top M. If it did, leave them out."
    if lacking:
        return "Leave those files out, or write them again with the column."
    return f"It is read as {type_}. Write all files with the same type, so that ids are the same everywhere."


def find_defects(opened: OpenLog, plan: QueryPlan) -> list[Finding]:
    """Report rows that cannot be counted, in one scan of the log and one of the rankings table, if there is one."""
    found = _find_in_rows(opened, "log", list(_defects(plan)), row_text(plan.schema, plan.dialect))
    from_zero = [f for f in found if f.code in ("zero-based-position", "zero-based-rank")]
    arguments = one_based_arguments(opened, plan) if from_zero else {}
    found = [replace(f, arguments=arguments) if f in from_zero else f for f in found]
    return [*found, *find_bad_rankings(opened)]


def _find_in_rows(opened: OpenLog, table: str, defects: Sequence[_Defect], row: str) -> list[Finding]:
    """Report the defects that rows of a table have, with the number of rows and an example."""
    parts = [
        f"COALESCE(SUM(CASE WHEN {f.condition} THEN 1 ELSE 0 END), 0), MIN(CASE WHEN {f.condition} THEN {row} END)"
        for f in defects
    ]
    rows, *found = opened.rows(f"SELECT COUNT(*), {', '.join(parts)} FROM {table}", "Checking rows")[0]
    return [
        Finding(
            f.code,
            f.severity,
            f"{{count}} of {{rows}} rows {'' if table == 'log' else f'of the {table} '}have {f.what}",
            int(count),
            example,
            {"rows": int(rows)},
            f.remedy,
            f.arguments,
        )
        for f, count, example in zip(defects, found[::2], found[1::2], strict=True)
        if count
    ]


@dataclass(frozen=True)
class _Defect:
    """A kind of defect: the SQL condition on a row, and what to report if a row meets it."""

    code: str
    condition: str
    what: str
    remedy: str
    severity: Severity = "error"
    arguments: Arguments = field(default_factory=dict)


def _defects(plan: QueryPlan) -> Iterator[_Defect]:
    yield from _missing_values(plan)
    yield from _bad_positions(plan)
    yield from _bad_counts(plan) if plan.schema.aggregated else _bad_clicks(plan)
    if plan.rankers:
        yield _unknown_ranker(plan)
        yield from _bad_ranks(plan.dialect, plan.schema.rank_columns.values(), plan.schema.types)


def _missing_values(plan: QueryPlan) -> Iterator[_Defect]:
    schema, d = plan.schema, plan.dialect
    for name in (schema.query, schema.ranker, *([schema.window] if schema.window else [])):
        yield _Defect("null", _missing(plan, name), f"no value in column {name!r}", _DROP)
    position = schema.position
    yield _Defect("null", f"{d.quote(position)} IS NULL", f"no value in column {position!r}", _DROP)
    if schema.click is not None:
        click, type_ = d.quote(schema.click), schema.types[schema.click]
        nothing = {"VARCHAR": "'0'", "BOOLEAN": "FALSE"}.get(type_, "0")
        yield _Defect(
            "null",
            f"{click} IS NULL",
            f"no value in column {schema.click!r}",
            "If these results were not clicked, as after a LEFT JOIN with clicks, replace the missing value by 0: "
            f"COALESCE({schema.click}, 0). Do not leave them out: then every result would be a clicked one.",
            arguments={"sql": d.select_replacing({click: f"COALESCE({click}, {nothing})"})},
        )
    # If ranks are known, the harvest does not need the document: it counts the row, or leaves it out as not ranked.
    yield _without_document(plan, "warning" if schema.layout.ranks_known else "error")
    if schema.impression is not None:
        yield _Defect(
            "null",
            _missing(plan, schema.impression),
            f"no value in column {schema.impression!r}",
            "With duplicates='drop' they would all count as one page view: leave such rows out."
            if schema.drop_duplicates
            else "posbias cannot check whether these rows were logged twice.",
            "error" if schema.drop_duplicates else "warning",
        )


def _missing(plan: QueryPlan, name: str) -> str:
    """Return the SQL condition that an id is missing."""
    return f"{plan.dialect.nan_to_null(plan.dialect.quote(name), plan.schema.types[name])} IS NULL"


def _without_document(plan: QueryPlan, severity: Severity) -> _Defect:
    doc = plan.schema.doc
    return _Defect("null", _missing(plan, doc), f"no value in column {doc!r}", _DROP, severity)


def _bad_positions(plan: QueryPlan) -> Iterator[_Defect]:
    column = plan.schema.position
    raw, position = plan.dialect.quote(column), _typed(plan, column)
    yield _Defect(
        "not-a-position",
        f"{raw} IS NOT NULL AND {position} IS NULL",
        f"a position in {column!r} that is not a whole number",
        "Positions are ranks: 1, 2, 3 and so on. Name the column of positions (position).",
    )
    yield _Defect(
        "zero-based-position",
        f"{position} = 0",
        f"a position of 0 in {column!r}: positions seem to count from 0",
        "Positions and ranks must count from 1: add 1 to them.",
    )
    yield _Defect("negative-position", f"{position} < 0", f"a negative position in {column!r}", _DROP)


def _typed(plan: QueryPlan, column: str) -> str:
    return plan.dialect.integer(plan.dialect.quote(column), plan.schema.types[column])


def _bad_counts(plan: QueryPlan) -> Iterator[_Defect]:
    impressions, clicks = plan.schema.impressions or "", plan.schema.clicks or ""
    for column in (impressions, clicks):
        yield _Defect(
            "not-a-count",
            f"NOT COALESCE({_typed(plan, column)} >= 0, FALSE)",
            f"a count in {column!r} that is not a whole number of 0 or more",
            _DROP,
        )
    yield _Defect(
        "clicks-exceed-impressions",
        f"{_typed(plan, clicks)} > {_typed(plan, impressions)}",
        f"more clicks in {clicks!r} than impressions in {impressions!r}",
        "An impression has at most one click. Check that the two columns are not swapped, and that a second click on "
        "the same result is not counted.",
    )


def _bad_clicks(plan: QueryPlan) -> Iterator[_Defect]:
    column = plan.schema.click or ""
    raw = plan.dialect.quote(column)
    click = plan.dialect.click(raw, plan.schema.types[column])
    yield _Defect(
        "not-a-click",
        f"{raw} IS NOT NULL AND NOT COALESCE({click} BETWEEN 0 AND 1, FALSE)",
        f"a click in {column!r} that is neither 0 nor 1",
        "A click is 0 or 1, or true or false. If a row counts clicks over many impressions, name both columns "
        "(impressions and clicks). If it counts several clicks on one result, write 1.",
    )


def _unknown_ranker(plan: QueryPlan) -> _Defect:
    schema, d = plan.schema, plan.dialect
    known = listed(plan.rankers)
    leave_out = "leave its rows out (so for a ranker with random order)"
    interleaved = "If it stands for interleaved lists of these rankers, use ranks='none' and ranker='none'"
    remedy = f"Add its ranks, or {leave_out}. {interleaved}."
    where = "rankings table has"
    if schema.layout.ranks_in == "columns":
        remedy = (
            f"Add a column with its ranks, or {leave_out}. If the rank columns have other names, give their pattern, "
            "such as ranks='rank_{ranker}'. If those columns are not ranks, use ranks='none'. "
            f"{interleaved}."
        )
        where = "rank columns of the log have"
    raw = d.quote(schema.ranker)
    return _Defect(
        "unknown-ranker",
        f"NOT ({_missing(plan, schema.ranker)}) AND ({plan.ranker_number(raw, schema.types[schema.ranker])}) IS NULL",
        f"a ranker in {schema.ranker!r} whose ranks are not known: the {where} the ranks of {known}",
        remedy,
    )


def _bad_ranks(d: Dialect, columns: Iterable[str], types: Mapping[str, str]) -> Iterator[_Defect]:
    """Yield the defects of ranks. Without this check, a bad rank of a ranker not shown would count as "not ranked"."""
    columns = list(columns)
    numbers = {column: d.integer(d.quote(column), types[column]) for column in columns}
    ranks = {column: d.rank(d.quote(column), types[column]) for column in columns}
    if columns:
        yield _Defect(
            "zero-based-rank",
            " OR ".join(f"{numbers[column]} = 0" for column in columns),
            f"a rank of 0 in {listed(columns, most=6)}: ranks seem to count from 0",
            "Ranks must count from 1 like positions: add 1 to them. If a ranker does not rank a result, leave the "
            "value empty.",
        )
        yield _Defect(
            "not-a-rank",
            " OR ".join(f"({ranks[column]} < 1 AND COALESCE({numbers[column]}, 1) <> 0)" for column in columns),
            f"a rank in {listed(columns, most=6)} that is not a whole number of 1 or more",
            "Ranks are 1, 2, 3 and so on. If a ranker does not rank a result, leave the value empty.",
        )


def find_bad_rankings(opened: OpenLog) -> list[Finding]:
    """Report values in the rankings table that are not ranks."""
    schema, d = opened.schema, opened.dialect
    if schema.layout.ranks_in != "table":
        return []
    names = (schema.query, schema.ranker, schema.doc, schema.rank)
    defects = list(_bad_ranks(d, [schema.rank], schema.rankings))
    return _find_in_rows(opened, "rankings", defects, _columns_text(names, d))


def one_based_arguments(opened: OpenLog, plan: QueryPlan) -> Arguments:
    """Return the argument that makes positions and rank columns count from 1; none if they do.

    To columns that count from 0 it adds 1. If positions begin later, it subtracts that from them, and from those rank
    columns that begin as late.
    """
    schema, d = plan.schema, plan.dialect
    columns = [schema.position, *schema.rank_columns.values()]
    least = opened.rows(f"SELECT {', '.join(f'MIN({_typed(plan, c)})' for c in columns)} FROM log")[0]
    first = int(least[0] or 0)
    changed = {}
    for column, low in zip(columns, least, strict=True):
        shift = 1 if low == 0 else 1 - first if low is not None and low >= first > 1 else 0
        if shift:
            changed[d.quote(column)] = f"{d.cast(d.quote(column), 'INTEGER')} {'+' if shift > 0 else '-'} {abs(shift)}"
    return {"sql": d.select_replacing(changed)} if changed else {}


def row_text(schema: Schema, d: Dialect) -> str:
    """Return the SQL expression that writes a row of the log as text, for an example."""
    roles = ("query", "doc", "ranker", "position", "click", "impressions", "clicks", "window")
    known = {role: name for role, name in schema.roles.items() if not (role == "ranker" and schema.natural)}
    names = [*(known[role] for role in roles if role in known), *schema.rank_columns.values()]
    return _columns_text(list(dict.fromkeys(names))[:_MAX_EXAMPLE_COLUMNS], d)


def _columns_text(names: Iterable[str], d: Dialect) -> str:
    return " || ', ' || ".join(f"{d.literal(f'{n}=')} || COALESCE({d.as_text(d.quote(n))}, 'null')" for n in names)
