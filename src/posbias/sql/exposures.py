"""Queries of the replay layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from posbias.sql.dialects import PACK
from posbias.sql.plan import PackedCounts, QueryPlan, Step, comma, render, shown_steps

# What `bucket` holds for pairs that are not counted: without an id, or shown at several ranks by one ranker.
MISSING_ID, NON_FUNCTIONAL = -1, -2
# What the cells of the latter have.
SEVERAL_RANKS = "COUNT(*) > COUNT(DISTINCT ranker)"
# What `bucket` holds for pairs that were shown too often for their digits.
TOO_FREQUENT = -3
# A digit of five bits counts to 31, and most pairs are shown less often. Twenty of them leave room for 2^32 clicks, or
# for counts of 2^26 rows.
_BITS, _HALF, _MOST_ROWS = 5, 50, 2**26


def pack_by_ranker(plan: QueryPlan, most: int) -> PackedCounts:
    """Return how counts of up to so many are written: a digit for each ranker."""
    return PackedCounts(len(plan.rankers), max(most, 1).bit_length())


def packed_exposures(plan: QueryPlan, digits: PackedCounts) -> str:
    """Return pairs and clicks by bucket and exposure, as `exposures` does, counts as digits (`held`, `clicked`)."""
    d, segments = plan.dialect, plan.segments
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    (seen, still), ranks = rank_mask_columns(plan), plan.masks.names
    keys = comma(segments, "bucket", ranks, digits.names("held"))
    # What does not fit was counted with too few digits, as its impressions tell.
    clicks = [f"{d.try_cast(f'SUM({name})', 'BIGINT')} AS {name}" for name in digits.names("clicked")]
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "placed",
                "What a row adds to which number.",
                f"SELECT {comma(segments, 'query', 'doc', 'ranker', 'position')},\n"
                f"  {digits.row_value(d, 'ranker', aggregated=plan.schema.aggregated)} AS added, "
                f"{digits.number_of_slot(d, 'ranker')} AS number\nFROM shown\nWHERE {in_top_ranks(plan)}",
            ),
            Step(
                "pairs",
                "Each (query, document) once: where it was shown, how often, and the clicks there, as digits.",
                f"SELECT {comma(segments, 'query', 'doc')},\n  "
                + ",\n  ".join([*seen, *digits.sum_columns()])
                + f"\nFROM placed\nGROUP BY {comma(segments, 'query', 'doc')}",
            ),
            Step(
                "still",
                "The bucket of its query; pairs without an id or with several ranks of one ranker are marked instead.",
                f"SELECT {comma(segments, ranks)},\n  " + ",\n  ".join(digits.split_columns(d, still)) + ",\n"
                f"  CASE WHEN query IS NULL OR doc IS NULL THEN {MISSING_ID} WHEN {still} THEN {bucket} "
                f"ELSE {NON_FUNCTIONAL} END AS bucket\nFROM pairs",
            ),
            Step(
                "exposures",
                "Pairs with the same ranks and exposure are one stratum.",
                f"SELECT {keys}, COUNT(*) AS pairs,\n  {comma(clicks)}\nFROM still\nGROUP BY {keys}",
            ),
        ]
    )


def rank_mask_columns(plan: QueryPlan) -> tuple[list[str], str]:
    """Return the masks of the ranks at which rankers showed a pair, and the condition that none has it at several."""
    d, masks = plan.dialect, plan.masks
    seen = []
    for name, group in zip(masks.names, masks.groups, strict=True):
        bit = d.bit(masks.bit_position(group, "ranker", "position"), wide=len(group) * plan.max_rank > 30)
        held = (
            bit
            if len(masks.groups) == 1
            else f"CASE WHEN ranker BETWEEN {group[0]} AND {group[-1]} THEN {bit} ELSE 0 END"
        )
        seen.append(f"{d.bit_or(held)} AS {name}")
    # A mask with one bit, or none, shares no bit with the number below it.
    return seen, " AND ".join(f"({cut} & ({cut} - 1)) = 0" for cut in masks.ranker_bits(d))


def in_top_ranks(plan: QueryPlan) -> str:
    """Rows within the top M. The profile has shown that all of them can be counted."""
    # An aggregated row of no impressions shows nothing anywhere.
    return f"position <= {plan.max_rank}" + (" AND impressions > 0" if plan.schema.aggregated else "")


def profile(plan: QueryPlan) -> str:
    """Return rows, impressions and clicks by segment, ranker and position, and how many rows are not usable."""
    d, schema = plan.dialect, plan.schema
    name = d.as_text(d.nan_to_null(d.quote(schema.ranker), schema.types[schema.ranker]))
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


def bounds(plan: QueryPlan) -> str:
    """Return rows in all, those with a position, a click and a ranker, and the least and greatest of the first two."""
    d, schema = plan.dialect, plan.schema
    ranker, *columns = (d.quote(name or "") for name in (schema.ranker, schema.position, schema.click))
    least = ", ".join(f"COUNT({c}), MIN({c}), MAX({c})" for c in columns)
    return f"SELECT COUNT(*), COUNT({ranker}), {least}\nFROM log"


def exposures(plan: QueryPlan) -> str:
    """Return pairs and clicks by bucket, the ranks at which rankers showed them and the impressions they gave.

    One pass over (query, document). The ranks come as a mask: bit `M i + k - 1` of ranker i at rank k. Pairs that a
    ranker showed at several ranks come back only as a count, under bucket NON_FUNCTIONAL.
    """
    d, segments = plan.dialect, plan.segments
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    big = d.cast("impressions", "BIGINT")
    packed = d.total(f"CASE WHEN ranker = {{i}} THEN {PACK} * {big} + clicks ELSE 0 END")
    seen, still = rank_mask_columns(plan)
    ranks, impressions = plan.masks.names, plan.per_ranker("impressions_{i}")
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "pairs",
                "Each (query, document) once: where each ranker showed it, how often, and the clicks there.",
                f"SELECT {comma(segments, 'query', 'doc')},\n  {comma(seen)},\n  "
                + plan.per_ranker(f"{packed} AS packed_{{i}}", ",\n  ")
                + f"\nFROM shown\nWHERE {in_top_ranks(plan)}\nGROUP BY {comma(segments, 'query', 'doc')}",
            ),
            Step(
                "still",
                "The bucket of its query; pairs without an id or with several ranks of one ranker are marked instead.",
                f"SELECT {comma(segments, ranks)},\n"
                f"  CASE WHEN query IS NULL OR doc IS NULL THEN {MISSING_ID} WHEN {still} THEN {bucket} "
                f"ELSE {NON_FUNCTIONAL} END AS bucket,\n  "
                + plan.per_ranker(
                    f"{d.upper_half('packed_{i}')} AS impressions_{{i}}, {d.lower_half('packed_{i}')} AS clicks_{{i}}",
                    ",\n  ",
                )
                + "\nFROM pairs",
            ),
            Step(
                "exposures",
                "Pairs with the same ranks and exposure are one stratum.",
                f"SELECT {comma(segments, 'bucket', ranks, impressions)}, COUNT(*) AS pairs,\n  "
                + plan.per_ranker(f"{d.total('clicks_{i}')} AS clicks_{{i}}")
                + f"\nFROM still\nGROUP BY {comma(segments, 'bucket', ranks, impressions)}",
            ),
        ]
    )


def exposure_pair_sums(plan: QueryPlan, weighting: str, firsts: Sequence[int]) -> str:
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


def cell_steps(plan: QueryPlan) -> list[Step]:
    """Return the steps that end in `cells`: each pair at each rank by each ranker."""
    keys = comma(plan.segments, "query", "doc", "ranker", "position")
    return [
        *shown_steps(plan, ranks=False),
        Step(
            "cells",
            "Each (query, document) at each rank by each ranker.",
            f"SELECT {keys}, {plan.dialect.total('impressions')} AS impressions, "
            f"{plan.dialect.total('clicks')} AS clicks\nFROM shown\n"
            f"WHERE {in_top_ranks(plan)} AND query IS NOT NULL AND doc IS NOT NULL\nGROUP BY {keys}",
        ),
    ]


def _joined(left: str, right: str, segments: list[str]) -> str:
    same = [f"{left}.{s} IS NOT DISTINCT FROM {right}.{s}" for s in segments]
    return " AND ".join([*same, f"{left}.query = {right}.query", f"{left}.doc = {right}.doc"])


def totals(plan: QueryPlan) -> str:
    """Return impressions and clicks by bucket, ranker and position: what pair sums no longer tell."""
    d = plan.dialect
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "totals",
                "Impressions and clicks by bucket, ranker and position.",
                f"SELECT {comma(plan.segments, f'{bucket} AS bucket', 'ranker', 'position AS rank')}, "
                f"{d.total('impressions')} AS impressions, {d.total('clicks')} AS clicks\nFROM shown\n"
                f"WHERE {in_top_ranks(plan)}\nGROUP BY {comma(plan.segments, bucket, 'ranker', 'position')}",
            ),
        ]
    )


def count_strata(plan: QueryPlan, buckets: int, sql: str) -> str:
    """Return how many rows a query over `few`, the rows of the first buckets of a log, answers with."""
    d, schema = plan.dialect, plan.schema
    type_ = schema.types[schema.query]
    bucket = d.bucket(d.nan_to_null(d.quote(schema.query), type_), type_)
    few = Step("few", "The rows of so many buckets.", f"SELECT *\nFROM log\nWHERE {bucket} < {buckets}")
    return render([few, Step("counted", "How many strata they have.", f"SELECT COUNT(*)\nFROM (\n{sql}\n) strata")])


def set_sizes(plan: QueryPlan) -> str:
    """Return how many distinct (query, document) pairs were shown at both k and k'."""
    return render(
        [
            *cell_steps(plan),
            Step(
                "ranked",
                "Where each pair was shown.",
                "SELECT DISTINCT query, doc, position AS rank\nFROM cells",
            ),
            Step(
                "set_sizes",
                "The size of every interventional set.",
                "SELECT a.rank, b.rank, COUNT(*)\nFROM ranked a\nJOIN ranked b ON a.query = b.query AND "
                "a.doc = b.doc AND a.rank <> b.rank\nGROUP BY a.rank, b.rank",
            ),
        ]
    )


