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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from posbias._arrays import (
    AnyArray,
    BoolArray,
    FloatArray,
    IntArray,
    blocks,
    group,
    lookup,
    map_threads,
    runs,
    sum_by_index,
)
from posbias.engines.base import Answer, row_count, segment_numbers, stack_columns
from posbias.logs.click_log import Segment
from posbias.sql.plan import PackedCounts, RankMasks, SignatureCoding

# With fewer page views than this, comparisons with a ranker are mostly noise.
MIN_PAGE_VIEWS = 30
# The rank, pairs, impressions and clicks of some cells.
_CellValues = tuple[AnyArray | int, IntArray | int, IntArray, IntArray]
# A ranker has a shortfall at a rank if it showed less than this share of the expected impressions, and if the
# difference exceeds this many standard errors.
_RANK_SHARE, _STANDARD_ERRORS = 0.9, 5.0
# The same share over all ranks together, where pages of different length matter less.
_RANKER_SHARE = 0.85


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

    def renumber_segments(self, segments: list[Segment], among: list[Segment]) -> Cells:
        """Return the cells with segments, which are numbered as in `segments`, numbered as in `among`."""
        if segments == among[: len(segments)]:
            return self
        number = {key: i for i, key in enumerate(among)}
        return replace(self, segment=np.array([number[key] for key in segments], dtype=np.int64)[self.segment])


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
        cells (Cells): the counts by stratum, bucket, ranker and rank, sorted by them, of all segments together.
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


def cells_from_exposures(answer: Answer, segment: IntArray, masks: RankMasks, packed: PackedCounts | None) -> Cells:
    """Return the cells of a replay in which each ranker shows a pair at one rank.

    The rank is a bit of a mask. Counts are packed into integers, or have a column for each ranker.
    """

    def counts(name: str, ranker: int, rows: IntArray) -> IntArray:
        return packed.read(answer, f"packed_{name}", ranker, rows) if packed else answer[f"{name}_{ranker}"][rows]

    def values(ranker: int, row: IntArray) -> _CellValues:
        # Rank k is bit k - 1: the number of bits up to and including it is k.
        rank = np.bitwise_count((masks.read(answer, ranker, row) << 1) - 1)
        pairs = answer["pairs"][row]
        return rank, pairs, counts("impressions", ranker, row) * pairs, counts("clicks", ranker, row)

    return _fill_cells(
        masks.rankers, segment, answer["bucket"], lambda ranker, rows: masks.read(answer, ranker, rows), values
    )


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


def cells_from_packed_ranks(answer: Answer, segment: IntArray, packed: PackedCounts) -> Cells:
    """Return the cells of a replay that names no ranker, whose counts by rank are packed into integers."""
    names = packed.names("packed_impressions")
    order, starts = runs([segment, answer["bucket"], *(answer[name] for name in names)])
    first = order[starts]
    impressions = {name: answer[name][first] for name in names}
    clicks = {name: answer[name][order] for name in packed.names("packed_clicks")}
    pairs = answer["pairs"][order]
    pairs_of_stratum = np.add.reduceat(pairs, starts)
    clicks_at = [
        np.add.reduceat(packed.read(clicks, "packed_clicks", place) * pairs, starts) for place in range(packed.slots)
    ]

    def impressions_at(place: int, rows: IntArray | slice) -> IntArray:
        return packed.read(impressions, "packed_impressions", place, rows)

    def values(place: int, row: IntArray) -> _CellValues:
        pairs_here = pairs_of_stratum[row]
        return place + 1, pairs_here, impressions_at(place, row) * pairs_here, clicks_at[place][row]

    cells = _fill_cells(packed.slots, segment[first], answer["bucket"][first], impressions_at, values)
    return replace(cells, ranker=np.zeros_like(cells.ranker))


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
    """Return a cell for each ranker and stratum where `present` is not 0, filled in place with `values`.

    There may be millions of cells, and each copy of them would take as long as counting them did.
    """
    parts = blocks(len(bucket))

    def count(ranker: int) -> int:
        return sum(int(np.count_nonzero(present(ranker, part))) for part in parts)

    sizes = map_threads(count, range(rankers))
    cells = Cells(*(np.zeros(sum(sizes), dtype=np.int64) for _ in fields(Cells)))
    segmented = segment.any()

    def fill(ranker: int) -> None:
        end = sum(sizes[:ranker])
        for part in parts:
            row = np.flatnonzero(present(ranker, part)) + part.start
            end, at = end + len(row), slice(end, end + len(row))
            cells.stratum[at], cells.bucket[at], cells.ranker[at] = row, bucket[row], ranker
            if segmented:
                cells.segment[at] = segment[row]
            cells.rank[at], cells.pairs[at], cells.impressions[at], cells.clicks[at] = values(ranker, row)

    map_threads(fill, range(rankers))
    return cells


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


