"""The harvest where every ranker's rank is known (wide, long): one aggregation by signature and ranker shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from posbias.sql.dialects import BUCKETS
from posbias.sql.plan import QueryPlan, Step, comma, render, shown_steps

# What `code_0` holds instead of ranks for rows that cannot be counted.
BEYOND, CONTRADICTED, UNUSABLE = -1, -2, -3


def most_signatures(plan: QueryPlan) -> float:
    """Return how many rows the harvest can have at most: without end where there are segments."""
    one_code = len(plan.coding.names) == 1
    return BUCKETS * (len(plan.rankers) + 1) * _values(plan) if one_code and not plan.by else math.inf


def _values(plan: QueryPlan) -> int:
    """Return how many values `code_0` may have."""
    return plan.coding.sizes[0] - UNUSABLE


def signatures(plan: QueryPlan) -> str:
    """Return the harvest of a wide or long log: impressions and clicks by bucket, signature, ranker shown."""
    return render(signature_steps(plan))


def signature_steps(plan: QueryPlan) -> list[Step]:
    """Return the steps that end in `signatures`."""
    d, coded = plan.dialect, plan.coding.names
    impressions, clicks = _totals(plan)
    counts = f"{impressions} AS impressions, {clicks} AS clicks, COUNT(*) AS row_count"
    size, nobody = _values(plan), len(plan.rankers)
    span = (nobody + 1) * size
    if not d.packed_keys or len(coded) > 1 or BUCKETS * span >= 2**62:
        keys = comma(plan.segments, "bucket", "ranker", coded)
        why = "Impressions and clicks by bucket, signature and ranker shown."
        return [*_signed(plan), Step("signatures", why, f"SELECT {keys},\n  {counts}\nFROM signed\nGROUP BY {keys}")]
    # Constants by ranker in place of a product: DuckDB then knows how large the number can be.
    starts = " ".join(f"WHEN {i} THEN {i * size - UNUSABLE}" for i in range(nobody))
    packed = f"CASE ranker {starts} ELSE {nobody * size - UNUSABLE} END + code_0"
    bucket, apart = "bucket", "bucket"
    if "bucket" in d.packed_keys:
        packed, apart = f"{d.cast('bucket', 'BIGINT')} * {span} + {packed}", ""
        bucket = f"{d.cast(d.quotient('packed', span), 'SMALLINT')} AS bucket"
    ranker = d.cast(f"NULLIF({d.quotient('packed', size)} % {nobody + 1}, {nobody})", "SMALLINT")
    keys = comma(plan.segments, apart, "packed")
    return [
        *_signed(plan),
        Step(
            "keyed",
            f"As one number, which is grouped faster: {', '.join(d.packed_keys)}.",
            f"SELECT {comma(plan.segments, apart, 'impressions', 'clicks')},\n  {packed} AS packed\nFROM signed",
        ),
        Step(
            "counted",
            "Impressions and clicks by that number.",
            f"SELECT {keys},\n  {counts}\nFROM keyed\nGROUP BY {keys}",
        ),
        Step(
            "signatures",
            "What the number was made of.",
            f"SELECT {comma(plan.segments, bucket, f'{ranker} AS ranker')},\n"
            f"  packed % {size} + {UNUSABLE} AS code_0, impressions, clicks, row_count\nFROM counted",
        ),
    ]


def _totals(plan: QueryPlan) -> tuple[str, str]:
    """Return impressions and clicks as aggregates: rows are counted, which is faster, where they are not added up."""
    if plan.schema.aggregated:
        return plan.dialect.total("impressions"), plan.dialect.total("clicks")
    return "COUNT(*)", "COUNT(CASE WHEN clicks = 1 THEN 1 END)"


def _signed(plan: QueryPlan, *, tested: bool = False) -> list[Step]:
    """Return the steps that end in `signed`: each row with its bucket and signature; `tested` if all can be counted."""
    d = plan.dialect
    # Narrow keys and counts of rows keep the hash table small: with three rankers it has a million groups.
    narrow = "INTEGER" if (len(plan.rankers) + 1) * _values(plan) < 2**31 else "BIGINT"
    digits = plan.coding.encode(d, narrow)
    first = d.cast(digits[0] if tested else _code(plan, digits[0]), narrow)
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    rest = [f"{text} AS {name}" for text, name in zip(digits[1:], plan.coding.names[1:], strict=True)]
    return [
        *_placed_by_own(plan),
        Step(
            "signed",
            "The signature: the ranks of all rankers as one number, none where beyond M.",
            f"SELECT {comma(plan.segments, 'query', 'doc', 'ranker', 'own', 'impressions', 'clicks')},\n"
            f"  {bucket} AS bucket,\n  {comma(f'{first} AS code_0', rest)}\nFROM placed_by_own",
        ),
    ]


def _code(plan: QueryPlan, counted: str) -> str:
    """Return `code_0`: what a row that is counted has, or why a row is not."""
    m = plan.max_rank
    sound = "clicks BETWEEN 0 AND impressions AND query IS NOT NULL"
    # Most rows are placed where their ranker puts them, and so have a position and a ranker: one short test for those.
    placed = f"position = own AND position BETWEEN 1 AND {m} AND {sound}"
    usable = f"position >= 1 AND {sound} AND ranker IS NOT NULL"
    # A rank of 0 is none, or counts from 0: either way it is not what it seems.
    unsound = "" if plan.ranks_valid else f"WHEN {plan.per_ranker('rank_{i} < 1', ' OR ')} THEN {UNUSABLE}\n    "
    # Beyond M by its rank too: what its ranker puts within and the page beyond is contradicted like any other.
    beyond = f"position > {m} AND (own IS NULL OR own > {m})"
    return (
        f"CASE\n    {unsound}WHEN {placed} THEN\n      {counted}\n    WHEN {usable} THEN\n"
        f"      CASE WHEN {beyond} THEN {BEYOND} ELSE {CONTRADICTED} END\n    ELSE {UNUSABLE} END"
    )


def _placed_by_own(plan: QueryPlan) -> list[Step]:
    """Return the steps that end in `placed_by_own`: each row with the rank by the ranker shown."""
    own = "CASE ranker " + plan.per_ranker("WHEN {i} THEN rank_{i}", " ") + " END"
    why = "The rank that the ranker shown gives the result; it must be where it was shown."
    return [*shown_steps(plan, ranks=True), Step("placed_by_own", why, f"SELECT *, {own} AS own\nFROM shown")]


def row_counts(plan: QueryPlan) -> str:
    """Return how many rows are counted, by the rank where they were shown, and how many are not, by why (`code_0`).

    Both by ranker (`shown_by`); -1 is one that is not known.
    """
    d = plan.dialect
    impressions = d.total("impressions") if plan.schema.aggregated else "COUNT(*)"
    # What is no click may be too large to be added up.
    clicks = d.total(f"CASE WHEN code_0 > {UNUSABLE} THEN clicks ELSE 0 END")
    return render(
        [
            *_placed_by_own(plan),
            Step(
                "judged", "Whether it can be counted.", f"SELECT *, {_code(plan, 'own')} AS code_0\nFROM placed_by_own"
            ),
            Step(
                "row_counts",
                "How many rows can be counted, and how many cannot.",
                f"SELECT COALESCE(ranker, -1) AS shown_by, code_0, COUNT(*) AS row_count, "
                f"{impressions} AS impressions, {clicks} AS clicks\nFROM judged\nGROUP BY ranker, code_0",
            ),
        ]
    )


def pair_signatures(plan: QueryPlan, condition: str, *, tested: bool, queries: bool) -> str:
    """Return how many (query, document) pairs have each signature, and how many have several (`low` is not `high`).

    `condition` says which rows of the log are looked at. Where all are known to be counted (`tested`), what tells that
    is not read again. With the number of their queries in every row, if wanted.
    """
    names = plan.coding.names
    ends = [f"MIN({name}) AS low_{name}, MAX({name}) AS high_{name}" for name in names]
    keys = comma([f"low_{name}, high_{name}" for name in names])
    counted = ", (SELECT COUNT(DISTINCT query) FROM documents) AS queries" if queries else ""
    return render(
        [
            # First of all: to sign rows that are not looked at costs more than the rest.
            Step("sampled", "The rows that are looked at.", f"SELECT *\nFROM {plan.log}\nWHERE {condition}"),
            *_signed(replace(plan, log="sampled"), tested=tested),
            Step(
                "documents",
                "Each (query, document) once, with its signature, or the first and the last of several.",
                f"SELECT query, doc, {comma(ends)}\nFROM signed\nWHERE code_0 >= 0\nGROUP BY query, doc",
            ),
            Step(
                "pair_signatures",
                "How many have each.",
                f"SELECT {keys}, COUNT(*) AS pairs{counted}\nFROM documents\nGROUP BY {keys}",
            ),
        ]
    )


def signature_pairs(plan: QueryPlan) -> str:
    """Return how many distinct (query, document) pairs have each signature."""
    steps = _signed(plan)
    keys = comma(plan.coding.names)
    return render(
        [
            *steps,
            Step(
                "documents",
                "Each (query, document) once.",
                f"SELECT DISTINCT query, doc, {keys}\nFROM signed\nWHERE code_0 >= 0",
            ),
            Step(
                "signature_pairs",
                "How many have each signature.",
                f"SELECT {keys}, COUNT(*) AS pairs\nFROM documents\nGROUP BY {keys}",
            ),
        ]
    )


def signature_totals(plan: QueryPlan) -> str:
    """Return impressions and clicks by bucket, ranker and rank, and the rows that cannot be counted by `code_0`."""
    d = plan.dialect
    steps = _signed(plan)
    impressions = d.total("impressions") if plan.schema.aggregated else "COUNT(*)"
    code = "CASE WHEN code_0 < 0 THEN code_0 ELSE 0 END"
    keys = [*plan.segments, "bucket", "ranker", "own"]
    return render(
        [
            *steps,
            Step(
                "totals",
                "What was shown at each rank.",
                f"SELECT {comma(plan.segments, 'bucket', 'ranker')}, own AS rank, {code} AS code_0, "
                f"{impressions} AS impressions, {d.total('clicks')} AS clicks, COUNT(*) AS row_count\n"
                f"FROM signed\nGROUP BY {comma(keys, code)}",
            ),
        ]
    )


def signature_pair_sums(plan: QueryPlan, firsts: Sequence[int]) -> str:
    """Return ĉ and ¬ĉ by bucket, k and k' (traffic weighting), for when signatures do not compress.

    `firsts` are the positions at which each ranker's page views are counted.
    """
    segments, d = plan.segments, plan.dialect
    ranks = [f"{rank} AS rank_{i}" for i, rank in enumerate(plan.coding.decode(d))]
    own = "CASE ranker " + plan.per_ranker("WHEN {i} THEN rank_{i}", " ") + " END"
    views = ",\n  ".join(
        f"SUM(CASE WHEN ranker = {i} AND own = {first} THEN impressions ELSE 0 END) AS views_{i}"
        for i, first in enumerate(firsts)
    )
    weight = plan.per_ranker("CASE WHEN o.rank_{i} = o.own THEN v.views_{i} ELSE 0 END", " + ")
    total = plan.per_ranker("v.views_{i}", " + ")
    on = " AND ".join(f"o.{s} IS NOT DISTINCT FROM v.{s}" for s in segments) or "TRUE"
    # The ranks of rankers that showed nothing are no interventions.
    served = plan.per_ranker("CASE WHEN v.views_{i} > 0 THEN o.rank_{i} ELSE 0 END AS rank_{i}", ",\n  ")
    keys = comma(segments, "bucket", "own", "other")
    group_views = f"\nGROUP BY {comma(segments)}" if segments else ""
    return render(
        [
            *signature_steps(plan),
            Step(
                "ranked",
                "The signatures as ranks again.",
                f"SELECT {comma(segments, 'bucket', 'ranker', 'impressions', 'clicks')},\n  "
                + ",\n  ".join(ranks)
                + "\nFROM signatures\nWHERE code_0 >= 0",
            ),
            Step("owned", "The rank at which each was shown.", f"SELECT *, {own} AS own\nFROM ranked"),
            Step(
                "views",
                "The page views n_i of each ranker.",
                f"SELECT {comma(segments, views)}\nFROM owned{group_views}",
            ),
            Step(
                "weighted",
                "w(q,d,k), as a share of all page views so that days add up.",
                f"SELECT {comma([f'o.{s}' for s in segments], 'o.bucket', 'o.own', 'o.impressions', 'o.clicks')},\n"
                f"  {served},\n  1e0 * ({weight}) / ({total}) AS w\nFROM owned o\nJOIN views v ON {on}",
            ),
            Step(
                "others",
                "The ranks k'.",
                " UNION ALL ".join(f"SELECT {k} AS other" for k in range(1, plan.max_rank + 1)),
            ),
            Step(
                "moved",
                "Each row once for every other rank k' of its document, however many rankers put it there.",
                f"SELECT {comma(segments, 'bucket', 'own', 'other')},\n"
                "  clicks / w AS c, (impressions - clicks) / w AS s"
                f"\nFROM weighted\nJOIN others ON other <> own AND other IN ({plan.per_ranker('rank_{i}')})\n"
                "WHERE w > 0",
            ),
            Step(
                "pair_sums",
                "ĉ and ¬ĉ of every interventional set.",
                f"SELECT {comma(segments, 'bucket')}, own AS rank, other, SUM(c) AS clicks, SUM(s) AS skips\n"
                f"FROM moved\nGROUP BY {keys}",
            ),
        ]
    )
