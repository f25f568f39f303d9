"""Queries for estimators on rows, and for clicks of page views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from posbias.logs.schema import ANY_RANKER
from posbias.sql.plan import QueryPlan, Step, comma, deduplicated_step, render, shown_steps

# What `original` holds for a value that is no rank. Rows without any value are no part of the experiment.
NO_RANK = -1
# What `bucket` holds for rows that name no query.
MISSING_ID = -1
# Pages with fewer results may well have all of them clicked.
FEW_RESULTS = 5


def swaps(plan: QueryPlan, original: str) -> str:
    """Return rows, impressions and clicks by bucket, ranker, original rank, rank shown, and the page's last rank."""
    # As a segment it passes through the first steps like any column of the user's, as text.
    carried = replace(plan, by=(*plan.by, original))
    text = carried.segments[-1]
    number = plan.dialect.integer(text, "VARCHAR")
    keys = [*plan.segments, "bucket", "ranker", "original", "position", "reach"]
    return render(
        [
            *shown_steps(carried, ranks=False),
            Step(
                "experiment",
                "The rows of the experiment, with the rank before the swap.",
                f"SELECT {comma(plan.segments, 'query', 'ranker', 'position', 'impressions', 'clicks')}, "
                f"{bucket(plan)} AS bucket,\n"
                f"  CASE WHEN {number} >= 1 THEN {number} ELSE {NO_RANK} END AS original\n"
                f"FROM shown\nWHERE {within(plan)} AND {text} IS NOT NULL",
            ),
            Step(
                "reaching",
                "How many results the query has: what is not there cannot be swapped.",
                "SELECT *, MAX(position) OVER (PARTITION BY query, ranker) AS reach\nFROM experiment",
            ),
            Step(
                "swaps",
                "Impressions and clicks by both ranks.",
                f"SELECT {comma(plan.segments, 'bucket', 'ranker', 'original', 'position AS rank', 'reach')}, "
                f"{counted(plan)}, COUNT(*) AS row_count\nFROM reaching\nGROUP BY {comma(keys)}",
            ),
        ]
    )


def bucket(plan: QueryPlan) -> str:
    """The bucket of a row's query, marked where there is none."""
    found = plan.dialect.bucket("query", plan.schema.types[plan.schema.query])
    return f"CASE WHEN query IS NULL THEN {MISSING_ID} ELSE {found} END"


def within(plan: QueryPlan) -> str:
    """Rows within the top M that show anything. The profile has shown that all of them can be counted."""
    return f"position <= {plan.max_rank} AND impressions > 0"


def counted(plan: QueryPlan) -> str:
    """Impressions and clicks, added up."""
    return f"{plan.dialect.total('impressions')} AS impressions, {plan.dialect.total('clicks')} AS clicks"


def random_order(plan: QueryPlan, ranker: int) -> str:
    """Return how far the places of (query, document) pairs agree between the page views on which a ranker showed them.

    Of the `pairs` that were shown several times, down to a `rank`: how often they were shown `again`, the products of
    their places on every two page views (`alike`), divided by views, and half the variance that these have in random
    order: if each document stood `freely`, and `together` with the others of its page, which they exclude: that adds
    1 / (results - 1). A place is the position less the mean of its page's positions, over their standard deviation: in
    random order it is 0 on average, and independent of that on any other page view, however deep pages are and
    whichever documents they hold.
    """
    paged = replace(plan, keep=(plan.schema.impression,)) if plan.schema.impression is not None else plan
    # Where page views have no id, the positions of all page views of the query stand for those of each: there are more
    # results than a page has places then, and fewer where results of a page are missing.
    page = f"OVER (PARTITION BY {comma('query', paged.kept)})"
    pair = comma(plan.segments, "query", "doc")
    results = f"LEAST(SUM(impressions) {page}, MAX(position) {page} - MIN(position) {page} + 1)"
    total = plan.dialect.total
    return render(
        [
            *shown_steps(paged, ranks=False),
            Step(
                "paged",
                "The ranker's results, with the positions of their page: how many, their sum, that of their squares.",
                f"SELECT {pair}, position, impressions, {results} AS results, 1e0 * SUM(impressions) {page} AS n,\n"
                f"  1e0 * SUM(impressions * position) {page} AS total,\n"
                f"  1e0 * SUM(impressions * position * position) {page} AS squares\n"
                f"FROM shown\nWHERE {within(plan)} AND ranker = {ranker}",
            ),
            Step(
                "placed",
                "The place of each on its page, of mean 0 and variance 1; a single result has none.",
                f"SELECT {pair}, position, impressions, 1e0 / (results - 1) AS excluded,\n"
                "  (n * position - total) / SQRT(n * squares - total * total) AS place\n"
                "FROM paged\nWHERE doc IS NOT NULL AND n * squares - total * total > 0 AND results > 1",
            ),
            Step(
                "again",
                "Pairs that were shown several times.",
                f"SELECT {pair}, MAX(position) AS low, {total('impressions')} AS n,\n"
                "  SUM(impressions * place) AS places, SUM(impressions * place * place) AS squares,\n"
                "  SUM(impressions * excluded) AS excluded\n"
                f"FROM placed\nGROUP BY {pair}\nHAVING SUM(impressions) > 1",
            ),
            Step(
                "random_order",
                "How far they come back to their places.",
                f"SELECT {comma(plan.segments, 'COUNT(*) AS pairs', 'COALESCE(MAX(low), 0) AS rank')},\n"
                f"  COALESCE({total('n - 1')}, 0) AS again,\n"
                "  COALESCE(SUM((places * places - squares) / n), 0e0) AS alike,\n"
                "  COALESCE(SUM(1e0 * (n - 1) / n), 0e0) AS freely,\n"
                "  COALESCE(SUM(1e0 * (n - 1) / n * (1 + excluded / n)), 0e0) AS together\nFROM again"
                + (f"\nGROUP BY {comma(plan.segments)}" if plan.segments else ""),
            ),
        ]
    )


