"""How many rankers a log may have and how far its counts may go."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from posbias.findings import UnusableLogError, unusable
from posbias.logs.schemas import Schema
from posbias.wording import listed

# A query names every ranker, and numbers them in 16 bits. Nobody compares so many, but a column of ids has more.
MOST_RANKERS = 10_000
# Beyond it numbers of 64 bits with a fraction, in which curves are computed, no longer tell counts apart.
MOST_IMPRESSIONS = 2**53


def refuse_rankers(schema: Schema, rankers: Sequence[str]) -> None:
    """Refuse a column that names no rankers but something else, and names that are one ranker to that column."""
    if len(rankers) > MOST_RANKERS:
        raise unusable(
            "too-many-rankers",
            f"There are too many rankers: {len(rankers):,} in column {schema.ranker!r}, such as "
            f"{listed(rankers[:3])}, where up to {MOST_RANKERS:,} can be told apart",
            "Name the column of the ranking function whose ranking was shown (ranker); an id of a query, user or page "
            "view is not one.",
            count=len(rankers),
        )
    if schema.types[schema.ranker] == "VARCHAR":
        return
    alike: dict[object, str] = {}
    for name in rankers:
        other = alike.setdefault(_value(name), name)
        if other != name:
            raise unusable(
                "rankers-alike",
                f"The rankers {listed([other, name])} are one and the same in column {schema.ranker!r}, which is "
                f"{schema.types[schema.ranker]}" + _columns(schema, (other, name)),
                "Leave one of them out, or write the ranker as text.",
            )


def _columns(schema: Schema, rankers: Sequence[str]) -> str:
    found = [schema.rank_columns[name] for name in rankers if name in schema.rank_columns]
    return f": both {listed(found)} would be its ranks" if found else ""


def _value(name: str) -> object:
    """Return what a ranker's name is worth as a number, else the name as it is read in any case."""
    try:
        return Decimal(name.strip()).normalize()
    except InvalidOperation:
        return name.strip().lower()


def refuse_sums(schema: Schema, impressions: int) -> None:
    """Refuse counts of an aggregated log that add up to more than the numbers hold in which they are counted."""
    if impressions > MOST_IMPRESSIONS:
        raise sums_overflow(schema)


def sums_overflow(schema: Schema) -> UnusableLogError:
    """Return the error that counts are which add up beyond what is counted exactly."""
    return unusable(
        "counts-overflow",
        f"The counts in {schema.impressions!r} and {schema.clicks!r} add up to more than 2^53",
        "No log has so many impressions: check that both columns hold counts, and not ids or times.",
    )
