"""The tables that a harvest holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from posbias._arrays import AnyArray, BoolArray, FloatArray, IntArray, at_once, blocks, group, places, runs, tally
from posbias.engines.base import Answer, Segments, row_count, segment_numbers, stack_columns
from posbias.sql.plan import PackedCounts, RankMasks, SignatureCoding

# With fewer page views than this, what a ranker compares is chance.
MIN_PAGE_VIEWS = 30
# The rank, pairs, impressions and clicks of some cells.
_Filling = tuple[AnyArray | int, IntArray | int, IntArray, IntArray]
# Less than so much of what was promised is short, if chance, by which queries went to which ranker, would not do it.
_SHORT, _SIGMAS = 0.9, 5.0
# Over all ranks together, what pages leave out by their length evens out.
_UNEVEN = 0.85


def count_page_views(impressions: AnyArray, at: IntArray | None = None) -> AnyArray:
    """Return the page views of each ranker from impressions by ranker and rank: (..., m, M) -> (..., m).

    They are counted at the busiest rank of all, or `at` other ranks: those of the log that a part belongs to.
    """
    if at is None:
        at = busiest_rank_index(impressions.sum(axis=tuple(range(impressions.ndim - 2))))
    place = np.broadcast_to(at[:, None], (*impressions.shape[:-1], 1))
    return np.take_along_axis(impressions, place, axis=-1)[..., 0]


def busiest_rank_index(impressions: AnyArray) -> IntArray:
    """Return, by ranker, where (from 0) most was shown; from impressions by ranker and rank: (m, M) -> (m,)."""
    return np.asarray(np.argmax(impressions, axis=-1))


def cells_from_signatures(answer: Answer, segment: IntArray, coding: SignatureCoding) -> Cells:
    """Return the cells of a wide or long harvest: every ranker's rank of every signature, seen or not."""
    bucket, shown = answer["bucket"], answer["ranker"]
    first, stratum = group([segment, bucket, *(answer[name] for name in coding.names)])
    ranks = list(coding.read_ranks({name: answer[name][first] for name in coding.names}))
    # Every row is the only one of its signature and ranker.
    own = shown * len(first) + stratum
    impressions, clicks = np.zeros((2, len(ranks), len(first)), dtype=np.int64)
    impressions.reshape(-1)[own] = answer["impressions"]
    clicks.reshape(-1)[own] = answer["clicks"]

    def fill(ranker: int, row: IntArray) -> _Filling:
        return ranks[ranker][row], 0, impressions[ranker][row], clicks[ranker][row]

    return _filled(len(ranks), segment[first], bucket[first], lambda ranker, rows: ranks[ranker][rows], fill)


