"""Check a click log: how its columns were understood, and every problem with its remedy.

`check` counts the rows once, and then runs every function that `_find_problems` lists. Each takes a `LogScan` and
returns findings; the queries that several of them need are run once, and only if one of them asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias._defaults import DEFAULT_MAX_RANK
from posbias._optional import Columns, pandas_frame, polars_frame
from posbias._text import Arguments, Column, as_python, html_table, listed, printable, table, wrap
from posbias.engines import EngineChoice, OpenLog, open_log
from posbias.errors import LogError, PosbiasError, Spelling
from posbias.estimators.base import MIN_BUCKETS
from posbias.findings import Finding, UnusableLogError, any_error, legend, quiet, serious
from posbias.harvesting.click_checks import (
    count_click_histogram,
    count_click_order,
    exceeds_users,
    find_click_patterns,
    period_columns,
    possible_page_views,
)
from posbias.harvesting.count import check_settings, known_rankers
from posbias.harvesting.harvest import harvest
from posbias.harvesting.intervention_sets import PairCounts, count_log_pairs
from posbias.harvesting.page_checks import find_interleaved, find_one_sided, find_repeats
from posbias.harvesting.row_checks import (
    LogProfile,
    RowCounts,
    Sample,
    count_rows,
    find_bad_rankings,
    find_click_defects,
    find_copied_files,
    find_defects,
    find_mixed_files,
    find_no_ranker,
    find_ranker_overlap,
    find_rounded_ids,
    find_several_ranks,
    one_based_arguments,
    whole_pages_sample,
)
from posbias.harvesting.tables import MIN_PAGE_VIEWS, PositionCounts
from posbias.judging.diagnostics import (
    find_crawlers,
    fit_estimators,
)
from posbias.logs.click_log import ClickLog, Layout
from posbias.logs.schema import guess_column, guess_rank_patterns, guess_units
from posbias.progress import Progress, silent
from posbias.sql.dialects import FLOATS, INTEGERS
from posbias.sql.plan import QueryPlan, Step, render, shown_steps, unit_value
from posbias.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

# At most this many rankers are listed.
_MAX_LISTED_RANKERS = 12
# If at least this share of rows contradicts its ranker, the rest is not a fair sample.
_CONTRADICTED_SHARE = 0.5
# Positions may be shifted by this many, for example by advertisements above the list.
_SHIFTS = (1, 2, 3)
# A request that is sent again keeps its id, so one request id in this many may occur twice.
_RESENT_ONE_IN = 20
# A ranker with few page views is reported only if the log has this many times as many.
_RARE_RANKER_FACTOR = 100
# At most this many patterns of column names are tested for being ranks.
_MAX_PATTERNS = 8
# Rankers were drawn by unit if so many units have several page views, and if less than this share of those that would
# see two rankers by chance do.
_MIN_UNITS, _CROSSED_SHARE = 20, 0.3
# A unit with more than this share of the rows hardly is one user.
_HEAVY_SHARE = 0.2
# More units than this times the page views cannot be users: a page view is of one user.
_MOST_UNITS = 1.1
# Words in the names of columns that may tell how relevant a document is, the best first, and words of columns that are
# made from ranks or clicks. A proxy with more classes than the first number, in so many rows, is cut at its median.
_PROXY_WORDS = ("relevance", "grade", "score", "similarity", "bm25", "rating", "stars", "popularity", "sales", "price")
_NOT_PROXY_WORDS = {
    "rank",
    "position",
    "click",
    "clicks",
    "clicked",
    "ctr",
    "impressions",
    "views",
    "propensity",
    "weight",
}
_MAX_CLASSES, _PROXY_ROWS = 10, 100_000
# Columns are taken to be ranks if this share of rows is shown at them; in interleaved lists, about a third is.
_SHOWN_AT_RANK_SHARE = 0.25


def check(
    log: ClickLog,
    *,
    max_rank: int = DEFAULT_MAX_RANK,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
) -> Check:
    """Check a log: report how it was understood, and every problem with a count, an example and a remedy.

    Arguments:
        log (ClickLog): the log.
        max_rank (int, default 10): the deepest rank to harvest.
        engine (engine or str, optional): the engine that reads the log, as for `posbias.harvest`.
        progress (callable, optional): is called with the progress.

    Returns:
        Check: the findings, and the counts of the log. `usable` says whether it can be harvested.

    Example:
        >>> import posbias
        >>> result = posbias.check(posbias.ClickLog(posbias.simulate(posbias.World(queries=100))))
        >>> result.usable, result.layout, result.rows
        (True, 'wide', 10000)
    """
    check_settings(max_rank)
    try:
        with open_log(log, engine, progress) as opened:
            return _check(opened, log, max_rank, engine)
    except UnusableLogError as error:
        # A log that cannot be opened, such as a truncated file, has that as its only problem.
        return Check(findings=error.findings, max_rank=max_rank)


def _check(opened: OpenLog, log: ClickLog, max_rank: int, engine: EngineChoice | None) -> Check:
    schema = opened.schema
    # A check runs several queries, and each would parse a text file again.
    opened.cache_text(period_columns(schema))
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
    scan = LogScan(opened, plan, profile, counts, log, engine)
    if not profile.rows:
        return Check((*find_no_rows(scan),), **understood)
    findings = tuple(_find_problems(scan))
    queries, shared = _count_queries(opened, scan.pairs)
    return Check(
        findings=findings,
        **understood,
        queries=queries,
        queries_shared=None if schema.layout.ranks_known or schema.natural else shared,
        page_views=profile.page_views,
        positions=profile.positions,
        documents=scan.pairs.pairs if scan.pairs else None,
        documents_at_several_ranks=scan.pairs.at_several_ranks if scan.pairs else None,
        sampled_one_in=scan.pairs.one_in if scan.pairs else 1,
    )


def _find_problems(scan: LogScan) -> Iterator[Finding]:
    """Run every check, in the order of the report. To add one, write a function of a `LogScan` and list it here."""
    checks: tuple[Callable[[LogScan], Iterable[Finding]], ...] = (
        find_problems_of_files,
        find_defective_rows,
        find_contradicted_ranks,
        find_repeated_results,
        find_patterns_of_clicks,
        find_non_functional_rankers,
        find_rankers_without_traffic,
        find_unused_rank_columns,
        find_one_sided_ranks,
        find_rare_rankers,
        find_unused_unit,
        find_strange_units,
        suggest_proxy,
        find_no_intervention,
        find_replaced_rankers,
        find_missing_clicks,
        find_no_clicks_at_rank_1,
        find_little_data,
        lambda scan: scan.crawling,
    )
    for find in checks:
        yield from find(scan)


@dataclass(frozen=True)
class LogScan:
    """An opened log with the counts of its rows; what several checks need is computed once.

    Attributes:
        opened (OpenLog): the log.
        plan (QueryPlan): how to query it.
        profile (LogProfile): counts of the whole log.
        counts (RowCounts): how many rows can be harvested.
        log (ClickLog): the log as the user describes it.
        engine (engine or str, optional): the engine that reads it.
    """

    opened: OpenLog
    plan: QueryPlan
    profile: LogProfile
    counts: RowCounts
    log: ClickLog
    engine: EngineChoice | None

    @cached_property
    def mixed_files(self) -> list[Finding]:
        """Columns that differ between the files of the log."""
        return find_mixed_files(self.opened)

    @cached_property
    def defects(self) -> list[Finding]:
        """Defects of single rows, which are classified only if there are any."""
        if self.counts.rows_unusable or self.lacks_ids:
            return find_defects(self.opened, self.plan)
        return find_bad_rankings(self.opened)

    @cached_property
    def lacks_ids(self) -> bool:
        """Whether a row lacks the id of a query, a document or, if the log has them, a page view."""
        schema, d = self.plan.schema, self.plan.dialect
        names = [name for name in (schema.query, schema.doc, schema.impression) if name is not None]
        counts = ", ".join(f"COUNT({d.nan_to_null(d.quote(name), schema.types[name])})" for name in names)
        rows, *with_id = self.opened.rows(f"SELECT COUNT(*), {counts} FROM log", "Looking for ids")[0]
        return any(n < rows for n in with_id)

    @cached_property
    def contradictions(self) -> list[Finding]:
        """Rows shown at another position than the rank that their ranker gives them."""
        if not self.counts.rows_contradicted or any_error([*self.mixed_files, *self.defects]):
            return []
        interleaved = find_interleaved(self.opened, self.plan, self.counts)
        return interleaved or count_contradicted_ranks(self.opened, self.plan)

    @cached_property
    def repeats(self) -> list[Finding]:
        """Results that occur twice in a page view, and page views of several rankers."""
        return _find_repeats(self)

    @cached_property
    def crawling(self) -> list[Finding]:
        """Page views that are not those of users."""
        return [*find_crawling(self)]

    @property
    def is_countable(self) -> bool:
        """Whether the rows are sound enough to count documents."""
        return not any_error([*self.mixed_files, *self.defects, *self.contradictions])

    @cached_property
    def overlap(self) -> list[Finding]:
        """Whether, in replay, the rankers served at the same time."""
        plan = replace(self.plan, rankers=self.profile.rankers)
        return find_ranker_overlap(self.opened, plan) if self.is_countable else []

    @cached_property
    def pairs(self) -> PairCounts | None:
        """The numbers of (query, document) pairs, and of those at several ranks; None if rows are not countable."""
        if not self.is_countable:
            return None
        return count_log_pairs(self.opened, self.plan, self.profile.rankers, self.counts)


def _count_queries(opened: OpenLog, pairs: PairCounts | None) -> tuple[int, int]:
    """Return the number of queries and, in replay, how many of them several rankers served."""
    if pairs and pairs.queries is not None:
        return pairs.queries, 0
    query, ranker = (opened.dialect.quote(name) for name in (opened.schema.query, opened.schema.ranker))
    if opened.schema.layout.ranks_known:
        one_in = pairs.one_in if pairs else 1
        sql = f"SELECT COUNT(DISTINCT {query}) FROM log WHERE {Sample(one_in).condition(opened.dialect, query)}"
        return one_in * opened.rows(sql, "Counting queries")[0][0], 0
    # The least and the greatest of numbers are found faster than those of texts.
    number = f"CASE WHEN {ranker} IS NOT NULL THEN {opened.dialect.hash(ranker)} END"
    sql = (
        "SELECT COUNT(*), COUNT(CASE WHEN low <> high THEN 1 END) FROM (SELECT MIN(r) AS low, MAX(r) AS high "
        f"FROM (SELECT {query} AS q, {number} AS r FROM log) s WHERE q IS NOT NULL GROUP BY q) t"
    )
    queries, shared = opened.rows(sql, "Counting queries")[0]
    return queries, shared


# ---- Rows


def find_no_rows(scan: LogScan) -> Iterator[Finding]:
    """Find that the log is empty."""
    yield Finding(
        "empty-log",
        "error",
        "The log is empty: it has columns but no rows",
        remedy="Check the path, or the filter that made the log.",
    )


def find_problems_of_files(scan: LogScan) -> Iterator[Finding]:
    """Find problems that appeared when the log was opened, and columns that differ between its files."""
    yield from scan.opened.findings
    with scan.opened.for_samples() as sampled:
        yield from find_copied_files(sampled)
    yield from find_rounded_ids(scan.opened)
    yield from scan.mixed_files


def find_defective_rows(scan: LogScan) -> list[Finding]:
    """Find rows that cannot be counted."""
    return scan.defects


def find_contradicted_ranks(scan: LogScan) -> list[Finding]:
    """Find rows shown at another position than the rank that their ranker gives them."""
    return scan.contradictions


def find_repeated_results(scan: LogScan) -> list[Finding]:
    """Find results that occur twice in a page view, and page views of several rankers."""
    return scan.repeats


def _find_repeats(scan: LogScan) -> list[Finding]:
    # A ranker that never contradicts itself shows no result at several positions of a page view.
    moved = scan.pairs is None or scan.pairs.non_functional > 0 or scan.counts.rows_contradicted > 0
    # If all rows are in the top M and have ids, and none is dropped, a page view is identified by fewer bits.
    dense = scan.profile.rows_counted == scan.profile.rows and not (scan.lacks_ids or scan.plan.schema.drop_duplicates)
    page_views = sum(scan.profile.page_views.values())
    findings = find_repeats(
        scan.opened, scan.plan, moved=moved, whole=scan.profile if dense else None, page_views=page_views
    )
    # Interleaved lists are already reported; they explain page views of several rankers.
    interleaved = any(finding.code == "interleaved" for finding in scan.contradictions)
    return [finding for finding in findings if not (interleaved and finding.code == "several-rankers-in-page-view")]


def find_patterns_of_clicks(scan: LogScan) -> list[Finding]:
    """Find rows and clicks that were kept, dropped or joined in a way that bends the curve."""
    if any_error([*scan.mixed_files, *scan.defects]):
        return []
    plan = replace(scan.plan, rankers=scan.profile.rankers)
    found = find_click_patterns(scan.opened, plan, whole_pages_sample(scan.profile.rows))
    # The search for crawlers in all of the log says more than the sample.
    known = {finding.code for finding in (*scan.repeats, *scan.crawling)}
    return [finding for finding in found if finding.code not in known]


def count_contradicted_ranks(opened: OpenLog, plan: QueryPlan) -> list[Finding]:
    """Find rows whose position is not the rank that their ranker gives them (wide and long layouts)."""
    schema, d = plan.schema, plan.dialect
    own = "CASE ranker " + plan.per_ranker("WHEN {i} THEN rank_{i}", " ") + " END"
    example_sql = " || ".join(
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
                "The rank by the ranker that was shown, for rows that can be harvested.",
                f"SELECT query, doc, position, {own} AS own\nFROM shown\n"
                f"WHERE position >= 1 AND ranker IS NOT NULL AND {top}",
            ),
            Step(
                "contradicted",
                "Count the rows where that rank is not the position.",
                f"SELECT COUNT(*), SUM(CASE WHEN {bad} THEN 1 ELSE 0 END), MIN(position), "
                + ", ".join(f"SUM(CASE WHEN own = position - {s} THEN 1 ELSE 0 END)" for s in _SHIFTS)
                + f", MIN(CASE WHEN {bad} THEN {example_sql} END)\nFROM owned",
            ),
        ]
    )
    rows, count, first, *shifted, example = opened.rows(sql, "Comparing positions with ranks")[0]
    if not count:
        return []
    arguments: Arguments = {}
    # Advertisements above a list shift it as a whole, and then rows of other page views are still a fair sample.
    moved = count >= _CONTRADICTED_SHARE * rows and max(shifted) < _CONTRADICTED_SHARE * count
    if first > 1 and rows in shifted:
        remedy = f"Positions begin at {first}. They must count from 1 like ranks: subtract {first - 1} from them."
        arguments = one_based_arguments(opened, plan)
    elif shifted[0] == rows:
        remedy = f"Ranks seem to count from 0. They must count from 1 like {schema.position!r}: add 1 to them."
        arguments = one_based_arguments(opened, plan) if schema.rank_columns else {}
    elif not moved:
        remedy = (
            "They are left out of the harvest. If results are moved after ranking (advertisements, blending), log the "
            "final ranks. If lists were interleaved, set ranks='none' and ranker='none'. Ranks must count from 1 like "
            "positions."
        )
    else:
        remedy = (
            "They are left out of the harvest, and the remaining rows are misleading. Ranks must count from 1 like "
            "positions. If results are moved after ranking (advertisements, blending), log the final ranks. If lists "
            "were interleaved, compare each document with itself wherever it was shown: replay without a ranker."
        )
        arguments = {"ranks": "none", "ranker": "none"}
    return [
        Finding(
            "contradicted-rank",
            "error" if moved or count == rows else "warning",
            f"{{count}} of {{rows}} rows in the top {plan.max_rank} were shown at a position that is not the rank "
            "that their ranker gives them",
            int(count),
            example,
            {"rows": int(rows)},
            remedy,
            arguments,
        )
    ]


# ---- Rankers and ranks


def find_non_functional_rankers(scan: LogScan) -> list[Finding]:
    """Find pairs that one ranker puts at several ranks; if the log names no ranker, report what must hold instead."""
    if scan.plan.schema.natural:
        return find_no_ranker(scan.plan.schema)
    none = scan.pairs is not None and not scan.pairs.non_functional
    if none and scan.plan.schema.layout.ranks_in != "table":
        return []
    return find_several_ranks(scan.opened, scan.plan)


def find_rankers_without_traffic(scan: LogScan) -> Iterator[Finding]:
    """Find rank columns of rankers that served no row."""
    schema, served = scan.plan.schema, scan.profile.rankers
    columns = [column for name, column in schema.rank_columns.items() if name not in served]
    if columns:
        yield Finding(
            "ranker-without-traffic",
            "warning",
            f"Rank columns of rankers that served no row: {listed(columns)}",
            len(columns),
            remedy="They do no harm. If one of them should have served, compare its name with the rankers found: "
            f"{listed(served)}.",
        )


def find_unused_rank_columns(scan: LogScan) -> Iterator[Finding]:
    """Find columns that look like ranks but are not used, because of their names."""
    schema, served = scan.plan.schema, scan.profile.rankers
    if schema.layout.ranks_known:
        return
    unused = [name for name in schema.types if name not in schema.roles.values() and _may_be_rank(schema.types[name])]
    patterns = dict([*guess_rank_patterns(unused, served).items()][:_MAX_PATTERNS])
    for pattern, share in _shares_shown_at_rank(scan, patterns).items():
        if share > _SHOWN_AT_RANK_SHARE:
            columns = [*patterns[pattern].values()]
            yield Finding(
                "unused-rank-columns",
                "warning",
                f"Columns {listed(columns, most=4)} look like the ranks of each ranker, and are not used",
                len(columns),
                remedy="If they are ranks, name them. Then queries need not recur.",
                arguments={"ranks": pattern},
            )
            return
    found = [column for column in schema.types if column in {f"rank_{name}" for name in served}]
    if len(found) == 1:
        missing = [f"rank_{name}" for name in served if f"rank_{name}" not in found]
        other_case = [column for column in schema.types if column.lower() in map(str.lower, missing)]
        yield Finding(
            "unused-rank-columns",
            "warning",
            f"Column {found[0]!r} has the ranks of one ranker, and the others have none",
            1,
            remedy=f"Rename {listed(other_case)} to {listed(missing, most=4)}, with the same upper and lower case as "
            "the rankers."
            if other_case
            else f"Add {listed(missing, most=4)}. Then all ranks are known without recurring queries.",
        )


def _may_be_rank(type_: str) -> bool:
    return type_ in INTEGERS or type_ in FLOATS or type_.startswith(("DECIMAL", "VARCHAR"))


def _shares_shown_at_rank(scan: LogScan, patterns: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
    """Return, for each pattern of columns, the share of rows that were shown at the rank in their ranker's column."""
    if not patterns:
        return {}
    schema, d = scan.plan.schema, scan.plan.dialect
    ranker, position = (d.quote(name) for name in (schema.ranker, schema.position))
    counts = []
    for columns in patterns.values():
        values = {d.typed_literal(name, schema.types[schema.ranker]): column for name, column in columns.items()}
        ranks = " ".join(f"WHEN {value} THEN {d.rank(d.quote(c), schema.types[c])}" for value, c in values.items())
        same = f"CASE {ranker} {ranks} END = {d.integer(position, schema.types[schema.position])}"
        shown = f"{ranker} IN ({', '.join(values)})"
        counts += [f"COUNT(CASE WHEN {same} THEN 1 END)", f"COUNT(CASE WHEN {shown} THEN 1 END)"]
    try:
        answer = scan.opened.rows(f"SELECT {', '.join(counts)} FROM {scan.opened.full_view}", "Looking for ranks")[0]
    except LogError:
        # A broken value in an unused column is no reason to refuse the log.
        return {}
    return {pattern: answer[2 * i] / max(answer[2 * i + 1], 1) for i, pattern in enumerate(patterns)}


