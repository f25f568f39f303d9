"""What a harvest says of rows that it left out or counted by a rule, as findings that add up when days are merged."""

from __future__ import annotations

from collections.abc import Iterable

from posbias.errors import LogError
from posbias.findings import Finding
from posbias.harvesting.row_counts import RowCounts
from posbias.logs.columns import guess
from posbias.logs.schemas import Schema
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


def note_natural(schema: Schema) -> list[Finding]:
    """Return what to say of a log that names no ranker: what must hold, and what would make it likelier."""
    if not schema.natural:
        return []
    # Who leaves the column out that is called so knows what the ranker is.
    free = [c for c in schema.types if c not in schema.roles.values()] if "ranker" not in schema.types else []
    return [natural_variation(schema.window, free)]


def natural_variation(window: str | None, columns: Iterable[str] = ()) -> Finding:
    """Return what must hold where documents are compared wherever they were shown."""
    meant = guess("ranker", "ranker", columns)
    remedy = "" if window else "Compare only within a day or week to be safer: name its column (window). "
    named = f"If column {meant!r} says which ranker was shown, name it (ranker)." if meant else ""
    return Finding(
        "no-ranker",
        "warning",
        "The log names no ranker: documents are compared with themselves wherever they were shown"
        + (f" within one {window!r}" if window else "")
        + ", which is right if they did not move because they became more or less relevant",
        remedy=(remedy + named).strip(),
        arguments={"ranker": meant} if meant else {},
    )


def refuse_no_ranker(natural: bool, non_functional: str) -> None:
    """Refuse to refuse rankers of a log that names none."""
    if natural and non_functional == "refuse":
        raise LogError(
            "The log names no ranker, so that none can be refused for showing a document at several ranks. Name its "
            "column (ranker), or leave non_functional out."
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
