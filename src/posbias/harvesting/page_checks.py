"""Check page views and rankings: repeated results, interleaved lists, ranks that are known for one ranker only.

- `find_repeats` reports results that a page view shows twice, positions with two results, and page views with results
  of several rankers.
- `find_interleaved` reports page views made of the lists of several rankers (team draft, balanced interleaving).
- `find_one_sided` reports rankers whose ranks are logged only where they were shown, so that they compare nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from posbias._text import Arguments, listed
from posbias.engines import OpenLog
from posbias.findings import Finding, Severity
from posbias.harvesting.overlaps import SKETCH_SIZE, Sketch
from posbias.harvesting.row_checks import (
    ALL_ROWS,
    SAMPLE_ROWS,
    LogProfile,
    RowCounts,
    Sample,
    find_missing_rows,
    sampling_interval,
)
from posbias.logs.schema import ANY_RANKER, INTEGERS, guess_column
from posbias.sql.plan import QueryPlan, Step, comma, deduplicated_step, render, shown_steps

if TYPE_CHECKING:
    from posbias.harvesting.tables import Cells

# A hash of 31 bits, all set.
_HASH_BITS = 2**31 - 1
# Interleaving is checked if at least this share of rows is not at the rank of its own ranker.
_CONTRADICTED_SHARE = 0.1
# Interleaving puts a result between its best rank and its best rank times the number of rankers. At least this share of
# rows must be there.
_BETWEEN_SHARE = 0.95
# At least this share of those page views must not be in the order of any single ranker.
_UNORDERED_SHARE = 0.5
# A check for one-sided ranks needs this many rows, because with fewer there may be none by chance.
_MIN_ROWS = 100
# With more repeats than this share of the rows, the column of the page view is probably another one.
_MANY_REPEATS = 0.25
# The check for one-sided ranks reads this many rows first.
_FIRST_ROWS = 2**17


def find_repeats(
    opened: OpenLog,
    plan: QueryPlan,
    sample: Sample = ALL_ROWS,
    *,
    moved: bool = True,
    whole: LogProfile | None = None,
    page_views: int | None = None,
) -> list[Finding]:
    """Report results logged twice in a page view, and page views with two results at one position.

    Arguments:
        opened (OpenLog): the log.
        plan (QueryPlan): the plan of its queries.
        sample (Sample, default all rows): the page views to check.
        moved (bool, default True): whether a document may be at several positions of a page view. Give False if no
            ranker puts a document of a query at several positions.
        whole (LogProfile, default None): the profile of a log whose rows are all within the top M and have ids.
        page_views (int, default None): the page views of the log by its positions; if given, they are compared with the
            number of page view ids.
    """
    if plan.schema.impression is None or plan.schema.aggregated:
        return _find_crowded_queries(opened, plan, sample)
    if sample != sample.beginning:
        return _find_sampled_repeats(opened, plan, sample)
    views = _PageViews(opened, plan, sample, whole)
    crowded, mixed, known = opened.rows(views.screen(), "Checking for repeats")[0]
    # Positions below 62 share a bit, so it is not known which page views have results in the top M.
    found = [] if page_views is None or (not whole and plan.max_rank > 62) else find_missing_rows(known, page_views)
    if crowded:
        found += [*_find_duplicates(views), *_find_crowded(views)]
    if moved:
        found += _find_moved(views)
    if mixed:
        found += _find_mixed(views)
    return found


def sketch_page_views(opened: OpenLog, plan: QueryPlan, rows: int) -> dict[str, str]:
    """Return a sketch of the page views, by which `merge` finds harvests that overlap, as a field of a harvest.

    There is none without ids, on a cluster, where a scan of all ids is a job of its own, and for large text files,
    which would be parsed again. Numbers that count from 0 or 1 may begin again in the next log.
    """
    schema, d = plan.schema, plan.dialect
    if schema.impression is None or opened.samples_first or (opened.is_text and rows > SAMPLE_ROWS):
        return {}
    view = d.quote(schema.impression)
    if schema.types[schema.impression] in INTEGERS:
        [(least,)] = opened.rows(f"SELECT MIN({view}) FROM log")
        if least is None or least in (0, 1):
            return {}
    ids = ", ".join(d.id_hash(d.quote(name), schema.types[name]) for name in (schema.impression, schema.query))
    # A page view has up to about 16 rows.
    one_in = sampling_interval(rows, 16 * SKETCH_SIZE)
    sql = (
        f"SELECT DISTINCT v FROM (SELECT {d.hash(ids)} AS v FROM log WHERE {view} IS NOT NULL) s "
        f"WHERE v & {one_in - 1} = 0"
    )
    hashes = np.array(sorted(row[0] for row in opened.rows(sql, "Sampling page views")), dtype=np.uint64)
    return {"page_view_sketch": Sketch(one_in, hashes).limited(SKETCH_SIZE).text}


def _find_sampled_repeats(opened: OpenLog, plan: QueryPlan, sample: Sample) -> list[Finding]:
    """Report the repeats of a large log, from samples that one query reads.

    Repeats may be anywhere, so all of the log is sampled. Ids that do not identify page views show in the first rows.
    In a large Parquet log only some row groups are read, with a denser sample of them. A row that was written twice in
    a row is found there as anywhere. A batch that was written twice is found if it is as long as the distance between
    these row groups.
    """
    beginning = _PageViews(opened, plan, sample.beginning)
    wanted = [plan.schema.impression or "", plan.schema.position]
    with opened.sample_rows([] if plan.schema.drop_duplicates else wanted) as part:
        views = sampled = _PageViews(opened, plan, sample)
        if part is not None:
            name, share = part
            views = _PageViews(opened, plan, sample.denser(share))
            sampled = replace(views, sample=replace(views.sample, rows_of=name))
        crowded, early, moved, mixed = opened.rows(_screen_samples(sampled, beginning), "Checking for repeats")[0]
    # An id that many page views share is in the sample with all its rows or with none.
    repeated = views if crowded else beginning
    return [
        *([*_find_duplicates(repeated), *_find_crowded(repeated)] if crowded or early else []),
        *(_find_moved(beginning) if moved else []),
        *(_find_mixed(beginning) if mixed else []),
    ]


def _screen_samples(sampled: _PageViews, beginning: _PageViews) -> str:
    """Return a query of how many sampled page views have more rows than positions, and what the first rows show.

    That is how many page views there have more rows than positions, how many results are at several positions of a page
    view, and how many page views have several rankers. One query for both is one job on Spark, where a job takes as
    long to plan and start as the samples take to read.
    """
    first_rows = render(
        [
            *beginning.steps(),
            Step(
                "results",
                "Each result of a page view, and whether it is at several positions.",
                "SELECT v, r, CASE WHEN MIN(p) <> MAX(p) THEN 1 ELSE 0 END AS moved\nFROM views\nGROUP BY v, q, r, d",
            ),
            Step(
                "pages",
                "Each page view, and whether it has several rankers.",
                "SELECT SUM(moved) AS moved, CASE WHEN MIN(r) <> MAX(r) THEN 1 ELSE 0 END AS mixed\nFROM results\n"
                "GROUP BY v",
            ),
            Step(
                "first_rows",
                "How many.",
                "SELECT 0 AS crowded, 0 AS early, SUM(moved) AS moved, SUM(mixed) AS mixed\nFROM pages",
            ),
        ]
    )
    crowded, early = (
        f"SELECT {columns}, 0 AS moved, 0 AS mixed FROM (\n{views.screen(rankers=False)}\n) {name}"
        for views, columns, name in (
            (sampled, "crowded, 0 AS early", "s"),
            (beginning, "0 AS crowded, crowded AS early", "e"),
        )
    )
    answers = "\nUNION ALL\n".join([crowded, early, f"SELECT * FROM (\n{first_rows}\n) b"])
    return f"SELECT SUM(crowded), SUM(early), SUM(moved), SUM(mixed)\nFROM (\n{answers}\n) t"


def _find_crowded_queries(opened: OpenLog, plan: QueryPlan, sample: Sample) -> list[Finding]:
    """Report repeats of a log without page view ids: a ranker with more results of a query below its top position."""
    schema, d = plan.schema, plan.dialect
    names = zip("qrp", (schema.query, schema.ranker, schema.position), strict=True)
    columns = ", ".join(
        f"{d.integer(d.quote(c), schema.types[c]) if short == 'p' else d.quote(c)} AS {short}" for short, c in names
    )
    count = schema.impressions
    n = d.integer(d.quote(count), schema.types[count]) if count else "1"
    label = (
        f"{d.literal(f'{schema.query}=')} || {d.as_text('q')} || {d.literal(f', {schema.ranker}=')} || {d.as_text('r')}"
    )
    label += f" || {d.literal(f', {schema.position}=')} || {d.as_text('p')}"
    sql = render(
        [
            Step("typed", "Rows by short names.", f"SELECT {columns}, {n} AS n\nFROM {sample.source}"),
            Step(
                "places",
                "What each ranker showed of a query at each position.",
                "SELECT q, r, p, SUM(n) AS n\nFROM typed\nWHERE q IS NOT NULL AND r IS NOT NULL AND p IS NOT NULL "
                f"AND {sample.condition(d, 'q')}\nGROUP BY q, r, p",
            ),
            Step(
                "compared",
                "Beside what it showed at the first position that it has.",
                "SELECT q, r, p, n, FIRST_VALUE(n) OVER (PARTITION BY q, r ORDER BY p) AS top\nFROM places",
            ),
            Step("crowded", "Those with more.", f"SELECT COUNT(*), MIN({label})\nFROM compared\nWHERE n > top"),
        ]
    )
    crowded, example = opened.rows(sql, "Checking for repeats")[0]
    arguments: Arguments = {}
    if schema.aggregated:
        remedy = "Aggregate the log again, and count each result once for each page view."
    else:
        column = guess_column("impression", "impression_id", schema.types)
        arguments = {"impression": column} if column else {}
        remedy = (
            "Name the column of the page view (impression) to find out which. Then duplicates='drop' drops rows that "
            "were logged twice."
        )
    return _finding(
        "several-results-at-position",
        "warning",
        f"{sample}{{count}} times a ranker has more results of a query at a position than at the first position: a "
        "result was logged twice, two results are at one position, or rows at the first position are missing",
        crowded,
        example,
        remedy,
        arguments,
    )


def _finding(
    code: str,
    severity: Severity,
    what: str,
    count: int | None,
    example: str | None,
    remedy: str,
    arguments: Arguments | None = None,
    evidence: Mapping[str, int] | None = None,
) -> list[Finding]:
    found = Finding(code, severity, what, int(count or 0), example, evidence or {}, remedy, arguments or {})
    return [found] if count else []


@dataclass(frozen=True)
class _PageViews:
    """The queries about a sample of page views, on rows with a page view id."""

    opened: OpenLog
    plan: QueryPlan
    sample: Sample
    whole: LogProfile | None = None

    def steps(self, wanted: str = "vqdrp") -> list[Step]:
        """Return the steps that end in `views`: view, query, document, ranker, position by short names, if wanted."""
        schema, d = self.plan.schema, self.plan.dialect
        names = zip("vqd", (schema.impression, schema.query, schema.doc), strict=True)
        known = {short: d.quote(column or "") for short, column in names}
        # In a log that names no ranker, all rows have the same one.
        known["r"] = d.literal(ANY_RANKER) if schema.natural else d.quote(schema.ranker)
        known["p"] = d.integer(d.quote(schema.position), schema.types[schema.position])
        columns = [f"{known[short]} AS {short}" for short in wanted]
        source = "deduplicated" if schema.drop_duplicates else self.sample.source
        select = (
            f"SELECT * FROM (SELECT {', '.join(columns)} FROM {source}) s\n"
            f"WHERE v IS NOT NULL AND p IS NOT NULL AND {self.sample.condition(d, 'v')}"
        )
        views = Step("views", "Rows whose page view and position are known.", select)
        return [deduplicated_step(self.plan), views] if schema.drop_duplicates else [views]

    def screen(self, *, rankers: bool = True) -> str:
        """Return a query that counts page views with more rows than positions, with several rankers, and in the top M.

        It may read all rows, so it reads few columns and groups page views by a hash of their ids, which is faster in
        DuckDB. It ignores queries. A collision only leads to a closer check.
        """
        bits, crowded, mixed = self._bits_of_rankers() or self._bits_of_positions(rankers)
        top = "-1" if self.whole else str((1 << min(self.plan.max_rank, 62)) - 1)
        return render(
            [
                *self.steps("vrp" if rankers else "vp"),
                Step(
                    "pages",
                    "Each page view with the positions that it fills.",
                    f"SELECT {bits}\nFROM views\nGROUP BY {self.plan.dialect.hash('v')}",
                ),
                Step(
                    "screen",
                    "How many are odd.",
                    f"SELECT {crowded} AS crowded, COUNT(CASE WHEN {mixed} THEN 1 END) AS mixed, "
                    f"COUNT(CASE WHEN (places & {top}) <> 0 THEN 1 END) AS known\nFROM pages",
                ),
            ]
        )

    def _bits_of_positions(self, rankers: bool) -> tuple[str, str, str]:
        """Return SQL for the columns of a page view, the number with more rows than positions, and several rankers.

        Positions below 62 share a bit, and a missing ranker has a hash too. Both only lead to a closer check.
        """
        d = self.plan.dialect
        places = d.bit_or(d.bit("CASE WHEN p BETWEEN 1 AND 62 THEN p - 1 ELSE 62 END", wide=True))
        bits, crowded = f"COUNT(*) AS n, {places} AS places", "COUNT(CASE WHEN n > BIT_COUNT(places) THEN 1 END)"
        if not rankers:
            return bits, crowded, "FALSE"
        # Each bit of the hash beside its opposite: the union of all rows has 31 bits if all have one ranker, and more
        # otherwise. DuckDB computes product and sum once for each name, not for each row.
        names = d.cast(d.bit_or(f"({d.hash('r')} & {_HASH_BITS}) * {_HASH_BITS} + {_HASH_BITS}"), "BIGINT")
        return f"{bits}, {names} AS names", crowded, "BIT_COUNT(names) > 31"

    def _bits_of_rankers(self) -> tuple[str, str, str] | None:
        """Return the same as `_bits_of_positions`, with M bits for each ranker in one integer; None if too long."""
        d, m = self.plan.dialect, self.plan.max_rank
        names = self.whole.rankers if self.whole else ()
        if self.whole is None or not 0 < len(names) * m <= 62:
            return None
        *others, last = (1 << m * i for i in range(len(names)))
        type_ = self.plan.schema.types[self.plan.schema.ranker]
        cases = [
            f"WHEN {d.typed_literal(name, type_)} THEN {start}" for name, start in zip(names, others, strict=False)
        ]
        first = f"CASE r {' '.join(cases)} ELSE {last} END" if cases else str(last)
        bit = f"{d.cast(first, 'BIGINT' if len(names) * m > 30 else 'INTEGER')} << (p - 1)"
        shown = [f"CASE WHEN (places & {start * ((1 << m) - 1)}) <> 0 THEN 1 ELSE 0 END" for start in (*others, last)]
        # Without repeats each row has its own bit. With repeats there are fewer bits than rows.
        crowded = f"{self.whole.rows} - SUM(BIT_COUNT(places))"
        return f"{d.bit_or(bit)} AS places", crowded, f"{' + '.join(shown)} > 1"

    def count_groups(self, keys: str, odd: str, count: str, shown: str) -> tuple[int, str]:
        """Return how many groups of rows meet the condition `odd`, and an example with the columns `shown`."""
        schema, d = self.plan.schema, self.plan.dialect
        columns = dict(zip("vqdp", (schema.impression, schema.query, schema.doc, schema.position), strict=True))
        label = " || ', ' || ".join(f"{d.literal(f'{columns[c]}=')} || COALESCE({d.as_text(c)}, 'null')" for c in shown)
        groups = f"SELECT {keys}, COUNT(*) AS n\nFROM views\nGROUP BY {keys}\nHAVING {odd}"
        answer = f"SELECT {count}, MIN({label})\nFROM odd"
        steps = [*self.steps(), Step("odd", "Groups that should not be.", groups), Step("count", "How many.", answer)]
        found, example = self.opened.rows(render(steps), "Counting repeats")[0]
        return int(found or 0), example


def _find_duplicates(views: _PageViews) -> list[Finding]:
    schema = views.plan.schema
    count, example = views.count_groups("v, q, r, d, p", "COUNT(*) > 1", "SUM(n - 1)", "vqd")
    dropping = schema.drop_duplicates
    remedy = "They would be counted twice: drop them."
    arguments: Arguments = {} if dropping else {"duplicates": "drop"}
    if count and not dropping:
        counting = Step("rows_of_views", "How many rows there are.", "SELECT COUNT(*)\nFROM views")
        rows = int(views.opened.rows(render([*views.steps("vp"), counting]), "Counting repeats")[0][0])
        if count > _MANY_REPEATS * rows:
            arguments = {}
            remedy = (
                f"More than a quarter of all rows are repeats. If {schema.impression!r} is the id of a session or a "
                "user, or a number that begins again, name the column of the page view: dropping rows would then lose "
                "page views and their clicks. If each result was really logged several times, drop the repeats "
                "(duplicates='drop')."
            )
    return _finding(
        "duplicates",
        "error",
        f"{views.sample}{{count}} rows repeat a result of the same page view at the same position, as at-least-once "
        "logging does",
        count,
        example,
        f"duplicates='drop' keeps them, because they differ in more than the click: check {schema.impression!r}."
        if dropping
        else remedy,
        arguments,
    )


def _find_crowded(views: _PageViews) -> list[Finding]:
    schema = views.plan.schema
    count, example = views.count_groups("v, q, r, p", "MIN(d) <> MAX(d)", "COUNT(*)", "vqp")
    return _finding(
        "several-results-at-position",
        "warning",
        f"{views.sample}{{count}} positions of a page view hold two or more results",
        count,
        example,
        f"Each result is counted. Check {schema.position!r} and {schema.impression!r}. In a grid, number the cells in "
        "reading order.",
    )


def _find_moved(views: _PageViews) -> list[Finding]:
    count, example = views.count_groups("v, q, r, d", "MIN(p) <> MAX(p)", "COUNT(*)", "vqd")
    return _finding(
        "document-at-several-positions",
        "warning",
        f"{views.sample}{{count}} results are at several positions of one page view",
        count,
        example,
        f"Each position is counted. Check that {views.plan.schema.impression!r} identifies a page view, not a session.",
    )


def _find_mixed(views: _PageViews) -> list[Finding]:
    schema = views.plan.schema
    counting = Step("pages", "How many page views there are.", "SELECT COUNT(DISTINCT v)\nFROM views")
    pages = int(views.opened.rows(render([*views.steps("vp"), counting]), "Counting page views")[0][0])
    count, example = views.count_groups("v, q", "MIN(r) <> MAX(r)", "COUNT(*)", "vq")
    # If most page views are so, it is intended. If ranks are known, `find_interleaved` decides.
    intended = 2 * count > pages and not schema.layout.ranks_known
    return _finding(
        "several-rankers-in-page-view",
        "warning",
        f"{views.sample}{{count}} of {{page_views}} page views have results of several rankers",
        count,
        example,
        f"A page view shows the list of one ranker: check that {schema.impression!r} identifies a page view. If lists "
        "were interleaved, a position is not the rank of the ranker"
        + (": compare each document with itself at all ranks where it was shown, by any ranker." if intended else "."),
        {"ranker": "none"} if intended else {},
        evidence={"page_views": pages},
    )


def find_interleaved(opened: OpenLog, plan: QueryPlan, counts: RowCounts, sample: Sample = ALL_ROWS) -> list[Finding]:
    """Report interleaved lists, if they explain positions that contradict the rank of their own ranker.

    Other reasons look different. Advertisements above a list shift it and keep its order. A result that was moved for
    another reason is higher than any ranker puts it, or lower than interleaving would.
    """
    ranked = counts.rows_counted + counts.rows_contradicted
    few = counts.rows_contradicted < _CONTRADICTED_SHARE * ranked
    if len(plan.rankers) < 2 or few or not counts.rows_contradicted:
        return []
    pages, odd, rows, between = map(int, opened.rows(_mixed_pages(plan, sample), "Checking for interleaving")[0])
    if not pages or odd < _UNORDERED_SHARE * pages or between < _BETWEEN_SHARE * rows:
        return []
    arguments: Arguments = {"ranks": "none", "ranker": "none"}
    also = " Leave out the table of rankings (rankings)." if plan.schema.layout.ranks_in == "table" else ""
    return [
        Finding(
            "interleaved",
            "error",
            f"the lists of {listed(plan.rankers, most=4)} were interleaved: {{count}} of {{rows}} rows in the top "
            f"{plan.max_rank} are not at the rank of their own ranker and were left out; {sample}{{odd}} of "
            "{page_views} such page views are not in the order of any single ranker, and no result is above its best "
            "rank",
            counts.rows_contradicted,
            evidence={"rows": ranked, "odd": odd, "page_views": pages},
            remedy="A harvest by rankers needs page views of one ranker each; the rows that remain are misleading. "
            "Compare each document with itself at all ranks where it was shown, by any ranker: use replay without a "
            f"ranker.{also}",
            arguments=arguments,
        )
    ]


def _mixed_pages(plan: QueryPlan, sample: Sample) -> str:
    """Return the query that counts page views that contradict their ranker, and those in no ranker's order.

    It also counts their rows, and those between their best rank and that rank times the number of rankers. Without page
    view ids, a query that was shown once is a page view.
    """
    schema, d, m = plan.schema, plan.dialect, plan.max_rank
    page = schema.impression
    # As a segment column, the page view passes through the first steps of the query.
    carried = replace(plan, by=(page,) if page else (), log="sampled")
    view = comma(carried.segments, "query")
    place = plan.per_ranker(f"CASE WHEN rank_{{i}} BETWEEN 1 AND {m} THEN rank_{{i}} ELSE {m + 1} END AS place_{{i}}")
    own = "CASE ranker " + plan.per_ranker("WHEN {i} THEN place_{i}", " ") + " END"
    best = f"LEAST({plan.per_ranker('place_{i}')})"
    falls = plan.per_ranker(
        f"CASE WHEN LAG(place_{{i}}) OVER (PARTITION BY {view} ORDER BY position) > place_{{i}} "
        "THEN 1 ELSE 0 END AS falls_{i}",
        ",\n  ",
    )
    unordered = plan.per_ranker("MAX(falls_{i}) = 1", " AND ")
    condition = sample.condition(d, d.quote(page or schema.query))
    return render(
        [
            Step("sampled", "The sampled rows.", f"SELECT *\nFROM {sample.source}\nWHERE {condition}"),
            *shown_steps(carried, ranks=True),
            Step(
                "ranked",
                "Ranks within the top M, and one beyond it.",
                f"SELECT {view}, ranker, position, {place}\nFROM shown\n"
                f"WHERE position BETWEEN 1 AND {m} AND ranker IS NOT NULL AND {comma(carried.segments) or 'query'} "
                "IS NOT NULL",
            ),
            Step(
                "followed",
                "Whether a ranker puts a result above the one that is shown before it.",
                f"SELECT {view}, ranker, position, CASE WHEN {own} = position THEN 0 ELSE 1 END AS elsewhere,\n"
                f"  CASE WHEN position BETWEEN {best} AND {len(plan.rankers)} * {best} THEN 1 ELSE 0 END AS fair,\n"
                f"  {falls}\nFROM ranked",
            ),
            Step(
                "pages",
                "Page views, each position filled once, that contradict their ranker.",
                f"SELECT COUNT(*) AS n, SUM(fair) AS fair,\n"
                f"  CASE WHEN MIN(ranker) <> MAX(ranker) OR ({unordered}) THEN 1 ELSE 0 END AS odd\n"
                f"FROM followed\nGROUP BY {view}\nHAVING COUNT(*) = COUNT(DISTINCT position) AND MAX(elsewhere) = 1",
            ),
            Step(
                "mixed_pages",
                "How many there are.",
                "SELECT COUNT(*), COALESCE(SUM(odd), 0), COALESCE(SUM(n), 0), COALESCE(SUM(fair), 0)\nFROM pages",
            ),
        ]
    )


def find_one_sided(opened: OpenLog, plan: QueryPlan) -> list[Finding]:
    """Report rankers whose ranks are missing in all rows of other rankers, in a wide log."""
    if plan.schema.layout.ranks_in != "columns":
        return []
    # In most logs the first rows already show that no ranker is one-sided.
    *_, others = _count_ranked_rows(opened, plan, first=_FIRST_ROWS)
    if all(others):
        return []
    return _one_sided_findings(plan.rankers, *_count_ranked_rows(opened, plan))


def _count_ranked_rows(
    opened: OpenLog, plan: QueryPlan, first: int | None = None
) -> tuple[list[int], list[int], list[int]]:
    """Count rows of each ranker, those of them that another ranks too, and rows of others that it ranks."""
    m = plan.max_rank
    beginning = [] if first is None else [Step("beginning", "The first rows.", f"SELECT *\nFROM log\nLIMIT {first}")]
    if beginning:
        plan = replace(plan, log="beginning")
    ranked = plan.per_ranker(f"CASE WHEN rank_{{i}} BETWEEN 1 AND {m} THEN 1 ELSE 0 END", " + ")
    each = [
        f"COUNT(CASE WHEN ranker = {i} THEN 1 END), COUNT(CASE WHEN ranker = {i} AND {ranked} > 1 THEN 1 END), "
        f"COUNT(CASE WHEN ranker <> {i} AND rank_{i} BETWEEN 1 AND {m} THEN 1 END)"
        for i in range(len(plan.rankers))
    ]
    why = "Rows of each ranker, those that another ranks too, and rows of others that it ranks."
    counting = Step("known", why, f"SELECT {comma(each)}\nFROM shown\nWHERE position BETWEEN 1 AND {m}")
    answer = list(
        map(
            int,
            opened.rows(render([*beginning, *shown_steps(plan, ranks=True), counting]), "Checking known ranks")[0],
        )
    )
    return answer[::3], answer[1::3], answer[2::3]


def _one_sided_findings(
    rankers: Sequence[str], own: Sequence[int], shared: Sequence[int], others: Sequence[int]
) -> list[Finding]:
    """Report one-sided rankers from the counts of `_count_ranked_rows`."""
    found = [
        i for i in range(len(rankers)) if shared[i] >= _MIN_ROWS and not others[i] and sum(own) - own[i] >= _MIN_ROWS
    ]
    if not found:
        return []
    return [
        Finding(
            "one-sided-ranks",
            "error",
            f"the ranks of {listed([rankers[i] for i in found])} are known only in rows that the same ranker showed: "
            "no row of another ranker has them",
            len(found),
            remedy="These documents would be compared with documents that were never shown. Log the ranks of all "
            "rankers with each result, whichever ranker was shown. If a ranker shows results in random order, leave "
            "its rows out. If queries recur, posbias can take the ranks from the positions in the log.",
            arguments={"ranks": "none"},
        )
    ]


def find_one_sided_cells(cells: Cells, rankers: Sequence[str]) -> list[Finding]:
    """Report one-sided rankers from cells that were counted by signature."""
    from posbias._arrays import sum_by_index

    # Strata by signature are numbered without gaps.
    stratum, size = cells.stratum, int(cells.stratum.max(initial=-1)) + 1
    total = sum_by_index(stratum, cells.impressions, size)[stratum]
    several = sum_by_index(stratum, np.ones(len(cells)), size)[stratum] > 1
    counts = (cells.impressions, np.where(several, cells.impressions, 0), total - cells.impressions)
    own, shared, others = (np.rint(sum_by_index(cells.ranker, n, len(rankers))).astype(int).tolist() for n in counts)
    return _one_sided_findings(rankers, own, shared, others)
