"""From strata to ĉ and ¬ĉ of every interventional set, for the log as it is and for resamples of it.

Sections 3.3 and 4.2 of the paper: ĉ_k^{k,k'} sums the clicks at rank k over the (query, document) pairs that are also
ranked at k' by another ranker, each divided by w(q,d,k); ¬ĉ likewise sums the skips.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posbias._arrays import FloatArray, IntArray, distinct, group, places, tally
from posbias.harvesting.tables import Cells, PairSums
from posbias.logs.click_log import Weighting

# Above this many numbers (buckets x groups) the n_i of the whole log serve every resample.
_MOST_GROUPED = 2 * 10**7


def interventions_from_cells(
    cells: Cells, weighting: Weighting, max_rank: int, buckets: IntArray, views: FloatArray
) -> Interventions:
    """Return the interventions of strata; `views` holds the page views by bucket (of `buckets`) and ranker."""
    ranked = _Ranked.of(_placed(cells, weighting, views), max_rank, views.shape[1], shared=weighting == "traffic")
    a, b = ranked.ordered_pairs()
    clicks, skips = ranked.clicks[a], ranked.impressions[a] - ranked.clicks[a]
    if weighting == "harmonic":
        # Own click rate times N_k N_k' / (N_k + N_k'), summed over the stratum's pairs.
        factor = ranked.impressions[b] / (ranked.impressions[a] + ranked.impressions[b])
    elif weighting == "uniform":
        factor = ranked.pairs[a] / ranked.impressions[a]
    else:
        factor = np.ones(len(a))
    pair = (ranked.rank[a] - 1) * max_rank + ranked.rank[b] - 1
    shares: FloatArray | None = None
    if weighting == "traffic":
        if len(buckets) * len(ranked.shares) * len(distinct(pair, max_rank**2)) <= _MOST_GROUPED:
            pair, shares = pair * len(ranked.shares) + ranked.share[a], ranked.shares
        else:
            factor = 1 / (ranked.shares @ views.sum(axis=0))[ranked.share[a]]
    first, column = group([pair])
    found = pair[first]
    row = places(ranked.bucket[a], buckets)
    size = (len(buckets), len(found))

    def summed(values: FloatArray) -> FloatArray:
        return tally(row * len(found) + column, values * factor, size[0] * size[1]).reshape(size)

    each = None if shares is None else shares[found % len(shares)]
    ranks = found if shares is None else found // len(shares)
    return Interventions(max_rank, ranks, summed(clicks), summed(skips), views, each)


@dataclass(frozen=True)
class Interventions:
    """Clicks and skips by bucket and group, and what each group is divided by: w = `shares` · n.

    A group is an ordered pair of ranks (k, k') together with the rankers that put a document at k, so that n_i is
    applied after resampling. Where nothing depends on n_i, `shares` is None.
    """

    max_rank: int
    group: IntArray
    clicks: FloatArray
    skips: FloatArray
    views: FloatArray
    shares: FloatArray | None

    @property
    def buckets(self) -> int:
        """How many buckets hold anything, whether or not it intervenes."""
        return len(self.clicks)

    @property
    def clicked(self) -> bool:
        """Whether there is a click in any interventional set."""
        return bool(np.any(self.clicks))

    def tables(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ĉ and ¬ĉ as (..., M, M) for buckets counted `weights` (..., buckets) times."""
        weights = np.asarray(weights, dtype=np.float64)
        clicks, skips = weights @ self.clicks, weights @ self.skips
        if self.shares is not None:
            w = (weights @ self.views) @ self.shares.T
            # 0/0 := 0, as in the paper: a resample may have left a ranker without traffic.
            inverse = np.divide(1.0, w, out=np.zeros_like(w), where=w > 0)
            clicks, skips = clicks * inverse, skips * inverse
        return self._spread(clicks), self._spread(skips)

    def total(self) -> tuple[FloatArray, FloatArray]:
        """Return ĉ and ¬ĉ of the log as it is."""
        return self.tables(np.ones(self.buckets))

    def counted(self) -> FloatArray:
        """Return the clicks at k of every interventional set as they were counted, where there are shares."""
        return self._spread(self.clicks.sum(axis=0))

    def _spread(self, grouped: FloatArray) -> FloatArray:
        """Sum the groups of each (k, k'); they are sorted by it."""
        m = self.max_rank
        table = np.zeros((*grouped.shape[:-1], m * m))
        if len(self.group):
            starts = np.flatnonzero(np.diff(self.group, prepend=-1))
            table[..., self.group[starts]] = np.add.reduceat(grouped, starts, axis=-1)
        return table.reshape(*grouped.shape[:-1], m, m)


@dataclass(frozen=True)
class _Ranked:
    """One row for each stratum and rank, all rankers together, sorted by stratum."""

    stratum: IntArray
    bucket: IntArray
    rank: IntArray
    pairs: FloatArray
    impressions: FloatArray
    clicks: FloatArray
    share: IntArray
    shares: FloatArray

    @classmethod
    def of(cls, cells: Cells, max_rank: int, rankers: int, *, shared: bool) -> _Ranked:
        first, row = group([cells.stratum, cells.rank])
        if shared and len(cells):
            share, shares = ranker_shares(cells, row, len(first), rankers)
        else:
            share, shares = np.zeros(len(first), dtype=np.int64), np.zeros((1, rankers))
        return cls(
            stratum=cells.stratum[first],
            bucket=cells.bucket[first],
            rank=cells.rank[first],
            pairs=cells.pairs[first].astype(np.float64),
            impressions=tally(row, cells.impressions, len(first)),
            clicks=tally(row, cells.clicks, len(first)),
            share=share,
            shares=shares,
        )

    def ordered_pairs(self) -> tuple[IntArray, IntArray]:
        """Return all ordered pairs of rows of one stratum: the pairs (k, k') its documents are in."""
        left, right = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for step in range(1, len(self.stratum)):
            first = np.flatnonzero(self.stratum[step:] == self.stratum[:-step])
            if not len(first):
                break
            left += [first, first + step]
            right += [first + step, first]
        return np.concatenate(left), np.concatenate(right)


def ranker_shares(cells: Cells, row: IntArray, rows: int, rankers: int) -> tuple[IntArray, FloatArray]:
    """Return, for each row, which distinct vector of shares it has, and those vectors.

    share_i is 1 where ranker i puts the document at this rank; a ranker that showed it at several ranks counts at
    each by its share of impressions.
    """
    owner, ranker_of = group([cells.stratum, cells.ranker])
    seen = tally(ranker_of, cells.impressions, len(owner))[ranker_of]
    share = np.where(seen > 0, cells.impressions / np.maximum(seen, 1), 1.0)
    if rankers <= 62 and np.all(share == 1.0):
        masks = np.zeros(rows, dtype=np.int64)
        np.add.at(masks, row, np.int64(1) << cells.ranker)
        first, which = group([masks])
        return which, ((masks[first][:, None] >> np.arange(rankers)) & 1).astype(np.float64)
    dense = np.zeros((rows, rankers))
    np.add.at(dense, (row, cells.ranker), share)
    shares, which = np.unique(dense, axis=0, return_inverse=True)
    return which.reshape(-1), shares


def _placed(cells: Cells, weighting: Weighting, views: FloatArray) -> Cells:
    """Return the cells that put a document at a rank."""
    if weighting == "traffic":
        # A ranker without traffic puts no document anywhere: w counts only page views that were served.
        return cells.where(views.sum(axis=0)[cells.ranker] > 0)
    return cells.where(cells.impressions > 0)


def count_pair_clicks(table: Cells | PairSums, weighting: Weighting, max_rank: int, views: FloatArray) -> FloatArray:
    """Return the clicks at k of every interventional set, as they were counted or, of sums, as these weigh: (M, M)."""
    if isinstance(table, PairSums):
        sums = table.where(table.other > 0)
        rank, other, clicks = sums.rank, sums.other, sums.clicks
    else:
        ranked = _Ranked.of(_placed(table, weighting, views), max_rank, views.shape[1], shared=False)
        a, b = ranked.ordered_pairs()
        rank, other, clicks = ranked.rank[a], ranked.rank[b], ranked.clicks[a]
    return tally((rank - 1) * max_rank + other - 1, clicks, max_rank**2).reshape(max_rank, max_rank)


def interventions_from_pair_sums(
    sums: PairSums, weighting: Weighting, max_rank: int, buckets: IntArray, views: FloatArray
) -> Interventions:
    """Return the interventions of a harvest that kept only sums; the weighting was applied when it was made."""
    sums = sums.where(sums.other > 0)
    pairs, column = np.unique((sums.rank - 1) * max_rank + sums.other - 1, return_inverse=True)
    cell = places(sums.bucket, buckets) * len(pairs) + column
    size = (len(buckets), len(pairs))
    # Sums by traffic are kept per share of page views, so that days add up.
    scale = 1 / views.sum() if weighting == "traffic" else 1.0
    clicks, skips = (
        tally(cell, values * scale, size[0] * size[1]).reshape(size) for values in (sums.clicks, sums.skips)
    )
    return Interventions(max_rank, pairs, clicks, skips, views, None)