def merge_equal_sums(sums: PairSums) -> PairSums:
    """Return the sums with one row for each bucket and intervention set."""
    # Sums over all rankers have ranker -1, and `group` takes no negative numbers.
    first, which = group([sums.segment, sums.bucket, sums.ranker + 1, sums.rank, sums.other])
    columns = {name: column[first] for name, column in sums.columns().items()}
    columns |= {name: sum_by_index(which, getattr(sums, name), len(first)) for name in ("clicks", "skips")}
    return PairSums(**columns)


# ---- Equal strata


def strata_from_cells(
    cells: Cells, max_rank: int, buckets: IntArray, views: FloatArray, *, by_design: bool, by_ranker: bool = False
) -> Strata:
    """Return the strata of cells, numbered the same in every bucket.

    Arguments:
        cells (Cells): the counts by stratum, ranker and rank.
        max_rank (int): M.
        buckets (array): the numbers of the buckets.
        views (array): page views by bucket and ranker, (B, m).
        by_design (bool): whether exposure follows from traffic (ranks are known) instead of observed impressions.
        by_ranker (bool, default False): with observed exposure, keep the rankers apart instead of adding them up.
    """
    if by_design:
        # Exposure is the page views of a ranker, so a ranker without traffic exposes no document.
        served = views.sum(axis=0) > 0
        cells = cells if served.all() else cells.where(served[cells.ranker])
    elif not by_ranker:
        cells = _add_up_rankers(cells)
    cells = replace(cells, segment=np.zeros_like(cells.segment), bucket=lookup(cells.bucket, buckets))
    equal = _EqualStrata.of(cells)
    merged, source = equal.merge([equal.number, equal.cells.bucket[equal.first]])
    return Strata(replace(merged, stratum=equal.number[source]), views, max_rank, by_design)


def _add_up_rankers(cells: Cells) -> Cells:
    """Return the cells with the counts of all rankers added up as ranker 0."""
    first, which = group([cells.stratum, cells.rank])
    counts = [sum_by_index(which, column, len(first)) for column in (cells.impressions, cells.clicks)]
    impressions, clicks = np.rint(counts).astype(np.int64)
    kept = cells.where(first)  # type: ignore[arg-type]
    return replace(kept, ranker=np.zeros_like(kept.ranker), impressions=impressions, clicks=clicks)


def renumber_strata(parts: Sequence[Cells]) -> list[Cells]:
    """Return the parts with distinct numbers of strata, so that they can be concatenated."""
    shifted, start = [], 0
    for part in parts:
        shifted.append(replace(part, stratum=part.stratum + start) if start else part)
        start += int(part.stratum.max(initial=-1)) + 1
    return shifted


def merge_equal_strata(cells: Cells) -> Cells:
    """Return the cells with equal strata of the same segment and bucket merged."""
    equal = _EqualStrata.of(cells)
    segment, bucket = (column[equal.first] for column in (equal.cells.segment, equal.cells.bucket))
    return equal.merge([equal.size, segment, bucket, equal.number])[0]


