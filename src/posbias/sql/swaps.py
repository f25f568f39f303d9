"""What a swap experiment showed: clicks by the rank that a document had and the rank at which it was shown."""

from __future__ import annotations

from dataclasses import replace

from posbias.sql.observations import bucket, counted, within
from posbias.sql.shown import Plan, comma, shown
from posbias.sql.steps import Step, render

# What `original` holds for a value that is no rank. Rows without any value are no part of the experiment.
NO_RANK = -1


def swaps(plan: Plan, original: str) -> str:
    """Return rows, impressions and clicks by bucket, ranker, original rank, rank shown, and the page's last rank."""
    # As a segment it passes through the first steps like any column of the user's, as text.
    carried = replace(plan, by=(*plan.by, original))
    text = carried.segments[-1]
    number = plan.dialect.integer(text, "VARCHAR")
    keys = [*plan.segments, "bucket", "ranker", "original", "position", "reach"]
    return render(
        [
            *shown(carried, ranks=False),
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
