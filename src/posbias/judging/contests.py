"""Contests: what two rankers make of the same documents at ranks k and k', counted by bucket.

A ranker i puts a set of documents at rank k, another, j, puts the same ones at k' (k = k' included). Of the T clicks on
them, A by i, the position-based model says A ~ Bin(T, π) with logit π = log(n_i / n_j) + x_k − x_k' and x = log p:
relevance cancels. What contradicts that contradicts the model, or the independence of traffic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from posbias.arrays import BoolArray, FloatArray, IntArray, group, tally
from posbias.harvesting.equal_strata import Strata
from posbias.harvesting.harvests import Harvest

# The contests of so many rankers, the busiest, are looked at: of more there are too many.
MOST_RANKERS = 8
_STEPS, _REACH, _FARTHEST, _RIDGE = 50, 2.0, 15.0, 1e-9


@dataclass(frozen=True, eq=False)
class Contests:
    """One row for each bucket, stratum and two of its cells; the first of rankers i, j is the lower number.

    Where the odds are those of traffic, the strata of a bucket that i puts at k and j at k' are in one row.

    Attributes:
        bucket: of each row, a row of `views`.
        first, second: the rankers i and j.
        rank, other: k and k', from 0.
        wins, losses: A and C: counts of i at k and of j at k', clicks or impressions.
        odds: log of what traffic, or what was observed, promised i against j.
        shown: impressions of i at k and of j at k', (2, rows).
        views: page views by bucket and ranker.
        rates: click rate of each ranker at each rank, of all that it showed: (m, M).
        ranks: M.
        by_design: whether the odds are those of n_i.
    """

    bucket: IntArray
    first: IntArray
    second: IntArray
    rank: IntArray
    other: IntArray
    wins: FloatArray
    losses: FloatArray
    odds: FloatArray
    shown: FloatArray
    views: FloatArray
    rates: FloatArray
    ranks: int
    by_design: bool

    @classmethod
    def of(cls, harvest: Harvest, most_rankers: int = MOST_RANKERS) -> Contests:
        """Return the contests of the busiest rankers of a harvest that holds strata."""
        shown, clicks = harvest.shown("ranker", "rank").astype(np.float64)
        rates = np.divide(clicks, shown, out=np.zeros_like(clicks), where=shown > 0)
        return cls._of(harvest.strata(by_ranker=True), rates, most_rankers)

    @classmethod
    def _of(cls, strata: Strata, rates: FloatArray, most_rankers: int) -> Contests:
        cells = strata.cells
        if len(rates) > most_rankers:
            busiest = np.argsort(-strata.views.sum(axis=0), kind="stable")[:most_rankers]
            cells = cells.where(np.isin(cells.ranker, busiest))
        # Cells of one stratum and bucket stand together, by ranker and rank.
        _, own = group([cells.stratum, cells.bucket])
        left, right = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for step in range(1, len(own)):
            one = np.flatnonzero(own[step:] == own[:-step])
            if not len(one):
                break
            left.append(one)
            right.append(one + step)
        a, b = np.concatenate(left), np.concatenate(right)
        shown = cells.impressions.astype(np.float64)
        promised = strata.views.sum(axis=0)[cells.ranker] if strata.by_design else shown
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.log(promised[a]) - np.log(promised[b])
        met = np.isfinite(odds)
        a, b, odds = a[met], b[met], odds[met]
        clicks = cells.clicks.astype(np.float64)
        apart = cls(
            bucket=cells.bucket[a],
            first=cells.ranker[a],
            second=cells.ranker[b],
            rank=cells.rank[a] - 1,
            other=cells.rank[b] - 1,
            wins=clicks[a],
            losses=clicks[b],
            odds=odds,
            shown=np.stack([shown[a], shown[b]]),
            views=strata.views,
            rates=rates,
            ranks=strata.max_rank,
            by_design=strata.by_design,
        )
        return apart._joined() if strata.by_design else apart

    def _joined(self) -> Contests:
        """Return the same contests with those of one bucket, i, j, k and k' in one row."""
        first, which = group([self.bucket, self.first, self.second, self.rank, self.other])
        kept = {name: getattr(self, name)[first] for name in ("bucket", "first", "second", "rank", "other", "odds")}
        wins, losses, *shown = (tally(which, v, len(first)) for v in (self.wins, self.losses, *self.shown))
        return replace(self, **kept, wins=wins, losses=losses, shown=np.stack(shown))

    def __len__(self) -> int:
        return len(self.bucket)

    @property
    def buckets(self) -> int:
        """How many buckets hold anything."""
        return len(self.views)

    @cached_property
    def total(self) -> FloatArray:
        """T, of each row."""
        return self.wins + self.losses

    @property
    def level(self) -> BoolArray:
        """Where both rankers put the documents at the same rank."""
        return np.asarray(self.rank == self.other)

    def of_impressions(self) -> Contests:
        """Return the same contests for impressions in place of clicks: what traffic alone decides."""
        return replace(self, wins=self.shown[0], losses=self.shown[1])

    @cached_property
    def sets(self) -> tuple[IntArray, IntArray]:
        """The first row of each (i, j, k, k'), and which of them each row is of."""
        return group([self.first, self.second, self.rank, self.other])

    def by_set(self, values: FloatArray) -> FloatArray:
        """Return the sum of values by (i, j, k, k')."""
        return tally(self.sets[1], values, len(self.sets[0]))

    def by_rank(self, values: FloatArray) -> FloatArray:
        """Return Σ values (1[k] − 1[k']) by rank."""
        return tally(self.rank, values, self.ranks) - tally(self.other, values, self.ranks)

    def laplacian(self, weights: FloatArray) -> FloatArray:
        """Return Σ weights (1[k] − 1[k'])(1[k] − 1[k'])ᵀ."""
        size = self.ranks
        across = tally(self.rank * size + self.other, weights, size**2).reshape(size, size)
        across += across.T
        return np.asarray(np.diag(across.sum(axis=1)) - across)


