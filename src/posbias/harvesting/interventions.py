"""Compute ĉ and ¬ĉ of every intervention set from the tables of a harvest, for the log and for resamples of it.

The intervention set S_{k,k'} holds the (query, document) pairs that rankers put at rank k and at rank k'.
ĉ_k^{k,k'} is the sum of the clicks at rank k over the pairs of S_{k,k'}, each divided by its weight w(q,d,k), and
¬ĉ_k^{k,k'} is the same sum of impressions without a click (skips). With the weighting "traffic",
w(q,d,k) = Σ_i n_i·1[rank(d|f_i(q)) = k], where n_i is the number of page views of ranker i.

Reference: Agarwal et al., WSDM 2019, sections 3.3 and 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posbias._arrays import FloatArray, IntArray, distinct, group, lookup, sum_by_index
from posbias.harvesting.tables import Cells, PairSums
from posbias.logs.click_log import Weighting

# With more numbers than this (buckets x groups), every resample uses the n_i of the whole log, to save memory.
_MAX_GROUPED = 2 * 10**7


def interventions_from_cells(
    cells: Cells, weighting: Weighting, max_rank: int, buckets: IntArray, views: FloatArray
) -> Interventions:
    """Return the interventions of cells.

    Arguments:
        cells (Cells): the counts by stratum, ranker and rank.
        weighting (str): "traffic", "harmonic" or "uniform".
        max_rank (int): M.
        buckets (array): the numbers of the buckets.
        views (array): page views by bucket and ranker, (B, m).
    """
    ranked = _RankTotals.of(_ranked_cells(cells, weighting, views), views.shape[1], shared=weighting == "traffic")
    a, b = ranked.ordered_pairs()
    clicks, skips = ranked.clicks[a], ranked.impressions[a] - ranked.clicks[a]
    if weighting == "harmonic":
        # The pair's own click rate times N_k N_k' / (N_k + N_k'), summed over the pairs of the stratum
        # (Magnani and Xie, CIKM 2026: a surrogate for inverse variances).
        factor = ranked.impressions[b] / (ranked.impressions[a] + ranked.impressions[b])
    elif weighting == "uniform":
        factor = ranked.pairs[a] / ranked.impressions[a]
    else:
        factor = np.ones(len(a))
    pair = (ranked.rank[a] - 1) * max_rank + ranked.rank[b] - 1
    shares: FloatArray | None = None
    if weighting == "traffic":
        if len(buckets) * len(ranked.shares) * len(distinct(pair, max_rank**2)) <= _MAX_GROUPED:
            pair, shares = pair * len(ranked.shares) + ranked.share[a], ranked.shares
        else:
            factor = 1 / (ranked.shares @ views.sum(axis=0))[ranked.share[a]]
    first, column = group([pair])
    groups = pair[first]
    row = lookup(ranked.bucket[a], buckets)
    size = (len(buckets), len(groups))

    def by_group(values: FloatArray) -> FloatArray:
        return sum_by_index(row * len(groups) + column, values * factor, size[0] * size[1]).reshape(size)

    group_shares = None if shares is None else shares[groups % len(shares)]
    ranks = groups if shares is None else groups // len(shares)
    return Interventions(max_rank, ranks, by_group(clicks), by_group(skips), views, group_shares)


@dataclass(frozen=True)
class Interventions:
    """Clicks and skips by bucket and group, from which ĉ and ¬ĉ are computed for any weights of the buckets.

    A group is an ordered pair of ranks (k, k') together with the rankers that put a document at k. Its weight is
    w = `shares` · n, so n_i can be computed from the resampled buckets.

    Attributes:
        max_rank (int): M.
        group (array): the ordered pair of ranks of each group, as (k - 1)·M + k' - 1, sorted.
        clicks (array): clicks at rank k by bucket and group.
        skips (array): impressions without a click at rank k by bucket and group.
        views (array): page views by bucket and ranker, (B, m).
        shares (array or None): for each group, which share of the page views of each ranker puts the document at k.
            None if `clicks` and `skips` are weighted already.
    """

    max_rank: int
    group: IntArray
    clicks: FloatArray
    skips: FloatArray
    views: FloatArray
    shares: FloatArray | None

    @property
    def buckets(self) -> int:
        """The number of buckets that have data, in an intervention set or not."""
        return len(self.clicks)

    @property
    def clicked(self) -> bool:
        """Whether any intervention set has a click."""
        return bool(np.any(self.clicks))

    def tables(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ĉ and ¬ĉ, each (..., M, M), where each bucket counts `weights` (..., B) times."""
        weights = np.asarray(weights, dtype=np.float64)
        clicks, skips = weights @ self.clicks, weights @ self.skips
        if self.shares is not None:
            w = (weights @ self.views) @ self.shares.T
            # 0/0 := 0, as in the paper, section 3.3: a resample may leave a ranker without traffic.
            inverse = np.divide(1.0, w, out=np.zeros_like(w), where=w > 0)
            clicks, skips = clicks * inverse, skips * inverse
        return self._by_rank_pair(clicks), self._by_rank_pair(skips)

    def total(self) -> tuple[FloatArray, FloatArray]:
        """Return ĉ and ¬ĉ of the log itself, where each bucket counts once."""
        return self.tables(np.ones(self.buckets))

    def unweighted_clicks(self) -> FloatArray:
        """Return the number of clicks at k in every intervention set, (M, M). It needs `shares`."""
        return self._by_rank_pair(self.clicks.sum(axis=0))

    def _by_rank_pair(self, grouped: FloatArray) -> FloatArray:
        """Sum the groups of each pair of ranks (k, k'); groups are sorted by it."""
        m = self.max_rank
        table = np.zeros((*grouped.shape[:-1], m * m))
        if len(self.group):
            starts = np.flatnonzero(np.diff(self.group, prepend=-1))
            table[..., self.group[starts]] = np.add.reduceat(grouped, starts, axis=-1)
        return table.reshape(*grouped.shape[:-1], m, m)


@dataclass(frozen=True)
class _RankTotals:
    """Counts by stratum and rank over all rankers, sorted by stratum.

    `share` is the row of `shares` that belongs to each stratum and rank.
    """

    stratum: IntArray
    bucket: IntArray
    rank: IntArray
    pairs: FloatArray
    impressions: FloatArray
    clicks: FloatArray
    share: IntArray
    shares: FloatArray

    @classmethod
    def of(cls, cells: Cells, rankers: int, *, shared: bool) -> _RankTotals:
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
            impressions=sum_by_index(row, cells.impressions, len(first)),
            clicks=sum_by_index(row, cells.clicks, len(first)),
            share=share,
            shares=shares,
        )

    def ordered_pairs(self) -> tuple[IntArray, IntArray]:
        """Return all ordered pairs of rows of the same stratum: the pairs (k, k') of its documents."""
        left, right = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for step in range(1, len(self.stratum)):
            first = np.flatnonzero(self.stratum[step:] == self.stratum[:-step])
            if not len(first):
                break
            left += [first, first + step]
            right += [first + step, first]
        return np.concatenate(left), np.concatenate(right)