def find_one_sided_ranks(scan: LogScan) -> list[Finding]:
    """Find rankers whose ranks are known only where they were shown themselves."""
    return find_one_sided(scan.opened, scan.plan) if scan.is_countable else []


def find_rare_rankers(scan: LogScan) -> Iterator[Finding]:
    """Find rankers with far fewer page views than the others."""
    views = scan.profile.page_views
    total = sum(views.values())
    rare = {name: n for name, n in views.items() if 0 < n < MIN_PAGE_VIEWS and _RARE_RANKER_FACTOR * n < total}
    if not rare:
        return
    message = f"{{count}} of {len(views):,} rankers served fewer than {MIN_PAGE_VIEWS} page views"
    if scan.plan.schema.layout.ranks_known:
        yield Finding(
            "few-page-views",
            "warning",
            f"{message}: {listed(rare, most=4)} (the fewest: {min(rare.values())})",
            len(rare),
            evidence={"page_views": rare},
            remedy="What only they compare is mostly chance. Wait for more page views, or leave these rankers out.",
        )
    elif 2 * len(rare) > len(views):
        yield Finding(
            "few-page-views",
            "warning",
            f"{message}, as if each list of results had its own ranker",
            len(rare),
            remedy="In replay it does not matter which ranker showed a document. Without rankers the curve is the "
            "same, and faster to estimate.",
            arguments={"ranker": "none"},
        )


