"""Whether a harvest can be one: each count within its bounds, each stratum of one piece, no cell twice.

What an engine counted is so by construction. What comes from a file is looked at before anything is computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posbias.arrays import AnyArray, BoolArray, IntArray, group
from posbias.harvesting.counts import MOST_COUNT, MOST_SEGMENTS
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.strata import Cells, PairSums
from posbias.records import UnfitError
from posbias.sql.dialect import BUCKETS

# So many numbers page views may take by bucket and ranker, and clicks by ranker and rank: half a GB.
_MOST_SHOWN = 2**26
# So large a number of a stratum may be that it can be multiplied by the number of rankers.
_MOST_STRATA = 2**40


def check_harvest(harvest: Harvest) -> None:
    """Refuse a harvest that no log could have given."""
    table = harvest.table
    _check_kind(harvest)
    _check_within("segment", table.segment, 0, len(harvest.segments) - 1)
    _check_within("bucket", table.bucket, 0, BUCKETS - 1)
    _check_within("rank", table.rank, 1, harvest.max_rank)
    if isinstance(table, Cells):
        _check_cells(table, harvest)
    else:
        _check_sums(table, harvest)
    if len(harvest.segments) > MOST_SEGMENTS:
        raise UnfitError(f"it has {len(harvest.segments):,} segments, more than {MOST_SEGMENTS:,}")
    if len(harvest.rankers) * max(len(harvest.buckets), harvest.max_rank) > _MOST_SHOWN:
        raise UnfitError(
            f"it has {len(harvest.buckets):,} buckets, {len(harvest.rankers):,} rankers and {harvest.max_rank:,} "
            "ranks, more in all than can be held"
        )
    if harvest.traffic is not None:
        _check_traffic(harvest)


def _check_kind(harvest: Harvest) -> None:
    if (harvest.kind == "pairs") != isinstance(harvest.table, PairSums):
        raise UnfitError(f"its table does not hold what its kind says, {harvest.kind!r}")
    if harvest.kind == "signatures" and not (harvest.layout.ranks_known and harvest.weighting == "traffic"):
        raise UnfitError(
            f"it has signatures of a {harvest.layout.value} log weighted by {harvest.weighting}, for which none are "
            "counted"
        )


def _check_cells(cells: Cells, harvest: Harvest) -> None:
    _check_within("ranker", cells.ranker, 0, len(harvest.rankers) - 1)
    _check_within("stratum", cells.stratum, 0, _MOST_STRATA)
    _check_counts("impressions", cells.impressions)
    _check_counts("pairs", cells.pairs)
    _refuse("clicks", cells.clicks, (cells.clicks < 0) | (cells.clicks > cells.impressions), "0 to the impressions")
    first, stratum = group([cells.stratum])
    for name in ("segment", "bucket", "pairs"):
        column: IntArray = getattr(cells, name)
        _refuse(name, column, column != column[first][stratum], "the same in all cells of a stratum")
    if harvest.kind == "signatures":
        _refuse("pairs", cells.pairs, cells.pairs != 0, "0, for signatures do not count them")
        _check_distinct([cells.ranker, stratum], "a stratum has a ranker at two ranks, or a cell twice")
    else:
        _refuse("pairs", cells.pairs, cells.pairs < 1, "1 or more")
        uneven = cells.impressions % np.maximum(cells.pairs, 1) != 0
        _refuse("impressions", cells.impressions, uneven, "a multiple of the pairs, which were shown equally often")
        _check_distinct([cells.ranker, stratum, cells.rank], "a stratum has a cell twice")


def _check_sums(sums: PairSums, harvest: Harvest) -> None:
    _check_within("other", sums.other, 0, harvest.max_rank)
    _check_within("ranker", sums.ranker, -1, len(harvest.rankers) - 1)
    _refuse("other", sums.other, sums.other == sums.rank, "another rank than its own")
    plain = sums.other == 0
    _refuse("ranker", sums.ranker, plain != (sums.ranker >= 0), "a ranker where other is 0, and -1 elsewhere")
    for name in ("clicks", "skips"):
        column: AnyArray = getattr(sums, name)
        _refuse(name, column, ~np.isfinite(column), "a finite number")
        _check_counts(name, column)
        _refuse(name, column, plain & (column != np.rint(column)), "a whole number where other is 0")
    keys = [sums.segment, sums.bucket, sums.ranker + 1, sums.rank, sums.other]
    _check_distinct(keys, "it has the sums of one set twice")


def _check_traffic(harvest: Harvest) -> None:
    traffic = harvest.views
    wanted = (len(harvest.buckets), len(harvest.rankers))
    if traffic.shape != wanted:
        raise UnfitError(f"traffic has the shape {traffic.shape} where {wanted} was expected: buckets and rankers")
    _check_counts("traffic", traffic.reshape(-1))


def _check_within(name: str, column: IntArray, low: int, high: int) -> None:
    if len(column) and not (low <= column.min() and column.max() <= high):
        _refuse(name, column, (column < low) | (column > high), f"{low} to {high:,}")


def _check_counts(name: str, column: AnyArray) -> None:
    """Refuse counts below 0, and those that add up to more than can be counted exactly."""
    _refuse(name, column, (column < 0) | (column > MOST_COUNT), f"0 to {MOST_COUNT:,}")
    if float(column.sum(dtype=np.float64)) > MOST_COUNT:
        raise UnfitError(f"its column {name} adds up to more than {MOST_COUNT:,}")


def _refuse(name: str, column: AnyArray, wrong: BoolArray, wanted: str) -> None:
    if wrong.any():
        raise UnfitError(
            f"its column {name} holds {column[wrong][0]} in {int(wrong.sum()):,} rows, such as row "
            f"{int(np.argmax(wrong)) + 1:,}, where it must be {wanted}"
        )


def _check_distinct(keys: Sequence[IntArray], otherwise: str) -> None:
    """Refuse rows that have all keys in common; none is negative."""
    spans = [int(key.max(initial=0)) + 1 for key in keys]
    if np.prod(np.array(spans, dtype=np.float64)) < 2**62:
        place = np.zeros(len(keys[0]), dtype=np.int64)
        for key, span in zip(keys, spans, strict=True):
            place = place * span + key
        # As an engine's answer is written, they increase, and need not be sorted.
        steps = np.diff(place)
        distinct = bool(np.all(steps > 0)) or bool(np.all(np.diff(np.sort(place)) > 0))
    else:
        distinct = len(group(keys)[0]) == len(keys[0])
    if not distinct:
        raise UnfitError(otherwise)
