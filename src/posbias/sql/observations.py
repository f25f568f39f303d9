"""Queries for estimators that are not fitted on a harvest, and for clicks within page views.

swaps                a swap experiment: clicks by the rank before the swap and the rank shown
random_order         whether a ranker shows results in random order
totals               clicks by position
pair_positions       clicks by (query, document) and position, for the position-based model by EM
feature_positions    clicks by feature vector and position, for Regression EM
page_clicks          how clicks fall together on page views
click_histogram      page views by their results and clicks
largest_queries      the query with the most clicks of each bucket
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from posbias.logs.schema import ANY_RANKER
from posbias.sql.exposures import MISSING_ID, in_top_ranks
from posbias.sql.plan import QueryPlan, Step, comma, deduplicated_step, render, shown_steps

# The `original` rank of a row whose value is not a rank. Rows without a value are not part of the experiment.
NO_RANK = -1


def swaps(plan: QueryPlan, original: str) -> str:
    """Return the query of a swap experiment: rows, impressions and clicks by bucket, ranker, original rank and rank.

    `reach` is the last rank of the query: a swap with a rank beyond it is impossible. `original` names the column of
    the log with the rank before the swap.
    """
    # As a segment the column passes through the first steps as text, whatever its type.
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
                f"{_bucket(plan)} AS bucket,\n"
                f"  CASE WHEN {number} >= 1 THEN {number} ELSE {NO_RANK} END AS original\n"
                f"FROM shown\nWHERE {in_top_ranks(plan)} AND {text} IS NOT NULL",
            ),
            Step(
                "with_reach",
                "The last rank of the query: a rank beyond it cannot be swapped.",
                "SELECT *, MAX(position) OVER (PARTITION BY query, ranker) AS reach\nFROM experiment",
            ),
            Step(
                "swaps",
                "Impressions and clicks by the original rank and the rank shown.",
                f"SELECT {comma(plan.segments, 'bucket', 'ranker', 'original', 'position AS rank', 'reach')}, "
                f"{_counts(plan)}, COUNT(*) AS row_count\nFROM with_reach\nGROUP BY {comma(keys)}",
            ),
        ]
    )


def _bucket(plan: QueryPlan) -> str:
    """Return SQL for the bucket of a row's query, MISSING_ID where there is none."""
    bucket = plan.dialect.bucket("query", plan.schema.types[plan.schema.query])
    return f"CASE WHEN query IS NULL THEN {MISSING_ID} ELSE {bucket} END"


def _counts(plan: QueryPlan) -> str:
    """Return SQL for the sums of impressions and clicks."""
    return f"{plan.dialect.total('impressions')} AS impressions, {plan.dialect.total('clicks')} AS clicks"


def random_order(plan: QueryPlan, ranker: int) -> str:
    """Return the query of whether a ranker (by its number) shows results in random order.

    The *place* of a result is its position minus the mean of its page's positions, divided by their standard deviation.
    In random order its mean is 0, and it is independent between page views, whatever their depth and documents. The
    answer is about (query, document) pairs that were shown several times:

        pairs       how many there are
        rank        the deepest position at which they were shown
        repeats     how often they were shown again
        product     the sum over pairs of the products of places on every two page views, divided by page views
        variance_independent    half the variance of that sum in random order, if documents were placed independently
        variance_exclusive      the same if two documents cannot have one position: it adds 1 / (results - 1)
    """
    paged = replace(plan, keep=(plan.schema.impression,)) if plan.schema.impression is not None else plan
    # Without ids of page views, all page views of a query are taken as one page. It has more results than positions
    # then, or fewer where results are missing, so `results` is the smaller of both numbers.
    page = f"OVER (PARTITION BY {comma('query', paged.kept)})"
    pair = comma(plan.segments, "query", "doc")
    results = f"LEAST(SUM(impressions) {page}, MAX(position) {page} - MIN(position) {page} + 1)"
    total = plan.dialect.total
    return render(
        [
            *shown_steps(paged, ranks=False),
            Step(
                "page_positions",
                "The ranker's results with the positions of their page: how many, their sum, the sum of their squares.",
                f"SELECT {pair}, position, impressions, {results} AS results, 1e0 * SUM(impressions) {page} AS n,\n"
                f"  1e0 * SUM(impressions * position) {page} AS total,\n"
                f"  1e0 * SUM(impressions * position * position) {page} AS squares\n"
                f"FROM shown\nWHERE {in_top_ranks(plan)} AND ranker = {ranker}",
            ),
            Step(
                "places",
                "The place of each result on its page, of mean 0 and variance 1; a single result has none.",
                f"SELECT {pair}, position, impressions, 1e0 / (results - 1) AS excluded,\n"
                "  (n * position - total) / SQRT(n * squares - total * total) AS place\n"
                "FROM page_positions\nWHERE doc IS NOT NULL AND n * squares - total * total > 0 AND results > 1",
            ),
            Step(
                "repeated_pairs",
                "Pairs that were shown several times.",
                f"SELECT {pair}, MAX(position) AS low, {total('impressions')} AS n,\n"
                "  SUM(impressions * place) AS places, SUM(impressions * place * place) AS squares,\n"
                "  SUM(impressions * excluded) AS excluded\n"
                f"FROM places\nGROUP BY {pair}\nHAVING SUM(impressions) > 1",
            ),
            Step(
                "random_order",
                "How far they come back to the same places.",
                f"SELECT {comma(plan.segments, 'COUNT(*) AS pairs', 'COALESCE(MAX(low), 0) AS rank')},\n"
                f"  COALESCE({total('n - 1')}, 0) AS repeats,\n"
                "  COALESCE(SUM((places * places - squares) / n), 0e0) AS product,\n"
                "  COALESCE(SUM(1e0 * (n - 1) / n), 0e0) AS variance_independent,\n"
                "  COALESCE(SUM(1e0 * (n - 1) / n * (1 + excluded / n)), 0e0) AS variance_exclusive\n"
                "FROM repeated_pairs" + (f"\nGROUP BY {comma(plan.segments)}" if plan.segments else ""),
            ),
        ]
    )


