"""The tables of a harvest: cells, pair sums and strata, and how they are made from the answers of an engine.

A harvest is one aggregation of the log. Its data model:

- The **signature** of a (query, document) pair is the vector of ranks that the m rankers give it, up to rank M.
- A **stratum** is a group of pairs that the rankers treat alike: the same signature or, in replay,
  the same ranks and the same impressions at each rank. Sums over pairs depend on a pair only through its stratum.
- A **bucket** is a group of queries, by a hash of the query id. Intervals delete one bucket at a time.
- A **cell** holds the impressions and clicks of one stratum by one ranker at one rank (`Cells`).
- If there are too many strata, a harvest keeps ĉ and ¬ĉ of each pair of ranks and bucket instead (`PairSums`).

The **page views** n_i of ranker i are its impressions at its busiest rank, which on whole pages is rank 1.

Reference: Agarwal et al., WSDM 2019, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple, Self, TypeVar, cast

import numpy as np

from posbias._arrays import (
    AnyArray,
    BoolArray,
    FloatArray,
    IntArray,
    add_by_index,
    any_row,
    blocks,
    distinct,
    group,
    is_sorted,
    lookup,
    map_threads,
    ranges,
    sorted_order,
    starts_of_runs,
    sum_by_index,
)
from posbias.engines.base import Answer, row_count, segment_numbers, stack_columns
from posbias.sql.dialects import BUCKETS
from posbias.sql.plan import PackedCounts, PackedRanks, RankMasks, SignatureCoding

# With fewer page views than this, comparisons with a ranker are mostly noise.
MIN_PAGE_VIEWS = 30
# Up to this many combinations of segment, bucket, ranker and rank have a place each in an array.
_MAX_TOTALS = 2**22
# A large odd number, by which numbers are mixed into a hash.
_MIX = 0x1E3779B97F4A7C15
# The rank, pairs, impressions and clicks of some cells.
_CellValues = tuple[AnyArray | int, IntArray | int, IntArray, IntArray | int]
# A ranker has a shortfall if it showed less than this share of the expected impressions, and if the difference exceeds
# this many standard errors.
_RANKER_SHARE, _STANDARD_ERRORS = 0.85, 5.0


T = TypeVar("T", bound="Cells | PairSums")


class _Table:
    """A table of columns of equal length, which are filtered and concatenated together."""

    def __len__(self) -> int:
        return len(self.bucket)  # type: ignore[attr-defined]

    def columns(self) -> dict[str, AnyArray]:
        """Return the columns by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def where(self, mask: BoolArray) -> Self:
        """Return the rows where the mask is true; the table itself if all are."""
        if mask.dtype == np.bool_ and mask.all():
            return self
        return type(self)(**{name: column[mask] for name, column in self.columns().items()})

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts in one table."""
        if len(parts) == 1:
            return parts[0]
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})


@dataclass(frozen=True)
class Cells(_Table):
    """Impressions and clicks by stratum, ranker and rank.

    A ranker that ranks the pairs of a stratum without having shown them has a cell with no impressions.

    Attributes:
        segment (array): the number of the segment.
        bucket (array): the bucket of queries, 0 to 255.
        stratum (array): the number of the stratum. Each stratum lies in one segment and one bucket.
        pairs (array): how many (query, document) pairs the stratum has; 0 for strata by signature, which do not count
            them.
        ranker (array): the number of the ranker.
        rank (array): the rank that the ranker gives to the pairs, from 1.
        impressions (array): impressions of all pairs of the stratum by this ranker at this rank.
        clicks (array): clicks on them.
    """

    segment: IntArray
    bucket: IntArray
    stratum: IntArray
    pairs: IntArray
    ranker: IntArray
    rank: IntArray
    impressions: IntArray
    clicks: IntArray

    @cached_property
    def in_order(self) -> bool:
        """Whether cells are sorted by segment, bucket, stratum, ranker and rank, and strata numbered from 0.

        Then none is there twice.
        """
        buckets, ranks = int(self.bucket.max(initial=0)) + 1, int(self.rank.max(initial=0)) + 1

        def breaks(rows: slice) -> BoolArray:
            both = slice(rows.start, rows.stop + 1)
            step = np.diff(self.stratum[both])
            place = np.diff(self.ranker[both] * ranks + self.rank[both])
            part = np.diff(self.segment[both] * buckets + self.bucket[both])
            return np.asarray((step < 0) | (step > 1) | ((step == 0) & (place <= 0)) | (part < 0))

        return not len(self) or (int(self.stratum[0]) == 0 and not any_row(breaks, len(self) - 1))

    def without_strata(self) -> Cells:
        """Return the cells of all strata added up by segment, bucket, ranker and rank, as stratum 0."""
        keys = [self.segment, self.bucket, self.ranker, self.rank]
        values = [self.pairs, self.impressions, self.clicks]
        shape = [int(key.max(initial=0)) + 1 for key in keys]
        if math.prod(shape) > _MAX_TOTALS:
            first, which = group(keys)
            totals = [key[first] for key in keys]
            sums = [add_by_index(which, column, len(first)) for column in values]
        else:
            whole, present = np.zeros((3, math.prod(shape)), dtype=np.int64), np.zeros(math.prod(shape), dtype=np.bool_)
            for rows in blocks(len(self)):
                which = np.ravel_multi_index([key[rows] for key in keys], shape)
                present[which] = True
                for sum_, column in zip(whole, values, strict=True):
                    np.add.at(sum_, which, column[rows])
            held = np.flatnonzero(present)
            totals = [np.asarray(key, dtype=np.int64) for key in np.unravel_index(held, shape)]
            sums = [sum_[held] for sum_ in whole]
        segment, bucket, ranker, rank = totals
        pairs, impressions, clicks = sums
        return Cells(segment, bucket, np.zeros_like(bucket), pairs, ranker, rank, impressions, clicks)


@dataclass(frozen=True)
class PairSums(_Table):
    """ĉ and ¬ĉ by bucket and pair of ranks: what a harvest keeps if it has too many strata.

    Rows with `other` 0 hold the plain clicks and skips of one ranker at one rank, over all documents.

    Attributes:
        segment (array): the number of the segment.
        bucket (array): the bucket of queries, 0 to 255.
        ranker (array): the number of the ranker where `other` is 0, and -1 elsewhere.
        rank (array): k, the rank at which clicks are counted.
        other (array): k', the other rank of the intervention set S_{k,k'}; 0 for plain counts.
        clicks (array): ĉ_k^{k,k'}, or plain clicks.
        skips (array): ¬ĉ_k^{k,k'}, or plain impressions without a click.
    """

    segment: IntArray
    bucket: IntArray
    ranker: IntArray
    rank: IntArray
    other: IntArray
    clicks: FloatArray
    skips: FloatArray


@dataclass(frozen=True, eq=False)
class Strata:
    """Cells whose strata have the same number in every bucket.

    Strata of different buckets are the same if they have the same signature or, in replay, the same ranks and the same
    impressions for each pair. Estimators that fit a relevance to each stratum use them.

    Attributes:
        cells (Cells): the counts by bucket, stratum, ranker and rank, sorted by them, of all segments together.
            `stratum` counts from 0 without gaps, and `bucket` is the row of `views`. With observed exposure, all
            rankers are added up as ranker 0, because it does not matter which ranker showed a pair.
        views (array): page views by bucket and ranker, (B, m). n_i is `weights @ views`.
        max_rank (int): M.
        by_design (bool): whether exposure follows from traffic. Then the pairs of a stratum are at rank k on n_i page
            views, for each ranker i with a cell there, whether or not it showed them. Otherwise exposure is observed:
            each of the `pairs` of a stratum has `impressions / pairs` impressions in a cell, the same in every bucket.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200, max_rank=3)))
        >>> strata = posbias.harvest(log, max_rank=3).strata()
        >>> strata.size, strata.buckets, strata.by_design
        (15, 140, True)
    """

    cells: Cells
    views: FloatArray
    max_rank: int
    by_design: bool

    @property
    def buckets(self) -> int:
        """The number of buckets that have data."""
        return len(self.views)

    @property
    def size(self) -> int:
        """The number of strata."""
        return int(self.cells.stratum.max(initial=-1)) + 1

    def in_buckets(self, used: BoolArray) -> Strata:
        """Return the strata of some buckets, and renumber these buckets."""
        cells, number = self.cells.where(used[self.cells.bucket]), np.cumsum(used) - 1
        return replace(self, cells=replace(cells, bucket=number[cells.bucket]), views=self.views[used])

    @cached_property
    def clicked(self) -> bool:
        """Whether any stratum with several ranks has a click."""
        high, low = np.zeros(self.size, dtype=np.int64), np.full(self.size, self.max_rank)
        np.maximum.at(high, self.cells.stratum, self.cells.rank)
        np.minimum.at(low, self.cells.stratum, self.cells.rank)
        return bool(np.any(self.cells.clicks[(high > low)[self.cells.stratum]]))


# ---- Cells from the answers of an engine


def cells_from_signatures(answer: Answer, segment: IntArray, coding: SignatureCoding) -> Cells:
    """Return the cells of a wide or long harvest: one for each signature and ranker that ranks it, shown or not."""
    bucket, shown_by = answer["bucket"], answer["ranker"]
    first, stratum = group([segment, bucket, *(answer[name] for name in coding.names)])
    ranks = list(coding.read_ranks({name: answer[name][first] for name in coding.names}))
    # The answer has one row for each signature and ranker, so values can be assigned instead of added.
    place = shown_by * len(first) + stratum
    impressions, clicks = np.zeros((2, len(ranks), len(first)), dtype=np.int64)
    impressions.reshape(-1)[place] = answer["impressions"]
    clicks.reshape(-1)[place] = answer["clicks"]

    def values(ranker: int, row: IntArray) -> _CellValues:
        return ranks[ranker][row], 0, impressions[ranker][row], clicks[ranker][row]

    return _fill_cells(len(ranks), segment[first], bucket[first], lambda ranker, rows: ranks[ranker][rows], values)


def cells_from_exposures(
    answer: Answer, segment: IntArray, masks: RankMasks, packed: PackedCounts | None, others: Cells | None = None
) -> Cells:
    """Return the cells of a replay in which each ranker shows a pair at one rank, in canonical order.

    The rank is a bit of a mask. Counts are packed into integers, or have a column for each ranker. `others` are the
    cells of pairs that were counted separately.
    """

    def read(name: str, ranker: int | IntArray, rows: IntArray | slice) -> IntArray:
        if packed:
            return packed.read(answer, f"packed_{name}", ranker, rows)
        return np.stack([answer[f"{name}_{i}"] for i in range(masks.rankers)])[ranker, rows]

    counts = packed.names("packed_impressions") if packed else [f"impressions_{i}" for i in range(masks.rankers)]
    example, exposure = _group_in_any_order([answer[name] for name in (*masks.names, *counts)])

    def values(ranker: int, row: IntArray) -> _CellValues:
        rank = _rank_of_bit(masks.read(answer, ranker, example[row]))
        return rank, 1, read("impressions", ranker, example[row]), 0

    none = np.zeros_like(example)
    exposures = _fill_cells(
        masks.rankers, none, none, lambda ranker, rows: masks.read(answer, ranker, example[rows]), values
    )
    return _cells_in_order(
        exposures, exposure, answer, segment, lambda row, ranker, rank: read("clicks", ranker, row), others
    )


def _rank_of_bit(bits: IntArray) -> IntArray:
    """Return rank k for the mask of bit k - 1: the number of bits up to and including it."""
    return np.asarray(np.bitwise_count((bits << 1) - 1), dtype=np.int64)


def packed_counts_fit(answers: Sequence[Answer], packed: PackedCounts, rows: int) -> bool:
    """Return whether no packed count overflowed.

    A count that overflows adds 1 to the next one and loses many, so that the sum is less than the number of rows. The
    first answer has packed counts of pairs; the others have plain counts.
    """
    first, *others = answers

    def count(slot: int) -> tuple[int, int]:
        impressions = packed.read(first, "packed_impressions", slot) * first["pairs"]
        return int(impressions.sum()), int(impressions.max(initial=0))

    counted = map_threads(count, range(packed.slots))
    total = sum(impressions for impressions, _ in counted)
    total += sum(int((other["impressions"] * other["pairs"]).sum()) for other in others)
    # Equal pairs have no more clicks than impressions, so if the impressions fit, the clicks do too.
    return total == rows and all(largest < 1 << packed.bits for _, largest in counted)


def cells_from_packed_ranks(
    answer: Answer, segment: IntArray, packed: PackedRanks, others: Cells | None = None
) -> Cells:
    """Return the cells of a replay that names no ranker, whose counts by rank are packed into integers.

    They are in canonical order. `others` are the cells of pairs that were counted separately.
    """
    example, exposure = _group_in_any_order([answer[name] for name in packed.names("packed_impressions")])

    def impressions(place: int, rows: IntArray | slice) -> IntArray:
        return packed.read(answer, "packed_impressions", place, example[rows])

    none = np.zeros_like(example)
    exposures = _fill_cells(
        packed.ranks, none, none, impressions, lambda place, row: (place + 1, 1, impressions(place, row), 0)
    )
    return _cells_in_order(
        replace(exposures, ranker=np.zeros_like(exposures.ranker)),
        exposure,
        answer,
        segment,
        lambda row, ranker, rank: packed.read(answer, "packed_clicks", rank - 1, row) * answer["pairs"][row],
        others,
    )


def _group_in_any_order(columns: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Return a row of each distinct combination of values, and the combination of each row, numbered in any order."""
    key = columns[0]
    for column in columns[1:]:
        # A hash, which wraps around. One sort of it is faster than one of each column.
        key = key * _MIX + column
    order = np.argsort(key)
    begins = starts_of_runs(key[order])
    if any(np.any(starts_of_runs(column[order]) > begins) for column in columns):
        # Two combinations have the same hash.
        return group([np.unique(column, return_inverse=True)[1] for column in columns])
    which = np.empty_like(order)
    which[order] = np.cumsum(begins) - 1
    return order[begins], which


