"""Count the (query, document) pairs of every intervention set: Tables 1 and 2 of the paper."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from posbias._arrays import BoolArray, IntArray
from posbias._defaults import DEFAULT_MAX_RANK
from posbias.engines import EngineChoice, OpenLog, open_log
from posbias.engines.base import row_count
from posbias.harvesting.count import (
    MAX_STRATA,
    CountedLog,
    HarvestSettings,
    check_settings,
    count_exposures,
    known_rankers,
)
from posbias.harvesting.harvest import check_rows
from posbias.harvesting.row_checks import RowCounts, Sample, sampling_interval
from posbias.harvesting.tables import Cells
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent
from posbias.sql import exposures as exposure_counts
from posbias.sql import signatures as signature_sql
from posbias.sql.plan import QueryPlan

# In a log whose ranks are known, pairs are counted in a sample of about this many rows.
_MOST_ROWS = 2**18


def intervention_sets(
    log: ClickLog,
    *,
    max_rank: int = DEFAULT_MAX_RANK,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> IntArray:
    """Count the distinct (query, document) pairs of each intervention set S_{k,k'}.

    They are counted on the log, because the harvest of a wide log has no counts of single documents.

    Arguments:
        log (ClickLog): the click log.
        max_rank (int, default 10): M, the number of top ranks.
        engine (str, DuckDB or Spark, default None): as in `harvest`.
        progress (callable, default silent): called with the name of the current step and the share that is done.
        force (bool, default False): go on if the log is damaged, as in `harvest`.

    Returns:
        array: the size of S_{k,k'} in row k - 1 and column k' - 1, (M, M).

    Reference: Agarwal et al., WSDM 2019, Tables 1 and 2.
    """
    check_settings(max_rank)
    with open_log(log, engine, progress) as opened:
        check_rows(opened, max_rank, force=force)
        return count_sets(opened, max_rank).sizes


def count_sets(opened: OpenLog, max_rank: int) -> SetSizes:
    """Count the distinct (query, document) pairs of every intervention set on an opened log."""
    if opened.schema.layout.ranks_known:
        plan = QueryPlan(opened.schema, opened.dialect, known_rankers(opened), max_rank)
        answer = opened.table(signature_sql.signature_pairs(plan), "Counting sets")
        served = {row[0] for row in opened.rows(_served(plan))}
        has = np.zeros((row_count(answer), max_rank + 1), dtype=np.bool_)
        for ranker, rank in enumerate(plan.coding.read_ranks(answer)):
            if ranker in served:
                has[np.arange(len(rank)), rank] = True
        return _sized(has[:, 1:], answer["pairs"])
    counted = count_exposures(opened, HarvestSettings(max_rank, (), "harmonic", "share", MAX_STRATA))
    return _counted_sets(opened, counted, max_rank)


@dataclass(frozen=True)
class SetSizes:
    """The sizes of the intervention sets, the number of pairs, and the number of pairs in any of the sets."""

    sizes: IntArray
    pairs: int
    at_several_ranks: int


def _served(plan: QueryPlan) -> str:
    schema, d = plan.schema, plan.dialect
    return f"SELECT DISTINCT {plan.ranker_number(d.quote(schema.ranker), schema.types[schema.ranker])} FROM log"


def _sized(has: BoolArray, pairs: IntArray) -> SetSizes:
    # Products of floats are much faster than those of integers, and exact up to 2^53 pairs.
    each = has.astype(np.float64)
    sizes = (each.T @ (each * pairs[:, None])).astype(np.int64)
    np.fill_diagonal(sizes, 0)
    return SetSizes(sizes, int(pairs.sum()), int(pairs[has.sum(axis=1) > 1].sum()))


def _counted_sets(opened: OpenLog, counted: CountedLog, max_rank: int) -> SetSizes:
    if isinstance(counted.table, Cells):
        cells = counted.table
        stratum, first, row = np.unique(cells.stratum, return_index=True, return_inverse=True)
        has = np.zeros((len(stratum), max_rank), dtype=np.bool_)
        has[row, cells.rank - 1] = True
        return _sized(has, cells.pairs[first])
    plan = QueryPlan(opened.schema, opened.dialect, counted.rankers, max_rank)
    sizes = np.zeros((max_rank, max_rank), dtype=np.int64)
    for k, other, pairs in opened.rows(exposure_counts.set_sizes(plan), "Counting sets"):
        sizes[k - 1, other - 1] = pairs
    all_pairs, at_several_ranks = opened.rows(exposure_counts.pair_counts(plan), "Counting pairs")[0]
    return SetSizes(sizes, all_pairs, at_several_ranks)


def count_log_pairs(opened: OpenLog, plan: QueryPlan, served: Container[str], counts: RowCounts) -> PairCounts:
    """Count the (query, document) pairs of a log, by the ranks of rankers that served page views."""
    if not opened.schema.layout.ranks_known:
        counted = count_exposures(opened, HarvestSettings(plan.max_rank, (), "harmonic", "share", MAX_STRATA))
        sets = _counted_sets(opened, counted, plan.max_rank)
        return PairCounts(sets.pairs, sets.at_several_ranks, counted.rows.non_functional_pairs)
    # If ranks are known, counting distinct pairs costs more than all other checks together, so a sample is counted.
    tested = counts.rows_counted == counts.rows
    found = _count_known_pairs(opened, plan, served, sampling_interval(counts.rows, _MOST_ROWS), tested)
    # A sample cannot show that no pair is at several ranks, so then all pairs are counted.
    return found if found.at_several_ranks or found.one_in == 1 else _count_known_pairs(opened, plan, served, 1, tested)


@dataclass(frozen=True)
class PairCounts:
    """The number of (query, document) pairs, estimated from a sample of queries if `one_in` is more than 1.

    Attributes:
        pairs (int): all pairs.
        at_several_ranks (int): pairs that rankers put at different ranks.
        non_functional (int): pairs with several ranks by one ranker.
        one_in (int, default 1): the interval of the sample of queries.
        queries (int or None, default None): the number of queries, if it was counted too.
    """

    pairs: int
    at_several_ranks: int
    non_functional: int
    one_in: int = 1
    queries: int | None = None


def _count_known_pairs(
    opened: OpenLog, plan: QueryPlan, served: Container[str], every: int, tested: bool
) -> PairCounts:
    """Count the pairs of one query in `every`, where ranks are known; `tested` says that all rows can be counted."""
    condition = Sample(every).condition(plan.dialect, plan.dialect.quote(plan.schema.query))
    # A query without counted rows has no pair. Without a sample, queries are counted faster by a query of their own.
    queries = tested and every > 1
    sql = signature_sql.pair_signatures(plan, condition, validated=tested, queries=queries)
    answer = opened.table(sql, "Counting pairs")
    lows, highs = ({name: answer[f"{end}_{name}"] for name in plan.coding.names} for end in ("low", "high"))
    several = np.any([lows[name] != highs[name] for name in plan.coding.names], axis=0)
    has = np.zeros((row_count(answer), plan.max_rank + 1), dtype=np.bool_)
    for ends in (lows, highs):
        for name, rank in zip(plan.rankers, plan.coding.read_ranks(ends), strict=True):
            if name in served:
                has[np.arange(len(rank)), rank] = True
    sets, pairs = _sized(has[:, 1:], answer["pairs"]), answer["pairs"]
    return PairCounts(
        every * sets.pairs,
        every * sets.at_several_ranks,
        every * int(pairs[several].sum()),
        every,
        every * int(answer["queries"].max(initial=0)) if queries else None,
    )