def find_unused_unit(scan: LogScan) -> Iterator[Finding]:
    """Find a column of users, or the like, that each saw one ranker, and that is not used."""
    schema, d = scan.plan.schema, scan.plan.dialect
    views = scan.profile.page_views
    if schema.natural or sum(n > 0 for n in views.values()) < 2:
        return
    # The share of units with two page views that saw two rankers, if the ranker of each page view was drawn by itself.
    by_chance = 1 - sum((n / sum(views.values())) ** 2 for n in views.values())
    page = d.quote(schema.impression or schema.query)
    for column in guess_units(schema):
        unit = d.nan_to_null(d.quote(column), schema.types[column])
        sql = (
            f"SELECT COUNT(*), COUNT(CASE WHEN first_ranker <> last_ranker THEN 1 END) FROM (SELECT {unit} AS unit, "
            f"MIN({d.quote(schema.ranker)}) AS first_ranker, MAX({d.quote(schema.ranker)}) AS last_ranker "
            f"FROM {scan.opened.full_view} WHERE {unit} IS NOT NULL GROUP BY {unit} "
            f"HAVING MIN({page}) <> MAX({page})) t"
        )
        try:
            units, crossed = scan.opened.rows(sql, "Looking for units")[0]
        except LogError:
            # A broken value in an unused column is no reason to refuse the log.
            continue
        if units >= _MIN_UNITS and crossed < _CROSSED_SHARE * by_chance * units:
            yield Finding(
                "unused-unit",
                "warning",
                f"Each {column!r} saw one ranker ({{count}} of {{units}} with several page views): rankers were drawn "
                "by it, and it is not used. Intervals that cluster by query alone may be too narrow",
                int(units - crossed),
                evidence={"units": int(units)},
                remedy="Name it.",
                arguments={"unit": column},
            )
            return


