"""The harvest where the log itself tells the ranks (replay): pairs by the exposure they had."""

from __future__ import annotations

from collections.abc import Sequence

from posbias.sql.dialect import PACK
from posbias.sql.shown import Plan, comma, shown
from posbias.sql.steps import Step, render

# What `bucket` holds for pairs that are not counted: without an id, or shown at several ranks by one ranker.
NAMELESS, NON_FUNCTIONAL = -1, -2
# What the cells of the latter have.
SEVERAL_RANKS = "COUNT(*) > COUNT(DISTINCT ranker)"


def usable(plan: Plan) -> str:
    """Rows within the top M. The profile has shown that all of them can be counted."""
    # An aggregated row of no impressions shows nothing anywhere.
    return f"position <= {plan.max_rank}" + (" AND impressions > 0" if plan.schema.aggregated else "")


def profile(plan: Plan) -> str:
    """Return rows, impressions and clicks by segment, ranker and position, and how many rows are not usable."""
    d, schema = plan.dialect, plan.schema
    name = d.as_text(d.known(d.quote(schema.ranker), schema.types[schema.ranker]))
    position = d.integer(d.quote(schema.position), schema.types[schema.position])
    if schema.click is not None:
        impressions, clicks = "1", d.click(d.quote(schema.click), schema.types[schema.click])
    else:
        impressions, clicks = (
            d.integer(d.quote(column or ""), schema.types[column or ""])
            for column in (schema.impressions, schema.clicks)
        )
    total = d.total("impressions") if schema.aggregated else "COUNT(*)"
    counted = "position >= 1 AND clicks BETWEEN 0 AND impressions AND name IS NOT NULL"
    return render(
        [
            Step(
                "typed",
                "The columns that a ranker's traffic is counted from.",
                f"SELECT {name} AS name, {position} AS position, {impressions} AS impressions, "
                f"{clicks} AS clicks\nFROM log",
            ),
            Step(
                "placed",
                "Where each row was shown: 0 beyond M, -1 where the row cannot be used.",
                "SELECT name, impressions, clicks,\n"
                f"  CASE WHEN {counted} THEN CASE WHEN position <= {plan.max_rank} THEN position ELSE 0 END "
                "ELSE -1 END AS position\nFROM typed",
            ),
            Step(
                "profile",
                "Rows, impressions and clicks by ranker and position.",
                f"SELECT name, position, COUNT(*) AS row_count, {total} AS impressions, "
                # What is no click may be too large to be added up.
                f"{d.total('CASE WHEN position >= 0 THEN clicks ELSE 0 END')} AS clicks\nFROM placed\n"
                "GROUP BY name, position",
            ),
        ]
    )


def bounds(plan: Plan) -> str:
    """Return rows in all, those with a position, a click and a ranker, and the least and greatest of the first two."""
    d, schema = plan.dialect, plan.schema
    ranker, *columns = (d.quote(name or "") for name in (schema.ranker, schema.position, schema.click))
    least = ", ".join(f"COUNT({c}), MIN({c}), MAX({c})" for c in columns)
    return f"SELECT COUNT(*), COUNT({ranker}), {least}\nFROM log"


