"""Compute ĉ and ¬ĉ of every intervention set from the tables of a harvest, for the log and for resamples of it.

The intervention set S_{k,k'} holds the (query, document) pairs that rankers put at rank k and at rank k'.
ĉ_k^{k,k'} is the sum of the clicks at rank k over the pairs of S_{k,k'}, each divided by its weight w(q,d,k), and
¬ĉ_k^{k,k'} is the same sum of impressions without a click (skips). With the weighting "traffic",
w(q,d,k) = Σ_i n_i·1[rank(d|f_i(q)) = k], where n_i is the number of page views of ranker i.

Reference: Agarwal et al., WSDM 2019, sections 3.3 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from posbias._arrays import (
    AnyArray,
    FloatArray,
    IntArray,
    distinct,
    group,
    left_out,
    lookup,
    starts_of_runs,
    sum_by_index,
)
from posbias.harvesting.tables import Cells, PairSums, Strata
from posbias.logs.click_log import Weighting

# With more numbers than this (buckets x groups), every resample uses the n_i of the whole log, to save memory.
_MAX_GROUPED = 2 * 10**7
# Tables of at most this many numbers are kept for the next estimator.
_MAX_KEPT = 2**21


def interventions_from_strata(strata: Strata, weighting: Weighting) -> Interventions:
    """Return the interventions of strata with observed exposure, for the weighting "harmonic", "min" or "uniform"."""
    cells, compared = _shown_cells(strata)
    size = strata.max_rank
    pairs = [(cells.rank[a] - 1) * size + cells.rank[b] - 1 for a, b in compared]
    held = np.zeros(size**2, dtype=np.bool_)
    for pair in pairs:
        held[pair] = True
    groups = np.flatnonzero(held)
    clicks, skips = np.zeros((2, strata.buckets * len(groups)))
    for pair, (a, b) in zip(pairs, compared, strict=True):
        shown, clicked = cells.impressions[a], cells.clicks[a]
        other = cells.impressions[b]
        if weighting == "harmonic":
            # The pair's own click rate times N_k N_k' / (N_k + N_k'), summed over the pairs of the stratum
            # (Magnani and Xie, CIKM 2026: a surrogate for inverse variances).
            factor = other / (shown + other)
        elif weighting == "min":
            # The pair's own click rate times min(N_k, N_k') (Magnani and Xie, draft of 2025, section 3.1).
            factor = np.minimum(shown, other) / shown
        else:
            factor = cells.pairs[a] / shown
        where = cells.bucket[a] * len(groups) + lookup(pair, groups)
        clicks += sum_by_index(where, clicked * factor, len(clicks))
        skips += sum_by_index(where, (shown - clicked) * factor, len(clicks))
    shape = (strata.buckets, len(groups))
    return Interventions(size, groups, clicks.reshape(shape), skips.reshape(shape), strata.views, None)


def _shown_cells(strata: Strata) -> tuple[Cells, list[tuple[IntArray, IntArray]]]:
    """Return the cells with impressions, and the ordered pairs of those of one stratum and bucket."""
    cells = strata.cells.where(strata.cells.impressions > 0)
    owner = np.cumsum(starts_of_runs(cells.bucket) | starts_of_runs(cells.stratum), dtype=np.int64)
    return cells, list(_ordered_pairs(owner))


def _ordered_pairs(owner: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield all ordered pairs of rows with the same owner, some at a time; rows are sorted by their owner."""
    for step in range(1, len(owner)):
        first = np.flatnonzero(owner[step:] == owner[:-step])
        if not len(first):
            break
        yield first, first + step
        yield first + step, first


