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
    """Return pairs and clicks by bucket and exposure, as `exposures` does."""
    d, segments = plan.dialect, plan.segments
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    (seen, still), ranks = seen_ranks(plan), plan.masks.names
    held, clicked = digits.names("held"), digits.names("clicked")
    if plan.schema.aggregated:
        sums = [*digits.sums("unit * impressions"), *digits.sums("unit * clicks", "clicks > 0")]
    else:
        sums = [*digits.sums("unit"), *digits.sums("unit", "clicks = 1")]
    numbers = [f"{text} AS {name}" for text, name in zip(sums, [*held, *clicked], strict=True)]
    keys = comma(segments, "bucket", ranks, held)
    told = [
        f"{text} AS {of}_{i}"
        for of, names in (("impressions", "held"), ("clicks", "clicked"))
        for i, text in enumerate(digits.counts(d, names))
    ]
    return render(
        [
            *shown(plan, ranks=False),
            Step(
                "placed",
                "Which digit of which number counts a row.",
                f"SELECT {comma(segments, 'query', 'doc', 'ranker', 'position', 'impressions', 'clicks')},\n"
                f"  {digits.unit(d, 'ranker')} AS unit, {digits.number(d, 'ranker')} AS number\nFROM shown\n"
                f"WHERE {usable(plan)}",
            ),
            Step(
                "pairs",
                "Each (query, document) once: where it was shown, how often, and the clicks there, as digits.",
                f"SELECT {comma(segments, 'query', 'doc')},\n  "
                + ",\n  ".join([*seen, *numbers])
                + f"\nFROM placed\nGROUP BY {comma(segments, 'query', 'doc')}",
            ),
            Step(
                "still",
                "The bucket of its query; pairs without an id or with several ranks of one ranker are marked instead.",
                f"SELECT {comma(segments, ranks, [f'{digits.narrow(d, n)} AS {n}' for n in (*held, *clicked)])},\n"
                f"  CASE WHEN query IS NULL OR doc IS NULL THEN {NAMELESS} WHEN {still} THEN {bucket} "
                f"ELSE {NON_FUNCTIONAL} END AS bucket\nFROM pairs",
            ),
            Step(
                "strata",
                "Pairs with the same ranks and exposure are one stratum.",
                f"SELECT {keys}, COUNT(*) AS pairs,\n  "
                + comma([f"{digits.narrow(d, f'SUM({name})')} AS {name}" for name in clicked])
                + f"\nFROM still\nGROUP BY {keys}",
            ),
            Step(
                "exposures",
                "The digits as counts.",
                f"SELECT {comma(segments, 'bucket', ranks)}, pairs,\n  " + ",\n  ".join(told) + "\nFROM strata",
            ),
        ]
    )
