"""Check a click log: what was understood, and every problem with its remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from posbias._optional import Columns, pandas_frame, polars_frame
from posbias._text import Arguments, Column, as_python, folded, html_table, listed, printable, table
from posbias._validate import DEFAULT_MAX_RANK
from posbias.engines import EngineChoice, OpenLog, open_log
from posbias.errors import LogError, Spelling
from posbias.findings import Finding, UnusableLogError, any_error
from posbias.harvesting.count import check_settings, known_rankers
from posbias.harvesting.intervention_sets import PairCounts, count_log_pairs
from posbias.harvesting.page_checks import find_interleaved, find_one_sided, find_repeats
from posbias.harvesting.row_checks import (
    LogProfile,
    RowCounts,
    Sample,
    count_rows,
    find_bad_rankings,
    find_click_defects,
    find_defects,
    find_mixed_files,
    find_no_ranker,
    find_several_ranks,
    one_based_arguments,
)
from posbias.harvesting.tables import MIN_PAGE_VIEWS, PositionCounts
from posbias.logs.click_log import ClickLog
from posbias.logs.layouts import Layout
from posbias.logs.schema import guess_column, guess_rank_patterns
from posbias.progress import Progress, silent
from posbias.sql.dialects import FLOATS, INTEGERS
from posbias.sql.plan import QueryPlan, Step, render, shown_steps
from posbias.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

_MOST_RANKERS = 12
# From this share of rows that contradict their ranker on, what is left is no sample of what was shown.
_MOST = 0.5
_SHIFTS = (1, 2, 3)
# A request that is sent again keeps its id: one in so many may come twice and be no query for it.
_AGAIN = 20
NO_ROWS = Finding(
    "empty-log",
    "error",
    "The log is empty: it has columns but no rows",
    remedy="Check the path, or the filter that made it.",
)
# Next to fewer page views in all than so many times its own, a ranker with few is not the odd one out.
_RARE = 100
# Of so many ways of naming columns by rankers it is looked up whether they tell ranks.
_MOST_PATTERNS = 8
# A result is shown at the rank that its ranker gives it, where it is told; of interleaved lists, a third are.
_AT_RANK = 0.25


def check(
    log: ClickLog,
    *,
    max_rank: int = DEFAULT_MAX_RANK,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
) -> Check:
    """Look at a log and say what was understood and what is wrong.

    Example:
        >>> import posbias
        >>> found = posbias.check(posbias.ClickLog(posbias.simulate(posbias.World(queries=100))))
        >>> found.usable, found.layout, found.rows
        (True, 'wide', 10000)
    """
    check_settings(max_rank)
    try:
        with open_log(log, engine, progress) as opened:
            return _check(opened, max_rank)
    except UnusableLogError as error:
        # What keeps a log from being opened at all is its first problem: a missing column, a truncated file.
        return Check(findings=error.findings, max_rank=max_rank)


@dataclass(frozen=True)
class Check:
    """What was understood of a log, and what is wrong with it.

    Attributes:
        findings: everything that is wrong, each with its `code`, `severity`, `message`, `count`, `example`, `evidence`,
            `remedy` and the `arguments` that would mend it.
        layout: wide, long or replay; None, as all that follows, if the log could not be opened.
        max_rank: M; what lies beyond is not harvested.
        columns: the columns in use, by what they mean.
        ranks: the rank column of each ranker, in a wide log.
        rows: rows in all.
        rows_beyond: rows shown beyond the top M.
        queries: distinct queries.
        queries_shared: in replay, queries that more than one ranker served.
        page_views: page views of each ranker.
        positions: impressions and clicks at each position of the top M.
        documents: distinct (query, document) pairs in the top M; None if rows are too defective to count.
        moved: those of them that lie at different ranks by different rankers; None likewise.
        documents_one_in: both, and queries where ranks are known, are so many times those of a sample of one query in
            so many: of all where it is 1. Where no ranker contradicts itself in the sample, none is looked for beyond.
    """

    findings: tuple[Finding, ...]
    layout: Layout | None = None
    max_rank: int = DEFAULT_MAX_RANK
    columns: Mapping[str, str] = field(default_factory=dict)
    ranks: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    rows_beyond: int = 0
    queries: int = 0
    queries_shared: int | None = None
    page_views: Mapping[str, int] = field(default_factory=dict)
    positions: tuple[PositionCounts, ...] = ()
    documents: int | None = None
    moved: int | None = None
    documents_one_in: int = 1

    @property
    def usable(self) -> bool:
        """Whether the log can be harvested."""
        return not any_error(self.findings)

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return the check as `--json` prints it: the attributes by name, and `usable` and `version`."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        told |= {
            "findings": [finding.to_dict(spell) for finding in self.findings],
            "layout": self.layout and self.layout.value,
            "positions": [shown._asdict() for shown in self.positions],
        }
        return {"usable": self.usable, **told, "version": __version__}

    def to_text(self, spell: Spelling = as_python) -> str:
        """Return the check for people, with arguments that would help spelled as they would write them."""
        parts = (self._understood(), self._click_rates(), self._complaints(spell))
        return "\n\n".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.to_text()

    def to_pandas(self) -> pd.DataFrame:
        """Return the findings as a frame of pandas, a row for each."""
        return pandas_frame(self._finding_columns())

    def to_polars(self) -> pl.DataFrame:
        """Return the findings as a frame of Polars, a row for each."""
        return polars_frame(self._finding_columns())

    def _finding_columns(self) -> Columns:
        told = [finding.to_dict() for finding in self.findings]
        kinds = {"code": str, "severity": str, "message": str, "count": int, "example": str, "remedy": str, "add": str}
        return {name: (kind, [each[name] for each in told]) for name, kind in kinds.items()}

    def _repr_html_(self) -> str:
        parts = [f"<pre>{escape(self._understood())}</pre>"] if self.layout else []
        parts += [html_table(self._rates())] if self.positions else []
        return "\n".join([*parts, f"<pre>{escape(self._complaints(as_python))}</pre>"])

    def _understood(self) -> str:
        if self.layout is None:
            return ""
        lines = _fact("layout", f"{self.layout}: {self.layout.description}")
        lines += _fact("columns", ", ".join(f"{role}={name}" for role, name in self.columns.items()))
        if self.ranks:
            lines += _fact("ranks", _some(list(self.ranks.values())))
        beyond = (
            f", {self.rows_beyond:,} of them beyond rank {self.max_rank} and not counted" if self.rows_beyond else ""
        )
        lines += _fact("rows", f"{self.rows:,}{beyond}")
        shared = self.queries_shared
        several = "" if shared is None else f", {_share(shared, self.queries)} served by several rankers"
        about = "about " if self.documents_one_in > 1 else ""
        lines += _fact("queries", f"{about}{self.queries:,}{several}")
        lines += _fact("page views", f"{sum(self.page_views.values()):,}")
        lines += self._traffic()
        if self.documents is not None and self.moved is not None:
            moved = _share(self.moved, self.documents)
            # Where a document is compared with itself only within a day, it is another one on another day.
            within = f" by {self.columns['window']}" if "window" in self.columns else ""
            counted = f"{about}{self.documents:,} distinct (query, document) pairs{within}"
            where = "put at different ranks by the rankers" if "ranker" in self.columns else "shown at several ranks"
            lines += _fact("documents", f"{counted}, {about}{moved} {where}")
        if self.documents_one_in > 1:
            looked = f"one query in {self.documents_one_in:,}, to count documents and to see whether"
            lines += _fact("sample", f"{looked} a ranker puts one at several ranks")
        return "\n".join(lines)

    def _traffic(self) -> list[str]:
        views = sum(self.page_views.values())
        shown = sorted(self.page_views.items(), key=lambda item: -item[1])[:_MOST_RANKERS]
        if not shown:
            return []
        columns = [
            Column("ranker", [printable(name) for name, _ in shown], left=True),
            Column("page views", [f"{n:,}" for _, n in shown]),
            Column("share", [f"{n / max(views, 1):.1%}" for _, n in shown]),
        ]
        lines = table(columns, indent=12).splitlines()
        more = len(self.page_views) - len(shown)
        return [*lines, f"{'':12}and {more} more"] if more else lines

    def _click_rates(self) -> str:
        return table(self._rates()) if self.positions else ""

    def _rates(self) -> list[Column]:
        return [
            Column("rank", [f"{p.position}" for p in self.positions]),
            Column("impressions", [f"{p.impressions:,}" for p in self.positions]),
            Column("clicks", [f"{p.clicks:,}" for p in self.positions]),
            Column("click rate", [_rate(p) for p in self.positions]),
        ]

    def _complaints(self, spell: Spelling) -> str:
        if not self.findings:
            return "No problem found. The log can be used."
        blocks = [finding.block(spell) for finding in sorted(self.findings, key=lambda f: f.severity != "error")]
        verdict = "The log can be used." if self.usable else "The log cannot be used as it is."
        return "\n\n".join([*blocks, verdict])


def _check(opened: OpenLog, max_rank: int) -> Check:
    schema = opened.schema
    # A check looks more than once, and each look at a text would read it anew.
    opened.cache_text()
    plan = QueryPlan(schema, opened.dialect, known_rankers(opened), max_rank)
    profile, counts = count_rows(opened, plan)
    understood: dict[str, Any] = {
        "layout": schema.layout,
        "max_rank": max_rank,
        "columns": {role: name for role, name in schema.roles.items() if not (role == "ranker" and schema.natural)},
        "ranks": dict(schema.rank_columns),
        "rows": profile.rows,
        "rows_beyond": profile.rows_beyond,
    }
    if not profile.rows:
        return Check((NO_ROWS,), **understood)
    look = Look(opened, plan, profile, counts)
    findings = tuple(finding for find in FINDERS for finding in find(look))
    queries, shared = _queries(opened, look.pairs)
    return Check(
        findings=findings,
        **understood,
        queries=queries,
        queries_shared=None if schema.layout.ranks_known or schema.natural else shared,
        page_views=profile.page_views,
        positions=profile.positions,
        documents=look.pairs.pairs if look.pairs else None,
        moved=look.pairs.at_several_ranks if look.pairs else None,
        documents_one_in=look.pairs.one_in if look.pairs else 1,
    )


@dataclass(frozen=True)
class Look:
    """An opened log, what to ask of it, and what a first look at its rows told: which of them can be counted, too."""

    opened: OpenLog
    plan: QueryPlan
    profile: LogProfile
    counts: RowCounts

    @cached_property
    def mixed_files(self) -> list[Finding]:
        """Columns on which the files of the log disagree."""
        return find_mixed_files(self.opened)

    @cached_property
    def defects(self) -> list[Finding]:
        """What is wrong with single rows, which are looked at one by one only if anything is."""
        if self.counts.rows_unusable or self.lacks_ids:
            return find_defects(self.opened, self.plan)
        return find_bad_rankings(self.opened)

    @cached_property
    def lacks_ids(self) -> bool:
        """Whether rows lack the id of a query, a document or, where the log has one, a page view."""
        schema, d = self.plan.schema, self.plan.dialect
        names = [name for name in (schema.query, schema.doc, schema.impression) if name is not None]
        counts = ", ".join(f"COUNT({d.nan_to_null(d.quote(name), schema.types[name])})" for name in names)
        rows, *found = self.opened.rows(f"SELECT COUNT(*), {counts} FROM log", "Looking for ids")[0]
        return any(n < rows for n in found)

    @cached_property
    def contradictions(self) -> list[Finding]:
        """Rows that are shown where their own ranker does not put them."""
        if not self.counts.rows_contradicted or any_error([*self.mixed_files, *self.defects]):
            return []
        interleaved = find_interleaved(self.opened, self.plan, self.counts)
        return interleaved or find_contradictions(self.opened, self.plan)

    @cached_property
    def pairs(self) -> PairCounts | None:
        """How many pairs there are and lie at different ranks; None where rows are too defective to count."""
        if any_error([*self.mixed_files, *self.defects, *self.contradictions]):
            return None
        return count_log_pairs(self.opened, self.plan, self.profile.rankers, self.counts)


def find_contradictions(opened: OpenLog, plan: QueryPlan) -> list[Finding]:
    """Return rows shown at a position that is not the rank their own ranker gives them (wide and long)."""
    schema, d = plan.schema, plan.dialect
    own = "CASE ranker " + plan.per_ranker("WHEN {i} THEN rank_{i}", " ") + " END"
    label = " || ".join(
        [
            d.literal(f"{schema.position}="),
            d.as_text("position"),
            "', but rank '",
            f"COALESCE({d.as_text('own')}, 'null')",
            d.literal(f" ({schema.query}="),
            d.as_text("query"),
            d.literal(f", {schema.doc}="),
            f"COALESCE({d.as_text('doc')}, 'null')",
            "')'",
        ]
    )
    bad = "(own IS NULL OR own <> position)"
    top = f"(position <= {plan.max_rank} OR {own} BETWEEN 1 AND {plan.max_rank})"
    sql = render(
        [
            *shown_steps(plan, ranks=True),
            Step(
                "owned",
                "The rank by the ranker shown, of rows that can be harvested.",
                f"SELECT query, doc, position, {own} AS own\nFROM shown\n"
                f"WHERE position >= 1 AND ranker IS NOT NULL AND {top}",
            ),
            Step(
                "contradicted",
                "Where it is not the position.",
                f"SELECT COUNT(*), SUM(CASE WHEN {bad} THEN 1 ELSE 0 END), "
                + ", ".join(f"SUM(CASE WHEN own = position - {s} THEN 1 ELSE 0 END)" for s in _SHIFTS)
                + f", MIN(CASE WHEN {bad} THEN {label} END)\nFROM owned",
            ),
        ]
    )
    rows, count, *shifted, example = opened.rows(sql, "Comparing positions with ranks")[0]
    if not count:
        return []
    arguments: Arguments = {}
    # What stands above a list, as advertisements do, shifts it as a whole, and rows of other page views are as good.
    moved = count >= _MOST * rows and max(shifted) < _MOST * count
    if shifted[0] == rows:
        remedy = f"Ranks seem to count from 0, and must count from 1 like {schema.position!r}: add 1 to them."
        arguments = one_based_arguments(opened, plan) if schema.rank_columns else {}
    elif not moved:
        remedy = (
            "They are left out of the harvest. If results are moved after ranking (advertisements, blending), log the "
            "final ranks. If lists were interleaved, say ranks='none' and ranker='none'. Ranks must count from 1 like "
            "positions."
        )
    else:
        remedy = (
            "They are left out of the harvest, and those that remain mislead. Ranks must count from 1 like positions. "
            "If results are moved after ranking (advertisements, blending), log the final ranks. If lists were "
            "interleaved, compare each document with itself wherever it was shown: replay without a ranker."
        )
        arguments = {"ranks": "none", "ranker": "none"}
    return [
        Finding(
            "contradicted-rank",
            "error" if moved or count == rows else "warning",
            f"{{count}} of {{rows}} rows in the top {plan.max_rank} were shown at a position that is not the rank "
            "their own ranker gives them",
            int(count),
            example,
            {"rows": int(rows)},
            remedy,
            arguments,
        )
    ]


def find_request_ids(look: Look) -> list[Finding]:
    """Return that values of the query occur on one page view only, all or nearly all, where queries must recur."""
    schema, d = look.plan.schema, look.plan.dialect
    if schema.layout.ranks_known or schema.aggregated:
        return []
    columns = {"q": schema.query, "r": schema.ranker, "v": schema.impression or schema.position}
    names = ", ".join(f"{d.quote(column)} AS {short}" for short, column in columns.items())
    # Without a page view, one has each position once.
    again = "MIN(v) <> MAX(v)" if schema.impression else "MIN(r) <> MAX(r) OR COUNT(*) > COUNT(DISTINCT v)"
    sql = (
        f"SELECT COUNT(*), COUNT(CASE WHEN again THEN 1 END) FROM (SELECT q, {again} AS again FROM "
        f"(SELECT {names} FROM log) s WHERE q IS NOT NULL GROUP BY q) t"
    )
    queries, recurring = look.opened.rows(sql, "Looking for queries that recur")[0]
    if queries < 2 or recurring * _AGAIN > queries:
        return []
    used = schema.roles.values()
    meant = guess_column("query", "query", [column for column in schema.types if column not in used])
    return [
        Finding(
            "query-is-request-id",
            "error",
            (
                f"{{count}} of {{queries}} values of {schema.query!r} occur"
                if recurring
                else f"each value of {schema.query!r} occurs"
            )
            + " on one page view only: is it the id of the request?",
            int(queries - recurring),
            evidence={"queries": int(queries)},
            remedy="A query is what was looked for, and comes again: name that column (query), such as the text that "
            "was typed. If none ever comes again, log each ranker's rank (ranks or rankings).",
            arguments={"query": meant} if meant else {},
        )
    ]


def find_rare_rankers(look: Look) -> Iterator[Finding]:
    """Yield rankers with so few page views, next to the others, that what they compare is chance."""
    views = look.profile.page_views
    rare = {name: n for name, n in views.items() if 0 < n < MIN_PAGE_VIEWS and _RARE * n < sum(views.values())}
    if rare and not look.plan.schema.layout.ranks_known:
        if 2 * len(rare) > len(views):
            yield Finding(
                "few-page-views",
                "warning",
                f"{{count}} of {len(views):,} rankers served fewer than {MIN_PAGE_VIEWS} page views, as where a ranker "
                "is told by its list",
                len(rare),
                remedy="In replay it does not matter who showed a document: without rankers the curve is the same, and "
                "comes sooner.",
                arguments={"ranker": "none"},
            )
    elif rare:
        yield Finding(
            "few-page-views",
            "warning",
            f"{{count}} of {len(views):,} rankers served fewer than {MIN_PAGE_VIEWS} page views: "
            f"{listed(rare, most=4)} ({min(rare.values())} the fewest)",
            len(rare),
            evidence={"page_views": rare},
            remedy="What only they compare is chance: wait for more of them, or leave them out.",
        )


def find_no_intervention(look: Look) -> Iterator[Finding]:
    """Yield why nothing can be learnt from two ranks of one document: one ranker only, or rankers that agree."""
    rankers, pairs = look.profile.rankers, look.pairs
    if pairs and pairs.at_several_ranks == 0 and (requests := find_request_ids(look)):
        yield from requests
    elif look.plan.schema.natural:
        if pairs and pairs.at_several_ranks == 0:
            yield Finding(
                "no-disagreement",
                "error",
                "none of {pairs} (query, document) pairs was shown at two ranks"
                + (f" within one {look.plan.schema.window!r}" if look.plan.schema.window else ""),
                evidence={"pairs": pairs.pairs},
                remedy="There is nothing to compare: queries must recur with their documents at other ranks. Harvest a "
                "longer period" + (" or take a longer window." if look.plan.schema.window else "."),
            )
    elif len(rankers) == 1 and not (pairs and pairs.at_several_ranks):
        yield Finding(
            "single-ranker",
            "error",
            f"there is a single ranker, {rankers[0]!r}",
            1,
            remedy="Propensities come from documents that two rankers put at different ranks: add the log of another "
            "ranker, or of the same one before it changed, or name the column that tells them apart (ranker).",
        )
    elif pairs and pairs.at_several_ranks == 0:
        yield Finding(
            "no-disagreement",
            "error",
            f"the rankers {listed(rankers)} never disagree: none of {{pairs}} (query, document) pairs is at two ranks",
            evidence={"pairs": pairs.pairs},
            remedy="There is no intervention to harvest. In replay, queries must recur with different rankers: harvest "
            "a longer period, or log each ranker's rank (ranks or rankings).",
        )


def find_no_first_clicks(look: Look) -> Iterator[Finding]:
    """Yield that nobody clicked at position 1, where others were clicked: an estimate of such a log is refused."""
    positions = look.profile.positions
    clicks = sum(shown.clicks for shown in positions)
    if clicks and positions[0].position == 1 and positions[0].impressions and not positions[0].clicks:
        yield Finding(
            "no-clicks-at-rank-1",
            "error",
            "there is no click at position 1, on {count} results shown there, and there are {clicks} at others",
            positions[0].impressions,
            evidence={"clicks": clicks},
            remedy="Propensities are relative to position 1, and cannot be estimated without clicks there: check that "
            "positions count from 1, and that clicks on the first result are logged.",
        )


def find_odd_rank_columns(look: Look) -> Iterator[Finding]:
    """Yield rank columns that are not used: of rankers that never served, or by a name that is not recognised."""
    schema, served = look.plan.schema, look.profile.rankers
    idle = [name for name in schema.rank_columns if name not in served]
    if idle:
        yield Finding(
            "ranker-without-traffic",
            "warning",
            f"rank columns of rankers that served no row: {listed(schema.rank_columns[name] for name in idle)}",
            len(idle),
            remedy="They do no harm. If one should have served, compare its name with the rankers found: "
            f"{listed(served)}.",
        )
    if schema.layout.ranks_known:
        return
    unused = [name for name in schema.types if name not in schema.roles.values() and _may_be_rank(schema.types[name])]
    patterns = dict([*guess_rank_patterns(unused, served).items()][:_MOST_PATTERNS])
    for pattern, share in _shares_at_rank(look, patterns).items():
        if share > _AT_RANK:
            columns = [*patterns[pattern].values()]
            yield Finding(
                "unused-rank-columns",
                "warning",
                f"columns {listed(columns, most=4)} look like each ranker's rank and are not used",
                len(columns),
                remedy="If they are, say so: then queries need not recur.",
                arguments={"ranks": pattern},
            )
            return
    lone = [c for c in schema.types if c in {f"rank_{name}" for name in served}]
    if len(lone) == 1:
        absent = [f"rank_{name}" for name in served if f"rank_{name}" not in lone]
        alike = [c for c in schema.types if c.lower() in map(str.lower, absent)]
        yield Finding(
            "unused-rank-columns",
            "warning",
            f"column {lone[0]!r} tells one ranker's rank, and the others have none",
            1,
            remedy=f"Call {listed(alike)} {listed(absent, most=4)}, in the same letters as the rankers."
            if alike
            else f"Add {listed(absent, most=4)} to know all ranks without recurring queries.",
        )


def _may_be_rank(type_: str) -> bool:
    return type_ in INTEGERS or type_ in FLOATS or type_.startswith(("DECIMAL", "VARCHAR"))


def _shares_at_rank(look: Look, patterns: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
    """Return by pattern the share of rows shown at the rank by which its column tells where their ranker puts them."""
    if not patterns:
        return {}
    schema, d = look.plan.schema, look.plan.dialect
    ranker, position = (d.quote(name) for name in (schema.ranker, schema.position))
    counts = []
    for columns in patterns.values():
        values = {d.typed_literal(name, schema.types[schema.ranker]): column for name, column in columns.items()}
        told = " ".join(f"WHEN {value} THEN {d.rank(d.quote(c), schema.types[c])}" for value, c in values.items())
        same = f"CASE {ranker} {told} END = {d.integer(position, schema.types[schema.position])}"
        shown = f"{ranker} IN ({', '.join(values)})"
        counts += [f"COUNT(CASE WHEN {same} THEN 1 END)", f"COUNT(CASE WHEN {shown} THEN 1 END)"]
    try:
        found = look.opened.rows(f"SELECT {', '.join(counts)} FROM {look.opened.full_view}", "Looking for ranks")[0]
    except LogError:
        # A row that is broken in a column which nobody uses is no reason to refuse the log.
        return {}
    return {pattern: found[2 * i] / max(found[2 * i + 1], 1) for i, pattern in enumerate(patterns)}


def find_non_functional(look: Look) -> list[Finding]:
    """Return pairs for which a ranker is not a function of the query; where none is named, what must hold instead."""
    if look.plan.schema.natural:
        return find_no_ranker(look.plan.schema)
    known = look.pairs is not None and not look.pairs.non_functional
    if known and look.plan.schema.layout.ranks_in != "table":
        return []
    return find_several_ranks(look.opened, look.plan)


def _find_repeats(look: Look) -> list[Finding]:
    # Where no ranker contradicts itself, none shows a result at several positions of a page view.
    moved = look.pairs is None or look.pairs.non_functional > 0 or look.counts.rows_contradicted > 0
    # Where all rows are within the top M and have ids, and none is dropped, a page view is told by fewer bits.
    dense = look.profile.rows_counted == look.profile.rows and not (look.lacks_ids or look.plan.schema.drop_duplicates)
    page_views = sum(look.profile.page_views.values())
    found = find_repeats(
        look.opened, look.plan, moved=moved, whole=look.profile if dense else None, page_views=page_views
    )
    # Lists that were interleaved are what makes a page view one of several rankers.
    known = any(finding.code == "interleaved" for finding in look.contradictions)
    return [finding for finding in found if not (known and finding.code == "several-rankers-in-page-view")]


def _find_one_sided(look: Look) -> list[Finding]:
    if any_error([*look.mixed_files, *look.defects, *look.contradictions]):
        return []
    return find_one_sided(look.opened, look.plan)


def _find_no_clicks(look: Look) -> Iterable[Finding]:
    for finding in find_click_defects(look.profile.positions):
        # Of a part of a log that is merged with others it is a warning; by itself it has no curve.
        yield replace(finding, severity="error") if finding.code == "no-first-position" else finding


# What can be wrong with a log, in the order in which it is said.
FINDERS: tuple[Callable[[Look], Iterable[Finding]], ...] = (
    lambda look: look.opened.findings,
    lambda look: look.mixed_files,
    lambda look: look.defects,
    lambda look: look.contradictions,
    _find_repeats,
    find_non_functional,
    find_odd_rank_columns,
    _find_one_sided,
    find_rare_rankers,
    find_no_intervention,
    _find_no_clicks,
    find_no_first_clicks,
)


def _queries(opened: OpenLog, pairs: PairCounts | None) -> tuple[int, int]:
    """Return how many queries there are, by those of the pairs, and in replay how many several rankers served."""
    if pairs and pairs.queries is not None:
        return pairs.queries, 0
    query, ranker = (opened.dialect.quote(name) for name in (opened.schema.query, opened.schema.ranker))
    if opened.schema.layout.ranks_known:
        one_in = pairs.one_in if pairs else 1
        sql = f"SELECT COUNT(DISTINCT {query}) FROM log WHERE {Sample(one_in).condition(opened.dialect, query)}"
        return one_in * opened.rows(sql, "Counting queries")[0][0], 0
    sql = (
        "SELECT COUNT(*), COUNT(CASE WHEN low <> high THEN 1 END) FROM (SELECT MIN(r) AS low, MAX(r) AS high "
        f"FROM (SELECT {query} AS q, {ranker} AS r FROM log) s WHERE q IS NOT NULL GROUP BY q) t"
    )
    queries, shared = opened.rows(sql, "Counting queries")[0]
    return queries, shared


def _fact(name: str, text: str) -> list[str]:
    """Return a line of what was understood, wrapped under itself."""
    return folded(printable(text), f"{name:<12}", " " * 12)


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_RANKERS
    return ", ".join(names[:_MOST_RANKERS]) + (f" and {more} more" if more > 0 else "")


def _share(part: int, whole: int) -> str:
    return f"{part:,} of them ({part / whole:.1%})" if whole else f"{part:,}"


def _rate(shown: PositionCounts) -> str:
    return f"{shown.clicks / shown.impressions:.2%}" if shown.impressions else "–"