def totals(plan: QueryPlan) -> str:
    """Return rows, impressions and clicks by bucket, ranker and rank."""
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "totals",
                "Impressions and clicks by bucket, ranker and rank.",
                f"SELECT {comma(plan.segments, f'{bucket(plan)} AS bucket', 'ranker', 'position AS rank')}, "
                f"{counted(plan)}, COUNT(*) AS row_count\nFROM shown\nWHERE {within(plan)}\n"
                f"GROUP BY {comma(plan.segments, bucket(plan), 'ranker', 'position')}",
            ),
        ]
    )


def pair_positions(plan: QueryPlan) -> str:
    """Return impressions and clicks of each (query, document) at each rank, and the bucket of its query.

    Pairs have a number, -1 without an id.
    """
    keys = comma(plan.segments, "query", "doc", "position")
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "cells",
                "Each (query, document) at each rank, all rankers together.",
                f"SELECT {keys}, {counted(plan)}\nFROM shown\nWHERE {within(plan)}\nGROUP BY {keys}",
            ),
            Step(
                "pair_positions",
                "The pairs as numbers without gaps.",
                f"SELECT {comma(plan.segments, f'{bucket(plan)} AS bucket', 'position AS rank')},\n"
                "  impressions, clicks,\n"
                "  CASE WHEN doc IS NOT NULL THEN DENSE_RANK() OVER (ORDER BY query, doc) - 1 ELSE -1 END AS item\n"
                "FROM cells",
            ),
        ]
    )


def feature_positions(plan: QueryPlan, features: Sequence[str]) -> str:
    """Return impressions and clicks of each vector of features, by number, at each rank, with its `feature_<i>`."""
    # As segments they pass through the first steps like any column of the user's, as text that tells a number exactly.
    carried = replace(plan, by=(*plan.by, *features))
    names = [f"feature_{i}" for i in range(len(features))]
    values = [f"{_number(text)} AS {name}" for text, name in zip(carried.segments[len(plan.by) :], names, strict=True)]
    keys = comma(plan.segments, names, "position")
    return render(
        [
            *shown_steps(carried, ranks=False),
            Step(
                "valued",
                "The features as numbers.",
                f"SELECT {comma(plan.segments, 'position', 'impressions', 'clicks')},\n  "
                + ",\n  ".join(values)
                + f"\nFROM shown\nWHERE {within(plan)}",
            ),
            Step(
                "cells",
                "Rows that the model cannot tell apart, at each rank.",
                f"SELECT {keys}, {counted(plan)}\nFROM valued\nGROUP BY {keys}",
            ),
            Step(
                "feature_positions",
                "The vectors as numbers without gaps.",
                f"SELECT {comma(plan.segments, 'position AS rank', 'impressions', 'clicks', names)},\n"
                f"  DENSE_RANK() OVER (ORDER BY {comma(names)}) - 1 AS item\nFROM cells",
            ),
        ]
    )


def _number(text: str) -> str:
    return f"CASE {text} WHEN 'true' THEN 1e0 WHEN 'false' THEN 0e0 ELSE CAST({text} AS DOUBLE) END"