class _Table:
    """What all tables share: equal columns that are selected and joined together."""

    def __len__(self) -> int:
        return len(self.bucket)  # type: ignore[attr-defined]

    def columns(self) -> dict[str, AnyArray]:
        """Return the columns by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def where(self, mask: BoolArray) -> Self:
        """Return the rows where the mask holds; the table itself where that is all of them."""
        if mask.dtype == np.bool_ and mask.all():
            return self
        return type(self)(**{name: column[mask] for name, column in self.columns().items()})

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})


@dataclass(frozen=True)
class Cells(_Table):
    """One row for each stratum, ranker and rank, with all the impressions and clicks there.

    A stratum is a group of (query, document) pairs that the rankers treat alike: the same signature, or in
    replay the same ranks and impressions. A ranker known to rank the pair without having shown it has a cell of no
    impressions. `pairs` is 0 where the pairs of a stratum were not counted (signatures).
    """

    segment: IntArray
    bucket: IntArray
    stratum: IntArray
    pairs: IntArray
    ranker: IntArray
    rank: IntArray
    impressions: IntArray
    clicks: IntArray

    def renumber_segments(self, segments: Segments, among: Segments) -> Cells:
        """Return the cells with their segments numbered as among others."""
        if segments == among[: len(segments)]:
            return self
        number = {key: i for i, key in enumerate(among)}
        return replace(self, segment=np.array([number[key] for key in segments], dtype=np.int64)[self.segment])


def _filled(
    rankers: int,
    segment: IntArray,
    bucket: IntArray,
    held: Callable[[int, slice], AnyArray],
    fill: Callable[[int, IntArray], _Filling],
) -> Cells:
    """Return a cell for each ranker and stratum where `held` is not 0, with what `fill` gives for some of a ranker's.

    There may be millions, and each copy of them costs as much as counting them did.
    """
    parts = blocks(len(bucket))

    def count(ranker: int) -> int:
        return sum(int(np.count_nonzero(held(ranker, part))) for part in parts)

    sizes = at_once(count, range(rankers))
    cells = Cells(*(np.zeros(sum(sizes), dtype=np.int64) for _ in fields(Cells)))
    segmented = segment.any()

    def make(ranker: int) -> None:
        end = sum(sizes[:ranker])
        for part in parts:
            row = np.flatnonzero(held(ranker, part)) + part.start
            end, own = end + len(row), slice(end, end + len(row))
            cells.stratum[own], cells.bucket[own], cells.ranker[own] = row, bucket[row], ranker
            if segmented:
                cells.segment[own] = segment[row]
            cells.rank[own], cells.pairs[own], cells.impressions[own], cells.clicks[own] = fill(ranker, row)

    at_once(make, range(rankers))
    return cells


def cells_from_exposures(answer: Answer, segment: IntArray, masks: RankMasks, digits: PackedCounts | None) -> Cells:
    """Return the cells of a replay harvest in which each ranker shows a pair at one rank, given as a bit of a mask.

    Counts come as digits, or one by one.
    """

    def counts(of: str, ranker: int, rows: IntArray) -> IntArray:
        return digits.read(answer, of, ranker, rows) if digits else answer[f"{of}_{ranker}"][rows]

    def fill(ranker: int, row: IntArray) -> _Filling:
        # Below the bit after it there are as many as the rank.
        rank = np.bitwise_count((masks.read(answer, ranker, row) << 1) - 1)
        pairs = answer["pairs"][row]
        shown = counts("packed_impressions" if digits else "impressions", ranker, row) * pairs
        return rank, pairs, shown, counts("packed_clicks" if digits else "clicks", ranker, row)

    return _filled(
        masks.rankers, segment, answer["bucket"], lambda ranker, rows: masks.read(answer, ranker, rows), fill
    )


def no_digit_overflowed(answers: Sequence[Answer], digits: PackedCounts, rows: int) -> bool:
    """Return whether digits held all that they counted: of pairs in the first answer, one by one in the others.

    A digit that overflows adds one to the next and loses many, so that fewer rows are found than there are.
    """
    first, *others = answers

    def count(slot: int) -> tuple[int, int]:
        shown = digits.read(first, "packed_impressions", slot) * first["pairs"]
        return int(shown.sum()), int(shown.max(initial=0))

    counted = at_once(count, range(digits.slots))
    found = sum(shown for shown, _ in counted)
    found += sum(int((other["impressions"] * other["pairs"]).sum()) for other in others)
    # Clicks of pairs alike are no more than their impressions: where those fit together, so do these.
    return found == rows and all(most < 1 << digits.bits for _, most in counted)


def cells_from_digits(answer: Answer, segment: IntArray, digits: PackedCounts) -> Cells:
    """Return the cells of a replay that names no ranker: its counts are by rank, pair by pair, as digits."""
    order, starts = runs([segment, answer["bucket"], *(answer[name] for name in digits.names("packed_impressions"))])
    first = order[starts]
    held = {name: answer[name][first] for name in digits.names("packed_impressions")}
    clicked = {name: answer[name][order] for name in digits.names("packed_clicks")}
    pairs = answer["pairs"][order]
    alike = np.add.reduceat(pairs, starts)

    sums = [
        np.add.reduceat(digits.read(clicked, "packed_clicks", place) * pairs, starts) for place in range(digits.slots)
    ]

    def fill(place: int, row: IntArray) -> _Filling:
        return place + 1, alike[row], digits.read(held, "packed_impressions", place, row) * alike[row], sums[place][row]

    cells = _filled(
        digits.slots,
        segment[first],
        answer["bucket"][first],
        lambda place, rows: digits.read(held, "packed_impressions", place, rows),
        fill,
    )
    return replace(cells, ranker=np.zeros_like(cells.ranker))


def cells_from_rows(answer: Answer, segment: IntArray) -> Cells:
    """Return the cells of a replay harvest that the engine already gives one by one."""
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


def busiest_ranks(totals: Answer, rankers: int) -> list[int]:
    """Return the rank, for each ranker, at which its page views are counted."""
    ranker, rank = totals["ranker"], totals["rank"]
    shown = np.zeros((rankers, int(rank.max(initial=1))))
    np.add.at(shown, (ranker, rank - 1), totals["impressions"])
    return [int(k) + 1 for k in busiest_rank_index(shown)]


def pair_sums(totals: Answer, sums: Answer, names: Sequence[str]) -> tuple[PairSums, list[tuple[str | None, ...]]]:
    """Return what was shown at each rank and the sums over interventional sets as one table, and its segments."""
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


@dataclass(frozen=True)
class PairSums(_Table):
    """ĉ and ¬ĉ by bucket, k and k' (`rank`, `other`), for when strata do not compress.

    Rows with `other` 0 hold the plain clicks and skips of a ranker at a rank, in every set or none.
    """

    segment: IntArray
    bucket: IntArray
    ranker: IntArray
    rank: IntArray
    other: IntArray
    clicks: FloatArray
    skips: FloatArray


def count_positions(table: Cells | PairSums) -> tuple[PositionCounts, ...]:
    """Return what was shown at each rank at which anything was."""
    impressions: AnyArray
    if isinstance(table, PairSums):
        table = table.where(table.other == 0)
        impressions = table.clicks + table.skips
    else:
        impressions = table.impressions
    size = int(table.rank.max(initial=0)) + 1

    def count(counts: AnyArray) -> IntArray:
        parts = (tally(table.rank[part], counts[part], size) for part in blocks(len(counts)))
        return sum(parts, np.zeros(size)).astype(np.int64)

    shown, clicks = count(impressions), count(table.clicks)
    return tuple(PositionCounts(int(k), int(shown[k]), int(clicks[k])) for k in np.flatnonzero(shown))


class PositionCounts(NamedTuple):
    """What was shown at one position."""

    position: int
    impressions: int
    clicks: int


def count_non_functional(cells: Cells) -> int:
    """Return how many pairs a ranker showed at several ranks."""
    size = int(cells.ranker.max(initial=0)) + 1
    own, seen = np.unique(cells.stratum * size + cells.ranker, return_counts=True)
    several = np.unique(own[seen > 1] // size)
    return count_pairs(cells.where(np.isin(cells.stratum, several)))


def count_pairs(cells: Cells) -> int:
    """Return how many (query, document) pairs the strata hold."""
    _, first = np.unique(cells.stratum, return_index=True)
    return int(cells.pairs[first].sum())


def renumber_strata(parts: Sequence[Cells]) -> list[Cells]:
    """Return the parts with strata numbered apart, so that joining them merges none."""
    shifted, start = [], 0
    for part in parts:
        shifted.append(replace(part, stratum=part.stratum + start) if start else part)
        start += int(part.stratum.max(initial=-1)) + 1
    return shifted


def strata_from_cells(
    cells: Cells, max_rank: int, buckets: IntArray, views: FloatArray, *, by_design: bool, by_ranker: bool = False
) -> Strata:
    """Return the strata of cells; `views` holds the page views by bucket (of `buckets`) and ranker.

    Where exposure is what was observed, rankers are one unless they are to be told apart (`by_ranker`).
    """
    if by_design:
        # A ranker without traffic puts no document anywhere: nothing was promised there.
        served = views.sum(axis=0) > 0
        cells = cells if served.all() else cells.where(served[cells.ranker])
    elif not by_ranker:
        cells = _whoever_showed(cells)
    cells = replace(cells, segment=np.zeros_like(cells.segment), bucket=places(cells.bucket, buckets))
    alike = _EqualStrata.of(cells)
    joined, one = alike.joined([alike.number, alike.cells.bucket[alike.first]])
    return Strata(replace(joined, stratum=alike.number[one]), views, max_rank, by_design)


@dataclass(frozen=True, eq=False)
class Strata:
    """Cells whose strata have the same number in every bucket: equal signatures, or equal ranks and impressions a pair.

    What estimators are made from that fit a relevance to each stratum, in each bucket or across them.

    Attributes:
        cells: one row for each stratum, bucket, ranker and rank, sorted by them, all segments together. `stratum`
            counts from 0 without gaps, and `bucket` says which row of `views`. Where exposure is what was observed it
            does not matter who showed a pair, and all rankers are one, with the number 0.
        views: page views by bucket and ranker (B × m), from which n_i is made: `weights @ views`.
        max_rank: M.
        by_design: whether exposure is what traffic promised. Then the pairs of a stratum are at rank k in n_i of the
            page views, for each ranker i with a cell there, whether or not it showed them. Otherwise it is what was
            observed: each of the stratum's `pairs` had `impressions / pairs` of a cell, in every bucket the same.

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
        """How many buckets hold anything."""
        return len(self.views)

    @property
    def size(self) -> int:
        """How many strata there are."""
        return int(self.cells.stratum.max(initial=-1)) + 1

    @cached_property
    def clicked(self) -> bool:
        """Whether there is a click on a stratum that is at several ranks."""
        high, low = np.zeros(self.size, dtype=np.int64), np.full(self.size, self.max_rank)
        np.maximum.at(high, self.cells.stratum, self.cells.rank)
        np.minimum.at(low, self.cells.stratum, self.cells.rank)
        return bool(np.any(self.cells.clicks[(high > low)[self.cells.stratum]]))