def rows_without_id(plan: QueryPlan) -> str:
    """Return how many rows within the top M have no query or no document."""
    why = "Rows without an id."
    select = f"SELECT COUNT(*)\nFROM shown\nWHERE {in_top_ranks(plan)} AND (query IS NULL OR doc IS NULL)"
    return render([*shown_steps(plan, ranks=False), Step("nameless", why, select)])


def count_non_functional(plan: QueryPlan) -> str:
    """Return how many pairs a ranker showed at several ranks, and how many pairs there are, each by segment."""
    ids = comma(plan.segments, "query", "doc")
    return render(
        [
            *cell_steps(plan),
            Step(
                "seen",
                "Whether any ranker showed a pair at several ranks.",
                f"SELECT {ids}, COUNT(*) > COUNT(DISTINCT ranker) AS several\nFROM cells\nGROUP BY {ids}",
            ),
            Step(
                "non_functional",
                "Those of which one did, and all.",
                "SELECT COUNT(CASE WHEN several THEN 1 END), COUNT(*)\nFROM seen",
            ),
        ]
    )


def pair_counts(plan: QueryPlan) -> str:
    """Return how many (query, document) pairs there are, and how many were shown at several ranks."""
    return render(
        [
            *cell_steps(plan),
            Step(
                "spread",
                "At how many ranks each pair was shown.",
                "SELECT query, doc, COUNT(DISTINCT position) AS ranks\nFROM cells\nGROUP BY query, doc",
            ),
            Step(
                "pair_counts",
                "All, and those at several ranks.",
                "SELECT COUNT(*), SUM(CASE WHEN ranks > 1 THEN 1 ELSE 0 END)\nFROM spread",
            ),
        ]
    )