def page_clicks(plan: QueryPlan) -> str:
    """Return the query: by bucket, page views, those with clicks, and pairs of clicks together and apart.

    Views of one query that show the same results at the same positions are views of one page. Two clicks at different
    positions of it are together if in one of its n views, and else apart; if each click came by itself, those apart,
    over n − 1, would be as many as those together. Both count in both orders. Likewise views on which everything was
    clicked, and as many of them as there would be if each click came by itself: n Π_k c_k / n.
    """
    schema, d = plan.schema, plan.dialect

    def column(name: str | None) -> str:
        return d.quote(name or "")

    click = column(schema.click)
    ranker = d.literal(ANY_RANKER) if schema.natural else column(schema.ranker)
    clicked = click if schema.drop_duplicates else d.click(click, schema.types[schema.click or ""])
    query = d.nan_to_null(column(schema.query), schema.types[schema.query])
    position = d.integer(column(schema.position), schema.types[schema.position])
    columns = [
        f"{query} AS query",
        f"{plan.ranker_number(ranker, schema.types[schema.ranker])} AS ranker",
        f"{column(schema.impression)} AS page",
        f"{column(schema.doc)} AS doc",
        f"{position} AS position",
        f"{clicked} AS clicked",
    ]
    # Of 31 bits, so that sums of many fit.
    content = f"{d.hash('doc, position')} & {2**31 - 1}"
    source = "deduplicated" if schema.drop_duplicates else plan.log
    bucket = d.bucket("query", schema.types[schema.query])
    ranks = range(1, plan.max_rank + 1)
    at = ",\n  ".join(f"SUM(CASE WHEN position = {k} THEN clicked ELSE 0 END) AS clicks_{k}" for k in ranks)
    at += ",\n  " + ",\n  ".join(f"SUM(CASE WHEN position = {k} THEN 1 ELSE 0 END) AS shown_{k}" for k in ranks)
    squares = _joined([f"SUM(clicks_{k}) * SUM(clicks_{k})" for k in ranks], "+")
    every = _joined(
        [
            f"(CASE WHEN MAX(shown_{k}) = 0 THEN 1 ELSE {d.cast(f'SUM(clicks_{k})', 'DOUBLE')} / COUNT(*) END)"
            for k in ranks
        ],
        "*",
    )
    full = f"shown >= {FEW_RESULTS}"
    steps = [
        Step(
            "results",
            "Results of page views that are known, in the top M.",
            f"SELECT * FROM (\nSELECT {', '.join(columns)}\nFROM {source}\n) r\nWHERE query IS NOT NULL AND ranker IS "
            f"NOT NULL AND page IS NOT NULL AND position BETWEEN 1 AND {plan.max_rank} AND clicked IN (0, 1)",
        ),
        Step(
            "pages",
            "Each page view with what it shows, as a number, and its clicks.",
            f"SELECT query, ranker, page, COUNT(*) AS shown, SUM({d.cast(content, 'BIGINT')}) AS content, "
            f"SUM(clicked) AS clicks,\n  {at}\nFROM results\nGROUP BY query, ranker, page",
        ),
        Step(
            "alike",
            "Page views that show the same page, and how their clicks fall together.",
            "SELECT query, COUNT(*) AS views, SUM(clicks) AS clicks, SUM(clicks * (clicks - 1)) AS together,\n"
            f"  {squares} AS squares,\n"
            "  SUM(CASE WHEN clicks > 0 THEN 1 ELSE 0 END) AS clicked,\n"
            "  SUM(CASE WHEN clicks > 1 THEN 1 ELSE 0 END) AS several,\n"
            f"  SUM(CASE WHEN {full} THEN 1 ELSE 0 END) AS full_pages,\n"
            f"  SUM(CASE WHEN {full} AND clicks = shown THEN 1 ELSE 0 END) AS all_clicked,\n"
            f"  SUM(CASE WHEN {full} AND clicks = shown - 1 THEN 1 ELSE 0 END) AS nearly_all,\n"
            f"  {every} AS every_one\n"
            "FROM pages\nGROUP BY query, ranker, content",
        ),
        Step(
            "answer",
            "All of it by bucket.",
            f"SELECT {bucket} AS bucket, {d.total('views')}, {d.total('clicked')}, {d.total('several')}, "
            f"{d.total('full_pages')}, {d.total('all_clicked')}, {d.total('nearly_all')},\n"
            "  SUM(CASE WHEN views > 1 THEN together ELSE 0 END),\n"
            f"  SUM(CASE WHEN views > 1 THEN {d.cast('clicks * clicks - squares - together', 'DOUBLE')} / (views - 1) "
            "ELSE 0 END),\n"
            "  SUM(CASE WHEN views > 1 THEN all_clicked ELSE 0 END),\n"
            "  SUM(CASE WHEN views > 1 AND full_pages > 0 THEN views * every_one ELSE 0 END)\n"
            f"FROM alike\nGROUP BY {bucket}\nORDER BY 1",
        ),
    ]
    return render([deduplicated_step(plan), *steps] if schema.drop_duplicates else steps)


def _joined(terms: list[str], sign: str) -> str:
    """Return terms added or multiplied, half by half: a row of a thousand is deeper than engines read."""
    if len(terms) <= 16:
        return f" {sign} ".join(terms)
    half = len(terms) // 2
    return f"({_joined(terms[:half], sign)}) {sign} ({_joined(terms[half:], sign)})"