def exposures(plan: Plan) -> str:
    """Return pairs and clicks by bucket, the ranks at which rankers showed them and the impressions they gave.

    One pass over (query, document). The ranks come as a mask: bit `M i + k - 1` of ranker i at rank k. Pairs that a
    ranker showed at several ranks come back only as a count, under bucket NON_FUNCTIONAL.
    """
    d, segments = plan.dialect, plan.segments
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    big = d.cast("impressions", "BIGINT")
    packed = d.total(f"CASE WHEN ranker = {{i}} THEN {PACK} * {big} + clicks ELSE 0 END")
    seen, still = seen_ranks(plan)
    ranks, impressions = plan.masks.names, plan.each("impressions_{i}")
    return render(
        [
            *shown(plan, ranks=False),
            Step(
                "pairs",
                "Each (query, document) once: where each ranker showed it, how often, and the clicks there.",
                f"SELECT {comma(segments, 'query', 'doc')},\n  {comma(seen)},\n  "
                + plan.each(f"{packed} AS packed_{{i}}", ",\n  ")
                + f"\nFROM shown\nWHERE {usable(plan)}\nGROUP BY {comma(segments, 'query', 'doc')}",
            ),
            Step(
                "still",
                "The bucket of its query; pairs without an id or with several ranks of one ranker are marked instead.",
                f"SELECT {comma(segments, ranks)},\n"
                f"  CASE WHEN query IS NULL OR doc IS NULL THEN {NAMELESS} WHEN {still} THEN {bucket} "
                f"ELSE {NON_FUNCTIONAL} END AS bucket,\n  "
                + plan.each(
                    f"{d.high('packed_{i}')} AS impressions_{{i}}, {d.low('packed_{i}')} AS clicks_{{i}}",
                    ",\n  ",
                )
                + "\nFROM pairs",
            ),
            Step(
                "exposures",
                "Pairs with the same ranks and exposure are one stratum.",
                f"SELECT {comma(segments, 'bucket', ranks, impressions)}, COUNT(*) AS pairs,\n  "
                + plan.each(f"{d.total('clicks_{i}')} AS clicks_{{i}}")
                + f"\nFROM still\nGROUP BY {comma(segments, 'bucket', ranks, impressions)}",
            ),
        ]
    )


def seen_ranks(plan: Plan) -> tuple[list[str], str]:
    """Return the masks of the ranks at which rankers showed a pair, and the condition that none has it at several."""
    d, masks = plan.dialect, plan.masks
    seen = []
    for name, group in zip(masks.names, masks.groups, strict=True):
        bit = d.bit(masks.place(group, "ranker", "position"), wide=len(group) * plan.max_rank > 30)
        held = (
            bit
            if len(masks.groups) == 1
            else f"CASE WHEN ranker BETWEEN {group[0]} AND {group[-1]} THEN {bit} ELSE 0 END"
        )
        seen.append(f"{d.union(held)} AS {name}")
    # A mask with one bit, or none, shares no bit with the number below it.
    return seen, " AND ".join(f"({cut} & ({cut} - 1)) = 0" for cut in masks.cuts(d))


def cell_steps(plan: Plan) -> list[Step]:
    """Return the steps that end in `cells`: each pair at each rank by each ranker."""
    keys = comma(plan.segments, "query", "doc", "ranker", "position")
    return [
        *shown(plan, ranks=False),
        Step(
            "cells",
            "Each (query, document) at each rank by each ranker.",
            f"SELECT {keys}, {plan.dialect.total('impressions')} AS impressions, "
            f"{plan.dialect.total('clicks')} AS clicks\nFROM shown\n"
            f"WHERE {usable(plan)} AND query IS NOT NULL AND doc IS NOT NULL\nGROUP BY {keys}",
        ),
    ]


def cells(plan: Plan, *, having: str = "") -> str:
    """Return the exposures by cell, for many rankers, or for those pairs whose cells have something."""
    d, segments = plan.dialect, plan.segments
    ids = comma(segments, "query", "doc")
    texts = " || ' ' || ".join(d.as_text(c) for c in ("ranker", "position", "impressions"))
    only = f"\nHAVING {having}" if having else ""
    bucket = d.bucket("c.query", plan.schema.types[plan.schema.query])
    names = [f"c.{s}" for s in segments]
    return render(
        [
            *cell_steps(plan),
            Step(
                "strata",
                "The exposure of a pair as one text, so that pairs with the same exposure are one stratum.",
                f"SELECT {ids}, {d.joined(texts, 'ranker, position')} AS stratum\nFROM cells\nGROUP BY {ids}{only}",
            ),
            Step(
                "exposures",
                "Pairs and clicks by stratum and cell.",
                f"SELECT {comma(names)}{', ' if names else ''}{bucket} AS bucket, stratum, ranker, position AS "
                "rank, impressions, COUNT(*) AS pairs, "
                f"{d.total('clicks')} AS clicks\nFROM cells c\nJOIN strata s ON {_joined('c', 's', segments)}\n"
                f"GROUP BY {comma(names, bucket, 'stratum', 'ranker', 'position', 'impressions')}",
            ),
        ]
    )