def _cells_in_order(
    exposures: Cells,
    exposure: IntArray,
    answer: Answer,
    segment: IntArray,
    clicks: Callable[[IntArray, IntArray, IntArray], IntArray],
    others: Cells | None,
) -> Cells:
    """Return the cells of rows that count pairs of equal exposure, in canonical order and with equal strata merged.

    There are fewer exposures than strata, so that these are sorted instead, and the cells are made in their order.

    Arguments:
        exposures (Cells): the cells of one pair of each exposure, sorted, with the exposure as stratum.
        exposure (array): the exposure of each row.
        answer (Answer): the bucket and the pairs of each row.
        segment (array): the segment of each row.
        clicks (function): returns the clicks in cells from the row, the ranker and the rank of each.
        others (Cells or None): cells of other pairs, in any order.
    """
    bucket, pairs = answer["bucket"], answer["pairs"]
    rows, together = len(exposure), [exposures]
    if others is not None:
        others = merge_equal_strata(others)
        together.append(others)
    equal = EqualStrata.of(Cells.concatenate(renumber_strata(together)))
    number = equal.number[exposure]
    if others is not None:
        begins = np.flatnonzero(starts_of_runs(others.stratum))
        number = np.concatenate([number, equal.number[len(equal.number) - len(begins) :]])
        segment, bucket, pairs = (
            np.concatenate([values, more[begins]])
            for values, more in ((segment, others.segment), (bucket, others.bucket), (pairs, others.pairs))
        )
    key = (segment * BUCKETS + bucket) * len(equal.exposures.size) + number
    order = sorted_order(key, int(key.max(initial=0)) + 1)
    # Several rows of one stratum differ in their clicks.
    first = np.append(np.flatnonzero(starts_of_runs(key[order])), len(order))
    number = number[order[first[:-1]]]
    size = equal.exposures.size[number]
    ends = np.append(0, np.cumsum(size))
    # Zeros take no memory until they are written.
    cells = Cells(*(np.zeros(ends[-1], dtype=np.int64) for _ in fields(Cells)))
    segmented = segment.any()

    def clicks_of(row: IntArray, place: IntArray, ranker: IntArray, rank: IntArray) -> IntArray:
        if others is None:
            return clicks(row, ranker, rank)
        clicked, own = np.empty(len(row), dtype=np.int64), row < rows
        clicked[own] = clicks(row[own], ranker[own], rank[own])
        clicked[~own] = others.clicks[begins[row[~own] - rows] + place[~own]]
        return clicked

    def fill(strata: slice) -> None:
        row, row_of = order[first[strata.start] : first[strata.stop]], first[strata] - first[strata.start]
        at, numbers, begin = slice(ends[strata.start], ends[strata.stop]), number[strata], ends[strata]
        # The stratum of each cell, from 0, and the place of the cell in it. Looking values up is faster than np.repeat.
        stratum = np.repeat(np.arange(len(row_of)), size[strata])
        place = np.arange(at.start, at.stop) - begin[stratum]
        cell = equal.exposures.first[numbers][stratum] + place
        ranker, rank = equal.exposures.ranker[cell], equal.exposures.rank[cell]
        each = pairs[row] if len(row) == len(row_of) else np.add.reduceat(pairs[row], row_of)
        each = each[stratum]
        cells.ranker[at], cells.rank[at], cells.pairs[at] = ranker, rank, each
        cells.stratum[at] = stratum + strata.start
        cells.bucket[at] = bucket[row[row_of]][stratum]
        cells.impressions[at] = equal.exposures.shown[cell] * each
        if segmented:
            cells.segment[at] = segment[row[row_of]][stratum]
        if len(row) == len(row_of):
            cells.clicks[at] = clicks_of(row[stratum], place, ranker, rank)
            return
        # The stratum of each row, then the row of each of its cells.
        stratum = np.repeat(np.arange(len(row_of)), np.diff(row_of, append=len(row)))
        cells_of_row = size[strata][stratum]
        owner = np.repeat(np.arange(len(row)), cells_of_row)
        place = np.arange(len(owner)) - (np.cumsum(cells_of_row) - cells_of_row)[owner]
        where = (begin - at.start)[stratum][owner] + place
        cells.clicks[at] = add_by_index(where, clicks_of(row[owner], place, ranker[where], rank[where]), len(cell))

    parts = blocks(len(size))
    # Starting threads takes longer than filling a small table.
    each_part = map_threads if len(parts) > 1 else map
    list(each_part(fill, parts))
    return cells