@dataclass(frozen=True, eq=False)
class Surprises:
    """Contests beside what a curve makes of them.

    Attributes:
        contests: what was counted.
        curve: x = log p; of impressions, zero.
        expected: π.
        fitted: whether the curve was fitted to these counts, so that directions are taken off the fit.
    """

    contests: Contests
    curve: FloatArray
    expected: FloatArray
    fitted: bool

    @classmethod
    def of_clicks(cls, contests: Contests) -> Surprises:
        """Fit the curve that explains the contests best (Bradley and Terry), and return what is left."""
        curve = _fit(contests)
        return cls(contests, curve, _chance(contests, curve), fitted=True)

    @classmethod
    def of_impressions(cls, contests: Contests) -> Surprises:
        """Return what impressions are beside what traffic promised: no curve is in it."""
        shown = contests.of_impressions()
        none = np.zeros(contests.ranks)
        return cls(shown, none, _chance(shown, none), fitted=False)

    @cached_property
    def excess(self) -> FloatArray:
        """e = A − T π, of each row."""
        return np.asarray(self.contests.wins - self.contests.total * self.expected)

    @cached_property
    def variance(self) -> FloatArray:
        """v = T π (1 − π), of each row."""
        return np.asarray(self.contests.total * self.expected * (1 - self.expected))

    @cached_property
    def _inverse(self) -> FloatArray:
        return np.asarray(
            np.linalg.pinv(self.contests.laplacian(self.variance), rcond=1e-9, hermitian=True), dtype=np.float64
        )

    def off_fit(self, direction: FloatArray) -> FloatArray:
        """Return a direction less what the curve could take of it, by rows."""
        if not self.fitted:
            return direction
        c = self.contests
        taken = self._inverse @ c.by_rank(self.variance * direction)
        return np.asarray(direction - (taken[c.rank] - taken[c.other]))

    def by_bucket(self, direction: FloatArray) -> FloatArray:
        """Return what each bucket adds to Σ c e for a direction c off the fit, traffic counted from it too: (B,)."""
        c = self.contests
        found = tally(c.bucket, direction * self.excess, c.buckets)
        if c.by_design:
            rankers = c.views.shape[1]
            pull = direction * self.variance
            net = tally(c.first, pull, rankers) - tally(c.second, pull, rankers)
            n = c.views.sum(axis=0)
            found = found - c.views @ np.divide(net, n, out=np.zeros(rankers), where=n > 0)
        return np.asarray(found)


def _chance(contests: Contests, curve: FloatArray) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-(contests.odds + curve[contests.rank] - curve[contests.other]))))


def _fit(contests: Contests) -> FloatArray:
    """Return the x that maximises Σ A log π + C log(1 − π), by Newton with bounded steps; 0 on average."""
    x = np.zeros(contests.ranks)
    told = contests.total > 0
    ridge = _RIDGE * max(1.0, contests.total.sum())
    for _ in range(_STEPS):
        chance = _chance(contests, x)
        push = contests.by_rank(np.where(told, contests.wins - contests.total * chance, 0.0))
        slope = contests.laplacian(contests.total * chance * (1 - chance)) + ridge * np.eye(len(x))
        # It is 0 on average; what rounding leaves, the ridge alone would hold, and no step be the last.
        step = np.linalg.solve(slope, push - push.mean() - ridge * x)
        size = float(np.abs(step).max(initial=0))
        # Where all clicks are on one side, p has no end: that it is far is all there is to know.
        x = np.clip(x + step * min(1.0, _REACH / max(size, 1e-300)), -_FARTHEST, _FARTHEST)
        if size < 1e-10:
            break
    return np.asarray(x)
