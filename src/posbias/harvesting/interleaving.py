"""Page views made of the lists of several rankers: team draft, balanced interleaving and their kin."""

from __future__ import annotations

from dataclasses import replace

from posbias.engines import OpenLog
from posbias.findings import Finding
from posbias.harvesting.row_counts import RowCounts
from posbias.harvesting.samples import ALL, Sample
from posbias.sql.shown import Plan, comma, shown
from posbias.sql.steps import Step, render
from posbias.wording import Arguments, listed

# From this share of rows that are not where their own ranker puts them, one asks why.
_SOME = 0.1
# Interleaving puts every result between its best rank and that times the rankers; what is moved otherwise does not.
_BETWEEN = 0.95
# So many of the page views in question are made by no single ranker.
_MOST = 0.5


def find_interleaved(opened: OpenLog, plan: Plan, counts: RowCounts, sample: Sample = ALL) -> list[Finding]:
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


def _mixed_pages(plan: Plan, sample: Sample) -> str:
    """Return how many page views contradict their ranker, are in no ranker's order, and how their rows are placed.

    Without an id of page views, a query that was shown once is one.
    """
    schema, d, m = plan.schema, plan.dialect, plan.max_rank
    page = schema.impression
    # As a segment the page view passes through the first steps like any column of the user's.
    carried = replace(plan, by=(page,) if page else (), log="sampled")
    view = comma(carried.segments, "query")
    place = plan.each(f"CASE WHEN rank_{{i}} BETWEEN 1 AND {m} THEN rank_{{i}} ELSE {m + 1} END AS place_{{i}}")
    own = "CASE ranker " + plan.each("WHEN {i} THEN place_{i}", " ") + " END"
    best = f"LEAST({plan.each('place_{i}')})"
    falls = plan.each(
        f"CASE WHEN LAG(place_{{i}}) OVER (PARTITION BY {view} ORDER BY position) > place_{{i}} "
        "THEN 1 ELSE 0 END AS falls_{i}",
        ",\n  ",
    )
    unordered = plan.each("MAX(falls_{i}) = 1", " AND ")
    condition = sample.condition(d, d.quote(page or schema.query))
    return render(
        [
            Step("sampled", "The rows that are looked at.", f"SELECT *\nFROM {sample.source}\nWHERE {condition}"),
            *shown(carried, ranks=True),
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
