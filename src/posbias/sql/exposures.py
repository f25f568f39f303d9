"""Queries for logs without the ranks that other rankers give a document (the replay layout).

Ranks are learned from the log: a ranker's rank of a document is where it showed it. The harvest is one aggregation.
Each (query, document) pair has an *exposure*: how often each ranker showed it at which rank. Pairs of a bucket with the
same exposure form one *stratum*, and a query returns pairs and clicks by stratum. There are four ways to count them:

    packed_exposures         one pass, on engines with 128-bit integers (DuckDB)
    exposures                one pass, on other engines
    packed_rank_exposures    one pass, for a log that names no ranker: counts by rank
    cells                    two passes, for many rankers and for pairs that one ranker showed at several ranks

`exposure_pair_sums` sums over the intervention sets instead, where there are too many strata to keep. In a log with
units, `unit_losses` counts what these sums lose without each bucket of units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from posbias.sql.dialects import BUCKETS, PACK
from posbias.sql.plan import (
    BY_BOTH,
    RANK_BITS,
    PackedCounts,
    PackedRanks,
    QueryPlan,
    Step,
    bucket_columns,
    bucket_steps,
    comma,
    render,
    shown_steps,
)

# The bucket of pairs that are not counted: without an id, shown at several ranks by one ranker, shown too often for
# the digits of their counts.
MISSING_ID, NON_FUNCTIONAL, TOO_FREQUENT = -1, -2, -3
# The condition on the cells of a pair that some ranker showed at several ranks.
SEVERAL_RANKS = "COUNT(*) > COUNT(DISTINCT ranker)"
# The columns of `unit_losses`.
LOSSES = ("clicks", "skips", "other_clicks", "other_skips")
# The packed counts of a log with more rows have no room for the number of rows.
_MOST_ROWS = 2**26
_BUCKETED = "The bucket of the pair, or a negative mark for a pair without an id or with several ranks by one ranker."
_STRATA = "Pairs with the same exposure form one stratum."


# ---- One pass over the pairs


def packed_exposures(plan: QueryPlan, counts: PackedCounts) -> str:
    """Return the query of pairs and clicks by bucket and exposure, with counts packed by ranker.

    The answer has the columns of `exposures`, but `packed_impressions_<g>` and `packed_clicks_<g>` for the counts.
    """
    d, segments = plan.dialect, plan.segments
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    (masks, one_rank_each), ranks = rank_mask_columns(plan), plan.masks.names
    keys = comma(segments, "bucket", ranks, counts.names("packed_impressions"))
    # A sum that does not fit is NULL: the impressions show that it had too few bits.
    clicks = [f"{d.try_cast(f'SUM({name})', 'BIGINT')} AS {name}" for name in counts.names("packed_clicks")]
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "packed",
                "What each row adds to which packed number.",
                f"SELECT {comma(segments, 'query', 'doc', 'ranker', 'position')},\n"
                f"  {counts.row_value(d, 'ranker', aggregated=plan.schema.aggregated)} AS row_value, "
                f"{counts.number_of_slot(d, 'ranker')} AS number\nFROM shown\nWHERE {in_top_ranks(plan)}",
            ),
            Step(
                "pairs",
                "Each (query, document) once: its ranks as bits, and its impressions and clicks packed.",
                f"SELECT {comma(segments, 'query', 'doc')},\n  "
                + ",\n  ".join([*masks, *counts.sum_columns()])
                + f"\nFROM packed\nGROUP BY {comma(segments, 'query', 'doc')}",
            ),
            Step(
                "bucketed",
                _BUCKETED,
                f"SELECT {comma(segments, ranks)},\n  " + ",\n  ".join(counts.split_columns(d, one_rank_each)) + ",\n"
                f"  CASE WHEN query IS NULL OR doc IS NULL THEN {MISSING_ID} WHEN {one_rank_each} THEN {bucket} "
                f"ELSE {NON_FUNCTIONAL} END AS bucket\nFROM pairs",
            ),
            Step(
                "exposures",
                _STRATA,
                f"SELECT {keys}, COUNT(*) AS pairs,\n  {comma(clicks)}\nFROM bucketed\nGROUP BY {keys}",
            ),
        ]
    )


def exposures(plan: QueryPlan) -> str:
    """Return the query of pairs and clicks by bucket and exposure, in one pass over (query, document).

    The ranks of a pair come as `RankMasks`. Pairs that one ranker showed at several ranks come back only as a count,
    under bucket NON_FUNCTIONAL.
    """
    d, segments = plan.dialect, plan.segments
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    big = d.cast("impressions", "BIGINT")
    packed = d.total(f"CASE WHEN ranker = {{i}} THEN {PACK} * {big} + clicks ELSE 0 END")
    masks, one_rank_each = rank_mask_columns(plan)
    ranks, impressions = plan.masks.names, plan.per_ranker("impressions_{i}")
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "pairs",
                "Each (query, document) once: its ranks as bits, and its counts in one number for each ranker.",
                f"SELECT {comma(segments, 'query', 'doc')},\n  {comma(masks)},\n  "
                + plan.per_ranker(f"{packed} AS packed_{{i}}", ",\n  ")
                + f"\nFROM shown\nWHERE {in_top_ranks(plan)}\nGROUP BY {comma(segments, 'query', 'doc')}",
            ),
            Step(
                "bucketed",
                _BUCKETED,
                f"SELECT {comma(segments, ranks)},\n"
                f"  CASE WHEN query IS NULL OR doc IS NULL THEN {MISSING_ID} WHEN {one_rank_each} THEN {bucket} "
                f"ELSE {NON_FUNCTIONAL} END AS bucket,\n  "
                + plan.per_ranker(
                    f"{d.upper_half('packed_{i}')} AS impressions_{{i}}, {d.lower_half('packed_{i}')} AS clicks_{{i}}",
                    ",\n  ",
                )
                + "\nFROM pairs",
            ),
            Step(
                "exposures",
                _STRATA,
                f"SELECT {comma(segments, 'bucket', ranks, impressions)}, COUNT(*) AS pairs,\n  "
                + plan.per_ranker(f"{d.total('clicks_{i}')} AS clicks_{{i}}")
                + f"\nFROM bucketed\nGROUP BY {comma(segments, 'bucket', ranks, impressions)}",
            ),
        ]
    )


def rank_mask_columns(plan: QueryPlan) -> tuple[list[str], str]:
    """Return SQL for the rank masks of a pair, and for the condition that no ranker showed it at several ranks."""
    d, masks = plan.dialect, plan.masks
    columns = []
    for name, group in zip(masks.names, masks.groups, strict=True):
        bit = d.bit(masks.bit_position(group, "ranker", "position"), wide=len(group) * plan.max_rank > 30)
        bits = (
            bit
            if len(masks.groups) == 1
            else f"CASE WHEN ranker BETWEEN {group[0]} AND {group[-1]} THEN {bit} ELSE 0 END"
        )
        columns.append(f"{d.bit_or(bits)} AS {name}")
    # x & (x - 1) is 0 if x has at most one bit.
    return columns, " AND ".join(f"({bits} & ({bits} - 1)) = 0" for bits in masks.ranker_bits(d))


def in_top_ranks(plan: QueryPlan) -> str:
    """Return the condition on rows of `shown` that count: within the top M. `profile` has checked everything else."""
    # An aggregated row may have no impressions.
    return f"position <= {plan.max_rank}" + (" AND impressions > 0" if plan.schema.aggregated else "")


def pack_by_ranker(plan: QueryPlan, most: int) -> PackedCounts:
    """Return how counts of up to `most` are packed, with a digit for each ranker."""
    return PackedCounts(len(plan.rankers), max(most, 1).bit_length())


# ---- A log that names no ranker


def packed_rank_exposures(plan: QueryPlan, counts: PackedRanks) -> str:
    """Return the query of how many pairs have the same packed impressions and clicks at each rank, by bucket.

    For a log that names no ranker. Pairs that were shown too often for the counts come back under bucket TOO_FREQUENT,
    with the number of their query (`_query_number`) in `packed_impressions_0`.
    """
    d, segments = plan.dialect, plan.segments
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    names = [*counts.names("packed_impressions"), *counts.names("packed_clicks")]
    keys = comma(segments, "bucket", names)
    frequent = f"{counts.row_count()} >= {2**RANK_BITS}"
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "packed",
                "What each row adds to which packed number.",
                f"SELECT {comma(segments, 'query', 'doc', 'position', 'clicks')},\n"
                f"  {counts.row_value(d)} AS row_value\nFROM shown\nWHERE {in_top_ranks(plan)}",
            ),
            Step(
                "pairs",
                "Each (query, document) once: how often it was shown and clicked at each rank, as counts.",
                f"SELECT {comma(segments, 'query', 'doc')},\n  "
                + ",\n  ".join(counts.sum_columns(d))
                + f"\nFROM packed\nGROUP BY {comma(segments, 'query', 'doc')}",
            ),
            Step(
                "bucketed",
                "The bucket of the pair, or a negative mark for a pair without an id or with too many impressions.",
                f"SELECT {comma(segments)}{', ' if segments else ''}"
                f"CASE WHEN query IS NULL OR doc IS NULL THEN {MISSING_ID} WHEN {frequent} THEN {TOO_FREQUENT} "
                f"ELSE {bucket} END AS bucket,\n  "
                + ",\n  ".join(counts.split_columns(d, f"NOT ({frequent})", _query_number(plan, "query")))
                + "\nFROM pairs",
            ),
            Step(
                "exposures",
                _STRATA,
                f"SELECT {keys}, COUNT(*) AS pairs\nFROM bucketed\nGROUP BY {keys}",
            ),
        ]
    )


def pack_by_rank(plan: QueryPlan, rows: int) -> PackedRanks:
    """Return how the counts of a pair in a log of `rows` rows are packed, with a digit for each rank."""
    return PackedRanks(plan.max_rank, counts_rows=rows < _MOST_ROWS)


def frequent_pair_cells(plan: QueryPlan, queries: Sequence[int]) -> str:
    """Return the query of the exposures, cell by cell, of pairs that were shown too often for packed counts.

    `queries` are the numbers of their queries; empty to search the whole log.
    """
    having = f"SUM(impressions) >= {2**RANK_BITS}"
    if not queries:
        return cells(plan, having=having)
    d, schema = plan.dialect, plan.schema
    query = d.nan_to_null(d.quote(schema.query), schema.types[schema.query])
    rows = f"SELECT *\nFROM {plan.log}\nWHERE {_query_number(plan, query)} IN ({', '.join(map(str, queries))})"
    answer = f"SELECT *\nFROM (\n{cells(replace(plan, log='frequent'), having=having)}\n) cells"
    return render(
        [Step("frequent", "The rows of queries with such pairs.", rows), Step("answer", "Their exposures.", answer)]
    )


def _query_number(plan: QueryPlan, query: str) -> str:
    """Return SQL for a number of a query; it is a hash, so two queries may share it."""
    return plan.dialect.cast(f"{plan.dialect.hash(query)} & {2**62 - 1}", "BIGINT")


# ---- Cell by cell


def cells(plan: QueryPlan, *, having: str = "") -> str:
    """Return the query of the exposures cell by cell: for many rankers, or for pairs that `having` selects."""
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
                "The exposure of each pair as one text: pairs with the same text form one stratum.",
                f"SELECT {ids}, {d.string_agg(texts, 'ranker, position')} AS stratum\nFROM cells\nGROUP BY {ids}{only}",
            ),
            Step(
                "exposures",
                "Pairs and clicks by stratum and cell.",
                f"SELECT {comma(names)}{', ' if names else ''}{bucket} AS bucket, stratum, ranker, position AS "
                "rank, impressions, COUNT(*) AS pairs, "
                f"{d.total('clicks')} AS clicks\nFROM cells c\nJOIN strata s ON {_same_pair('c', 's', segments)}\n"
                f"GROUP BY {comma(names, bucket, 'stratum', 'ranker', 'position', 'impressions')}",
            ),
        ]
    )


def cell_steps(plan: QueryPlan) -> list[Step]:
    """Return the steps that end in `cells`: impressions and clicks of each pair at each rank by each ranker."""
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


def _same_pair(left: str, right: str, segments: list[str]) -> str:
    same = [f"{left}.{s} IS NOT DISTINCT FROM {right}.{s}" for s in segments]
    return " AND ".join([*same, f"{left}.query = {right}.query", f"{left}.doc = {right}.doc"])


def exposure_pair_sums(plan: QueryPlan, weighting: str, firsts: Sequence[int]) -> str:
    """Return the query of ĉ and ¬ĉ by bucket, k and k' (section 3 of the paper), for logs with too many strata.

    Arguments:
        plan (QueryPlan): what is asked of the log.
        weighting (str): "traffic", "uniform", "harmonic" or "min".
        firsts (sequence of int): the position at which the page views of each ranker are counted; only "traffic" uses
            it.
    """
    d, segments = plan.dialect, plan.segments
    ids = comma(segments, "query", "doc")
    least = "CASE WHEN a.impressions < b.impressions THEN a.impressions ELSE b.impressions END"
    clicks, skips = {
        "traffic": ("a.clicks / a.w", "(a.impressions - a.clicks) / a.w"),
        "uniform": ("1e0 * a.clicks / a.impressions", "1e0 - 1e0 * a.clicks / a.impressions"),
        "harmonic": (
            "1e0 * a.clicks * b.impressions / (a.impressions + b.impressions)",
            "1e0 * (a.impressions - a.clicks) * b.impressions / (a.impressions + b.impressions)",
        ),
        "min": (
            f"1e0 * a.clicks * {least} / a.impressions",
            f"1e0 * (a.impressions - a.clicks) * {least} / a.impressions",
        ),
    }[weighting]
    bucket = d.bucket("a.query", plan.schema.types[plan.schema.query])
    names = [f"a.{s}" for s in segments]
    on_views = " AND ".join([*(f"c.{s} IS NOT DISTINCT FROM v.{s}" for s in segments), "c.ranker = v.ranker"])
    over = f"PARTITION BY {comma(segments)}" if segments else ""
    first = " ".join(f"WHEN {i} THEN {k}" for i, k in enumerate(firsts))
    steps = cell_steps(plan)
    if weighting == "traffic":
        steps += [
            Step(
                "page_views",
                "The page views n_i of each ranker, as a share of all, so that harvests of several days add up.",
                f"SELECT {comma(segments, 'ranker')}, 1e0 * SUM(impressions) / SUM(SUM(impressions)) "
                f"OVER ({over}) AS n\nFROM cells\nWHERE position = CASE ranker {first} END\n"
                f"GROUP BY {comma(segments, 'ranker')}",
            ),
            Step(
                "weighted",
                "w(q,d,k): a ranker that showed the pair at several ranks counts at each rank by its share.",
                f"SELECT c.*, v.n * c.impressions / SUM(c.impressions) OVER (PARTITION BY "
                f"{comma([f'c.{s}' for s in segments], 'c.query', 'c.doc', 'c.ranker')}) AS w\n"
                f"FROM cells c\nJOIN page_views v ON {on_views}",
            ),
        ]
    # Shares are at most 1, and small ones need their digits.
    source, w = ("weighted", f", {d.exact_sum('w', 24)} AS w") if weighting == "traffic" else ("cells", "")
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
                "ĉ and ¬ĉ of every intervention set.",
                f"SELECT {comma(names)}{', ' if names else ''}{bucket} AS bucket, a.rank AS rank, "
                f"b.rank AS other, {d.exact_sum(clicks)} AS clicks, {d.exact_sum(skips)} AS skips\nFROM ranked a\n"
                f"JOIN ranked b ON {_same_pair('a', 'b', segments)} AND a.rank <> b.rank\nGROUP BY {keys}",
            ),
        ]
    )


# ---- Buckets of units


def unit_totals(plan: QueryPlan) -> str:
    """Return the query of `totals` by bucket of units, and by bucket of queries and units."""
    return render([*_unit_rows(plan), unit_totals_step(plan)])


def unit_losses(plan: QueryPlan) -> str:
    """Return the query of what ĉ and ¬ĉ, weighted by "harmonic", lose without each bucket of units.

    A bucket takes n of the N impressions of a pair at k, and n' of the N' at k', so that the sum of S_{k,k'} loses
    C N' / (N + N') − (C − c)(N' − n') / (N − n + N' − n'). Where the bucket has no impressions at k', its row at k also
    stands for what the sum of S_{k',k} loses. The columns `clicks` and `skips` are of S_{k,k'}, and `other_clicks` and
    `other_skips` of S_{k',k}.
    """
    return render([*_unit_rows(plan), *unit_loss_steps(plan, plan.dialect.exact_sum)])


def _unit_rows(plan: QueryPlan) -> list[Step]:
    pair = plan.dialect.hash(comma(plan.segments, "query", "doc"))
    rows = unit_rows_step(plan, pair, f"{in_top_ranks(plan)} AND query IS NOT NULL AND doc IS NOT NULL")
    return [*shown_steps(plan, ranks=False), *bucket_steps(plan, "shown"), rows]


def unit_rows_step(plan: QueryPlan, pair: str, counted: str) -> Step:
    """Return the step `unit_rows`: the rows of `with_buckets` that count, with the buckets of their units.

    Arguments:
        plan (QueryPlan): what is asked of the log.
        pair (str): SQL for a hash of the segment, the query and the document. Two pairs that share one hardly change a
            standard error, and numbers are joined faster.
        counted (str): SQL for the condition on rows that count.
    """
    columns = comma(plan.segments, "ranker", "position", "impressions", "clicks", f"{pair} AS pair")
    select = f"SELECT {columns}, {bucket_columns(plan)}\nFROM with_buckets\nWHERE {counted}"
    return Step("unit_rows", "The rows that count, with the buckets of their units.", select)


def unit_totals_step(plan: QueryPlan) -> Step:
    """Return the step after `unit_rows` that counts impressions and clicks by bucket, ranker and position."""
    d = plan.dialect
    return Step(
        "unit_totals",
        "Impressions and clicks by bucket of units, ranker and position.",
        f"SELECT {comma(plan.segments, _unit_bucket(), 'ranker', 'position AS rank')}, "
        f"{d.total('impressions')} AS impressions, {d.total('clicks')} AS clicks\nFROM unit_rows\n"
        f"{_by_unit(plan.segments, 'ranker', 'position')}",
    )


def unit_loss_steps(plan: QueryPlan, add_up: Callable[[str], str]) -> list[Step]:
    """Return the steps after `unit_rows` that end in `unit_losses`; `add_up` makes the aggregate of a fraction."""
    d, names = plan.dialect, [f"u.{s}" for s in plan.segments]
    selected = [f"u.{s} AS {s}" for s in plan.segments]
    # Impressions that the bucket leaves at k and k'.
    left, other_left = "(a.impressions - u.impressions)", "(b.impressions - COALESCE(v.impressions, 0))"
    lost, lost_at_other = [], []
    for name in ("clicks", "skips"):
        lost.append(
            f"1e0 * a.{name} * b.impressions / (a.impressions + b.impressions)\n"
            f"    - COALESCE(1e0 * (a.{name} - u.{name}) * {other_left} / NULLIF({left} + {other_left}, 0), 0)"
        )
        lost_at_other.append(
            f"CASE WHEN v.impressions IS NULL THEN 1e0 * b.{name} * a.impressions / (a.impressions + b.impressions)\n"
            f"    - 1e0 * b.{name} * {left} / ({left} + b.impressions) ELSE 0 END"
        )
    sums = [f"{add_up(text)} AS {name}" for text, name in zip([*lost, *lost_at_other], LOSSES, strict=True)]
    cell = comma(plan.segments, "pair", "position", "unit_bucket", "both_bucket")
    counts = ("impressions", "clicks", "skips")
    return [
        Step(
            "unit_cells",
            "Each (query, document) at each rank, by bucket of units.",
            f"SELECT {cell}, {d.total('impressions')} AS impressions, {d.total('clicks')} AS clicks, "
            f"{d.total('impressions - clicks')} AS skips\nFROM unit_rows\nGROUP BY {cell}",
        ),
        Step(
            "ranked",
            "The same in all buckets.",
            f"SELECT pair, position, {comma([f'{d.total(name)} AS {name}' for name in counts])}\n"
            "FROM unit_cells\nGROUP BY pair, position",
        ),
        Step(
            "unit_losses",
            "What ĉ and ¬ĉ lose without each bucket.",
            f"SELECT {comma(selected, _unit_bucket('u.'))}, u.position AS rank, b.position AS other,\n  "
            + ",\n  ".join(sums)
            + "\nFROM ranked a\nJOIN ranked b ON a.pair = b.pair\n"
            "JOIN unit_cells u ON a.pair = u.pair AND a.position = u.position\n"
            "LEFT JOIN unit_cells v ON u.pair = v.pair AND b.position = v.position\n"
            "  AND u.unit_bucket = v.unit_bucket AND u.both_bucket = v.both_bucket\n"
            "WHERE a.position <> b.position\n" + _by_unit(names, "u.position", "b.position", table="u."),
        ),
    ]


def _unit_bucket(table: str = "") -> str:
    """Return SQL for the number of a bucket, as in a harvest with units, in a query that groups by `_by_unit`."""
    unit, both = f"{table}unit_bucket", f"{table}both_bucket"
    return f"CASE WHEN GROUPING({unit}) = 0 THEN {BUCKETS} + {unit} ELSE {BY_BOTH} + {both} END AS bucket"


def _by_unit(*keys: str | Sequence[str], table: str = "") -> str:
    """Return the GROUP BY of both kinds of buckets of units, and other keys."""
    sets = (f"({comma(f'{table}{name}', *keys)})" for name in ("unit_bucket", "both_bucket"))
    return f"GROUP BY GROUPING SETS ({', '.join(sets)})"


# ---- Counts beside the strata


def profile(plan: QueryPlan) -> str:
    """Return the query of rows, impressions and clicks by ranker and position; position -1 counts unusable rows."""
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
                "classified",
                "Where each row was shown: 0 for beyond M, -1 for a row that cannot be used.",
                "SELECT name, impressions, clicks,\n"
                f"  CASE WHEN {counted} THEN CASE WHEN position <= {plan.max_rank} THEN position ELSE 0 END "
                "ELSE -1 END AS position\nFROM typed",
            ),
            Step(
                "profile",
                "Rows, impressions and clicks by ranker and position.",
                f"SELECT name, position, COUNT(*) AS row_count, {total} AS impressions, "
                # A value that is not a click may be too large to add up.
                f"{d.total('CASE WHEN position >= 0 THEN clicks ELSE 0 END')} AS clicks\nFROM classified\n"
                "GROUP BY name, position",
            ),
        ]
    )


def bounds(plan: QueryPlan) -> str:
    """Return the query of how many rows there are, how many name a ranker, and the range of positions and clicks.

    The range of a column is the count of its values, the least and the greatest.
    """
    d, schema = plan.dialect, plan.schema
    ranker, *columns = (d.quote(name or "") for name in (schema.ranker, schema.position, schema.click))
    ranges = ", ".join(f"COUNT({c}), MIN({c}), MAX({c})" for c in columns)
    return f"SELECT COUNT(*), COUNT({ranker}), {ranges}\nFROM log"


def totals(plan: QueryPlan) -> str:
    """Return the query of impressions and clicks by bucket, ranker and position, which pair sums do not hold."""
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


def count_strata(plan: QueryPlan, buckets: int, strata: Callable[[QueryPlan], str]) -> str:
    """Return the query of how many strata the first buckets of a log have; `strata` makes the query that is counted."""
    d, schema = plan.dialect, plan.schema
    type_ = schema.types[schema.query]
    bucket = d.bucket(d.nan_to_null(d.quote(schema.query), type_), type_)
    rows = f"SELECT *\nFROM log\nWHERE {bucket} < {buckets}"
    count = f"SELECT COUNT(*)\nFROM (\n{strata(replace(plan, log='few_buckets'))}\n) strata"
    return render(
        [Step("few_buckets", f"The rows of {buckets} buckets.", rows), Step("counted", "How many strata.", count)]
    )


def set_sizes(plan: QueryPlan) -> str:
    """Return the query of how many distinct (query, document) pairs were shown at both k and k': |S_{k,k'}|."""
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
                "The size of every intervention set.",
                "SELECT a.rank, b.rank, COUNT(*)\nFROM ranked a\nJOIN ranked b ON a.query = b.query AND "
                "a.doc = b.doc AND a.rank <> b.rank\nGROUP BY a.rank, b.rank",
            ),
        ]
    )


def pair_counts(plan: QueryPlan) -> str:
    """Return the query of how many (query, document) pairs there are, and how many were shown at several ranks."""
    return render(
        [
            *cell_steps(plan),
            Step(
                "ranks_of_pair",
                "At how many ranks each pair was shown.",
                "SELECT query, doc, COUNT(DISTINCT position) AS ranks\nFROM cells\nGROUP BY query, doc",
            ),
            Step(
                "pair_counts",
                "How many pairs, and how many at several ranks.",
                "SELECT COUNT(*), SUM(CASE WHEN ranks > 1 THEN 1 ELSE 0 END)\nFROM ranks_of_pair",
            ),
        ]
    )


def rows_without_id(plan: QueryPlan) -> str:
    """Return the query of how many rows within the top M have no query or no document."""
    why = "Rows without an id."
    select = f"SELECT COUNT(*)\nFROM shown\nWHERE {in_top_ranks(plan)} AND (query IS NULL OR doc IS NULL)"
    return render([*shown_steps(plan, ranks=False), Step("rows_without_id", why, select)])


def count_non_functional(plan: QueryPlan) -> str:
    """Return the query of how many pairs some ranker showed at several ranks, and of how many pairs there are."""
    ids = comma(plan.segments, "query", "doc")
    return render(
        [
            *cell_steps(plan),
            Step(
                "checked",
                "Whether any ranker showed a pair at several ranks.",
                f"SELECT {ids}, {SEVERAL_RANKS} AS several\nFROM cells\nGROUP BY {ids}",
            ),
            Step(
                "non_functional",
                "How many such pairs, and how many pairs.",
                "SELECT COUNT(CASE WHEN several THEN 1 END), COUNT(*)\nFROM checked",
            ),
        ]
    )
