"""The score of CrossFit: what each view says of log p, its sum over a harvest, by bucket, and its derivative.

A *cell* is the pairs of one bucket and stratum: documents that the rankers treat alike. It has a row for each rank at
which they may be. With N views and C clicks there, D the page views that would have shown them there, and E = Σ N p::

    t_y = (C_c − y + a r0) / (E_c − p_k + a)         the guess of relevance, from all of the cell but this view
    f_k = 1 / (1 − min(p_k r0, 0.9))                 the inverse variance of its click, up to p r0
    w_k = D_k p_k f_k / Σ_j D_j p_j f_j              where in the cell its click was to be expected
    R_k = f_k [C_k (1 − p_k t_1) − (N_k − C_k) p_k t_0]
    g_k = Σ_c (R_ck − w_ck Σ_j R_cj)                 which is 0 at the estimate

`docs/theory.md` derives it. Rows are sorted by cell; b = 1 / a stands for a, so that a = ∞ is a number.
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
# Beyond this p r the variance of a click is no longer believed to vanish.
_MOST_CERTAIN = 0.9
# Bins of strata that are guessed to be of one relevance, and the clicks that each of them needs to be guessed from.
_BINS, _CLICKS_OF_BIN = 100, 50
# a: how many views, each sure to be examined, the relevance of the bin counts for beside those of the cell.
_PRIORS = 1 / np.array([0.5, 1, 2, 4, 8, 16, 32, 64, 256, np.inf])


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
        """Return D for page views n_i by ranker: what traffic promised, or what was observed."""
        return self.views if self.shares is None else (self.shares @ traffic)[self.share]

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

    def links(self) -> tuple[IntArray, IntArray]:
        """Return (k, l) as k M + l, and the bucket, wherever a cell of the bucket was clicked at k and is at l too."""
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


@dataclass(frozen=True)
class Guess:
    """What is guessed of relevance: r0 by stratum, and b = 1 / a, how much more a view of the cell itself tells."""

    relevance: FloatArray
    trust: float


def guess_relevance(rows: Rows, x: FloatArray, signatures: Signatures) -> FloatArray:
    """Return r0 of each stratum: the click rate per examination of those that its signature says are alike."""
    exposure = rows.views * np.exp(x)[rows.rank]
    size = signatures.size
    clicks, exposures = tally(rows.kind, rows.clicks, size), tally(rows.kind, exposure, size)
    rate = clicks.sum() / max(exposures.sum(), 1e-300)
    order = np.argsort(signatures.scores(clicks, exposures, rate), kind="stable")
    bins = int(np.clip(clicks.sum() // _CLICKS_OF_BIN, 1, _BINS))
    reached = np.cumsum(exposures[order])
    which = np.empty(size, dtype=np.int64)
    # The bin in which the middle of a stratum's exposure lies.
    middle = reached - exposures[order] / 2
    which[order] = np.minimum(bins * middle // max(reached[-1], 1e-300), bins - 1)
    found, among = tally(which, clicks, bins), tally(which, exposures, bins)
    rates = np.divide(found, among, out=np.full(bins, rate), where=among > 0)
    return np.asarray(rates[which])


@dataclass(frozen=True)
class Signatures:
    """Where the rankers put each stratum: a number of ranker and rank for each of its entries."""

    stratum: IntArray
    entry: IntArray
    size: int
    rankers: int
    ranks: int

    @classmethod
    def of(cls, strata: Strata) -> Signatures:
        """Return the signatures of a harvest's strata."""
        cells = strata.cells
        rankers = strata.views.shape[1]
        first, _ = group([cells.stratum, cells.ranker, cells.rank])
        entry = cells.ranker[first] * strata.max_rank + cells.rank[first] - 1
        return cls(cells.stratum[first], entry, strata.size, rankers, strata.max_rank)

    def scores(self, clicks: FloatArray, exposures: FloatArray, rate: float) -> FloatArray:
        """Return, for each stratum, the sum over rankers of the log click rate of all that they rank as they rank it.

        A ranker that does not rank it counts too, by the rate of all that it does not rank.
        """
        size = self.rankers * self.ranks
        counts = [(tally(self.entry, c[self.stratum], size), c.sum()) for c in (clicks, exposures)]
        # Half a click more at the rate of all, so that none is without.
        ranked = [part + 0.5 / scale for (part, _), scale in zip(counts, (1, rate or 1), strict=True)]
        elsewhere = [
            np.maximum(total - part.reshape(self.rankers, self.ranks).sum(axis=1), 0) + 0.5 / scale
            for (part, total), scale in zip(counts, (1, rate or 1), strict=True)
        ]
        gain = np.log(ranked[0] / ranked[1]) - np.repeat(np.log(elsewhere[0] / elsewhere[1]), self.ranks)
        return tally(self.stratum, gain[self.entry], self.size)


