"""Defects of the rows of a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from posbias._text import Arguments, listed
from posbias.engines import OpenLog
from posbias.errors import LogError
from posbias.findings import Finding, Severity, UnusableLogError
from posbias.harvesting.tables import PositionCounts
from posbias.logs.click_log import Weighting
from posbias.logs.schema import Schema, check_count_sums, check_rankers, guess_column
from posbias.sql import exposures as exposure_sql
from posbias.sql import signatures as signature_sql
from posbias.sql.dialects import INTEGERS, Dialect
from posbias.sql.plan import QueryPlan, Step, render
from posbias.sql.signatures import BEYOND, CONTRADICTED, UNUSABLE

if TYPE_CHECKING:
    from posbias._arrays import IntArray

# A sample has about so many rows: enough to meet what happens to one page view in some thousands.
_ROWS = 2**17
# So many rows at the beginning of a log are looked at in all their columns.
_FIRST = 2**15
MIXED_ENGINES = Finding(
    "mixed-engines",
    "warning",
    "The harvests come from engines that put queries into different buckets: a query that recurs in both is resampled "
    "in two parts, so that intervals may be a little narrow",
    remedy="Harvest all parts with the same engine.",
)
# Fewer page views by positions than so much of those by their ids are too few.
_NEARLY_ALL = 0.98
# Of so many results at a position people leave one alone.
_SOME = 100
# So many columns of a row are shown as an example.
_MOST_SHOWN = 10
_DROP = "Leave such rows out, or repair the job that writes the log."


def count_rows(opened: OpenLog, plan: QueryPlan) -> tuple[LogProfile, RowCounts]:
    """Return what a first look at a log tells, and which of its rows can be counted."""
    if not plan.rankers:
        profile = profile_log(opened, plan)
        return profile, RowCounts.by_profile(profile)
    answer = opened.table(signature_sql.row_counts(skip_rank_checks(opened, plan)), "Comparing positions with ranks")
    counts = RowCounts.by_code(answer["code_0"], answer["row_count"])
    # Copies that are dropped, the names of rankers whose ranks are not known, and where rows stand that are not where
    # their ranker puts them, are in the log alone.
    elsewhere = counts.rows_contradicted or counts.rows_unusable
    if plan.schema.drop_duplicates or elsewhere or (answer["shown_by"] < 0).any():
        return profile_log(opened, plan), counts
    position = answer["code_0"].clip(min=0)
    columns = [answer["shown_by"], position, *(answer[name] for name in ("row_count", "impressions", "clicks"))]
    found = zip(*(column.tolist() for column in columns), strict=True)
    profile = LogProfile(tuple(ProfileEntry(plan.rankers[ranker], *rest) for ranker, *rest in found))
    check_count_sums(plan.schema, profile.impressions)
    return profile, counts


@dataclass(frozen=True)
class LogProfile:
    """Rows, impressions and clicks by ranker and position."""

    entries: tuple[ProfileEntry, ...]

    @property
    def rows(self) -> int:
        """Rows in all."""
        return sum(entry.rows for entry in self.entries)

    @property
    def rows_counted(self) -> int:
        """Rows within the top M."""
        return sum(entry.rows for entry in self.entries if entry.position > 0)

    @property
    def rows_beyond(self) -> int:
        """Rows beyond the top M."""
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
        """Impressions in all."""
        return sum(entry.impressions or 0 for entry in self.entries)

    @property
    def max_impressions(self) -> int:
        """The most impressions that one ranker has at one position of the top M."""
        return max((entry.impressions for entry in self.entries if entry.position > 0), default=0)

    @cached_property
    def positions(self) -> tuple[PositionCounts, ...]:
        """What was shown at each position of the top M, all rankers together."""
        found: dict[int, PositionCounts] = {}
        for entry in self.entries:
            if entry.position > 0:
                so_far = found.get(entry.position, PositionCounts(entry.position, 0, 0))
                found[entry.position] = PositionCounts(
                    entry.position, so_far.impressions + entry.impressions, so_far.clicks + entry.clicks
                )
        return tuple(found[position] for position in sorted(found))

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
    """What one ranker showed at one position: 0 stands for those beyond M, -1 for rows that cannot be counted."""

    ranker: str | None
    position: int
    rows: int
    impressions: int
    clicks: int


@dataclass(frozen=True)
class RowCounts:
    """Rows in all, those that are counted, beyond M, and shown where their own ranker does not put them.

    `non_functional_pairs` are the (query, document) pairs that one ranker showed at several ranks.
    """

    rows: int
    rows_counted: int
    rows_beyond: int
    rows_contradicted: int = 0
    non_functional_pairs: int = 0
    rows_unusable: int = 0

    @classmethod
    def by_code(cls, code: IntArray, rows: IntArray) -> RowCounts:
        """Return the counts of a harvest by signature: rows that are not counted have a code of their own."""

        def marked(mark: int) -> int:
            return int(rows[code == mark].sum())

        counted = int(rows[code >= 0].sum())
        return cls(int(rows.sum()), counted, marked(BEYOND), marked(CONTRADICTED), rows_unusable=marked(UNUSABLE))

    @classmethod
    def by_profile(cls, profile: LogProfile) -> RowCounts:
        """Return the counts of a replay."""
        return cls(profile.rows, profile.rows_counted, profile.rows_beyond, rows_unusable=profile.rows_unusable)

    def to_dict(self) -> dict[str, int]:
        """Return the counts as a harvest keeps them; one has no rows that cannot be used."""
        return {name: n for name, n in asdict(self).items() if name != "rows_unusable"}


def profile_log(opened: OpenLog, plan: QueryPlan) -> LogProfile:
    """Look at the rows of a log."""
    found = opened.rows(exposure_sql.profile(plan), "Looking at the rankers")
    profile = LogProfile(tuple(ProfileEntry(*row) for row in found))
    check_rankers(opened.schema, profile.rankers)
    check_count_sums(opened.schema, profile.impressions)
    return profile


def skip_rank_checks(opened: OpenLog, plan: QueryPlan) -> QueryPlan:
    """Ask no row whether its ranks are sound where the files tell that all are."""
    types, columns = plan.schema.types, list(plan.schema.rank_columns.values())
    whole = bool(columns) and all(types[column] in INTEGERS for column in columns)
    least = opened.known_minimum(columns) if whole else None
    return replace(plan, ranks_valid=least is not None and least >= 1)


def small_sample(opened: OpenLog, rows: int) -> Sample:
    """Return a sample of a log of so many rows."""
    if rows <= _ROWS:
        return ALL_ROWS
    # To read a text again costs as much as counting it: only its beginning is.
    return Sample(first=_ROWS) if opened.is_text else Sample(one_in=sampling_interval(rows, _ROWS))


@dataclass(frozen=True)
class Sample:
    """One page view in so many, by a hash of their ids so that whole pages are seen; or those of the first rows."""

    one_in: int = 1
    first: int | None = None
    # What they are selected from: the log, or a part of it.
    rows_of: str = "log"

    @property
    def source(self) -> str:
        """Where the rows come from."""
        return self.rows_of if self.first is None else f"(SELECT * FROM log LIMIT {self.first}) beginning"

    def denser(self, share: float) -> Sample:
        """Return a sample that has as many rows in a part of the log, of this share, as this one has in all of it."""
        return replace(self, one_in=sampling_interval(int(self.one_in * share), 1))

    @property
    def beginning(self) -> Sample:
        """The rows at the beginning of the log alone, for what needs more columns than all rows are read for."""
        return self if self == ALL_ROWS else Sample(first=_FIRST)

    def condition(self, dialect: Dialect, identity: str) -> str:
        """Return which rows are in the sample, by what they belong to."""
        return f"{dialect.hash(identity)} & {self.one_in - 1} = 0" if self.one_in > 1 else "TRUE"

    def __str__(self) -> str:
        if self.first is not None:
            return f"in the first {self.first:,} rows, "
        return f"in a sample of one in {self.one_in:,}, " if self.one_in > 1 else ""


def sampling_interval(rows: int, wanted: int) -> int:
    """Return how many there are for each that is looked at, so that about so many rows are.

    >>> one_in(10_000_000, 1_000_000), one_in(900_000, 1_000_000)
    (8, 1)
    """
    return 1 << max(0, (rows // wanted).bit_length() - 1)


ALL_ROWS = Sample()


def find_contradicted_ranks(counts: RowCounts) -> list[Finding]:
    """Return what to say of rows shown where their ranker does not put them; refuse if there are no others."""
    if not counts.rows_contradicted:
        return []
    if counts.rows_counted == 0:
        raise LogError(
            f"All {counts.rows_contradicted:,} rows within the top ranks were shown at a position that is not the rank "
            "their ranker gives them. Ranks must count from 1 like positions; check the columns named by ranks, or the "
            "table of rankings."
        )
    return [
        Finding(
            "contradicted-rank",
            "warning",
            "{count} of {rows} rows were left out: they were shown at a position that is not the rank their ranker "
            "gives them",
            counts.rows_contradicted,
            evidence={"rows": counts.rows},
            remedy="`posbias check` shows examples.",
        )
    ]


def find_non_functional(count: int, pairs: int) -> list[Finding]:
    """Return what to say of pairs that one ranker showed at several ranks."""
    if not count:
        return []
    return [
        Finding(
            "non-functional-ranker",
            "warning",
            "{count} of {pairs} (query, document) pairs were shown at several ranks by one ranker; each rank counts by "
            "its share",
            count,
            evidence={"pairs": pairs},
            remedy="Put into the query id what the ranking depends on: user, day, filters. A ranker that shuffles on "
            "purpose does no harm.",
        )
    ]


def check_non_functional(non_functional: str, count: int, pairs: int) -> None:
    """Refuse rankers that are no function of the query, where that was asked for."""
    if count and non_functional == "refuse":
        raise LogError(
            f"{count:,} of {pairs:,} (query, document) pairs were shown at several ranks by one and the same ranker, "
            "so it is not a function of the query. Put into the query id what the ranking depends on (user, day, "
            "filters), or let such pairs count by their shares.",
            {"non_functional": "share"},
        )


def find_no_ranker(schema: Schema) -> list[Finding]:
    """Return what to say of a log that names no ranker: what must hold, and what would make it likelier."""
    if not schema.natural:
        return []
    # Who leaves the column out that is called so knows what the ranker is.
    free = [c for c in schema.types if c not in schema.roles.values()] if "ranker" not in schema.types else []
    return [no_ranker_finding(schema.window, free)]


def no_ranker_finding(window: str | None, columns: Iterable[str] = ()) -> Finding:
    """Return what must hold where documents are compared wherever they were shown."""
    meant = guess_column("ranker", "ranker", columns)
    remedy = "" if window else "Compare only within a day or week to be safer: name its column (window). "
    named = f"If column {meant!r} says which ranker was shown, name it (ranker)." if meant else ""
    return Finding(
        "no-ranker",
        "warning",
        "The log names no ranker: documents are compared with themselves wherever they were shown"
        + (f" within one {window!r}" if window else "")
        + ", which is right if they did not move because they became more or less relevant",
        remedy=(remedy + named).strip(),
        arguments={"ranker": meant} if meant else {} if window else {"window": "COLUMN"},
    )


def check_non_functional_setting(natural: bool, non_functional: str) -> None:
    """Refuse to refuse rankers of a log that names none."""
    if natural and non_functional == "refuse":
        raise LogError(
            "The log names no ranker, so that none can be refused for showing a document at several ranks. Name its "
            "column (ranker), or leave non_functional out."
        )


def find_biased_weighting(weighting: Weighting) -> list[Finding]:
    """Return what to say of a harvest of replay by traffic."""
    if weighting != "traffic":
        return []
    return [
        Finding(
            "biased-weighting",
            "warning",
            "Weighting by traffic in replay is biased when rankers get unequal traffic and queries rarely recur: a "
            "pair enters only if both rankers happened to serve it",
            remedy="The default, harmonic, does not have this bias.",
        )
    ]


def find_several_ranks(opened: OpenLog, plan: QueryPlan) -> list[Finding]:
    """Return (query, document) pairs for which a ranker is not a function of the query."""
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
    # Beyond M there is no rank: being elsewhere there changes nothing.
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
    pairs, count, example = opened.rows(sql, "Looking for rankers that changed their mind")[0]
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
            f"Put into the query id what the ranking depends on (user, day, filters). "
            f"{schema.layout.several_ranks_remedy}"
            + ("" if schema.layout.ranks_known else " A ranker that shuffles on purpose does no harm."),
        )
    ]


def find_click_defects(positions: Sequence[PositionCounts]) -> Iterator[Finding]:
    """Yield that nothing was clicked, or everything, or that nothing was shown at position 1."""
    impressions = sum(shown.impressions for shown in positions)
    clicks = sum(shown.clicks for shown in positions)
    if not impressions:
        yield Finding(
            "nothing-shown",
            "warning",
            "nothing was shown within the top ranks",
            remedy="Check the column of positions (position), that impressions are counted, and how many ranks are "
            "wanted (max_rank).",
        )
    if impressions and positions[0].position > 1:
        yield Finding(
            "no-first-position",
            "warning",
            f"nothing was shown at position 1; the first is {positions[0].position}",
            remedy="Propensities are relative to position 1, and cannot be estimated without it: check that positions "
            "count from 1 and that no filter left the top of the page out. If results always begin lower, as below an "
            "advertisement, count positions and ranks from there (sql).",
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
            "every one of {count} results was clicked",
            clicks,
            remedy="A log must hold the results that were shown and not clicked too: check the column of clicks "
            "(click), and that no filter left the others out.",
        )
    else:
        yield from _find_clicked_positions(positions)


def _find_clicked_positions(positions: Sequence[PositionCounts]) -> Iterator[Finding]:
    """Yield that everything was clicked at some positions, and not at others."""
    full = [shown for shown in positions if shown.impressions == shown.clicks >= _SOME]
    if full:
        at = ", ".join(str(shown.position) for shown in full)
        yield Finding(
            "only-clicks-at-position",
            "warning",
            f"every one of {{count}} results at position{'s' * (len(full) > 1)} {at} was clicked",
            sum(shown.clicks for shown in full),
            evidence={"positions": [shown.position for shown in full]},
            remedy="People leave some alone: check that no filter left out what was shown there and not clicked. The "
            "curve would take what is missing for attention.",
        )


def find_missing_rows(by_ids: int, by_positions: int) -> list[Finding]:
    """Return that there are more page views by their ids than any position has results: rows are missing."""
    if by_positions >= _NEARLY_ALL * by_ids:
        return []
    return [
        Finding(
            "missing-rows",
            "warning",
            "there are {page_views} page views by their ids, but only {counted} by the position where most was shown: "
            "no position is logged on every page view",
            by_ids - by_positions,
            evidence={"page_views": by_ids, "counted": by_positions},
            remedy="Find out what left the others out. Page views are counted by positions: traffic, what a plan "
            "foresees and the exposure of documents never shown come out too small. Where rows are missing because "
            "of what was clicked, the curve is wrong too.",
        )
    ]


def explain_unusable(opened: OpenLog, plan: QueryPlan, unusable: int, rows: int) -> UnusableLogError:
    """Return, as an error, why rows of a log cannot be counted."""
    # A file that lacks a column is the reason why its rows have no value there.
    found = [*find_mixed_files(opened), *find_defects(opened, plan)]
    reasons = [finding for finding in found if finding.severity == "error"]
    # A harvest stops at the first kind of defect that it meets; the user wants to know of all.
    bad = " OR ".join(f"({defect.condition})" for defect in _defects(plan) if defect.severity == "error")
    unusable = max(unusable, opened.rows(f"SELECT COUNT(*) FROM log WHERE {bad}")[0][0])
    if not reasons:
        # Who asks for an explanation of rows that have all else compares or counts by document.
        reasons = _found(opened, "log", [_without_document(plan, "error")], row_text(plan.schema, plan.dialect))
    return UnusableLogError(*reasons, lead=f"{unusable:,} of {rows:,} rows of the log cannot be used:")


def find_mixed_files(opened: OpenLog) -> list[Finding]:
    """Return columns in use whose type differs between the files of a log, or that some file lacks."""
    files = opened.file_columns()
    schema = opened.schema
    ranks = list(schema.rank_columns.values())
    findings = []
    for column in [*schema.roles.values(), *ranks]:
        types = {file: columns.get(column, "missing") for file, columns in files.items()}
        counts = Counter(types.values())
        if len(counts) < 2:
            continue
        told = "; ".join(f"{t} in {n:,} of {len(files):,}" for t, n in counts.most_common())
        odd = counts.most_common()[-1][0]
        lacking = "missing" in counts
        # A ranker that did not exist yet has no column: no rank is what its absence means.
        harmless = not lacking or column in ranks or (column == schema.impression and not schema.drop_duplicates)
        findings.append(
            Finding(
                "mixed-files",
                "warning" if harmless else "error",
                f"the files disagree on column {column!r}: {told}",
                counts[odd],
                f"{odd} in {next(file for file, t in types.items() if t == odd)}",
                {"files": len(files)},
                _remedy(column, schema.types[column], lacking, column in ranks),
            )
        )
    return findings


def _remedy(column: str, type_: str, lacking: bool, rank: bool) -> str:
    if rank and lacking:
        return (
            "Where it is missing, that ranker is taken to rank nothing in the top M. Leave those files out if it did."
        )
    if lacking:
        return "Leave those files out, or write them again with the column."
    return f"It is read as {type_}; write all files with one type to be sure that ids are the same everywhere."


def find_defects(opened: OpenLog, plan: QueryPlan) -> list[Finding]:
    """Return what is wrong with rows, in one scan of the log and one of the rankings, where there are any."""
    found = _found(opened, "log", list(_defects(plan)), row_text(plan.schema, plan.dialect))
    from_zero = [f for f in found if f.code in ("zero-based-position", "zero-based-rank")]
    mending = one_based_arguments(opened, plan) if from_zero else {}
    found = [replace(f, arguments=mending) if f in from_zero else f for f in found]
    return [*found, *find_bad_rankings(opened)]


def _found(opened: OpenLog, table: str, defects: Sequence[_Defect], row: str) -> list[Finding]:
    """Return which defects rows of a table have, with how many and an example."""
    parts = [
        f"COALESCE(SUM(CASE WHEN {f.condition} THEN 1 ELSE 0 END), 0), MIN(CASE WHEN {f.condition} THEN {row} END)"
        for f in defects
    ]
    rows, *found = opened.rows(f"SELECT COUNT(*), {', '.join(parts)} FROM {table}", "Looking for problems")[0]
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
    """A condition on a row, and what it means if it holds."""

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
            "If these are results that were not clicked, as after a LEFT JOIN with clicks, let them count as such: "
            f"COALESCE({schema.click}, 0). Leaving them out would make every result a clicked one.",
            arguments={"sql": d.select_replacing({click: f"COALESCE({click}, {nothing})"})},
        )
    # Where ranks are known the document is only a name: the harvest counts the row, or leaves it out as unranked.
    yield _without_document(plan, "warning" if schema.layout.ranks_known else "error")
    if schema.impression is not None:
        yield _Defect(
            "null",
            _missing(plan, schema.impression),
            f"no value in column {schema.impression!r}",
            "With duplicates='drop' they would all be taken for one page view: leave such rows out."
            if schema.drop_duplicates
            else "Whether they were logged twice cannot be told.",
            "error" if schema.drop_duplicates else "warning",
        )


def _missing(plan: QueryPlan, name: str) -> str:
    """Return the condition that an id is missing."""
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
        "Positions are ranks: 1, 2, 3 and so on. Name the right column (position).",
    )
    yield _Defect(
        "zero-based-position",
        f"{position} = 0",
        f"a position of 0 in {column!r}: positions seem to count from 0",
        "They must count from 1, as must ranks: add 1 to them.",
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
        "Each click belongs to an impression, and one impression has one click at most: check that the two columns are "
        "not exchanged, and that a second click on the same result is not counted.",
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
        "(impressions and clicks); if it counts several clicks on one result shown, write 1.",
    )


def _unknown_ranker(plan: QueryPlan) -> _Defect:
    schema, d = plan.schema, plan.dialect
    known = listed(plan.rankers)
    mixed = "if it stands for the lists of these interleaved, say ranks='none' and ranker='none'"
    remedy = f"Add its ranks, or leave its rows out, as one does where it shows results in random order; {mixed}."
    where = "rankings table tells"
    if schema.layout.ranks_in == "columns":
        remedy = (
            "Add a column with its ranks, or leave its rows out, as one does where it shows results in random order; "
            "if the columns are called otherwise, give their pattern, such as ranks='rank_{ranker}'; if they are no "
            f"ranks at all, say ranks='none'; {mixed}."
        )
        where = "log's rank columns tell"
    raw = d.quote(schema.ranker)
    return _Defect(
        "unknown-ranker",
        f"NOT ({_missing(plan, schema.ranker)}) AND ({plan.ranker_number(raw, schema.types[schema.ranker])}) IS NULL",
        f"a ranker in {schema.ranker!r} whose ranks are not known: the {where} those of {known}",
        remedy,
    )


def _bad_ranks(d: Dialect, columns: Iterable[str], types: Mapping[str, str]) -> Iterator[_Defect]:
    """Yield values that are no ranks: of a ranker that was not shown they would pass for "not ranked"."""
    columns = list(columns)
    numbers = {column: d.integer(d.quote(column), types[column]) for column in columns}
    ranks = {column: d.rank(d.quote(column), types[column]) for column in columns}
    if columns:
        yield _Defect(
            "zero-based-rank",
            " OR ".join(f"{numbers[column]} = 0" for column in columns),
            f"a rank of 0 in {listed(columns, most=6)}: ranks seem to count from 0",
            "They must count from 1 like positions: add 1 to them. Where a ranker does not rank a result, leave the "
            "value out.",
        )
        yield _Defect(
            "not-a-rank",
            " OR ".join(f"({ranks[column]} < 1 AND COALESCE({numbers[column]}, 1) <> 0)" for column in columns),
            f"a rank in {listed(columns, most=6)} that is no whole number of 1 or more",
            "Ranks are 1, 2, 3 and so on. Where a ranker does not rank a result, leave the value out.",
        )


def row_text(schema: Schema, d: Dialect) -> str:
    """Return an expression that shows a row of the log by its columns, for an example."""
    roles = ("query", "doc", "ranker", "position", "click", "impressions", "clicks", "window")
    known = {role: name for role, name in schema.roles.items() if not (role == "ranker" and schema.natural)}
    names = [*(known[role] for role in roles if role in known), *schema.rank_columns.values()]
    return _text(list(dict.fromkeys(names))[:_MOST_SHOWN], d)


def _text(names: Iterable[str], d: Dialect) -> str:
    return " || ', ' || ".join(f"{d.literal(f'{n}=')} || COALESCE({d.as_text(d.quote(n))}, 'null')" for n in names)


def one_based_arguments(opened: OpenLog, plan: QueryPlan) -> Arguments:
    """Return the argument that adds 1 to what counts from 0: positions, and the ranks of a wide log."""
    schema, d = plan.schema, plan.dialect
    columns = [schema.position, *schema.rank_columns.values()]
    least = opened.rows(f"SELECT {', '.join(f'MIN({_typed(plan, c)})' for c in columns)} FROM log")[0]
    added = {
        d.quote(c): f"{d.cast(d.quote(c), 'INTEGER')} + 1" for c, low in zip(columns, least, strict=True) if low == 0
    }
    return {"sql": d.select_replacing(added)}


def find_bad_rankings(opened: OpenLog) -> list[Finding]:
    """Return values of a second table of rankings that are no ranks."""
    schema, d = opened.schema, opened.dialect
    if schema.layout.ranks_in != "table":
        return []
    names = (schema.query, schema.ranker, schema.doc, schema.rank)
    defects = list(_bad_ranks(d, [schema.rank], schema.rankings))
    return _found(opened, "rankings", defects, _text(names, d))