def pack_by_rank(plan: QueryPlan, rows: int) -> PackedCounts:
    """Return how the counts of a pair in a log of so many rows are written: a digit for each rank."""
    return PackedCounts(plan.max_rank, _BITS, _HALF, 2 * _HALF if rows < _MOST_ROWS else 0)


def packed_rank_exposures(plan: QueryPlan, digits: PackedCounts) -> str:
    """Return how many pairs have the same impressions (`held_<g>`) and clicks (`clicked_<g>`) at each rank, by bucket.

    Pairs that were shown too often for that come back under bucket TOO_FREQUENT, with the number of their query
    in `held_0`.
    """
    d, segments = plan.dialect, plan.segments
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    names = [*digits.names("held"), *digits.names("clicked")]
    keys = comma(segments, "bucket", names)
    # A count of its own is one more number to keep for every pair.
    count = [] if digits.row_count_bit else ["COUNT(*) AS row_count"]
    busy = f"{digits.row_count() if digits.row_count_bit else 'row_count'} >= {2**_BITS}"
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "placed",
                "What a row adds to which number.",
                f"SELECT {comma(segments, 'query', 'doc')},\n"
                f"  {digits.row_value(d, '(position - 1)', aggregated=False)} AS added, "
                f"{digits.number_of_slot(d, 'position - 1')} AS number\nFROM shown\nWHERE {in_top_ranks(plan)}",
            ),
            Step(
                "pairs",
                "Each (query, document) once: how often it was shown and clicked at each rank, as digits.",
                f"SELECT {comma(segments, 'query', 'doc')},\n  "
                + ",\n  ".join([*count, *digits.sum_columns()])
                + f"\nFROM placed\nGROUP BY {comma(segments, 'query', 'doc')}",
            ),
            Step(
                "still",
                "The bucket of its query; pairs without an id or with too many views are marked instead.",
                f"SELECT {comma(segments)}{', ' if segments else ''}"
                f"CASE WHEN query IS NULL OR doc IS NULL THEN {MISSING_ID} WHEN {busy} THEN {TOO_FREQUENT} "
                f"ELSE {bucket} END AS bucket,\n  "
                + ",\n  ".join(digits.split_columns(d, f"NOT ({busy})", _number(plan, "query")))
                + "\nFROM pairs",
            ),
            Step(
                "rank_digits",
                "Pairs with the same numbers are one row.",
                f"SELECT {keys}, COUNT(*) AS pairs\nFROM still\nGROUP BY {keys}",
            ),
        ]
    )