def find_strange_units(scan: LogScan) -> Iterator[Finding]:
    """Find a column of units that has no values, or one for each row; or a unit with a large share of the rows.

    Such a large unit may stand for all users who are not known.
    """
    schema, d = scan.plan.schema, scan.plan.dialect
    if schema.unit is None:
        return
    unit = unit_value(scan.plan, d.quote(schema.unit))
    sql = (
        f"SELECT {d.as_text('unit')}, row_count, COUNT(*) OVER () AS units FROM (SELECT {unit} AS unit, COUNT(*) AS "
        "row_count FROM log GROUP BY 1) t WHERE unit IS NOT NULL ORDER BY row_count DESC LIMIT 1"
    )
    found = scan.opened.rows(sql, "Looking for large units")
    units, page_views = found[0][2] if found else 0, sum(scan.profile.page_views.values())
    what = "" if units else "has no value in any of {rows} rows"
    if units == 1 and found[0][1] == scan.profile.rows:
        what = "has the same value in all {rows} rows"
    elif not schema.aggregated and units > _MOST_UNITS * page_views > 0:
        what = "has {count} values on {page_views} page views, so it is not who was assigned to a ranker"
    if what:
        yield Finding(
            "useless-unit",
            "warning",
            f"The column {schema.unit!r} {what}",
            int(units),
            evidence={"rows": scan.profile.rows, "page_views": page_views},
            remedy="Intervals that cluster by it are wrong. Name the column of the user (unit), or leave it out.",
            arguments={"unit": "none"},
        )
        return
    for name, rows, _ in found:
        if rows > _HEAVY_SHARE * scan.profile.rows:
            yield Finding(
                "heavy-unit",
                "warning",
                f"One value of {schema.unit!r} has {{count}} of {{rows}} rows. Does it stand for all users who are not "
                "known?",
                int(rows),
                example=str(name),
                evidence={"rows": scan.profile.rows},
                remedy="If it does, replace it by NULL with a query (sql). Such rows then cluster by query.",
            )