def _joined(left: str, right: str, segments: list[str]) -> str:
    same = [f"{left}.{s} IS NOT DISTINCT FROM {right}.{s}" for s in segments]
    return " AND ".join([*same, f"{left}.query = {right}.query", f"{left}.doc = {right}.doc"])


def exposure_pair_sums(plan: Plan, weighting: str, firsts: Sequence[int]) -> str:
    """Return ĉ and ¬ĉ by bucket, k and k', for when exposures do not compress.

    `firsts` are the positions at which each ranker's page views are counted; only the traffic weighting needs them.
    """
    segments = plan.segments
    ids = comma(segments, "query", "doc")
    clicks, skips = {
        "traffic": ("a.clicks / a.w", "(a.impressions - a.clicks) / a.w"),
        "uniform": ("1e0 * a.clicks / a.impressions", "1e0 - 1e0 * a.clicks / a.impressions"),
        "harmonic": (
            "1e0 * a.clicks * b.impressions / (a.impressions + b.impressions)",
            "1e0 * (a.impressions - a.clicks) * b.impressions / (a.impressions + b.impressions)",
        ),
    }[weighting]
    bucket = plan.dialect.bucket("a.query", plan.schema.types[plan.schema.query])
    names = [f"a.{s}" for s in segments]
    on_views = " AND ".join([*(f"c.{s} IS NOT DISTINCT FROM v.{s}" for s in segments), "c.ranker = v.ranker"])
    over = f"PARTITION BY {comma(segments)}" if segments else ""
    first = " ".join(f"WHEN {i} THEN {k}" for i, k in enumerate(firsts))
    steps = cell_steps(plan)
    if weighting == "traffic":
        steps += [
            Step(
                "views",
                "The page views n_i of each ranker, as a share of all so that days add up.",
                f"SELECT {comma(segments, 'ranker')}, 1e0 * SUM(impressions) / SUM(SUM(impressions)) "
                f"OVER ({over}) AS n\nFROM cells\nWHERE position = CASE ranker {first} END\n"
                f"GROUP BY {comma(segments, 'ranker')}",
            ),
            Step(
                "shared",
                "A ranker that showed the pair at several ranks counts at each by its share.",
                f"SELECT c.*, v.n * c.impressions / SUM(c.impressions) OVER (PARTITION BY "
                f"{comma([f'c.{s}' for s in segments], 'c.query', 'c.doc', 'c.ranker')}) AS w\n"
                f"FROM cells c\nJOIN views v ON {on_views}",
            ),
        ]
    source, w = ("shared", ", SUM(w) AS w") if weighting == "traffic" else ("cells", "")
    keys = comma(names, bucket, "a.rank", "b.rank")
    return render(
        [
            *steps,
            Step(
                "ranked",
                "Each (query, document) at each rank, all rankers together.",
                f"SELECT {ids}, position AS rank, SUM(impressions) AS impressions, SUM(clicks) AS clicks{w}\n"
                f"FROM {source}\nGROUP BY {ids}, position",
            ),
            Step(
                "pair_sums",
                "ĉ and ¬ĉ of every interventional set.",
                f"SELECT {comma(names)}{', ' if names else ''}{bucket} AS bucket, a.rank AS rank, "
                f"b.rank AS other, SUM({clicks}) AS clicks, SUM({skips}) AS skips\nFROM ranked a\n"
                f"JOIN ranked b ON {_joined('a', 'b', segments)} AND a.rank <> b.rank\nGROUP BY {keys}",
            ),
        ]
    )
