"""Whether a ranker shows results in random order: how far results that it shows again come back to their places."""

from __future__ import annotations

from dataclasses import replace

from posbias.sql.observations import within
from posbias.sql.shown import Plan, comma, shown
from posbias.sql.steps import Step, render


def random_order(plan: Plan, ranker: int) -> str:
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
            *shown(paged, ranks=False),
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