def suggest_proxy(scan: LogScan) -> Iterator[Finding]:
    """Suggest a column that may serve as a proxy of relevance, by its name and type."""
    schema, d = scan.plan.schema, scan.plan.dialect
    used = {*schema.roles.values(), *schema.rank_columns.values()}
    numbers = [name for name, kind in schema.types.items() if name not in used and _is_number(kind)]
    words = {name: re.findall("[a-z0-9]+", re.sub("([a-z])([A-Z])", r"\1 \2", name).lower()) for name in numbers}
    found = [
        name
        for word in _PROXY_WORDS
        for name in numbers
        if word in words[name] and not _NOT_PROXY_WORDS.intersection(words[name])
    ]
    if not found:
        return
    column = d.quote(found[0])
    few = f"SELECT {column} AS x FROM {scan.opened.full_view} WHERE {column} IS NOT NULL LIMIT {_PROXY_ROWS}"
    try:
        answer = scan.opened.rows(f"SELECT COUNT(DISTINCT x) FROM ({few}) t", "Looking for a proxy of relevance")
    except LogError:
        # A broken value in an unused column is no reason to refuse the log.
        return
    classes = answer[0][0]
    if classes < 2:
        return
    arguments: Arguments = {"proxy": found[0]}
    if classes > _MAX_CLASSES:
        high = f"high_{found[0]}"
        half = f"{column} > (SELECT MEDIAN({column}) FROM source)"
        arguments = {"sql": f"SELECT *, {half} AS {d.quote(high)} FROM source", "proxy": high}
    yield Finding(
        "possible-proxy",
        "info",
        f"Column {found[0]!r} may tell which documents are relevant"
        + (f" (others: {listed(found[1:], most=4)})" if found[1:] else ""),
        len(found),
        remedy="If it was made neither from these clicks nor from positions, diagnose the log with it as a proxy of "
        "relevance. That finds trust bias with similar rankers too.",
        # Only one query can be given.
        arguments={} if classes > _MAX_CLASSES and scan.log.sql is not None else arguments,
    )


