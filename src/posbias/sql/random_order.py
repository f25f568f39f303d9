"""Whether a ranker shows results in random order: how many it showed again and again at one rank only."""

from __future__ import annotations

from posbias.sql.observations import within
from posbias.sql.shown import Plan, comma, shown
from posbias.sql.steps import Step, render

# A result that stood at one rank so often stands there by no chance: more views are as good as so many.
_MOST_VIEWS = 16


def random_order(plan: Plan, ranker: int) -> str:
    """Return how many (query, document) pairs a ranker showed several times, and how many of them at one rank only.

    By the last rank that it shows of the query (`rank`), since few results have few places, and by views.
    """
    pair = comma(plan.segments, "query", "doc")
    keys = comma(plan.segments, "reach", "views")
    return render(
        [
            *shown(plan, ranks=False),
            Step(
                "reaching",
                "The ranker's results, with the last rank that the query has.",
                f"SELECT {pair}, position, impressions, MAX(position) OVER (PARTITION BY query) AS reach\n"
                f"FROM shown\nWHERE {within(plan)} AND ranker = {ranker} AND doc IS NOT NULL",
            ),
            Step(
                "placed",
                "How often it showed each, and between which ranks.",
                f"SELECT {pair}, MAX(reach) AS reach, {plan.dialect.total('impressions')} AS n, "
                f"MIN(position) AS low, MAX(position) AS high\nFROM reaching\nGROUP BY {pair}",
            ),
            Step(
                "again",
                "Those that were shown again.",
                f"SELECT {comma(plan.segments, 'low', 'high', 'reach')}, "
                f"CASE WHEN n < {_MOST_VIEWS} THEN n ELSE {_MOST_VIEWS} END AS views\n"
                "FROM placed\nWHERE n > 1 AND reach > 1",
            ),
            Step(
                "random_order",
                "How many there are, and how many at one rank only.",
                f"SELECT {comma(plan.segments, 'reach AS rank', 'views')}, COUNT(*) AS pairs, "
                f"COUNT(CASE WHEN low = high THEN 1 END) AS fixed\nFROM again\nGROUP BY {keys}",
            ),
        ]
    )
