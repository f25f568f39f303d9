"""The harvest of a replay that names no ranker, in one pass with few sums: counts by rank as digits of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from posbias.sql.codes import Digits
from posbias.sql.exposures import NAMELESS, cells, usable
from posbias.sql.shown import Plan, comma, shown
from posbias.sql.steps import Step, render

# What `bucket` holds for pairs that were shown too often for their digits.
BUSY = -3
# A digit of six bits counts to 63, and ten of them make a number of 64 bits. Most pairs are shown less often.
_BITS, _ROOM = 6, 60


def digits_of(plan: Plan) -> Digits:
    """Return how the counts of a pair are written: a digit for each rank."""
    return Digits(plan.max_rank, _BITS, _ROOM)


def rank_digits(plan: Plan) -> str:
    """Return how many pairs have the same impressions (`held_<g>`) and clicks (`clicked_<g>`) at each rank, by bucket.

    Pairs that were shown too often for that come back under bucket BUSY, with the text of their query.
    """
    d, segments, digits = plan.dialect, plan.segments, digits_of(plan)
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    names = [*digits.names("held"), *digits.names("clicked")]
    sums = [*digits.sums("unit"), *digits.sums("unit", "clicks = 1")]
    told = [f"CASE WHEN NOT busy THEN {digits.narrow(d, name)} ELSE 0 END AS {name}" for name in names]
    keys = comma(segments, "bucket", names, "query")
    return render(
        [
            *shown(plan, ranks=False),
            Step(
                "placed",
                "Which digit of which number counts a row.",
                f"SELECT {comma(segments, 'query', 'doc', 'clicks')},\n"
                f"  {digits.unit(d, '(position - 1)')} AS unit, {digits.number(d, 'position - 1')} AS number\n"
                f"FROM shown\nWHERE {usable(plan)}",
            ),
            Step(
                "pairs",
                "Each (query, document) once: how often it was shown and clicked at each rank, as digits.",
                f"SELECT {comma(segments, 'query', 'doc')}, COUNT(*) >= {2**_BITS} AS busy,\n  "
                + ",\n  ".join(f"{text} AS {name}" for text, name in zip(sums, names, strict=True))
                + f"\nFROM placed\nGROUP BY {comma(segments, 'query', 'doc')}",
            ),
            Step(
                "still",
                "The bucket of its query; pairs without an id or with too many views are marked instead.",
                f"SELECT {comma(segments)}{', ' if segments else ''}"
                f"CASE WHEN query IS NULL OR doc IS NULL THEN {NAMELESS} WHEN busy THEN {BUSY} ELSE {bucket} END "
                f"AS bucket,\n  " + ",\n  ".join(told) + ",\n"
                f"  CASE WHEN busy THEN {d.as_text('query')} END AS query\nFROM pairs",
            ),
            Step(
                "rank_digits",
                "Pairs with the same numbers are one row.",
                f"SELECT {keys}, COUNT(*) AS pairs\nFROM still\nGROUP BY {keys}",
            ),
        ]
    )


def busy_cells(plan: Plan, queries: Sequence[str]) -> str:
    """Return the exposures, cell by cell, of pairs shown too often for digits; where queries are named, of theirs."""
    having = f"SUM(impressions) >= {2**_BITS}"
    if not queries:
        return cells(plan, having=having)
    d, schema = plan.dialect, plan.schema
    type_ = schema.types[schema.query]
    named = ", ".join(d.value(text, type_) for text in queries)
    rows = f"SELECT *\nFROM {plan.log}\nWHERE {d.known(d.quote(schema.query), type_)} IN ({named})"
    answer = f"SELECT *\nFROM (\n{cells(replace(plan, log='busy'), having=having)}\n) cells"
    return render([Step("busy", "The rows of queries with such pairs.", rows), Step("busy_cells", "Theirs.", answer)])