def _is_number(type_: str) -> bool:
    return type_ in INTEGERS or type_ in FLOATS or type_.startswith("DECIMAL")


def find_no_intervention(scan: LogScan) -> Iterator[Finding]:
    """Find that no document was shown at two ranks, and why: one ranker, rankers that agree, or ids of requests."""
    schema, rankers, pairs = scan.plan.schema, scan.profile.rankers, scan.pairs
    none_moved = pairs is not None and pairs.at_several_ranks == 0
    if none_moved and (findings := find_request_ids(scan)):
        yield from findings
    elif schema.natural:
        if pairs is not None and none_moved:
            yield Finding(
                "no-disagreement",
                "error",
                "None of {pairs} (query, document) pairs was shown at two ranks"
                + (f" within one {schema.window!r}" if schema.window else ""),
                evidence={"pairs": pairs.pairs},
                remedy="There is nothing to compare: queries must recur with their documents at other ranks. Harvest a "
                "longer period" + (" or use a longer window." if schema.window else "."),
            )
    elif len(rankers) == 1 and not (pairs and pairs.at_several_ranks):
        yield Finding(
            "single-ranker",
            "error",
            f"The log has a single ranker, {rankers[0]!r}",
            1,
            remedy="Propensities come from documents that two rankers put at different ranks. Add the log of another "
            "ranker, or of the same one before it changed, or name the column that identifies rankers (ranker).",
        )
    elif pairs is not None and none_moved and not any("shared_windows" in f.evidence for f in scan.overlap):
        yield Finding(
            "no-disagreement",
            "error",
            f"The rankers {listed(rankers)} never disagree: none of {{pairs}} (query, document) pairs is at two ranks",
            evidence={"pairs": pairs.pairs},
            remedy="There is no intervention to harvest. In replay, queries must recur with different rankers: harvest "
            "a longer period, or log each ranker's rank (ranks or rankings).",
        )


_OVERLAP_NOT_TESTED = Finding(
    "overlap-not-tested",
    "info",
    "Not tested: whether the rankers served at the same time, because no column has the time. If one replaced another, "
    "the curve compares different times, and is wrong if relevance changed meanwhile",
    remedy="Name the column of the time (time).",
)


def find_replaced_rankers(scan: LogScan) -> list[Finding]:
    """Find that rankers followed one another in time, or, in replay, that nothing shows whether they did."""
    schema, none_moved = scan.plan.schema, scan.pairs is not None and scan.pairs.at_several_ranks == 0
    if schema.time is None and schema.window is None and not schema.layout.ranks_known and not schema.natural:
        several = sum(n > 0 for n in scan.profile.page_views.values()) > 1
        return [_OVERLAP_NOT_TESTED] if several and not none_moved else []
    return [
        replace(finding, severity="error") if "shared_windows" in finding.evidence and none_moved else finding
        for finding in serious(scan.overlap)
    ]


def find_request_ids(scan: LogScan) -> list[Finding]:
    """Find that all or nearly all values of the query occur on one page view only, though queries must recur."""
    schema, d = scan.plan.schema, scan.plan.dialect
    if schema.layout.ranks_known or schema.aggregated:
        return []
    columns = {"q": schema.query, "r": schema.ranker, "v": schema.impression or schema.position}
    names = ", ".join(f"{d.quote(column)} AS {short}" for short, column in columns.items())
    # If page views are not known, a page view has each position once.
    again = "MIN(v) <> MAX(v)" if schema.impression else "MIN(r) <> MAX(r) OR COUNT(*) > COUNT(DISTINCT v)"
    sql = (
        f"SELECT COUNT(*), COUNT(CASE WHEN again THEN 1 END) FROM (SELECT q, {again} AS again FROM "
        f"(SELECT {names} FROM log) s WHERE q IS NOT NULL GROUP BY q) t"
    )
    queries, recurring = scan.opened.rows(sql, "Looking for queries that recur")[0]
    if queries < 2 or recurring * _RESENT_ONE_IN > queries:
        return []
    unused = [column for column in schema.types if column not in schema.roles.values()]
    better = guess_column("query", "query", unused)
    return [
        Finding(
            "query-is-request-id",
            "error",
            (
                f"{{count}} of {{queries}} values of {schema.query!r} occur"
                if recurring
                else f"Each value of {schema.query!r} occurs"
            )
            + " on one page view only. Is it the id of the request?",
            int(queries - recurring),
            evidence={"queries": int(queries)},
            remedy="A query is what users search for, and it recurs. Name that column (query), such as the search "
            "text. If queries never recur, log each ranker's rank (ranks or rankings).",
            arguments={"query": better} if better else {},
        )
    ]