def ranker_shares(cells: Cells, row: IntArray, rows: int, rankers: int) -> tuple[IntArray, FloatArray]:
    """Return the distinct vectors of ranker shares, and which of them each row has.

    share_i is 1 if ranker i puts the document at the rank of the row. A ranker that showed the document at several
    ranks counts at each by its share of the impressions.

    Arguments:
        cells (Cells): counts by stratum, ranker and rank.
        row (array): the row that each cell belongs to.
        rows (int): the number of rows.
        rankers (int): the number of rankers.
    """
    owner, ranker_of = group([cells.stratum, cells.ranker])
    total = sum_by_index(ranker_of, cells.impressions, len(owner))[ranker_of]
    share = np.where(total > 0, cells.impressions / np.maximum(total, 1), 1.0)
    if rankers <= 62 and np.all(share == 1.0):
        masks = np.zeros(rows, dtype=np.int64)
        np.add.at(masks, row, np.int64(1) << cells.ranker)
        first, which = group([masks])
        return which, ((masks[first][:, None] >> np.arange(rankers)) & 1).astype(np.float64)
    dense = np.zeros((rows, rankers))
    np.add.at(dense, (row, cells.ranker), share)
    shares, which = np.unique(dense, axis=0, return_inverse=True)
    return which.reshape(-1), shares


def _ranked_cells(cells: Cells, weighting: Weighting, views: FloatArray) -> Cells:
    """Return the cells that put a document at a rank under this weighting."""
    if weighting == "traffic":
        # w counts only page views that were served, so a ranker without traffic puts no document at any rank.
        return cells.where(views.sum(axis=0)[cells.ranker] > 0)
    return cells.where(cells.impressions > 0)


def count_pair_clicks(table: Cells | PairSums, weighting: Weighting, max_rank: int, views: FloatArray) -> FloatArray:
    """Return the clicks at k of every intervention set, (M, M): unweighted from cells, weighted from pair sums."""
    if isinstance(table, PairSums):
        sums = table.where(table.other > 0)
        rank, other, clicks = sums.rank, sums.other, sums.clicks
    else:
        ranked = _RankTotals.of(_ranked_cells(table, weighting, views), views.shape[1], shared=False)
        a, b = ranked.ordered_pairs()
        rank, other, clicks = ranked.rank[a], ranked.rank[b], ranked.clicks[a]
    return sum_by_index((rank - 1) * max_rank + other - 1, clicks, max_rank**2).reshape(max_rank, max_rank)


def interventions_from_pair_sums(
    sums: PairSums, weighting: Weighting, max_rank: int, buckets: IntArray, views: FloatArray
) -> Interventions:
    """Return the interventions of a harvest of pair sums; its weighting was applied when the log was counted."""
    sums = sums.where(sums.other > 0)
    pairs, column = np.unique((sums.rank - 1) * max_rank + sums.other - 1, return_inverse=True)
    cell = lookup(sums.bucket, buckets) * len(pairs) + column
    size = (len(buckets), len(pairs))
    # Sums weighted by traffic are stored relative to the share of page views, so that days can be added up.
    scale = 1 / views.sum() if weighting == "traffic" else 1.0
    clicks, skips = (
        sum_by_index(cell, values * scale, size[0] * size[1]).reshape(size) for values in (sums.clicks, sums.skips)
    )
    return Interventions(max_rank, pairs, clicks, skips, views, None)