@dataclass(frozen=True)
class _EqualStrata:
    """Cells sorted by stratum, ranker and rank, and which of their strata are equal.

    `first` is the first cell of each stratum and `size` its number of cells. Strata with the same `number` are equal:
    they have the same ranks by the same rankers and, if pairs are counted, the same impressions for each pair.
    """

    cells: Cells
    first: IntArray
    size: IntArray
    number: IntArray

    @classmethod
    def of(cls, cells: Cells) -> _EqualStrata:
        key = (cells.stratum * (cells.ranker.max(initial=0) + 1) + cells.ranker) * (cells.rank.max(initial=0) + 1)
        key += cells.rank
        if np.any(key[1:] < key[:-1]):
            cells = cells.where(np.argsort(key, kind="stable"))  # type: ignore[arg-type]
        first = np.flatnonzero(np.diff(cells.stratum, prepend=-1))
        size = np.diff(first, append=len(cells))
        per_pair = np.where(cells.pairs > 0, cells.impressions // np.maximum(cells.pairs, 1), 0)
        number, start = np.zeros(len(first), dtype=np.int64), 0
        for length in np.unique(size):
            same_size = size == length
            rows = first[same_size][:, None] + np.arange(length)
            keys = [column[rows[:, i]] for column in (cells.ranker, cells.rank, per_pair) for i in range(length)]
            distinct_strata, which = group(keys)
            number[same_size] = which + start
            start += len(distinct_strata)
        return cls(cells, first, size, number)

    def merge(self, by: list[IntArray]) -> tuple[Cells, IntArray]:
        """Merge strata that agree in the columns `by`, one of which is their `number`.

        Returns:
            tuple: the cells, sorted by these columns, and for each cell one of the strata merged into its own.
        """
        index, which = group(by)
        size = self.size[index]
        begin = np.cumsum(size) - size
        place = np.arange(size.sum()) - np.repeat(begin, size)
        kept = np.repeat(self.first[index], size) + place
        number = np.repeat(np.arange(len(index)), size)
        if len(index) == len(self.first):
            return replace(self.cells.where(kept), stratum=number), np.repeat(index, size)
        # The i-th cell of a stratum is added to the i-th cell of the merged stratum.
        where = np.arange(len(self.cells)) + np.repeat(begin[which] - self.first, self.size)

        def summed(values: IntArray) -> IntArray:
            return np.rint(sum_by_index(where, values, len(kept))).astype(np.int64)

        cells = Cells(
            segment=self.cells.segment[kept],
            bucket=self.cells.bucket[kept],
            stratum=number,
            pairs=summed(self.cells.pairs),
            ranker=self.cells.ranker[kept],
            rank=self.cells.rank[kept],
            impressions=summed(self.cells.impressions),
            clicks=summed(self.cells.clicks),
        )
        return cells, np.repeat(index, size)


# ---- Observed and expected impressions


class ExpectedImpressions(NamedTuple):
    """Observed and expected impressions by bucket, ranker and rank, of strata that several rankers rank.

    The impressions of a stratum are expected to be split among its rankers in proportion to their page views. A ranker
    falls short at some ranks if its pages end above a rank or begin below it. It falls short at all ranks together if
    its share of traffic changed: it replaced another ranker, or its ranks were not logged at first.

    Attributes:
        bucket (array): the bucket of queries.
        ranker (array): the number of the ranker.
        rank (array): the rank, from 0.
        shown (array): observed impressions.
        expected (array): expected impressions.
    """

    bucket: IntArray
    ranker: IntArray
    rank: IntArray
    shown: FloatArray
    expected: FloatArray

    @classmethod
    def of(cls, cells: Cells, views: FloatArray) -> ExpectedImpressions:
        """Compute them from cells and the page views of each ranker."""
        strata = int(cells.stratum.max(initial=-1)) + 1
        total = sum_by_index(cells.stratum, cells.impressions, strata)
        traffic = sum_by_index(cells.stratum, views[cells.ranker], strata)
        rate = np.divide(total, traffic, out=np.zeros(strata), where=traffic > 0)
        several = np.bincount(cells.stratum, minlength=strata)[cells.stratum] > 1
        first, which = group([cells.bucket, cells.ranker, cells.rank])
        shown = sum_by_index(which, np.where(several, cells.impressions, 0), len(first))
        expected = sum_by_index(which, np.where(several, rate[cells.stratum] * views[cells.ranker], 0.0), len(first))
        return cls(cells.bucket[first], cells.ranker[first], cells.rank[first] - 1, shown, expected)

    def shortfalls(self) -> list[Shortfall]:
        """Return the rankers and ranks with too few impressions, the largest shortfall first."""
        ranks = int(self.rank.max(initial=0)) + 1
        found = [
            Shortfall(place // ranks, place % ranks + 1, int(shown), expected)
            for place, shown, expected in self._short(self.ranker * ranks + self.rank, _RANK_SHARE)
        ]
        return sorted(found, key=lambda shortfall: shortfall.shown / shortfall.expected)

    def largest_shortfall(self) -> RankerShortfall | None:
        """Return the ranker with the largest shortfall over all ranks together, or None."""
        found = (
            RankerShortfall(ranker, int(shown), expected)
            for ranker, shown, expected in self._short(self.ranker, _RANKER_SHARE)
        )
        return min(found, key=lambda shortfall: shortfall.shown / max(shortfall.expected, 1), default=None)

    def _short(self, where: IntArray, share: float) -> list[tuple[int, float, float]]:
        """Return the places with significantly less than a share of the expected impressions, with both numbers.

        The standard error comes from the differences of the buckets, because a query may go to one ranker only.
        """
        size = int(where.max(initial=-1)) + 1
        shown, expected = (sum_by_index(where, values, size) for values in (self.shown, self.expected))
        first, which = group([self.bucket, where])
        difference = sum_by_index(which, self.shown - self.expected, len(first))
        standard_error = np.sqrt(sum_by_index(where[first], difference**2, size))
        short = np.flatnonzero((shown < share * expected) & (expected - shown > _STANDARD_ERRORS * standard_error))
        return [(int(place), float(shown[place]), float(expected[place])) for place in short]


class Shortfall(NamedTuple):
    """Observed and expected impressions of a ranker, by its number, at one rank."""

    ranker: int
    rank: int
    shown: int
    expected: float


class RankerShortfall(NamedTuple):
    """Observed and expected impressions of a ranker, by its number, on documents that other rankers rank too."""

    ranker: int
    shown: int
    expected: float
