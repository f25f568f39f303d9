"""What a harvest says of rows that it left out or counted by a rule, as findings that add up when days are merged."""

from __future__ import annotations

from posbias.errors import LogError
from posbias.findings import Finding
from posbias.harvesting.row_counts import RowCounts
from posbias.logs.weightings import Weighting

OTHER_BUCKETS = Finding(
    "other-buckets",
    "warning",
    "The harvests come from engines that put queries into different buckets: a query that recurs in both is resampled "
    "in two parts, so that intervals may be a little narrow",
    remedy="Harvest all parts with the same engine.",
)


def note_contradicted(counts: RowCounts) -> list[Finding]:
    """Return what to say of rows shown where their ranker does not put them; refuse if there are no others."""
    if not counts.rows_contradicted:
        return []
    if counts.rows_counted == 0:
        raise LogError(
            f"All {counts.rows_contradicted:,} rows within the top ranks were shown at a position that is not the rank "
            "their ranker gives them. Ranks must count from 1 like positions; check the columns named by ranks, or the "
            "table of rankings."
        )
    return [
        Finding(
            "contradicted-rank",
            "warning",
            "{count} of {rows} rows were left out: they were shown at a position that is not the rank their ranker "
            "gives them",
            counts.rows_contradicted,
            evidence={"rows": counts.rows},
            remedy="`posbias check` shows examples.",
        )
    ]


def note_non_functional(count: int, pairs: int) -> list[Finding]:
    """Return what to say of pairs that one ranker showed at several ranks."""
    if not count:
        return []
    return [
        Finding(
            "not-a-function",
            "warning",
            "{count} of {pairs} (query, document) pairs were shown at several ranks by one ranker; each rank counts by "
            "its share",
            count,
            evidence={"pairs": pairs},
            remedy="Put into the query id what the ranking depends on: user, day, filters. A ranker that shuffles on "
            "purpose does no harm.",
        )
    ]


def refuse_non_functional(non_functional: str, count: int, pairs: int) -> None:
    """Refuse rankers that are no function of the query, where that was asked for."""
    if count and non_functional == "refuse":
        raise LogError(
            f"{count:,} of {pairs:,} (query, document) pairs were shown at several ranks by one and the same ranker, "
            "so it is not a function of the query. Put into the query id what the ranking depends on (user, day, "
            "filters), or let such pairs count by their shares.",
            {"non_functional": "share"},
        )


def note_weighting(weighting: Weighting) -> list[Finding]:
    """Return what to say of a harvest of replay by traffic."""
    if weighting != "traffic":
        return []
    return [
        Finding(
            "biased-weighting",
            "warning",
            "Weighting by traffic in replay is biased when rankers get unequal traffic and queries rarely recur: a "
            "pair enters only if both rankers happened to serve it",
            remedy="The default, harmonic, does not have this bias.",
        )
    ]