def cells_from_rows(answer: Answer, segment: IntArray) -> Cells:
    """Return the cells of a replay whose answer has one row for each cell."""
    bucket, pairs = answer["bucket"], answer["pairs"]
    texts = {text: i for i, text in enumerate(dict.fromkeys(answer["stratum"]))}
    text = np.array([texts[text] for text in answer["stratum"]], dtype=np.int64)
    _, stratum = group([segment, bucket, text])
    return Cells(
        segment=segment,
        bucket=bucket,
        stratum=stratum,
        pairs=pairs,
        ranker=answer["ranker"],
        rank=answer["rank"],
        impressions=answer["impressions"] * pairs,
        clicks=answer["clicks"],
    )


def _fill_cells(
    rankers: int,
    segment: IntArray,
    bucket: IntArray,
    present: Callable[[int, slice], AnyArray],
    values: Callable[[int, IntArray], _CellValues],
) -> Cells:
    """Return a cell for each stratum and ranker where `present` is not 0, in this order, filled in place with `values`.

    There may be millions of cells, and each copy of them would take as long as counting them did.
    """
    parts = blocks(len(bucket))
    # Starting threads takes longer than filling a small table.
    each = map_threads if len(parts) > 1 else map

    def count(part: slice) -> IntArray:
        counts = np.zeros(part.stop - part.start, dtype=np.int64)
        for ranker in range(rankers):
            counts += present(ranker, part) != 0
        return counts

    sizes = list(each(count, parts))
    ends = np.cumsum([0, *(int(size.sum()) for size in sizes)])
    cells = Cells(*(np.zeros(ends[-1], dtype=np.int64) for _ in fields(Cells)))
    segmented = segment.any()

    def fill(number: int) -> None:
        part, size = parts[number], sizes[number]
        place = np.cumsum(size) - size + ends[number]
        for ranker in range(rankers):
            row = np.flatnonzero(present(ranker, part))
            at = place[row]
            # The next ranker of a stratum comes after this one.
            place[row] += 1
            row += part.start
            cells.stratum[at], cells.bucket[at], cells.ranker[at] = row, bucket[row], ranker
            if segmented:
                cells.segment[at] = segment[row]
            cells.rank[at], cells.pairs[at], cells.impressions[at], cells.clicks[at] = values(ranker, row)

    list(each(fill, range(len(parts))))
    return cells


