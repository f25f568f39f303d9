"""Ranks that some page views leave vacant, as for an advertisement: where documents stand among those of their page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from posbias.sql.exposures import usable
from posbias.sql.shown import Plan, shown
from posbias.sql.steps import Step, render

# Whether page views show all ranks down to one that is the same for all, and else whether each row tells its own.
Pages = Literal["whole", "known", "unknown"]


def page_shapes(plan: Plan) -> str:
    """Return the results of no page view, the page views, those with a vacant rank, and how few and many they show."""
    paged = replace(plan, schema=replace(plan.schema, window=None), by=(), keep=(plan.schema.impression or "",))
    return render(
        [
            *shown(paged, ranks=False),
            Step(
                "pages",
                "What each page view shows, and how far down.",
                f"SELECT kept_0 AS page, COUNT(*) AS n, MAX(position) AS last\nFROM shown\nWHERE {counted_rows(plan)}\n"
                "GROUP BY query, kept_0",
            ),
            Step(
                "shapes",
                "Of all of them.",
                "SELECT COALESCE(SUM(CASE WHEN page IS NULL THEN n ELSE 0 END), 0), COUNT(*), "
                "COALESCE(SUM(CASE WHEN n < last THEN 1 ELSE 0 END), 0), MIN(n), MAX(n)\nFROM pages",
            ),
        ]
    )


def counted_rows(plan: Plan) -> str:
    """Return which rows of `shown` count."""
    return f"{usable(plan)} AND query IS NOT NULL AND doc IS NOT NULL"


def moved_up(inside: str, gain: Callable[[str], str], *, by_page: bool) -> list[Step]:
    """Return the steps that end in `moved`: what documents are worth below ranks that some page views leave vacant.

    A page view ranks what it shows: below an advertisement documents are one rank higher than they stand. `inside` says
    which rows of `shown` count; `busy` tells how often each rank of a query was shown, `ranks` of which documents, and
    `views` the page views of a query.
    """
    counted = Step(
        "counted",
        "Which of its ranks each is, and how often one from there on was shown.",
        "SELECT b.*, v.views, ROW_NUMBER() OVER (PARTITION BY b.query ORDER BY rank) AS nth,\n"
        "  MAX(n) OVER (PARTITION BY b.query ORDER BY rank DESC) AS later\nFROM busy b\n"
        "JOIN views v ON b.query = v.query",
    )
    return [counted, *(_by_page(inside, gain) if by_page else _on_average(gain))]


def _by_page(inside: str, gain: Callable[[str], str]) -> list[Step]:
    """Return the steps where each row tells its page view, as the column that comes along.

    What a page of m documents leaves of all ranks is worth G − Σ_{k≤m} λ(k), and its D − m others share it: `slots` is
    1 / (D − m), and `above` the sum times that. G is known later.
    """
    page = "OVER (PARTITION BY s.query, page)"
    return [
        Step(
            "stood",
            "Where documents stand among those of their page, for queries of which some page lacks a rank of others.",
            "SELECT query, doc, position AS rank, kept_0 AS page,\n"
            "  DENSE_RANK() OVER (PARTITION BY query, kept_0 ORDER BY position) AS place\nFROM shown\n"
            f"WHERE {inside} AND query IN (SELECT query FROM counted WHERE n < views OR nth <> rank)",
        ),
        Step(
            "paged",
            "What they are worth there, and what their page leaves to others.",
            f"SELECT s.*, {gain('place')} AS worth, SUM({gain('place')}) {page} AS page_worth,\n"
            f"  1e0 / COUNT(*) {page} AS part, COALESCE(1e0 / NULLIF(z.docs - COUNT(*) {page}, 0), 0e0) AS slots\n"
            "FROM stood s\nJOIN (SELECT query, COUNT(DISTINCT doc) AS docs FROM ranks GROUP BY query) z "
            "ON s.query = z.query",
        ),
        Step(
            "moved",
            "By document and rank.",
            "SELECT query, doc, rank, AVG(worth) AS worth, SUM(slots) AS slots, SUM(slots * page_worth) AS above\n"
            "FROM paged\nGROUP BY query, doc, rank",
        ),
        Step(
            "below",
            "What all pages of a query leave, each page once.",
            "SELECT query, SUM(part * slots) AS slots, SUM(part * slots * page_worth) AS above\nFROM paged\n"
            "GROUP BY query",
        ),
    ]


def _on_average(gain: Callable[[str], str]) -> list[Step]:
    """Return the steps where page views are not known: min(1, n_j / n_k) of those with a rank k are taken to have j."""
    between = "place - FLOOR(place)"
    return [
        Step(
            "vacant",
            "The documents that are missing above a rank, on average.",
            "SELECT c.query, c.rank, SUM(1e0 - 1e0 * v.n / c.n) AS missing\nFROM counted v\n"
            "JOIN counted c ON v.query = c.query AND v.rank < c.rank AND v.n < c.n\nWHERE v.n < v.later\n"
            "GROUP BY c.query, c.rank",
        ),
        Step(
            "places",
            "Ranks that are higher than they stand.",
            "SELECT c.query, c.rank, c.nth - COALESCE(v.missing, 0e0) AS place\nFROM counted c\n"
            "LEFT JOIN vacant v ON c.query = v.query AND c.rank = v.rank\n"
            "WHERE c.nth <> c.rank OR v.missing IS NOT NULL",
        ),
        Step(
            "moved",
            "What they are worth there; between two ranks, a part of each.",
            f"SELECT r.query, r.doc, r.rank, (1e0 - ({between})) * {gain('FLOOR(place)')}\n"
            f"    + ({between}) * {gain('(FLOOR(place) + 1)')} AS worth\nFROM places m\n"
            "JOIN ranks r ON m.query = r.query AND m.rank = r.rank",
        ),
    ]