def totals(plan: QueryPlan) -> str:
    """Return the query of rows, impressions and clicks by bucket, ranker and rank."""
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "totals",
                "Impressions and clicks by bucket, ranker and rank.",
                f"SELECT {comma(plan.segments, f'{_bucket(plan)} AS bucket', 'ranker', 'position AS rank')}, "
                f"{_counts(plan)}, COUNT(*) AS row_count\nFROM shown\nWHERE {in_top_ranks(plan)}\n"
                f"GROUP BY {comma(plan.segments, _bucket(plan), 'ranker', 'position')}",
            ),
        ]
    )


def pair_positions(plan: QueryPlan) -> str:
    """Return the query of impressions and clicks of each (query, document) at each rank, and of its bucket.

    `item` is the number of the pair, -1 for a pair without an id.
    """
    keys = comma(plan.segments, "query", "doc", "position")
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "cells",
                "Each (query, document) at each rank, all rankers together.",
                f"SELECT {keys}, {_counts(plan)}\nFROM shown\nWHERE {in_top_ranks(plan)}\nGROUP BY {keys}",
            ),
            Step(
                "pair_positions",
                "The number of each pair, without gaps.",
                f"SELECT {comma(plan.segments, f'{_bucket(plan)} AS bucket', 'position AS rank')},\n"
                "  impressions, clicks,\n"
                "  CASE WHEN doc IS NOT NULL THEN DENSE_RANK() OVER (ORDER BY query, doc) - 1 ELSE -1 END AS item\n"
                "FROM cells",
            ),
        ]
    )


def feature_positions(plan: QueryPlan, features: Sequence[str]) -> str:
    """Return the query of impressions and clicks of each feature vector at each rank.

    `item` is the number of the vector, and `feature_<i>` are its values.
    """
    # As segments the features pass through the first steps as text, which holds a number exactly.
    carried = replace(plan, by=(*plan.by, *features))
    names = [f"feature_{i}" for i in range(len(features))]
    values = [f"{_number(text)} AS {name}" for text, name in zip(carried.segments[len(plan.by) :], names, strict=True)]
    keys = comma(plan.segments, names, "position")
    return render(
        [
            *shown_steps(carried, ranks=False),
            Step(
                "features",
                "The features as numbers.",
                f"SELECT {comma(plan.segments, 'position', 'impressions', 'clicks')},\n  "
                + ",\n  ".join(values)
                + f"\nFROM shown\nWHERE {in_top_ranks(plan)}",
            ),
            Step(
                "cells",
                "Each feature vector at each rank.",
                f"SELECT {keys}, {_counts(plan)}\nFROM features\nGROUP BY {keys}",
            ),
            Step(
                "feature_positions",
                "The number of each vector, without gaps.",
                f"SELECT {comma(plan.segments, 'position AS rank', 'impressions', 'clicks', names)},\n"
                f"  DENSE_RANK() OVER (ORDER BY {comma(names)}) - 1 AS item\nFROM cells",
            ),
        ]
    )


def _number(text: str) -> str:
    return f"CASE {text} WHEN 'true' THEN 1e0 WHEN 'false' THEN 0e0 ELSE CAST({text} AS DOUBLE) END"