# ---- Buckets of units


def split_buckets(table: T, kinds: int) -> list[T]:
    """Return the tables by buckets of queries, of units and of both, each with buckets from 0 on.

    In one table, the second kind of buckets is numbered from BUCKETS on, and the third after it.

    Arguments:
        table (Cells or PairSums): all of them.
        kinds (int): how many kinds of buckets there are: 1 without units, else 3.
    """
    if kinds == 1:
        return [table]
    parts = [table.where(table.bucket // BUCKETS == kind) for kind in range(kinds)]
    return [type(table)(**part.columns() | {"bucket": part.bucket % BUCKETS}) for part in parts]


def join_buckets(tables: Sequence[Cells | PairSums]) -> Cells | PairSums:
    """Return tables by buckets of queries, of units and of both as one table, which `split_buckets` takes apart."""
    return concatenate([replace(table, bucket=table.bucket + i * BUCKETS) for i, table in enumerate(tables)])


def concatenate(tables: Sequence[Cells | PairSums]) -> Cells | PairSums:
    """Return the rows of tables of one kind in one table; strata of different tables stay different."""
    cells = [table for table in tables if isinstance(table, Cells)]
    if cells:
        return Cells.concatenate(renumber_strata(cells))
    return PairSums.concatenate([table for table in tables if isinstance(table, PairSums)])


# ---- Page views, positions and pairs


def count_page_views(impressions: AnyArray, at: IntArray | None = None) -> AnyArray:
    """Return the page views of each ranker from impressions by ranker and rank: (..., m, M) -> (..., m).

    Arguments:
        impressions (array): impressions by ranker and rank.
        at (array, default None): the rank (from 0) at which to count each ranker. By default the busiest rank of all
            impressions; for a part of a log, give the busiest ranks of the whole log.
    """
    if at is None:
        at = busiest_rank_index(impressions.sum(axis=tuple(range(impressions.ndim - 2))))
    place = np.broadcast_to(at[:, None], (*impressions.shape[:-1], 1))
    return np.take_along_axis(impressions, place, axis=-1)[..., 0]


def busiest_rank_index(impressions: AnyArray) -> IntArray:
    """Return the rank (from 0) with the most impressions of each ranker: (..., m, M) -> (..., m)."""
    return np.asarray(np.argmax(impressions, axis=-1))


def busiest_ranks(totals: Answer, rankers: int) -> list[int]:
    """Return the rank of each ranker (from 1) at which its page views are counted."""
    ranker, rank = totals["ranker"], totals["rank"]
    shown = np.zeros((rankers, int(rank.max(initial=1))))
    np.add.at(shown, (ranker, rank - 1), totals["impressions"])
    return [int(k) + 1 for k in busiest_rank_index(shown)]


def count_positions(table: Cells | PairSums) -> tuple[PositionCounts, ...]:
    """Return impressions and clicks of each rank that has impressions."""
    impressions: AnyArray
    if isinstance(table, PairSums):
        table = table.where(table.other == 0)
        impressions = table.clicks + table.skips
    else:
        impressions = table.impressions
    size = int(table.rank.max(initial=0)) + 1

    def count(counts: AnyArray) -> IntArray:
        parts = (sum_by_index(table.rank[part], counts[part], size) for part in blocks(len(counts)))
        return sum(parts, np.zeros(size)).astype(np.int64)

    shown, clicks = count(impressions), count(table.clicks)
    return tuple(PositionCounts(int(k), int(shown[k]), int(clicks[k])) for k in np.flatnonzero(shown))


class PositionCounts(NamedTuple):
    """Impressions and clicks at one position."""

    position: int
    impressions: int
    clicks: int


def count_non_functional(cells: Cells) -> int:
    """Return how many (query, document) pairs one ranker showed at several ranks."""
    size = int(cells.ranker.max(initial=0)) + 1
    key, ranks = np.unique(cells.stratum * size + cells.ranker, return_counts=True)
    non_functional = np.unique(key[ranks > 1] // size)
    return count_pairs(cells.where(np.isin(cells.stratum, non_functional)))


def count_pairs(cells: Cells) -> int:
    """Return how many (query, document) pairs the strata have."""
    _, first = np.unique(cells.stratum, return_index=True)
    return int(cells.pairs[first].sum())


# ---- Pair sums


def pair_sums(totals: Answer, sums: Answer, names: Sequence[str]) -> tuple[PairSums, list[tuple[str | None, ...]]]:
    """Return plain counts by rank (`totals`) and sums over intervention sets as one table, and its segments."""
    labels = stack_columns([totals, sums], ["bucket", *names])
    segment, segments = segment_numbers(labels, names)
    none = np.zeros(row_count(totals), dtype=np.int64)
    impressions, clicks = totals["impressions"], totals["clicks"]
    return PairSums(
        segment=segment,
        bucket=labels["bucket"],
        ranker=np.concatenate([totals["ranker"], np.full(row_count(sums), -1)]),
        rank=np.concatenate([t["rank"] for t in (totals, sums)]),
        other=np.concatenate([none, sums["other"]]),
        clicks=np.concatenate([clicks, sums["clicks"]]),
        skips=np.concatenate([impressions - clicks, sums["skips"]]),
    ), segments


def stack_losses(losses: Answer, names: Sequence[str]) -> Answer:
    """Return what sums over intervention sets lose, with a row for each S_{k,k'} and one for each S_{k',k}."""
    swapped = losses | {"rank": losses["other"], "other": losses["rank"]}
    swapped |= {name: losses[f"other_{name}"] for name in ("clicks", "skips")}
    return stack_columns([losses, swapped], ["bucket", "rank", "other", "clicks", "skips", *names])


def merge_equal_sums(sums: PairSums) -> PairSums:
    """Return the sums with one row for each bucket and intervention set, sorted, plain counts first."""
    between_ranks = (sums.other > 0).astype(np.int64)
    # Sums over all rankers have ranker -1, and `group` takes no negative numbers.
    first, which = group([between_ranks, sums.segment, sums.bucket, sums.ranker + 1, sums.rank, sums.other])
    columns = {name: column[first] for name, column in sums.columns().items()}
    columns |= {name: sum_by_index(which, getattr(sums, name), len(first)) for name in ("clicks", "skips")}
    return PairSums(**columns)


# ---- Equal strata


def strata_from_cells(cells: Cells, max_rank: int, buckets: IntArray, views: FloatArray, *, by_design: bool) -> Strata:
    """Return the strata of cells, numbered the same in every bucket.

    Arguments:
        cells (Cells): the counts by stratum, ranker and rank.
        max_rank (int): M.
        buckets (array): the numbers of the buckets.
        views (array): page views by bucket and ranker, (B, m).
        by_design (bool): whether exposure follows from traffic (ranks are known) instead of observed impressions.
    """
    if by_design:
        # Exposure is the page views of a ranker, so a ranker without traffic exposes no document.
        served = views.sum(axis=0) > 0
        cells = cells if served.all() else cells.where(served[cells.ranker])
    return EqualStrata.of(cells).strata(max_rank, buckets, views, by_design=by_design)


def renumber_strata(parts: Sequence[Cells]) -> list[Cells]:
    """Return the parts with distinct numbers of strata, so that they can be concatenated."""
    shifted, start = [], 0
    for part in parts:
        shifted.append(replace(part, stratum=part.stratum + start) if start else part)
        start += int(part.stratum.max(initial=-1)) + 1
    return shifted


def canonical(table: T) -> T:
    """Return counts in a canonical order, whatever the order of the rows, with equal strata or sums merged."""
    merged = merge_equal_strata(table) if isinstance(table, Cells) else merge_equal_sums(table)
    return cast(T, merged)


def merge_equal_strata(cells: Cells) -> Cells:
    """Return the cells as a harvest keeps them: in a canonical order, with equal strata merged.

    Strata are equal only within a segment and a bucket. The cells are sorted by segment, bucket, stratum, ranker and
    rank, and the strata of a bucket by their exposure, in whatever order the rows of the log were.
    """
    equal = EqualStrata.of(cells)
    buckets = int(cells.bucket.max(initial=0)) + 1
    merged = equal.merge(equal.of_strata(cells.segment) * buckets + equal.of_strata(cells.bucket))
    begins = starts_of_runs(merged.stratum) | starts_of_runs(merged.bucket)
    return replace(
        merged,
        segment=merged.bucket // buckets if cells.segment.any() else np.zeros_like(merged.bucket),
        bucket=merged.bucket % buckets if cells.segment.any() else merged.bucket,
        stratum=np.cumsum(begins) - 1,
    )


def sort_cells(cells: Cells) -> Cells:
    """Return cells sorted by segment, bucket, stratum, ranker and rank, with strata numbered from 0.

    Cells that are in no such order are merged as by `merge_equal_strata`.
    """
    return cells if cells.in_order else merge_equal_strata(replace(cells, stratum=group([cells.stratum])[1]))


@dataclass(frozen=True)
class EqualStrata:
    """Which strata of a table are equal: they have the same exposure, and are merged cell by cell.

    Attributes:
        cells (Cells): the cells, in any order.
        order (array or None): their order by stratum, ranker and rank; None if they are in it.
        first (array): the place of the first cell of each stratum in that order.
        size (array): the number of cells of each stratum.
        number (array): the exposure of each stratum, as its number in `exposures`.
        exposures (Exposures): the distinct exposures.
        totals (RankTotals or None): the same without rankers, which are then in the same order; None if they were not
            asked for.
    """

    cells: Cells
    order: IntArray | None
    first: IntArray
    size: IntArray
    number: IntArray
    exposures: Exposures
    totals: RankTotals | None

    @classmethod
    def of(cls, cells: Cells) -> EqualStrata:
        """Compare the strata of a table."""
        order = None if cells.in_order else _order_by_stratum(cells)
        columns = cells.stratum, cells.ranker, cells.rank, cells.pairs, cells.impressions
        stratum, ranker, rank, pairs, shown = columns if order is None else (column[order] for column in columns)
        counted = bool(pairs.any())
        # Signatures do not count pairs: their exposure is that of their rankers.
        shown = shown // np.maximum(pairs, 1) if counted else np.zeros_like(shown)
        first = np.flatnonzero(starts_of_runs(stratum))
        size = np.diff(first, append=len(stratum))
        example, number = _number_exposures(first, size, ranker, rank, shown)
        cell = ranges(first[example], size[example])
        exposures = Exposures(size[example], ranker[cell], rank[cell], shown[cell])
        totals = exposures.add_up_rankers() if counted else None
        if totals is not None and not is_sorted(totals.number):
            # Exposures that are equal but for their rankers become neighbours, so that these are added up in order.
            ahead = sorted_order(totals.number, len(totals.number))
            renumbered = np.empty_like(ahead)
            renumbered[ahead] = np.arange(len(ahead))
            cell = ranges(exposures.first[ahead], exposures.size[ahead])
            number, exposures = (
                renumbered[number],
                Exposures(exposures.size[ahead], exposures.ranker[cell], exposures.rank[cell], exposures.shown[cell]),
            )
            totals = RankTotals(totals.number[ahead], totals.place[cell], totals.exposures)
        return cls(cells, order, first, size, number, exposures, totals)

    def of_strata(self, column: IntArray) -> IntArray:
        """Return the values of strata from a column of cells that is the same in all cells of a stratum."""
        return column[self.first if self.order is None else self.order[self.first]]

    def strata(self, max_rank: int, buckets: IntArray, views: FloatArray, *, by_design: bool) -> Strata:
        """Return the strata; the arguments are those of `strata_from_cells`."""
        bucket = lookup(self.of_strata(self.cells.bucket), buckets)
        merged = self.merge(bucket) if by_design else self.merge_rankers(bucket)
        return Strata(merged, views, max_rank, by_design)

    def merge(self, bucket: IntArray) -> Cells:
        """Return the cells sorted by bucket and exposure, with equal strata of a bucket merged.

        Arguments:
            bucket (array): the bucket of each stratum. In the result, `stratum` is the number of the exposure.
        """
        index, which = group([bucket, self.number])
        if len(index) < len(self.first):
            place = ranges(np.zeros_like(self.size), self.size)
            return self._summed(bucket, self.number, self.exposures, place, index, which)
        size, kept = self.size[index], None
        if self.order is not None or not is_sorted(index):
            kept = ranges(self.first[index], size)
            kept = kept if self.order is None else self.order[kept]
        columns = {
            name: column if kept is None else column[kept]
            for name, column in self.cells.columns().items()
            if name not in ("segment", "bucket", "stratum")
        }
        bucket, number = np.repeat(bucket[index], size), np.repeat(self.number[index], size)
        return Cells(segment=np.zeros_like(bucket), bucket=bucket, stratum=number, **columns)

    def merge_rankers(self, bucket: IntArray) -> Cells:
        """Return the cells as `merge` does, with all rankers added up as ranker 0."""
        totals = self.totals
        if totals is None or not self.cells.ranker.any():
            return self.merge(bucket)
        number = totals.number[self.number]
        index, which = group([bucket, number])
        place = totals.place[ranges(self.exposures.first[self.number], self.size)]
        return self._summed(bucket, number, totals.exposures, place, index, which)

    def _summed(
        self,
        bucket: IntArray,
        number: IntArray,
        exposures: Exposures,
        place: IntArray,
        index: IntArray,
        which: IntArray,
    ) -> Cells:
        """Return the cells of merged strata, `which` of them for each stratum and at which `place` in it each cell."""
        size = exposures.size[number[index]]
        begin = np.cumsum(size) - size
        where = np.repeat(begin[which], self.size) + place
        impressions, clicks = (
            add_by_index(where, column if self.order is None else column[self.order], int(size.sum()))
            for column in (self.cells.impressions, self.cells.clicks)
        )
        pairs = add_by_index(which, self.of_strata(self.cells.pairs), len(index))
        cell = ranges(exposures.first[number[index]], size)
        bucket, stratum, pairs = (np.repeat(values, size) for values in (bucket[index], number[index], pairs))
        return Cells(
            segment=np.zeros_like(bucket),
            bucket=bucket,
            stratum=stratum,
            pairs=pairs,
            # Zeros take no memory until they are written.
            ranker=exposures.ranker[cell] if exposures.ranker.any() else np.zeros_like(cell),
            rank=exposures.rank[cell],
            impressions=impressions,
            clicks=clicks,
        )


@dataclass(frozen=True)
class Exposures:
    """The distinct exposures of strata: `size` of each, and its cells one after another.

    Exposures are numbered by their size and then by their cells, `shown` being the impressions of each pair, and so
    that those which are equal but for their rankers are neighbours.
    """

    size: IntArray
    ranker: IntArray
    rank: IntArray
    shown: IntArray

    @cached_property
    def first(self) -> IntArray:
        """The first cell of each exposure."""
        return np.cumsum(self.size) - self.size

    def add_up_rankers(self) -> RankTotals:
        """Return the exposures with all rankers added up as ranker 0."""
        if not self.ranker.any():
            return RankTotals(np.arange(len(self.size)), ranges(np.zeros_like(self.size), self.size), self)
        owner = np.repeat(np.arange(len(self.size)), self.size)
        row, which = group([owner, self.rank])
        shown, rank = add_by_index(which, self.shown, len(row)), self.rank[row]
        first = np.flatnonzero(starts_of_runs(owner[row]))
        size = np.diff(first, append=len(row))
        example, number = _number_exposures(first, size, np.zeros_like(rank), rank, shown)
        cell = ranges(first[example], size[example])
        exposures = Exposures(size[example], np.zeros_like(cell), rank[cell], shown[cell])
        return RankTotals(number, which - np.repeat(first, self.size), exposures)


class RankTotals(NamedTuple):
    """Exposures without rankers: the `number` of each exposure in `exposures`, and the `place` of each cell there."""

    number: IntArray
    place: IntArray
    exposures: Exposures


def _order_by_stratum(cells: Cells) -> IntArray | None:
    """Return the order of cells by stratum, ranker and rank; None if they are in it."""
    key = (cells.stratum * (cells.ranker.max(initial=0) + 1) + cells.ranker) * (cells.rank.max(initial=0) + 1)
    key += cells.rank
    # A table is made ranker by ranker, each in the order of the strata, which a stable sort makes use of.
    return None if is_sorted(key) else np.argsort(key, kind="stable")


def _number_exposures(
    first: IntArray, size: IntArray, ranker: IntArray, rank: IntArray, shown: IntArray
) -> tuple[IntArray, IntArray]:
    """Return a stratum of each distinct exposure, and the number of each stratum, by size and then by its cells."""
    spans = [int(column.max(initial=0)) + 1 for column in (ranker, rank, shown)]
    columns = [ranker, rank, shown]
    if (size_of_key := math.prod(spans)) < 2**62:
        columns = [(ranker * spans[1] + rank) * spans[2] + shown]
    if size_of_key <= _MAX_TOTALS:
        # Numbered without gaps, the cells of a stratum fit into a key that is sorted faster.
        columns = [lookup(columns[0], distinct(columns[0], size_of_key))]
    number = np.zeros(len(first), dtype=np.int64)
    examples, start = [np.zeros(0, dtype=np.int64)], 0
    for length in distinct(size, int(size.max(initial=0)) + 1).tolist():
        strata = np.flatnonzero(size == length)
        example, which = group([column[first[strata] + i] for i in range(length) for column in columns])
        number[strata] = which + start
        examples.append(strata[example])
        start += len(example)
    return np.concatenate(examples), number


# ---- Observed and expected impressions


class RankerShortfall(NamedTuple):
    """Observed and expected impressions of a ranker, by its number, on documents that other rankers rank too."""

    ranker: int
    shown: int
    expected: float


def largest_shortfall(cells: Cells, views: FloatArray) -> RankerShortfall | None:
    """Return the ranker that showed least of what its page views lead to expect, if it is significantly little.

    The impressions of a stratum are expected to be split among its rankers in proportion to their page views. A ranker
    falls short of that if its share of traffic changed: it replaced another ranker, or its ranks were not logged at
    first. The standard error comes from the differences of the buckets, because a query may go to one ranker only.

    Arguments:
        cells (Cells): the counts by stratum, ranker and rank.
        views (array): the page views of each ranker.
    """
    strata = int(cells.stratum.max(initial=-1)) + 1
    total = sum_by_index(cells.stratum, cells.impressions, strata)
    traffic = sum_by_index(cells.stratum, views[cells.ranker], strata)
    rate = np.divide(total, traffic, out=np.zeros(strata), where=traffic > 0)
    several = np.bincount(cells.stratum, minlength=strata)[cells.stratum] > 1
    first, which = group([cells.bucket, cells.ranker])
    ranker = cells.ranker[first]
    shown = sum_by_index(which, np.where(several, cells.impressions, 0), len(first))
    expected = sum_by_index(which, np.where(several, rate[cells.stratum] * views[cells.ranker], 0.0), len(first))
    squares = sum_by_index(ranker, (shown - expected) ** 2, len(views))
    shown, expected = (sum_by_index(ranker, values, len(views)) for values in (shown, expected))
    short = (shown < _RANKER_SHARE * expected) & (expected - shown > _STANDARD_ERRORS * np.sqrt(squares))
    if not short.any():
        return None
    worst = int(np.argmin(np.where(short, shown / np.maximum(expected, 1), np.inf)))
    return RankerShortfall(worst, int(shown[worst]), float(expected[worst]))