def _whoever_showed(cells: Cells) -> Cells:
    """Return cells in which all rankers are one: a stratum at a rank once."""
    first, which = group([cells.stratum, cells.rank])
    counts = [tally(which, column, len(first)) for column in (cells.impressions, cells.clicks)]
    impressions, clicks = np.rint(counts).astype(np.int64)
    kept = cells.where(first)  # type: ignore[arg-type]
    return replace(kept, ranker=np.zeros_like(kept.ranker), impressions=impressions, clicks=clicks)


@dataclass(frozen=True)
class _EqualStrata:
    """Cells sorted by stratum, ranker and rank; where each stratum begins, how many it has, and which ones it is like.

    Strata of one `number` have the same ranks by the same rankers, and the same impressions a pair where those count.
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
        each = np.where(cells.pairs > 0, cells.impressions // np.maximum(cells.pairs, 1), 0)
        number, start = np.zeros(len(first), dtype=np.int64), 0
        for length in np.unique(size):
            own = size == length
            rows = first[own][:, None] + np.arange(length)
            found, which = group([c[rows[:, i]] for c in (cells.ranker, cells.rank, each) for i in range(length)])
            number[own] = which + start
            start += len(found)
        return cls(cells, first, size, number)

    def joined(self, by: list[IntArray]) -> tuple[Cells, IntArray]:
        """Return the cells with strata made one that agree in the columns `by`, their number among them.

        They are sorted by these columns. With each cell comes one of the strata that its own was made of.
        """
        index, which = group(by)
        size = self.size[index]
        begin = np.cumsum(size) - size
        place = np.arange(size.sum()) - np.repeat(begin, size)
        kept = np.repeat(self.first[index], size) + place
        number = np.repeat(np.arange(len(index)), size)
        if len(index) == len(self.first):
            return replace(self.cells.where(kept), stratum=number), np.repeat(index, size)
        # The i-th cell of a stratum is added to the i-th of the one it becomes.
        where = np.arange(len(self.cells)) + np.repeat(begin[which] - self.first, self.size)

        def summed(values: IntArray) -> IntArray:
            return np.rint(tally(where, values, len(kept))).astype(np.int64)

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


def merge_equal_sums(sums: PairSums) -> PairSums:
    """Return the same sums with those of one set in one row."""
    # Rows over all rankers carry ranker -1.
    first, which = group([sums.segment, sums.bucket, sums.ranker + 1, sums.rank, sums.other])
    columns = {name: column[first] for name, column in sums.columns().items()}
    columns |= {name: tally(which, getattr(sums, name), len(first)) for name in ("clicks", "skips")}
    return PairSums(**columns)


def merge_equal_strata(cells: Cells) -> Cells:
    """Return the same cells with equal strata of a bucket made one."""
    alike = _EqualStrata.of(cells)
    segment, bucket = (column[alike.first] for column in (alike.cells.segment, alike.cells.bucket))
    return alike.joined([alike.size, segment, bucket, alike.number])[0]


class ExpectedImpressions(NamedTuple):
    """What was shown and what was promised, of strata that several rankers rank, by bucket, ranker and rank from 0.

    Promised is what the pairs of a stratum had in all, shared by traffic among the rankers that rank them.
    """

    bucket: IntArray
    ranker: IntArray
    rank: IntArray
    shown: FloatArray
    promised: FloatArray

    @classmethod
    def of(cls, cells: Cells, views: FloatArray) -> ExpectedImpressions:
        """Return them of cells; `views` are the page views of each ranker."""
        strata = int(cells.stratum.max(initial=-1)) + 1
        total = tally(cells.stratum, cells.impressions, strata)
        traffic = tally(cells.stratum, views[cells.ranker], strata)
        each = np.divide(total, traffic, out=np.zeros(strata), where=traffic > 0)
        several = np.bincount(cells.stratum, minlength=strata)[cells.stratum] > 1
        first, which = group([cells.bucket, cells.ranker, cells.rank])
        shown = tally(which, np.where(several, cells.impressions, 0), len(first))
        promised = tally(which, np.where(several, each[cells.stratum] * views[cells.ranker], 0.0), len(first))
        return cls(cells.bucket[first], cells.ranker[first], cells.rank[first] - 1, shown, promised)

    def shortfalls(self) -> list[Shortfall]:
        """Return where rankers showed too little, the shortest first."""
        ranks = int(self.rank.max(initial=0)) + 1
        found = [
            Shortfall(place // ranks, place % ranks + 1, int(shown), promised)
            for place, shown, promised in self._short(self.ranker * ranks + self.rank, _SHORT)
        ]
        return sorted(found, key=lambda one: one.shown / one.expected)

    def largest_shortfall(self) -> RankerShortfall | None:
        """Return the ranker that showed least of what its traffic promised, over all ranks, if that is too little."""
        found = (
            RankerShortfall(ranker, int(shown), promised)
            for ranker, shown, promised in self._short(self.ranker, _UNEVEN)
        )
        return min(found, key=lambda one: one.shown / max(one.expected, 1), default=None)

    def _short(self, where: IntArray, share: float) -> list[tuple[int, float, float]]:
        """Return the places where less than a share of what was promised was shown, by more than chance, with both.

        What a bucket is off by is chance: its queries may have gone to one ranker.
        """
        size = int(where.max(initial=-1)) + 1
        shown, promised = (tally(where, values, size) for values in (self.shown, self.promised))
        first, which = group([self.bucket, where])
        off = tally(which, self.shown - self.promised, len(first))
        chance = np.sqrt(tally(where[first], off**2, size))
        short = np.flatnonzero((shown < share * promised) & (promised - shown > _SIGMAS * chance))
        return [(int(place), float(shown[place]), float(promised[place])) for place in short]


class Shortfall(NamedTuple):
    """What a ranker, by number, showed at a rank, and what was promised."""

    ranker: int
    rank: int
    shown: int
    expected: float


class RankerShortfall(NamedTuple):
    """What a ranker, by number, showed of all that others rank too, and what was promised."""

    ranker: int
    shown: int
    expected: float
