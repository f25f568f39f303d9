"""Strata that are alike: those of one bucket made one, and those of all buckets given one number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from posbias.arrays import FloatArray, IntArray, group, places, tally
from posbias.harvesting.strata import Cells


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


def strata_of(
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
    alike = _Alike.of(cells)
    joined, one = alike.joined([alike.number, alike.cells.bucket[alike.first]])
    return Strata(replace(joined, stratum=alike.number[one]), views, max_rank, by_design)


def _whoever_showed(cells: Cells) -> Cells:
    """Return cells in which all rankers are one: a stratum at a rank once."""
    first, which = group([cells.stratum, cells.rank])
    counts = [tally(which, column, len(first)) for column in (cells.impressions, cells.clicks)]
    impressions, clicks = np.rint(counts).astype(np.int64)
    kept = cells.where(first)  # type: ignore[arg-type]
    return replace(kept, ranker=np.zeros_like(kept.ranker), impressions=impressions, clicks=clicks)


def compressed(cells: Cells) -> Cells:
    """Return the same cells with equal strata of a bucket made one."""
    alike = _Alike.of(cells)
    segment, bucket = (column[alike.first] for column in (alike.cells.segment, alike.cells.bucket))
    return alike.joined([alike.size, segment, bucket, alike.number])[0]


@dataclass(frozen=True)
class _Alike:
    """Cells sorted by stratum, ranker and rank; where each stratum begins, how many it has, and which ones it is like.

    Strata of one `number` have the same ranks by the same rankers, and the same impressions a pair where those count.
    """

    cells: Cells
    first: IntArray
    size: IntArray
    number: IntArray

    @classmethod
    def of(cls, cells: Cells) -> _Alike:
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