def unit_counts(plan: QueryPlan) -> str:
    """Return the query of how many units each ranker served, by bucket of units.

    A unit counts once: one that several rankers served counts for each by its share of the impressions.
    """
    d, schema = plan.dialect, plan.schema
    shown = d.cast("SUM(impressions)", "DOUBLE")
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "served",
                "The impressions of each unit by ranker.",
                f"SELECT unit, ranker, {shown} AS shown\nFROM shown\n"
                "WHERE unit IS NOT NULL AND ranker IS NOT NULL AND impressions > 0\nGROUP BY unit, ranker",
            ),
            Step(
                "shares",
                "The share of each ranker in the impressions of a unit.",
                "SELECT unit, ranker, shown / SUM(shown) OVER (PARTITION BY unit) AS share\nFROM served",
            ),
            Step(
                "unit_counts",
                "Units by bucket and ranker.",
                f"SELECT {d.bucket('unit', schema.types[schema.unit or ''])} AS bucket, ranker, SUM(share) AS units\n"
                "FROM shares\nGROUP BY 1, 2",
            ),
        ]
    )


def page_clicks(plan: QueryPlan) -> str:
    """Return the query of how clicks fall together on page views, by bucket.

    Page views of a query that show the same results at the same positions are views of one page. Two clicks at
    different positions of a page with n views are *together* if they are in one view, and *apart* if not. If clicks
    were independent, the pairs apart divided by n − 1 would be as many as the pairs together. Pairs count in both
    orders.
    """
    d = plan.dialect
    # 31 bits, so that sums of many hashes fit.
    content = f"{d.hash('doc, position')} & {2**31 - 1}"
    ranks = range(1, plan.max_rank + 1)
    by_rank = ",\n  ".join(f"SUM(CASE WHEN position = {k} THEN clicked ELSE 0 END) AS clicks_{k}" for k in ranks)
    squares = _sum([f"SUM(clicks_{k}) * SUM(clicks_{k})" for k in ranks])
    return render(
        [
            *_result_steps(plan),
            Step(
                "pages",
                "Each page view with a hash of what it shows, and its clicks.",
                f"SELECT query, ranker, page, SUM({d.cast(content, 'BIGINT')}) AS content, SUM(clicked) AS clicks,\n"
                f"  {by_rank}\nFROM results\nGROUP BY query, ranker, page",
            ),
            Step(
                "same_page",
                "Page views that show the same page, and how their clicks fall together.",
                "SELECT query, COUNT(*) AS views, SUM(clicks) AS clicks, SUM(clicks * (clicks - 1)) AS together,\n"
                f"  {squares} AS squares,\n"
                "  SUM(CASE WHEN clicks > 0 THEN 1 ELSE 0 END) AS clicked,\n"
                "  SUM(CASE WHEN clicks > 1 THEN 1 ELSE 0 END) AS several\n"
                "FROM pages\nGROUP BY query, ranker, content",
            ),
            Step(
                "answer",
                "The same by bucket.",
                f"SELECT {_bucket(plan)} AS bucket, {d.total('views')}, {d.total('clicked')}, {d.total('several')},\n"
                "  SUM(CASE WHEN views > 1 THEN together ELSE 0 END),\n"
                f"  SUM(CASE WHEN views > 1 THEN {d.cast('clicks * clicks - squares - together', 'DOUBLE')} / "
                f"(views - 1) ELSE 0 END)\nFROM same_page\nGROUP BY {_bucket(plan)}\nORDER BY 1",
            ),
        ]
    )


def click_histogram(plan: QueryPlan) -> str:
    """Return the query of the number of page views by results and clicks."""
    return render(
        [
            *_result_steps(plan),
            Step(
                "pages",
                "Each page view with its results and clicks.",
                "SELECT COUNT(*) AS shown, SUM(clicked) AS clicks\nFROM results\nGROUP BY query, ranker, page",
            ),
            Step(
                "answer",
                "How many there are.",
                "SELECT shown, clicks, COUNT(*) AS page_views\nFROM pages\nGROUP BY shown, clicks",
            ),
        ]
    )


