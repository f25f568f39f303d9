"""What is to be known of a ranking before it is judged: rows that cannot be used, and what the log never showed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from posbias.sql.credits import Ranked, same_ids
from posbias.sql.dialect import Dialect
from posbias.sql.exposures import usable
from posbias.sql.shown import Plan, shown
from posbias.sql.steps import Step, render


def ranking_rows(d: Dialect, one: Ranked) -> str:
    """Return how many rows a ranking has: in all, without an id, with no number for a score, with one; and its ends."""
    raw = d.as_text(d.quote(one.score))
    # By its text, as ids are: to SQL a NaN is a number like any other, and above all of them.
    odd = f"{d.is_nan(d.quote(one.score))} OR ({one.number(d)} IS NULL AND TRIM({raw}) <> '')"
    return render(
        [
            Step(
                "told",
                "The rows of the ranking.",
                f"{one.scored(d)}, CASE WHEN {odd} THEN 1 END AS odd\nFROM {one.table}",
            ),
            Step(
                "ranking_rows",
                "How many can be used.",
                "SELECT COUNT(*), COUNT(CASE WHEN query IS NULL OR doc IS NULL THEN 1 END), COUNT(odd), COUNT(score),\n"
                "  MIN(score), MAX(score)\nFROM told",
            ),
        ]
    )


def repeated(d: Dialect, one: Ranked) -> str:
    """Return the (query, document) pairs that a ranking has several times: how many, and one of them."""
    return render(
        [
            Step(
                "pairs",
                "How often each is there.",
                f"SELECT query, doc, COUNT(*) AS times\nFROM ({one.scored(d)} FROM {one.table}) t\n"
                "GROUP BY query, doc\nHAVING COUNT(*) > 1",
            ),
            Step(
                "repeated",
                "How many are there several times, and an example.",
                f"SELECT COUNT(*), MIN({d.as_text('query')}), MIN(times)\nFROM pairs",
            ),
        ]
    )


def unseen(plan: Plan, ranked: Sequence[Ranked], top: int) -> str:
    """Return what rankings that are tables have in their top ranks, by page views of their queries.

    By the number of a ranking: what would be shown there, and what of it never was.
    """
    plan = replace(plan, schema=replace(plan.schema, window=None), by=())
    inside = f"{usable(plan)} AND query IS NOT NULL AND doc IS NOT NULL"
    steps, answers = [], []
    for j, one in enumerate(ranked):
        if not one.table:
            continue
        steps += [
            Step(
                f"placed_{j}",
                "Whether a document stands in the top of a ranking, by all documents that it has.",
                f"SELECT query, doc, score,\n  CASE WHEN ROW_NUMBER() OVER (PARTITION BY query ORDER BY score DESC) "
                f"<= {top} THEN 1e0 ELSE 0e0 END AS inside\n"
                f"FROM ({one.scored(plan.dialect)} FROM {one.table}) r\nWHERE score IS NOT NULL",
            ),
            Step(
                f"top_{j}",
                "Documents that a ranking does not tell apart share the places that they have in its top.",
                f"SELECT query, doc, AVG(inside) OVER (PARTITION BY query, score) AS part\nFROM placed_{j}",
            ),
        ]
        answers.append(
            f"SELECT {j} AS ranking, SUM(v.views * t.part) AS views,\n"
            "  SUM(CASE WHEN s.doc IS NULL THEN v.views * t.part ELSE 0e0 END) AS never\n"
            f"FROM top_{j} t\nJOIN views v ON {same_ids(plan, one, 'v', 't', ['query'])}\n"
            f"LEFT JOIN seen s ON {same_ids(plan, one, 's', 't')}\nWHERE t.part > 0"
        )
    return render(
        [
            *shown(plan, ranks=False),
            Step("seen", "What was shown.", f"SELECT DISTINCT query, doc\nFROM shown\nWHERE {inside}"),
            Step(
                "views",
                "The page views of each query: what was shown at its busiest rank.",
                "SELECT query, MAX(shown) AS views\nFROM (\n  SELECT query, position, SUM(impressions) AS shown "
                f"FROM shown WHERE {inside} GROUP BY query, position\n) r\nGROUP BY query",
            ),
            *steps,
            Step("unseen", "What would be shown, and what of it never was.", "\nUNION ALL\n".join(answers)),
        ]
    )
