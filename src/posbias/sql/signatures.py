"""Queries for logs with the rank that every ranker gives a document (the wide and long layouts).

A document's *signature* is the vector of ranks that the rankers give it, with "none" beyond the top M. Everything that
an estimator needs depends on a row only through its signature and the ranker that was shown. So the harvest is one
aggregation: impressions and clicks by bucket, signature and ranker. `SignatureCoding` writes a signature as an integer.

`signature_pair_sums` sums over the intervention sets instead, where there are too many signatures to keep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from posbias.sql.dialects import BUCKETS
from posbias.sql.plan import (
    BY_BOTH,
    QueryPlan,
    Step,
    bucket_columns,
    bucket_groups,
    bucket_key,
    bucket_names,
    bucket_steps,
    comma,
    render,
    shown_steps,
)

# `code_0` of rows that are not counted: shown beyond the top M, shown at a position that is not the rank by their
# ranker, or without a usable value.
BEYOND, CONTRADICTED, UNUSABLE = -1, -2, -3


def most_signatures(plan: QueryPlan) -> float:
    """Return the largest number of rows that the harvest can have; infinity if there are segments."""
    one_code = len(plan.coding.names) == 1
    buckets = BUCKETS if plan.schema.unit is None else BY_BOTH + BUCKETS
    return buckets * (len(plan.rankers) + 1) * _values(plan) if one_code and not plan.by else math.inf


def _values(plan: QueryPlan) -> int:
    """Return how many values `code_0` can have."""
    return plan.coding.sizes[0] - UNUSABLE


def signatures(plan: QueryPlan) -> str:
    """Return the query of impressions and clicks by bucket, signature and ranker shown."""
    return render(signature_steps(plan))


def signature_steps(plan: QueryPlan) -> list[Step]:
    """Return the steps that end in `signatures`."""
    d, coded = plan.dialect, plan.coding.names
    impressions, clicks = _totals(plan)
    counts = f"{impressions} AS impressions, {clicks} AS clicks, COUNT(*) AS row_count"
    # A row without a known ranker gets the number after the last ranker.
    size, unknown = _values(plan), len(plan.rankers)
    span = (unknown + 1) * size
    if not d.packed_keys or len(coded) > 1 or BUCKETS * span >= 2**62:
        why = "Impressions and clicks by bucket, signature and ranker shown."
        select = (
            f"SELECT {comma(plan.segments, bucket_key(plan), 'ranker', coded)},\n  {counts}\nFROM with_signature\n"
            f"{bucket_groups(plan, plan.segments, 'ranker', coded)}"
        )
        return [*_with_signature(plan), Step("signatures", why, select)]
    # Constants in place of a product tell DuckDB how large the number can be.
    starts = " ".join(f"WHEN {i} THEN {i * size - UNUSABLE}" for i in range(unknown))
    packed = f"CASE ranker {starts} ELSE {unknown * size - UNUSABLE} END + code_0"
    bucket, kept = "bucket", bucket_names(plan)
    keys = comma(plan.segments, bucket_key(plan), "packed")
    groups = bucket_groups(plan, plan.segments, "packed")
    if "bucket" in d.packed_keys and plan.schema.unit is None:
        packed, kept = f"{d.cast('bucket', 'BIGINT')} * {span} + {packed}", []
        bucket = f"{d.cast(d.quotient('packed', span), 'SMALLINT')} AS bucket"
        keys = comma(plan.segments, "packed")
        groups = f"GROUP BY {keys}"
    ranker = d.cast(f"NULLIF({d.quotient('packed', size)} % {unknown + 1}, {unknown})", "SMALLINT")
    return [
        *_with_signature(plan),
        Step(
            "with_key",
            "One number for several keys, because one number is grouped faster.",
            f"SELECT {comma(plan.segments, kept, 'impressions', 'clicks')},\n  {packed} AS packed\nFROM with_signature",
        ),
        Step(
            "counted",
            "Impressions and clicks by that number.",
            f"SELECT {keys},\n  {counts}\nFROM with_key\n{groups}",
        ),
        Step(
            "signatures",
            "The bucket, the ranker and the signature that the number stands for.",
            f"SELECT {comma(plan.segments, bucket, f'{ranker} AS ranker')},\n"
            f"  packed % {size} + {UNUSABLE} AS code_0, impressions, clicks, row_count\nFROM counted",
        ),
    ]


def _totals(plan: QueryPlan) -> tuple[str, str]:
    """Return SQL for the sums of impressions and clicks; counting rows is faster where each row is one impression."""
    if plan.schema.aggregated:
        return plan.dialect.total("impressions"), plan.dialect.total("clicks")
    return "COUNT(*)", "COUNT(CASE WHEN clicks = 1 THEN 1 END)"


def _with_signature(plan: QueryPlan, *, validated: bool = False) -> list[Step]:
    """Return the steps that end in `with_signature`: each row with its bucket and signature.

    With `validated` all rows are known to count, and the query does not check them.
    """
    d = plan.dialect
    # Narrow keys keep the hash table small: with three rankers it has a million groups.
    narrow = "INTEGER" if (len(plan.rankers) + 1) * _values(plan) < 2**31 else "BIGINT"
    digits = plan.coding.encode(d, narrow)
    first = d.cast(digits[0] if validated else _code(plan, digits[0]), narrow)
    rest = [f"{text} AS {name}" for text, name in zip(digits[1:], plan.coding.names[1:], strict=True)]
    with_buckets = bucket_steps(plan, "expected_positions")
    return [
        *_expected_positions(plan),
        *with_buckets,
        Step(
            "with_signature",
            "The signature: the ranks of all rankers as one number, 0 where beyond the top M; negative if not counted.",
            f"SELECT {comma(plan.segments, 'query', 'doc', 'ranker', 'expected_position', 'impressions', 'clicks')},\n"
            f"  {bucket_columns(plan)},\n  {comma(f'{first} AS code_0', rest)}\n"
            f"FROM {with_buckets[-1].name if with_buckets else 'expected_positions'}",
        ),
    ]


def _code(plan: QueryPlan, signature: str) -> str:
    """Return SQL for `code_0`: the signature of a row that counts, or a negative number that says why it does not."""
    m = plan.max_rank
    valid = "clicks BETWEEN 0 AND impressions AND query IS NOT NULL"
    # Most rows stand where their ranker puts them, and so have a position and a ranker: one short test for those.
    counted = f"position = expected_position AND position BETWEEN 1 AND {m} AND {valid}"
    usable = f"position >= 1 AND {valid} AND ranker IS NOT NULL"
    # A rank of 0 may mean "no rank" or ranks that count from 0: posbias cannot know which.
    invalid_rank = "" if plan.ranks_valid else f"WHEN {plan.per_ranker('rank_{i} < 1', ' OR ')} THEN {UNUSABLE}\n    "
    # A row beyond M whose ranker puts it within M is contradicted like any other.
    beyond = f"position > {m} AND (expected_position IS NULL OR expected_position > {m})"
    return (
        f"CASE\n    {invalid_rank}WHEN {counted} THEN\n      {signature}\n    WHEN {usable} THEN\n"
        f"      CASE WHEN {beyond} THEN {BEYOND} ELSE {CONTRADICTED} END\n    ELSE {UNUSABLE} END"
    )


def _expected_positions(plan: QueryPlan) -> list[Step]:
    """Return the steps that end in `expected_positions`: each row with the rank that the ranker shown gives it."""
    rank = "CASE ranker " + plan.per_ranker("WHEN {i} THEN rank_{i}", " ") + " END"
    why = "The rank that the ranker shown gives the result: the result must have been shown at that position."
    select = f"SELECT *, {rank} AS expected_position\nFROM shown"
    return [*shown_steps(plan, ranks=True), Step("expected_positions", why, select)]


def row_counts(plan: QueryPlan) -> str:
    """Return the query of how many rows count, by position, and how many do not, by reason; both in `code_0`.

    Both are by the number of the ranker (`shown_by`), -1 for an unknown one.
    """
    d = plan.dialect
    impressions = d.total("impressions") if plan.schema.aggregated else "COUNT(*)"
    # A value that is not a click may be too large to add up.
    clicks = d.total(f"CASE WHEN code_0 > {UNUSABLE} THEN clicks ELSE 0 END")
    return render(
        [
            *_expected_positions(plan),
            Step(
                "checked",
                "The position of a row that counts, or why it does not.",
                f"SELECT *, {_code(plan, 'expected_position')} AS code_0\nFROM expected_positions",
            ),
            Step(
                "row_counts",
                "How many rows count, and how many do not.",
                f"SELECT COALESCE(ranker, -1) AS shown_by, code_0, COUNT(*) AS row_count, "
                f"{impressions} AS impressions, {clicks} AS clicks\nFROM checked\nGROUP BY ranker, code_0",
            ),
        ]
    )


def pair_signatures(plan: QueryPlan, condition: str, *, validated: bool, queries: bool) -> str:
    """Return the query of how many (query, document) pairs have each signature, and how many have several.

    The answer has the least and the greatest code of a pair, `low_<code>` and `high_<code>`; they differ for a pair
    with several signatures.

    Arguments:
        plan (QueryPlan): what is asked of the log.
        condition (str): which rows of the log to read.
        validated (bool): whether all rows are known to count, so that the query does not check them.
        queries (bool): whether to add the number of distinct queries to every row.
    """
    names = plan.coding.names
    ends = [f"MIN({name}) AS low_{name}, MAX({name}) AS high_{name}" for name in names]
    keys = comma([f"low_{name}, high_{name}" for name in names])
    counted = ", (SELECT COUNT(DISTINCT query) FROM documents) AS queries" if queries else ""
    return render(
        [
            # First of all: the signatures of rows that are not read would cost more than the rest.
            Step("sampled", "The rows to read.", f"SELECT *\nFROM {plan.log}\nWHERE {condition}"),
            *_with_signature(replace(plan, log="sampled"), validated=validated),
            Step(
                "documents",
                "Each (query, document) once, with its least and its greatest signature.",
                f"SELECT query, doc, {comma(ends)}\nFROM with_signature\nWHERE code_0 >= 0\nGROUP BY query, doc",
            ),
            Step(
                "pair_signatures",
                "How many pairs have each signature.",
                f"SELECT {keys}, COUNT(*) AS pairs{counted}\nFROM documents\nGROUP BY {keys}",
            ),
        ]
    )


def signature_pairs(plan: QueryPlan) -> str:
    """Return the query of how many distinct (query, document) pairs have each signature."""
    steps = _with_signature(plan)
    keys = comma(plan.coding.names)
    return render(
        [
            *steps,
            Step(
                "documents",
                "Each (query, document) once.",
                f"SELECT DISTINCT query, doc, {keys}\nFROM with_signature\nWHERE code_0 >= 0",
            ),
            Step(
                "signature_pairs",
                "How many pairs have each signature.",
                f"SELECT {keys}, COUNT(*) AS pairs\nFROM documents\nGROUP BY {keys}",
            ),
        ]
    )


def signature_totals(plan: QueryPlan) -> str:
    """Return the query of impressions and clicks by bucket, ranker and rank; `code_0` is negative for rows that do not
    count.
    """
    d = plan.dialect
    steps = _with_signature(plan)
    impressions = d.total("impressions") if plan.schema.aggregated else "COUNT(*)"
    code = "CASE WHEN code_0 < 0 THEN code_0 ELSE 0 END"
    groups = bucket_groups(plan, plan.segments, "ranker", "expected_position", code)
    return render(
        [
            *steps,
            Step(
                "totals",
                "Impressions and clicks at each rank.",
                f"SELECT {comma(plan.segments, bucket_key(plan), 'ranker')}, expected_position AS rank, "
                f"{code} AS code_0, "
                f"{impressions} AS impressions, {d.total('clicks')} AS clicks, COUNT(*) AS row_count\n"
                f"FROM with_signature\n{groups}",
            ),
        ]
    )


def signature_pair_sums(plan: QueryPlan, firsts: Sequence[int]) -> str:
    """Return the query of ĉ and ¬ĉ by bucket, k and k' (section 3 of the paper), for logs with too many signatures.

    Arguments:
        plan (QueryPlan): what is asked of the log.
        firsts (sequence of int): the position at which the page views of each ranker are counted.
    """
    segments, d = plan.segments, plan.dialect
    ranks = [f"{rank} AS rank_{i}" for i, rank in enumerate(plan.coding.decode(d))]
    rank = "CASE ranker " + plan.per_ranker("WHEN {i} THEN rank_{i}", " ") + " END"
    views = ",\n  ".join(
        f"SUM(CASE WHEN ranker = {i} AND rank = {first} THEN impressions ELSE 0 END) AS views_{i}"
        for i, first in enumerate(firsts)
    )
    weight = plan.per_ranker("CASE WHEN s.rank_{i} = s.rank THEN v.views_{i} ELSE 0 END", " + ")
    total = plan.per_ranker("v.views_{i}", " + ")
    on = " AND ".join(f"s.{name} IS NOT DISTINCT FROM v.{name}" for name in segments) or "TRUE"
    # A ranker that showed nothing makes no intervention.
    served = plan.per_ranker("CASE WHEN v.views_{i} > 0 THEN s.rank_{i} ELSE 0 END AS rank_{i}", ",\n  ")
    keys = comma(segments, "bucket", "rank", "other")
    group_views = f"\nGROUP BY {comma(segments)}" if segments else ""
    return render(
        [
            *signature_steps(plan),
            Step(
                "decoded",
                "The ranks that each signature stands for.",
                f"SELECT {comma(segments, 'bucket', 'ranker', 'impressions', 'clicks')},\n  "
                + ",\n  ".join(ranks)
                + "\nFROM signatures\nWHERE code_0 >= 0",
            ),
            Step("with_rank", "The rank at which each was shown.", f"SELECT *, {rank} AS rank\nFROM decoded"),
            Step(
                "page_views",
                "The page views n_i of each ranker.",
                f"SELECT {comma(segments, views)}\nFROM with_rank{group_views}",
            ),
            Step(
                "weighted",
                "w(q,d,k), as a share of all page views, so that harvests of several days add up.",
                f"SELECT {comma([f's.{n}' for n in segments], 's.bucket', 's.rank', 's.impressions', 's.clicks')},\n"
                f"  {served},\n  1e0 * ({weight}) / NULLIF({total}, 0) AS w\n"
                f"FROM with_rank s\nJOIN page_views v ON {on}",
            ),
            Step(
                "other_ranks",
                "The ranks k'.",
                " UNION ALL ".join(f"SELECT {k} AS other" for k in range(1, plan.max_rank + 1)),
            ),
            Step(
                "rank_pairs",
                "Each row once for every other rank k' of its document, however many rankers put it there.",
                f"SELECT {comma(segments, 'bucket', 'rank', 'other')},\n"
                "  clicks / w AS weighted_clicks, (impressions - clicks) / w AS weighted_skips"
                f"\nFROM weighted\nJOIN other_ranks ON other <> rank AND other IN ({plan.per_ranker('rank_{i}')})\n"
                "WHERE w > 0",
            ),
            Step(
                "pair_sums",
                "ĉ and ¬ĉ of every intervention set.",
                f"SELECT {comma(segments, 'bucket')}, rank, other, {d.exact_sum('weighted_clicks')} AS clicks, "
                f"{d.exact_sum('weighted_skips')} AS skips\nFROM rank_pairs\nGROUP BY {keys}",
            ),
        ]
    )