def click_order(plan: QueryPlan, one_in: int) -> str:
    """Return the query of how far the clicks of page views follow rank and document, by the clicks of the page view.

    A result's score is the click rate of its rank, times how often its document is clicked on other page views beside
    what their ranks lead to expect. `a` is the covariance of clicks and scores on a page view, `b` the variance of
    that sum if as many clicks fell on any of its results. Queries are sampled: one in `one_in`, a power of 2.
    """
    d = plan.dialect
    sampled = f" AND {d.hash('query')} & {one_in - 1} = 0" if one_in > 1 else ""
    n, clicks = "COUNT(*)", "SUM(clicked)"
    a = f"SUM(score * clicked) - SUM(score) * {clicks} / {n}"
    # Spark divides before it leaves out pages of one result.
    chance = f"{clicks} * ({n} - {clicks}) / NULLIF({n} * ({n} - 1), 0)"
    b = f"(SUM(score * score) - SUM(score) * SUM(score) / {n}) * {chance}"
    return render(
        [
            *_result_steps(plan),
            Step(
                "sampled",
                "Results of some queries, with numbers for the page view and the document of the query.",
                # Numbers are grouped and joined faster than texts.
                f"SELECT {d.hash('query, ranker, page')} AS page, {d.hash('query, doc')} AS doc, position, clicked\n"
                f"FROM results\nWHERE doc IS NOT NULL{sampled}",
            ),
            Step(
                "rates",
                "The click rate of each position.",
                f"SELECT position, AVG({d.cast('clicked', 'DOUBLE')}) AS rate\nFROM sampled\nGROUP BY position",
            ),
            Step(
                "expected",
                "Each result with the click rate of its position.",
                "SELECT s.page, s.doc, s.clicked, r.rate\nFROM sampled s JOIN rates r ON r.position = s.position",
            ),
            Step(
                "documents",
                "Clicks of each document of a query, and those expected at its positions.",
                "SELECT doc, SUM(clicked) AS clicks, SUM(rate) AS expected\nFROM expected\nGROUP BY doc",
            ),
            Step(
                "scored",
                "Each result with its score from other page views.",
                "SELECT e.page, e.clicked,\n"
                "  e.rate * (d.clicks - e.clicked + 1) / (d.expected - e.rate + 1) AS score\n"
                "FROM expected e JOIN documents d ON d.doc = e.doc",
            ),
            Step(
                "pages",
                "How far the clicks of each page view follow the scores.",
                f"SELECT {clicks} AS clicks, {a} AS a, {b} AS b\nFROM scored\nGROUP BY page\n"
                f"HAVING {clicks} > 0 AND {clicks} < {n}",
            ),
            Step(
                "answer",
                "Sums by the number of clicks.",
                "SELECT clicks, COUNT(*) AS page_views, SUM(a) AS a, SUM(b) AS b, SUM(a * a) AS aa, SUM(a * b) AS ab,\n"
                "  SUM(b * b) AS bb\nFROM pages\nGROUP BY clicks\nORDER BY clicks",
            ),
        ]
    )


def _result_steps(plan: QueryPlan) -> list[Step]:
    """Return the steps that end in `results`: the results in the top M of known page views."""
    schema, d = plan.schema, plan.dialect

    def column(name: str | None) -> str:
        return d.quote(name or "")

    click = column(schema.click)
    ranker = d.literal(ANY_RANKER) if schema.natural else column(schema.ranker)
    clicked = click if schema.drop_duplicates else d.click(click, schema.types[schema.click or ""])
    columns = [
        f"{d.nan_to_null(column(schema.query), schema.types[schema.query])} AS query",
        f"{plan.ranker_number(ranker, schema.types[schema.ranker])} AS ranker",
        f"{column(schema.impression)} AS page",
        f"{column(schema.doc)} AS doc",
        f"{d.integer(column(schema.position), schema.types[schema.position])} AS position",
        f"{clicked} AS clicked",
    ]
    source = "deduplicated" if schema.drop_duplicates else plan.log
    results = Step(
        "results",
        "Results in the top M of known page views.",
        f"SELECT * FROM (\nSELECT {', '.join(columns)}\nFROM {source}\n) r\nWHERE query IS NOT NULL AND ranker IS "
        f"NOT NULL AND page IS NOT NULL AND position BETWEEN 1 AND {plan.max_rank} AND clicked IN (0, 1)",
    )
    return [deduplicated_step(plan), results] if schema.drop_duplicates else [results]


def _sum(terms: list[str]) -> str:
    """Return terms added in a balanced tree: engines cannot parse a chain of a thousand terms."""
    if len(terms) <= 16:
        return " + ".join(terms)
    half = len(terms) // 2
    return f"({_sum(terms[:half])}) + ({_sum(terms[half:])})"


def largest_queries(plan: QueryPlan) -> str:
    """Return the query of the most clicked query of each bucket: its id, its clicks, and the clicks of the bucket."""
    d = plan.dialect
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "queries",
                "The clicks of each query.",
                f"SELECT query, {_bucket(plan)} AS bucket, {d.total('clicks')} AS clicks\nFROM shown\n"
                f"WHERE {in_top_ranks(plan)} AND query IS NOT NULL\nGROUP BY query",
            ),
            Step(
                "compared",
                "Beside the most clicks of a query of the same bucket.",
                "SELECT query, bucket, clicks, MAX(clicks) OVER (PARTITION BY bucket) AS most\nFROM queries",
            ),
            Step(
                "answer",
                "One row for each bucket.",
                f"SELECT bucket, MIN(CASE WHEN clicks = most THEN {d.as_text('query')} END), MAX(most), SUM(clicks)\n"
                "FROM compared\nGROUP BY bucket",
            ),
        ]
    )