def _number(plan: QueryPlan, query: str) -> str:
    """Return, as SQL, a number for a query. Another query may have it too."""
    return plan.dialect.cast(f"{plan.dialect.hash(query)} & {2**62 - 1}", "BIGINT")


def frequent_pair_cells(plan: QueryPlan, queries: Sequence[int]) -> str:
    """Return the exposures, cell by cell, of pairs shown too often for digits; by the numbers of their queries."""
    having = f"SUM(impressions) >= {2**_BITS}"
    if not queries:
        return cells(plan, having=having)
    d, schema = plan.dialect, plan.schema
    query = d.nan_to_null(d.quote(schema.query), schema.types[schema.query])
    rows = f"SELECT *\nFROM {plan.log}\nWHERE {_number(plan, query)} IN ({', '.join(map(str, queries))})"
    answer = f"SELECT *\nFROM (\n{cells(replace(plan, log='busy'), having=having)}\n) cells"
    return render([Step("busy", "The rows of queries with such pairs.", rows), Step("busy_cells", "Theirs.", answer)])


def cells(plan: QueryPlan, *, having: str = "") -> str:
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
                f"SELECT {ids}, {d.string_agg(texts, 'ranker, position')} AS stratum\nFROM cells\nGROUP BY {ids}{only}",
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
