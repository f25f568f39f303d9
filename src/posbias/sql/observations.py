"""What estimators that fit on a log read of it: clicks by position, and by what is to explain them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from posbias.sql.shown import Plan, comma, shown
from posbias.sql.steps import Step, render

# What `bucket` holds for rows that name no query.
NAMELESS = -1


def within(plan: Plan) -> str:
    """Rows within the top M that show anything. The profile has shown that all of them can be counted."""
    return f"position <= {plan.max_rank} AND impressions > 0"


def counted(plan: Plan) -> str:
    """Impressions and clicks, added up."""
    return f"{plan.dialect.total('impressions')} AS impressions, {plan.dialect.total('clicks')} AS clicks"


def bucket(plan: Plan) -> str:
    """The bucket of a row's query, marked where there is none."""
    found = plan.dialect.bucket("query", plan.schema.types[plan.schema.query])
    return f"CASE WHEN query IS NULL THEN {NAMELESS} ELSE {found} END"


def totals(plan: Plan) -> str:
    """Return rows, impressions and clicks by bucket, ranker and rank."""
    return render(
        [
            *shown(plan, ranks=False),
            Step(
                "totals",
                "Impressions and clicks by bucket, ranker and rank.",
                f"SELECT {comma(plan.segments, f'{bucket(plan)} AS bucket', 'ranker', 'position AS rank')}, "
                f"{counted(plan)}, COUNT(*) AS row_count\nFROM shown\nWHERE {within(plan)}\n"
                f"GROUP BY {comma(plan.segments, bucket(plan), 'ranker', 'position')}",
            ),
        ]
    )


def pair_positions(plan: Plan) -> str:
    """Return impressions and clicks of each (query, document) at each rank, and the bucket of its query.

    Pairs have a number, -1 without an id.
    """
    keys = comma(plan.segments, "query", "doc", "position")
    return render(
        [
            *shown(plan, ranks=False),
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


def feature_positions(plan: Plan, features: Sequence[str]) -> str:
    """Return impressions and clicks of each vector of features, by number, at each rank, with its `feature_<i>`."""
    # As segments they pass through the first steps like any column of the user's, as text that tells a number exactly.
    carried = replace(plan, by=(*plan.by, *features))
    names = [f"feature_{i}" for i in range(len(features))]
    values = [f"{_number(text)} AS {name}" for text, name in zip(carried.segments[len(plan.by) :], names, strict=True)]
    keys = comma(plan.segments, names, "position")
    return render(
        [
            *shown(carried, ranks=False),
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