@dataclass(frozen=True)
class Score:
    """The terms of the score at one x, by row."""

    rows: Rows
    value: FloatArray
    weight: FloatArray
    total: FloatArray
    steep: FloatArray
    diagonal: FloatArray
    pull: FloatArray | None
    exposure: FloatArray
    odds: FloatArray
    promised: FloatArray

    @classmethod
    def at(cls, x: FloatArray, rows: Rows, traffic: FloatArray, guess: Guess | None) -> Score:
        """Return the score at x = log p; without a guess, that of ConditionalPoisson: t = 0 and f = 1."""
        p = np.exp(x)[rows.rank]
        promised = rows.promised(traffic)
        exposure = rows.views * p
        relevance = np.zeros(len(rows))
        f, steep = np.ones(len(rows)), np.zeros(len(rows))
        if guess is not None:
            relevance = guess.relevance[rows.kind]
            chance = p * relevance
            f = 1 / (1 - np.minimum(chance, _MOST_CERTAIN))
            steep = np.where(chance < _MOST_CERTAIN, chance * f, 0.0)
        if guess is None or rows.shares is None:
            # As observed, what is guessed cancels.
            residual, diagonal, pull = f * rows.clicks, steep * f * rows.clicks, None
        else:
            b = guess.trust
            seen = b * np.maximum(rows.summed(exposure) - p, 0) + 1
            expected = p * (rows.views * (b * rows.all_clicks + relevance) - b * rows.clicks) / seen
            residual, pull = f * (rows.clicks - expected), f * expected * b / seen
            diagonal = steep * residual - f * expected - p * pull
        total = rows.summed(residual)
        odds = p * f
        weight = promised * odds
        weight = weight / np.maximum(rows.summed(weight), 1e-300)
        return cls(rows, residual - weight * total, weight, total, steep, diagonal, pull, exposure, odds, promised)

    def gradient(self) -> FloatArray:
        """Return the score of log p by bucket and rank: (B, M)."""
        return self.rows.by_bucket(self.value)

    def slope(self, *, by_bucket: bool = False) -> FloatArray:
        """Return −∂score/∂x: (M, M), or (B, M, M) by bucket."""
        rows, w = self.rows, self.weight
        scaled = w * (1 + self.steep) * self.total
        own = (rows.by_bucket if by_bucket else rows.by_rank)(scaled - self.diagonal)
        terms = [(w, self.diagonal - scaled)]
        if self.pull is not None:
            terms.append((w * rows.summed(self.pull) - self.pull, self.exposure))
        spread = rows.products(*terms, by_bucket=by_bucket)
        index = np.arange(rows.ranks)
        spread[..., index, index] += own
        return spread

    def traffic_slope(self, traffic: FloatArray) -> FloatArray:
        """Return ∂score/∂n: how the score of each rank moves with the page views of each ranker, (M, m)."""
        rows = self.rows
        if rows.shares is None:
            return np.zeros((rows.ranks, len(traffic)))
        expected = np.maximum(rows.summed(self.promised * self.odds), 1e-300)
        answer = np.empty((rows.ranks, len(traffic)))
        for ranker in range(len(traffic)):
            gain = rows.shares[:, ranker][rows.share] * self.odds
            moved = -self.total * (gain - self.weight * rows.summed(gain)) / expected
            answer[:, ranker] = rows.by_rank(moved)
        return answer


def score_and_slope(
    x: FloatArray, rows: Rows, traffic: FloatArray, guess: Guess | None
) -> tuple[FloatArray, FloatArray]:
    """Return the score of log p, (M,), and −∂score/∂x, (M, M)."""
    gradient, slope = np.zeros(rows.ranks), np.zeros((rows.ranks, rows.ranks))
    for part in rows.parts:
        score = Score.at(x, part, traffic, guess)
        gradient += part.by_rank(score.value)
        slope += score.slope()
    return gradient, slope


def choose_trust(x: FloatArray, rows: Rows, relevance: FloatArray) -> float:
    """Return the b = 1 / a whose guesses of each view, from all others of its cell, are off by the least squares."""
    errors = np.zeros(len(_PRIORS))
    for part in rows.parts:
        p, r = np.exp(x)[part.rank], relevance[part.kind]
        others = np.maximum(part.summed(part.views * p) - p, 0)
        for i, b in enumerate(_PRIORS):
            seen = p / (b * others + 1)
            clicked, skipped = (1 - seen * (b * (part.all_clicks - 1) + r)), seen * (b * part.all_clicks + r)
            errors[i] += part.clicks @ clicked**2 + (part.views - part.clicks) @ skipped**2
    return float(_PRIORS[int(np.argmin(errors))])