# ---- Clicks


def find_missing_clicks(scan: LogScan) -> Iterator[Finding]:
    """Find a log without clicks, with clicks only, or with nothing shown at position 1."""
    for finding in find_click_defects(scan.profile.positions):
        if finding.code == "no-first-position":
            # A part of a log may lack position 1, since it can be merged with others. A log alone has no curve then.
            arguments = {} if scan.plan.schema.rankings else one_based_arguments(scan.opened, scan.plan)
            finding = replace(finding, severity="error", arguments=arguments)
        yield finding


def find_no_clicks_at_rank_1(scan: LogScan) -> Iterator[Finding]:
    """Find that position 1 has no click although others have, which leaves no curve to estimate."""
    positions = scan.profile.positions
    clicks = sum(shown.clicks for shown in positions)
    if clicks and positions[0].position == 1 and positions[0].impressions and not positions[0].clicks:
        yield Finding(
            "no-clicks-at-rank-1",
            "error",
            "Position 1 has no click on {count} results shown there, though other positions have {clicks} clicks",
            positions[0].impressions,
            evidence={"clicks": clicks},
            remedy="Propensities are relative to position 1, and cannot be estimated without clicks there. Check that "
            "positions count from 1, and that clicks on the first result are logged.",
        )


def find_little_data(scan: LogScan) -> Iterator[Finding]:
    """Find that the log is too small for a curve with intervals."""
    page_views = sum(scan.profile.page_views.values())
    clicks = sum(shown.clicks for shown in scan.profile.positions)
    # A log without any click is reported already.
    if not clicks or (page_views >= MIN_PAGE_VIEWS and clicks >= MIN_BUCKETS):
        return
    yield Finding(
        "little-data",
        "warning",
        "The log has only {page_views} page views with {clicks} clicks: probably too few for a curve",
        page_views,
        evidence={"page_views": page_views, "clicks": clicks},
        remedy=f"A curve needs clicks on documents that were shown at two ranks, and its intervals need {MIN_BUCKETS} "
        "queries or more. A few hundred page views give a first curve. Log a longer period.",
    )


def find_crawling(scan: LogScan) -> Iterator[Finding]:
    """Find page views with more clicks than any user has, or with clicks anywhere.

    A curve is estimated only if there would be such page views with the click rates by position as the curve. These
    fall faster than the curve, because rankers put relevant results first.
    """
    positions, max_rank = scan.profile.positions, scan.plan.max_rank
    rankers, schema = scan.profile.rankers, scan.plan.schema
    if schema.impression is None and not schema.aggregated:
        column = guess_column("impression", "impression_id", schema.types)
        yield Finding(
            "crawlers-not-tested",
            "info",
            "Not tested: whether crawlers clicked, because the log has no ids of page views",
            remedy="Name the column of the page view (impression), if there is one.",
            arguments={"impression": column} if column else {},
        )
    histogram = count_click_histogram(scan.opened, rankers, max_rank) if scan.is_countable else None
    if histogram is None or not positions:
        return
    rates = np.zeros(max_rank)
    rates[[shown.position - 1 for shown in positions]] = [s.clicks / max(s.impressions, 1) for s in positions]
    curve = None
    if exceeds_users(histogram, possible_page_views(histogram, rates / max(rates.max(), 1e-300))).any():
        # Without a curve it is not known how often users may click. Other checks report what the harvest warns of.
        with suppress(PosbiasError), quiet():
            found = harvest(scan.log, max_rank=max_rank, engine=scan.engine, force=True)
            curve = next(iter(fit_estimators(found).values()), None)
    order = count_click_order(scan.opened, rankers, histogram)
    if curve is None and order.find_crawled(histogram) is None:
        return
    yield from find_crawlers(histogram, curve, order, scan.plan.schema)


# ---- The result