def interventions_from_cells(cells: Cells, max_rank: int, buckets: IntArray, views: FloatArray) -> Interventions:
    """Return the interventions of cells with the weighting "traffic".

    Arguments:
        cells (Cells): the counts by stratum, ranker and rank.
        max_rank (int): M.
        buckets (array): the numbers of the buckets.
        views (array): page views by bucket and ranker, (B, m).
    """
    ranked = _RankTotals.of(cells, views)
    a, b = ranked.ordered_pairs()
    clicks, skips = ranked.clicks[a], ranked.impressions[a] - ranked.clicks[a]
    factor = np.ones(len(a))
    pair = (ranked.rank[a] - 1) * max_rank + ranked.rank[b] - 1
    shares: FloatArray | None = None
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
        shown (callable or None): for weights of the buckets, (..., B), how often each ranker shows what it puts at a
            rank, (..., m, M); None if always.
    """

    max_rank: int
    group: IntArray
    clicks: FloatArray
    skips: FloatArray
    views: FloatArray
    shares: FloatArray | None
    shown: Callable[[FloatArray], FloatArray] | None = None

    @property
    def buckets(self) -> int:
        """The number of buckets that have data, in an intervention set or not."""
        return len(self.clicks)

    @property
    def clicked(self) -> bool:
        """Whether any intervention set has a click."""
        return bool(np.any(self.clicks))

    def tables(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ĉ and ¬ĉ, each (..., M, M), where each bucket counts `weights` (..., B) times.

        The last tables are kept, because several estimators leave out the same buckets.
        """
        weights = np.asarray(weights, dtype=np.float64)
        size = weights.size // max(self.buckets, 1) * self.max_rank**2
        if weights.ndim < 2 or size > _MAX_KEPT:
            return self._tables(weights)
        last = self._last_tables
        if not last or not np.array_equal(last[0], weights):
            last[:] = [weights.copy(), *self._tables(weights)]
        return last[1], last[2]

    @cached_property
    def _last_tables(self) -> list[FloatArray]:
        """The last weights with their tables; empty at first."""
        return []

    def _tables(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        deleted = None if self.shares is None else left_out(weights)
        if deleted is None:
            clicks, skips = weights @ self.clicks, weights @ self.skips
        else:
            # Whole numbers, so that nothing is left of a sum that loses all.
            clicks, skips = (counts.sum(axis=0) - counts[deleted] for counts in (self.clicks, self.skips))
        if self.shares is not None:
            traffic = weights @ self.views
            if self.shown is None:
                w = traffic @ self.shares.T
            else:
                at_rank = (traffic[..., None] * self.shown(weights))[..., self.group // self.max_rank]
                w = np.einsum("...ig,gi->...g", at_rank, self.shares)
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
    impressions: FloatArray
    clicks: FloatArray
    share: IntArray
    shares: FloatArray

    @classmethod
    def of(cls, cells: Cells, views: FloatArray) -> _RankTotals:
        # w counts only page views that were served, so a ranker without traffic puts no document at any rank.
        cells = cells.where(views.sum(axis=0)[cells.ranker] > 0)
        first, row = group([cells.stratum, cells.rank])
        share, shares = np.zeros(len(first), dtype=np.int64), np.zeros((1, views.shape[1]))
        if len(cells):
            share, shares = ranker_shares(cells, row, len(first), views.shape[1])
        return cls(
            stratum=cells.stratum[first],
            bucket=cells.bucket[first],
            rank=cells.rank[first],
            impressions=sum_by_index(row, cells.impressions, len(first)),
            clicks=sum_by_index(row, cells.clicks, len(first)),
            share=share,
            shares=shares,
        )

    def ordered_pairs(self) -> tuple[IntArray, IntArray]:
        """Return all ordered pairs of rows of the same stratum: the pairs (k, k') of its documents."""
        none = np.empty(0, dtype=np.int64)
        left, right = zip((none, none), *_ordered_pairs(self.stratum), strict=True)
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


def count_pair_clicks(counts: Cells | PairSums | Strata, max_rank: int, views: FloatArray) -> FloatArray:
    """Return the clicks at k of every intervention set, (M, M).

    They are weighted if they come from pair sums. From strata, they are those on documents shown at both ranks; from
    cells, those on documents that rankers with page views put at both.
    """
    parts: list[tuple[IntArray, IntArray, AnyArray]]
    if isinstance(counts, PairSums):
        sums = counts.where(counts.other > 0)
        parts = [(sums.rank, sums.other, sums.clicks)]
    elif isinstance(counts, Strata):
        cells, compared = _shown_cells(counts)
        parts = [(cells.rank[a], cells.rank[b], cells.clicks[a]) for a, b in compared]
    else:
        ranked = _RankTotals.of(counts, views)
        a, b = ranked.ordered_pairs()
        parts = [(ranked.rank[a], ranked.rank[b], ranked.clicks[a])]
    table = np.zeros(max_rank**2)
    for rank, other, clicks in parts:
        table += sum_by_index((rank - 1) * max_rank + other - 1, clicks, max_rank**2)
    return table.reshape(max_rank, max_rank)


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
