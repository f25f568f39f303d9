"""Defects of page views and rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from posbias._text import Arguments, listed
from posbias.engines import OpenLog
from posbias.findings import Finding, Severity
from posbias.harvesting.row_checks import ALL_ROWS, LogProfile, RowCounts, Sample, find_missing_rows
from posbias.logs.schema import ANY_RANKER, guess_column
from posbias.sql.plan import QueryPlan, Step, comma, deduplicated_step, render, shown_steps

if TYPE_CHECKING:
    from posbias.harvesting.tables import Cells

# A hash of 31 bits, all set.
_BITS = 2**31 - 1
# From this share of rows that are not where their own ranker puts them, one asks why.
_SOME = 0.1
# Interleaving puts every result between its best rank and that times the rankers; what is moved otherwise does not.
_BETWEEN = 0.95
# So many of the page views in question are made by no single ranker.
_MOST = 0.5
# With fewer rows on which another's ranks are known, chance may leave none the other way round.
_FEWEST = 100
# So many rows are looked at first.
_FIRST = 2**17


def find_repeats(
    opened: OpenLog,
    plan: QueryPlan,
    sample: Sample = ALL_ROWS,
    *,
    moved: bool = True,
    whole: LogProfile | None = None,
    page_views: int | None = None,
) -> list[Finding]:
    """Return results logged twice in a page view, and page views with two results at one position.

    `moved` says whether a result may stand at several positions of a page view: not where no ranker ever puts a
    document of a query at several. `whole` is the profile of a log all of whose rows lie within the top M and have ids.
    `page_views`, if given, are those of the log by its positions, which are compared with those by their ids.
    """
    if plan.schema.impression is None or plan.schema.aggregated:
        return _find_crowded_queries(opened, plan, sample)
    views, beginning = _Views(opened, plan, sample, whole), _Views(opened, plan, sample.beginning)
    if sample == sample.beginning:
        crowded, mixed, known = opened.rows(views.screen(), "Looking for repeats")[0]
    else:
        # What repeats may stand anywhere, and is looked for all over the log; ids that name no page view show at the
        # beginning.
        views, crowded = _screened(opened, plan, sample)
        _, mixed, known = opened.rows(beginning.screen(), "Looking for repeats")[0]
    # Beyond 62 positions share a bit, and which page views are in the top M is not known.
    found = [] if page_views is None or (not whole and plan.max_rank > 62) else find_missing_rows(known, page_views)
    if crowded:
        found += [*_find_duplicates(views), *_find_crowded(views)]
    if moved:
        found += _find_moved(beginning)
    if mixed:
        found += _find_mixed(beginning)
    return found


def _find_crowded_queries(opened: OpenLog, plan: QueryPlan, sample: Sample) -> list[Finding]:
    """Without page views: a query's ranker cannot show more results at a lower position than at the first."""
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
    crowded, example = opened.rows(sql, "Looking for repeats")[0]
    arguments: Arguments = {}
    if schema.aggregated:
        remedy = "Count results again from the log that was added up, each once for a page view."
    else:
        column = guess_column("impression", "impression_id", schema.types)
        arguments = {"impression": column} if column else {}
        remedy = (
            "Name the column of the page view (impression) to tell which; rows logged twice can then be dropped with "
            "duplicates='drop'."
        )
    return _finding(
        "several-results-at-position",
        "warning",
        f"{sample}{{count}} times a ranker has more results of a query at a position than at the first: one result "
        "logged twice, or two results at one position",
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
class _Views:
    """Rows whose page view is known, of a sample of page views."""

    opened: OpenLog
    plan: QueryPlan
    sample: Sample
    whole: LogProfile | None = None

    def steps(self, wanted: str = "vqdrp") -> list[Step]:
        """Return the steps that end in `views`: view, query, document, ranker, position by short names, if wanted."""
        schema, d = self.plan.schema, self.plan.dialect
        names = zip("vqd", (schema.impression, schema.query, schema.doc), strict=True)
        known = {short: d.quote(column or "") for short, column in names}
        # Of a log that names no ranker every row was shown by the same.
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
        """Return a query that counts page views with more rows than positions, of several rankers, and in the top M.

        It reads as few columns as tell this, for it may read all rows of them. Page views are told apart by a hash, for
        that takes DuckDB less than their ids do, and queries not at all: each only makes us look closer.
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
                    f"SELECT {crowded}, COUNT(CASE WHEN {mixed} THEN 1 END), "
                    f"COUNT(CASE WHEN (places & {top}) <> 0 THEN 1 END)\nFROM pages",
                ),
            ]
        )

    def _bits_of_positions(self, rankers: bool) -> tuple[str, str, str]:
        """Return what to keep of a page view, how many have more rows than positions, and which have several rankers.

        Positions beyond 62 share a bit, and an absent ranker has a hash too: each only makes us look closer.
        """
        d = self.plan.dialect
        places = d.bit_or(d.bit("CASE WHEN p BETWEEN 1 AND 62 THEN p - 1 ELSE 62 END", wide=True))
        bits, crowded = f"COUNT(*) AS n, {places} AS places", "COUNT(CASE WHEN n > BIT_COUNT(places) THEN 1 END)"
        if not rankers:
            return bits, crowded, "FALSE"
        # Every bit beside its opposite: those that any row has are 31 where all have one ranker, and more otherwise. No
        # two rankers in a thousand million share a hash. Product and sum are made once for each name, not for each row.
        names = d.cast(d.bit_or(f"({d.hash('r')} & {_BITS}) * {_BITS} + {_BITS}"), "BIGINT")
        return f"{bits}, {names} AS names", crowded, "BIT_COUNT(names) > 31"

    def _bits_of_rankers(self) -> tuple[str, str, str] | None:
        """Return the same where M bits for each ranker are one number: all that is to be kept of a page view."""
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
        # Each row has a bit of its own, or there are fewer bits than rows.
        crowded = f"{self.whole.rows} - SUM(BIT_COUNT(places))"
        return f"{d.bit_or(bit)} AS places", crowded, f"{' + '.join(shown)} > 1"

    def look(self, keys: str, odd: str, count: str, shown: str) -> tuple[int, str]:
        """Return how many groups of rows are odd, and an example by the columns to be shown."""
        schema, d = self.plan.schema, self.plan.dialect
        columns = dict(zip("vqdp", (schema.impression, schema.query, schema.doc, schema.position), strict=True))
        label = " || ', ' || ".join(f"{d.literal(f'{columns[c]}=')} || COALESCE({d.as_text(c)}, 'null')" for c in shown)
        groups = f"SELECT {keys}, COUNT(*) AS n\nFROM views\nGROUP BY {keys}\nHAVING {odd}"
        answer = f"SELECT {count}, MIN({label})\nFROM odd"
        steps = [*self.steps(), Step("odd", "Groups that should not be.", groups), Step("count", "How many.", answer)]
        found, example = self.opened.rows(render(steps), "Looking closer at repeats")[0]
        return int(found or 0), example


def _screened(opened: OpenLog, plan: QueryPlan, sample: Sample) -> tuple[_Views, int]:
    """Return how many page views of a sample have more rows than positions, and the page views to look at closer.

    Of a large Parquet log they are those of some row groups, the same number of them. What came twice side by side is
    met there as anywhere; a batch that came twice is met if it is as long as the period by which they are taken.
    """
    wanted = [plan.schema.impression or "", plan.schema.position]
    with opened.sample_rows([] if plan.schema.drop_duplicates else wanted) as part:
        if part is None:
            views = looked = _Views(opened, plan, sample)
        else:
            name, share = part
            views = _Views(opened, plan, sample.denser(share))
            looked = replace(views, sample=replace(views.sample, rows_of=name))
        crowded, _, _ = opened.rows(looked.screen(rankers=False), "Looking for repeats")[0]
    return views, int(crowded)


def _find_duplicates(views: _Views) -> list[Finding]:
    schema = views.plan.schema
    count, example = views.look("v, q, r, d, p", "COUNT(*) > 1", "SUM(n - 1)", "vqd")
    dropping = schema.drop_duplicates
    return _finding(
        "duplicates",
        "error",
        f"{views.sample}{{count}} rows repeat a result of the same page view at the same position, as at-least-once "
        "logging does",
        count,
        example,
        f"They differ in more than the click, so that duplicates='drop' keeps them: check {schema.impression!r}."
        if dropping
        else "They would be counted twice: drop them.",
        {} if dropping else {"duplicates": "drop"},
    )


def _find_crowded(views: _Views) -> list[Finding]:
    schema = views.plan.schema
    count, example = views.look("v, q, r, p", "MIN(d) <> MAX(d)", "COUNT(*)", "vqp")
    return _finding(
        "several-results-at-position",
        "warning",
        f"{views.sample}{{count}} positions of a page view hold two or more results",
        count,
        example,
        f"Check {schema.position!r} and {schema.impression!r}; in a grid, number the cells in reading order. Each "
        "result is counted.",
    )


def _find_moved(views: _Views) -> list[Finding]:
    count, example = views.look("v, q, r, d", "MIN(p) <> MAX(p)", "COUNT(*)", "vqd")
    return _finding(
        "document-at-several-positions",
        "warning",
        f"{views.sample}{{count}} results stand at several positions of one page view",
        count,
        example,
        f"Check that {views.plan.schema.impression!r} names one page view, not a session. Each position is counted.",
    )


def _find_mixed(views: _Views) -> list[Finding]:
    schema = views.plan.schema
    counting = Step("pages", "How many page views there are.", "SELECT COUNT(DISTINCT v)\nFROM views")
    pages = int(views.opened.rows(render([*views.steps("vp"), counting]), "Counting page views")[0][0])
    count, example = views.look("v, q", "MIN(r) <> MAX(r)", "COUNT(*)", "vq")
    # What happens to most page views is meant; with ranks of all rankers, those tell whether lists were interleaved.
    meant = 2 * count > pages and not schema.layout.ranks_known
    return _finding(
        "several-rankers-in-page-view",
        "warning",
        f"{views.sample}{{count}} of {{page_views}} page views hold results of several rankers",
        count,
        example,
        f"A page view is one ranker's list: check that {schema.impression!r} names one page view. If lists were "
        "interleaved, a position is not the ranker's own rank"
        + (": compare each document with itself wherever it was shown, whoever put it there." if meant else "."),
        {"ranker": "none"} if meant else {},
        evidence={"page_views": pages},
    )


def find_interleaved(opened: OpenLog, plan: QueryPlan, counts: RowCounts, sample: Sample = ALL_ROWS) -> list[Finding]:
    """Return that lists were interleaved, where positions that contradict their own ranker's rank come from that.

    Advertisements above a list shift it and keep its order; a result moved for other reasons stands higher than any
    ranker puts it, or lower than a fair draft would.
    """
    placed = counts.rows_counted + counts.rows_contradicted
    if len(plan.rankers) < 2 or counts.rows_contradicted < _SOME * placed or not counts.rows_contradicted:
        return []
    pages, odd, rows, between = map(int, opened.rows(_mixed_pages(plan, sample), "Looking for interleaving")[0])
    if not pages or odd < _MOST * pages or between < _BETWEEN * rows:
        return []
    arguments: Arguments = {"ranks": "none", "ranker": "none"}
    also = " Leave out the table of rankings (rankings)." if plan.schema.layout.ranks_in == "table" else ""
    return [
        Finding(
            "interleaved",
            "error",
            f"the lists of {listed(plan.rankers, most=4)} were interleaved: {{count}} of {{rows}} rows in the top "
            f"{plan.max_rank} are left out, for they are not at the rank of their own ranker, and {sample}{{odd}} of "
            "{page_views} such page views are in no single ranker's order, though no result stands above its best rank",
            counts.rows_contradicted,
            evidence={"rows": placed, "odd": odd, "page_views": pages},
            remedy="A harvest by rankers needs page views that one ranker made; the rows that remain mislead. Compare "
            f"each document with itself wherever it was shown, whoever put it there: replay without a ranker.{also}",
            arguments=arguments,
        )
    ]


def _mixed_pages(plan: QueryPlan, sample: Sample) -> str:
    """Return how many page views contradict their ranker, are in no ranker's order, and how their rows are placed.

    Without an id of page views, a query that was shown once is one.
    """
    schema, d, m = plan.schema, plan.dialect, plan.max_rank
    page = schema.impression
    # As a segment the page view passes through the first steps like any column of the user's.
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
            Step("sampled", "The rows that are looked at.", f"SELECT *\nFROM {sample.source}\nWHERE {condition}"),
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
    """Return rankers whose ranks no row of another ranker has, in a wide log."""
    if plan.schema.layout.ranks_in != "columns":
        return []
    # What the beginning of a log has the whole has too: most often it settles that there are none.
    *_, others = _counted(opened, plan, first=_FIRST)
    if all(others):
        return []
    return _found(plan.rankers, *_counted(opened, plan))


def _counted(opened: OpenLog, plan: QueryPlan, first: int | None = None) -> tuple[list[int], list[int], list[int]]:
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
            opened.rows(render([*beginning, *shown_steps(plan, ranks=True), counting]), "Looking at the others' ranks")[
                0
            ],
        )
    )
    return answer[::3], answer[1::3], answer[2::3]


def _found(rankers: Sequence[str], own: Sequence[int], shared: Sequence[int], others: Sequence[int]) -> list[Finding]:
    """Return it from rows of each ranker, those of them that another ranks too, and rows of others that it ranks."""
    found = [i for i in range(len(rankers)) if shared[i] >= _FEWEST and not others[i] and sum(own) - own[i] >= _FEWEST]
    if not found:
        return []
    return [
        Finding(
            "one-sided-ranks",
            "error",
            f"the ranks of {listed([rankers[i] for i in found])} are known only where it was shown itself: no result "
            "that another ranker showed has one",
            len(found),
            remedy="Its documents would be compared with what was never shown. Log every ranker's rank with each "
            "result, whoever was shown; if it shows results in random order, leave its rows out; or let the log itself "
            "tell the ranks, where queries recur.",
            arguments={"ranks": "none"},
        )
    ]


def find_one_sided_cells(cells: Cells, rankers: Sequence[str]) -> list[Finding]:
    """Return the same of what was counted by signature."""
    import numpy as np

    from posbias._arrays import sum_by_index

    # Strata that were counted by signature have numbers without gaps.
    stratum, size = cells.stratum, int(cells.stratum.max(initial=-1)) + 1
    total = sum_by_index(stratum, cells.impressions, size)[stratum]
    several = sum_by_index(stratum, np.ones(len(cells)), size)[stratum] > 1
    counts = (cells.impressions, np.where(several, cells.impressions, 0), total - cells.impressions)
    own, shared, others = (np.rint(sum_by_index(cells.ranker, n, len(rankers))).astype(int).tolist() for n in counts)
    return _found(rankers, own, shared, others)
