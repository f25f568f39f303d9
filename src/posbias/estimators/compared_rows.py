"""What CrossFit compares: views and clicks of each cell at each rank, as columns that are summed and multiplied fast.

A *cell* is the pairs of one bucket and stratum: documents that the rankers treat alike. It has a row for each rank at
which they may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from posbias.arrays import BoolArray, FloatArray, IntArray, distinct, group, tally
from posbias.harvesting.equal_strata import Strata
from posbias.harvesting.interventions import shares_of

# So many rows are worked on at once: they should stay in the cache.
_PART = 1 << 15
# Up to so many ranks a cell with all of them is faster to multiply than one with those that it has.
_DENSE = 64


@dataclass(frozen=True, eq=False)
class Rows:
    """One row for each cell and rank that can be compared, sorted by cell.

    Attributes:
        cell: counts from 0 without gaps; each has two rows or more.
        rank: from 0.
        views: N.
        clicks: C.
        share: which of the `shares` the row has. `shares @ n` are the page views D that would show the cell there;
            without shares D is N, what was observed.
        bucket: of each cell.
        stratum: of each cell, numbered alike in all buckets.
        times: how often each cell counts.
        alike: whether all cells of a stratum share their exposure in the same way, so that they could be one.
        buckets: B.
        ranks: M.
    """

    cell: IntArray
    rank: IntArray
    views: FloatArray
    clicks: FloatArray
    share: IntArray
    shares: FloatArray | None
    bucket: IntArray
    stratum: IntArray
    times: FloatArray
    alike: bool
    buckets: int
    ranks: int

    @classmethod
    def of(cls, strata: Strata, *, by_design: bool) -> Rows:
        """Return the rows of a harvest's strata; D is N unless exposure is taken `by_design`."""
        cells = strata.cells if by_design else strata.cells.where(strata.cells.impressions > 0)
        first, number = group([cells.bucket, cells.stratum])
        begins, row = group([number, cells.rank])
        share, shares = np.zeros(len(begins), dtype=np.int64), None
        if by_design and len(begins):
            share, shares = shares_of(replace(cells, stratum=number), row, len(begins), strata.views.shape[1])
        rows = cls(
            cell=number[begins],
            rank=cells.rank[begins] - 1,
            views=tally(row, cells.impressions, len(begins)),
            clicks=tally(row, cells.clicks, len(begins)),
            share=share,
            shares=shares,
            bucket=cells.bucket[first],
            stratum=cells.stratum[first],
            times=np.ones(len(first)),
            alike=by_design or not strata.by_design,
            buckets=strata.buckets,
            ranks=strata.max_rank,
        )
        return rows.where(np.ones(len(begins), dtype=np.bool_))

    def where(self, kept: BoolArray) -> Rows:
        """Return some of the rows, of the cells that have two of them or more."""
        several = tally(self.cell, kept, len(self.bucket)) > 1
        kept = kept & several[self.cell]
        if kept.all():
            return self
        number = np.cumsum(several) - 1
        return replace(
            self,
            cell=number[self.cell[kept]],
            rank=self.rank[kept],
            views=self.views[kept],
            clicks=self.clicks[kept],
            share=self.share[kept],
            bucket=self.bucket[several],
            stratum=self.stratum[several],
            times=self.times[several],
        )

    @cached_property
    def merged(self) -> Rows:
        """The same with the cells of a stratum made one, in no bucket: as good where no click tells of another."""
        begins, row = group([self.kind, self.rank])
        strata, cell = np.unique(self.kind[begins], return_inverse=True)
        counts = [tally(row, self.counted(values), len(begins)) for values in (self.views, self.clicks)]
        return replace(
            self,
            cell=cell,
            rank=self.rank[begins],
            views=counts[0],
            clicks=counts[1],
            share=self.share[begins],
            bucket=np.zeros(len(strata), dtype=np.int64),
            stratum=strata,
            times=np.ones(len(strata)),
        )

    def weighted(self, weights: FloatArray) -> Rows:
        """Return the rows of the buckets that have a weight, each counted so often."""
        kept = self.where((weights > 0)[self.bucket][self.cell])
        return replace(kept, times=kept.times * weights[kept.bucket])

    def within(self, kept: BoolArray) -> Rows:
        """Return the rows of some of the buckets, which are numbered anew."""
        rows, number = self.where(kept[self.bucket][self.cell]), np.cumsum(kept) - 1
        return replace(rows, bucket=number[rows.bucket], buckets=int(kept.sum()))

    def __len__(self) -> int:
        return len(self.cell)

    @cached_property
    def parts(self) -> list[Rows]:
        """The rows in parts that stay in the processor's cache, each of whole cells."""
        if len(self) <= _PART:
            return [self]
        ends = self.starts[np.searchsorted(self.starts, np.arange(_PART, len(self), _PART)) - 1]
        return [self._between(*rows) for rows in pairwise([0, *ends.tolist(), len(self)]) if rows[0] < rows[1]]

    def _between(self, start: int, stop: int) -> Rows:
        rows, cells = slice(start, stop), slice(int(self.cell[start]), int(self.cell[stop - 1]) + 1)
        return replace(
            self,
            cell=self.cell[rows] - cells.start,
            rank=self.rank[rows],
            views=self.views[rows],
            clicks=self.clicks[rows],
            share=self.share[rows],
            bucket=self.bucket[cells],
            stratum=self.stratum[cells],
            times=self.times[cells],
        )

    def held_buckets(self) -> tuple[slice, Rows]:
        """Return the buckets from the first to the last that have a cell, and the rows with these alone."""
        first, last = int(self.bucket[0]), int(self.bucket[-1])
        return slice(first, last + 1), replace(self, bucket=self.bucket - first, buckets=last + 1 - first)

    @cached_property
    def starts(self) -> IntArray:
        """Where each cell begins."""
        return np.flatnonzero(np.diff(self.cell, prepend=-1))

    @cached_property
    def place(self) -> IntArray:
        """Bucket and rank of each row as one number."""
        return self.bucket[self.cell] * self.ranks + self.rank

    @cached_property
    def kind(self) -> IntArray:
        """The stratum of each row."""
        return self.stratum[self.cell]

    def summed(self, values: FloatArray) -> FloatArray:
        """Return the sum of values over each cell, at each of its rows."""
        return np.asarray(tally(self.cell, values, len(self.bucket))[self.cell])

    def counted(self, values: FloatArray) -> FloatArray:
        """Return values of rows, each as often as it counts."""
        return values * self.times[self.cell]

    @cached_property
    def all_clicks(self) -> FloatArray:
        """C_c, at each row of the cell."""
        return self.summed(self.clicks)

    def promised(self, traffic: FloatArray) -> FloatArray:
        """Return D for page views n_i by ranker, or by bucket and ranker: what they promised, or what was observed."""
        if self.shares is None:
            return self.views
        if traffic.ndim == 1:
            return np.asarray((self.shares @ traffic)[self.share])
        return np.asarray(np.einsum("ij,ij->i", self.shares[self.share], traffic[self.bucket[self.cell]]))

    def at_ranks(self, values: FloatArray) -> FloatArray:
        """Return, at each row, the value of its rank, (M,), or of its bucket and rank, (B, M)."""
        return np.asarray(values[self.rank] if values.ndim == 1 else values[self.bucket[self.cell], self.rank])

    def by_rank(self, values: FloatArray) -> FloatArray:
        """Return the sum of values by rank: (M,)."""
        return tally(self.rank, self.counted(values), self.ranks)

    def by_bucket(self, values: FloatArray) -> FloatArray:
        """Return the sum of values by bucket and rank: (B, M)."""
        return tally(self.place, self.counted(values), self.buckets * self.ranks).reshape(self.buckets, self.ranks)

    def products(self, *terms: tuple[FloatArray, FloatArray], by_bucket: bool) -> FloatArray:
        """Return Σ_c left_ck right_cl, summed over terms, for each two ranks: (M, M), or (B, M, M) by bucket."""
        if not by_bucket and self.ranks <= _DENSE:
            tables = [self._table(self.counted(left)).T @ self._table(right) for left, right in terms]
            return np.asarray(np.sum(tables, axis=0))
        place = self.place if by_bucket else self.rank
        size = (self.buckets if by_bucket else 1) * self.ranks**2
        counted = [(self.counted(left), right) for left, right in terms]
        answer = tally(place * self.ranks + self.rank, _added([left * right for left, right in counted]), size)
        for one, two in self.pairs():
            values = _added([left[one] * right[two] for left, right in counted])
            answer += tally(place[one] * self.ranks + self.rank[two], values, size)
        return answer.reshape(-1, self.ranks, self.ranks) if by_bucket else answer.reshape(self.ranks, self.ranks)

    def pairs(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield all ordered pairs of different rows of one cell, a part at a time."""
        for step in range(1, len(self)):
            # Rows that are so many apart.
            upper = np.flatnonzero(self.cell[step:] == self.cell[:-step])
            if not len(upper):
                break
            yield upper, upper + step
            yield upper + step, upper

    @cached_property
    def links(self) -> tuple[IntArray, IntArray]:
        """(k, l) as k M + l, and the bucket, wherever a cell of the bucket was clicked at k and is at l too."""
        size = self.ranks**2
        parts = [np.zeros(0, dtype=np.int64)]
        for one, two in self.pairs():
            clicked = self.clicks[one] > 0
            one, two = one[clicked], two[clicked]
            parts.append(distinct(self.place[one] * self.ranks + self.rank[two], self.buckets * size))
        found = distinct(np.concatenate(parts), self.buckets * size)
        return found % size, found // size

    def _table(self, values: FloatArray) -> FloatArray:
        """Return values by cell and rank, 0 where there is no row."""
        table = np.zeros(len(self.bucket) * self.ranks)
        table[self._where] = values
        return table.reshape(-1, self.ranks)

    @cached_property
    def _where(self) -> IntArray:
        return self.cell * self.ranks + self.rank


def _added(parts: list[FloatArray]) -> FloatArray:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
