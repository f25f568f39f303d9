"""The harvest of a replay in one pass with few sums, where the engine has numbers of 128 bits: counts side by side."""

from __future__ import annotations

from posbias.sql.codes import Digits
from posbias.sql.exposures import NAMELESS, NON_FUNCTIONAL, seen_ranks, usable
from posbias.sql.shown import Plan, comma, shown
from posbias.sql.steps import Step, render


def digits_of(plan: Plan, most: int) -> Digits:
    """Return how counts of up to so many are written: a digit for each ranker."""
    return Digits(len(plan.rankers), max(most, 1).bit_length())


def added_exposures(plan: Plan, digits: Digits) -> str:
    """Return pairs and clicks by bucket and exposure, as `exposures` does, counts as digits (`held`, `clicked`)."""
    d, segments = plan.dialect, plan.segments
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    (seen, still), ranks = seen_ranks(plan), plan.masks.names
    keys = comma(segments, "bucket", ranks, digits.names("held"))
    # What does not fit was counted with too few digits, as its impressions tell.
    clicks = [f"{d.attempt(f'SUM({name})', 'BIGINT')} AS {name}" for name in digits.names("clicked")]
    return render(
        [
            *shown(plan, ranks=False),
            Step(
                "placed",
                "What a row adds to which number.",
                f"SELECT {comma(segments, 'query', 'doc', 'ranker', 'position')},\n"
                f"  {digits.added(d, 'ranker', aggregated=plan.schema.aggregated)} AS added, "
                f"{digits.number(d, 'ranker')} AS number\nFROM shown\nWHERE {usable(plan)}",
            ),
            Step(
                "pairs",
                "Each (query, document) once: where it was shown, how often, and the clicks there, as digits.",
                f"SELECT {comma(segments, 'query', 'doc')},\n  "
                + ",\n  ".join([*seen, *digits.sums()])
                + f"\nFROM placed\nGROUP BY {comma(segments, 'query', 'doc')}",
            ),
            Step(
                "still",
                "The bucket of its query; pairs without an id or with several ranks of one ranker are marked instead.",
                f"SELECT {comma(segments, ranks)},\n  " + ",\n  ".join(digits.halves(d, still)) + ",\n"
                f"  CASE WHEN query IS NULL OR doc IS NULL THEN {NAMELESS} WHEN {still} THEN {bucket} "
                f"ELSE {NON_FUNCTIONAL} END AS bucket\nFROM pairs",
            ),
            Step(
                "exposures",
                "Pairs with the same ranks and exposure are one stratum.",
                f"SELECT {keys}, COUNT(*) AS pairs,\n  {comma(clicks)}\nFROM still\nGROUP BY {keys}",
            ),
        ]
    )
