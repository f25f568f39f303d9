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
# A digit of five bits counts to 31, and most pairs are shown less often. Twenty of them leave room for 2^32 clicks, or
# for counts of 2^26 rows.
_BITS, _HALF, _MOST_ROWS = 5, 50, 2**26


def digits_of(plan: Plan, rows: int) -> Digits:
    """Return how the counts of a pair in a log of so many rows are written: a digit for each rank."""
    return Digits(plan.max_rank, _BITS, _HALF, 2 * _HALF if rows < _MOST_ROWS else 0)


def rank_digits(plan: Plan, digits: Digits) -> str:
    """Return how many pairs have the same impressions (`held_<g>`) and clicks (`clicked_<g>`) at each rank, by bucket.

    Pairs that were shown too often for that come back under bucket BUSY, with the number of their query in `held_0`.
    """
    d, segments = plan.dialect, plan.segments
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    names = [*digits.names("held"), *digits.names("clicked")]
    keys = comma(segments, "bucket", names)
    # A count of its own is one more number to keep for every pair.
    count = [] if digits.top else ["COUNT(*) AS row_count"]
    busy = f"{digits.rows() if digits.top else 'row_count'} >= {2**_BITS}"
    return render(
        [
            *shown(plan, ranks=False),
            Step(
                "placed",
                "What a row adds to which number.",
                f"SELECT {comma(segments, 'query', 'doc')},\n  {digits.added(d, '(position - 1)', aggregated=False)} "
                f"AS added, {digits.number(d, 'position - 1')} AS number\nFROM shown\nWHERE {usable(plan)}",
            ),
            Step(
                "pairs",
                "Each (query, document) once: how often it was shown and clicked at each rank, as digits.",
                f"SELECT {comma(segments, 'query', 'doc')},\n  "
                + ",\n  ".join([*count, *digits.sums()])
                + f"\nFROM placed\nGROUP BY {comma(segments, 'query', 'doc')}",
            ),
            Step(
                "still",
                "The bucket of its query; pairs without an id or with too many views are marked instead.",
                f"SELECT {comma(segments)}{', ' if segments else ''}"
                f"CASE WHEN query IS NULL OR doc IS NULL THEN {NAMELESS} WHEN {busy} THEN {BUSY} ELSE {bucket} END "
                f"AS bucket,\n  "
                + ",\n  ".join(digits.halves(d, f"NOT ({busy})", _number(plan, "query")))
                + "\nFROM pairs",
            ),
            Step(
                "rank_digits",
                "Pairs with the same numbers are one row.",
                f"SELECT {keys}, COUNT(*) AS pairs\nFROM still\nGROUP BY {keys}",
            ),
        ]
    )


def _number(plan: Plan, query: str) -> str:
    """Return, as SQL, a number for a query. Another query may have it too."""
    return plan.dialect.cast(f"{plan.dialect.hashed(query)} & {2**62 - 1}", "BIGINT")


def busy_cells(plan: Plan, queries: Sequence[int]) -> str:
    """Return the exposures, cell by cell, of pairs shown too often for digits; by the numbers of their queries."""
    having = f"SUM(impressions) >= {2**_BITS}"
    if not queries:
        return cells(plan, having=having)
    d, schema = plan.dialect, plan.schema
    query = d.known(d.quote(schema.query), schema.types[schema.query])
    rows = f"SELECT *\nFROM {plan.log}\nWHERE {_number(plan, query)} IN ({', '.join(map(str, queries))})"
    answer = f"SELECT *\nFROM (\n{cells(replace(plan, log='busy'), having=having)}\n) cells"
    return render([Step("busy", "The rows of queries with such pairs.", rows), Step("busy_cells", "Theirs.", answer)])