@dataclass(frozen=True)
class Check:
    """The result of `check`: how a log was understood, and its problems.

    Attributes:
        findings (tuple of Finding): every problem, each with its `code`, `severity`, `message`, `count`, `example`,
            `evidence`, `remedy` and the `arguments` that would fix it.
        layout (Layout or None): wide, long or replay; None, like all that follows, if the log could not be opened.
        max_rank (int): M, the deepest rank to harvest.
        columns (mapping): the columns in use, by their meaning.
        ranks (mapping): the rank column of each ranker, in a wide log.
        rows (int): all rows.
        rows_beyond (int): rows shown beyond rank M.
        queries (int): distinct queries.
        queries_shared (int or None): in replay, queries that more than one ranker served.
        page_views (mapping): page views of each ranker.
        positions (tuple of PositionCounts): impressions and clicks at each position up to M.
        documents (int or None): distinct (query, document) pairs up to rank M; None if rows are too defective to count.
        documents_at_several_ranks (int or None): those of them at different ranks by different rankers.
        sampled_one_in (int): documents, and queries if ranks are known, are extrapolated from a sample of one query in
            this many; 1 if all were counted. If no ranker contradicts itself in the sample, the rest is not searched.
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
    documents_at_several_ranks: int | None = None
    sampled_one_in: int = 1

    @property
    def usable(self) -> bool:
        """Whether the log can be harvested."""
        return not any_error(self.findings)

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return the check as `--json` prints it: the attributes by name, and `usable` and `version`."""
        attributes = {field.name: getattr(self, field.name) for field in fields(self)}
        attributes |= {
            "findings": [finding.to_dict(spell) for finding in self.findings],
            "layout": self.layout and self.layout.value,
            "positions": [shown._asdict() for shown in self.positions],
        }
        return {"usable": self.usable, **attributes, "version": __version__}

    def to_text(self, spell: Spelling = as_python) -> str:
        """Return the check as text; `spell` writes arguments in Python or as options of the command."""
        parts = (self._summary(), self._click_rates(), self._problems(spell))
        return "\n\n".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.to_text()

    def to_pandas(self) -> pd.DataFrame:
        """Return the findings as a pandas frame, with a row for each."""
        return pandas_frame(self._finding_columns())

    def to_polars(self) -> pl.DataFrame:
        """Return the findings as a Polars frame, with a row for each."""
        return polars_frame(self._finding_columns())

    def _finding_columns(self) -> Columns:
        rows = [finding.to_dict() for finding in self.findings]
        kinds = {"code": str, "severity": str, "message": str, "count": int, "example": str, "remedy": str, "add": str}
        return {name: (kind, [row[name] for row in rows]) for name, kind in kinds.items()}

    def _repr_html_(self) -> str:
        parts = [f"<pre>{escape(self._summary())}</pre>"] if self.layout else []
        parts += [html_table(self._rate_columns())] if self.positions else []
        return "\n".join([*parts, f"<pre>{escape(self._problems(as_python))}</pre>"])

    def _summary(self) -> str:
        if self.layout is None:
            return ""
        lines = _fact("layout", f"{self.layout}: {self.layout.description}")
        lines += _fact("columns", ", ".join(f"{role}={name}" for role, name in self.columns.items()))
        if self.ranks:
            lines += _fact("ranks", _first_names(list(self.ranks.values())))
        beyond = (
            f", {self.rows_beyond:,} of them beyond rank {self.max_rank} (max rank) and not counted"
            if self.rows_beyond
            else ""
        )
        lines += _fact("rows", f"{self.rows:,}{beyond}")
        shared = self.queries_shared
        several = "" if shared is None else f", {_with_share(shared, self.queries)} served by several rankers"
        about = "about " if self.sampled_one_in > 1 else ""
        lines += _fact("queries", f"{about}{self.queries:,}{several}")
        lines += _fact("page views", f"{sum(self.page_views.values()):,}")
        lines += self._traffic_lines()
        if self.documents is not None and self.documents_at_several_ranks is not None:
            moved = _with_share(self.documents_at_several_ranks, self.documents)
            # With a window, such as a day, a document of another window counts as another document.
            within = f" by {self.columns['window']}" if "window" in self.columns else ""
            counted = f"{about}{self.documents:,} distinct (query, document) pairs{within}"
            where = "put at different ranks by the rankers" if "ranker" in self.columns else "shown at several ranks"
            lines += _fact("documents", f"{counted}, {about}{moved} {where}")
        if self.sampled_one_in > 1:
            sample = (
                f"one query in {self.sampled_one_in:,}, to count documents and to find rankers that put one document at"
            )
            lines += _fact("sample", f"{sample} several ranks")
        return "\n".join(lines)

    def _traffic_lines(self) -> list[str]:
        views = sum(self.page_views.values())
        shown = sorted(self.page_views.items(), key=lambda item: -item[1])[:_MAX_LISTED_RANKERS]
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
        return table(self._rate_columns()) if self.positions else ""

    def _rate_columns(self) -> list[Column]:
        return [
            Column("rank", [f"{p.position}" for p in self.positions]),
            Column("impressions", [f"{p.impressions:,}" for p in self.positions]),
            Column("clicks", [f"{p.clicks:,}" for p in self.positions]),
            Column("click rate", [_click_rate(p) for p in self.positions]),
        ]

    def _problems(self, spell: Spelling) -> str:
        if not self.findings:
            return "No problems found: the log can be used."
        blocks = [finding.block(spell) for finding in sorted(self.findings, key=lambda f: f.severity != "error")]
        verdict = "The log can be used." if self.usable else "The log cannot be used as it is."
        return "\n\n".join([*blocks, f"{verdict}\n({legend(self.findings)})"])


def _fact(name: str, text: str) -> list[str]:
    """Return a named line of the summary, with further lines indented below it."""
    return wrap(printable(text), f"{name:<12}", " " * 12)


def _first_names(names: list[str]) -> str:
    more = len(names) - _MAX_LISTED_RANKERS
    return ", ".join(names[:_MAX_LISTED_RANKERS]) + (f" and {more} more" if more > 0 else "")


def _with_share(part: int, whole: int) -> str:
    return f"{part:,} of them ({part / whole:.1%})" if whole else f"{part:,}"


def _click_rate(shown: PositionCounts) -> str:
    return f"{shown.clicks / shown.impressions:.2%}" if shown.impressions else "–"
