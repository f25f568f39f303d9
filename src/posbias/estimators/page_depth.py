"""Estimate how often a page shows what its ranker puts at a rank, where pages end at different depths.

Exposure by design takes it that a document is shown wherever it is ranked. If a page view ends above rank k, the
document at k was not shown. So the traffic n_i of ranker i at rank k is n_i s_ik, with s_ik the share of its page views
that reach rank k. A harvest does not know the length of its pages, but it knows the ranks of every document that was
shown. Given that a document of a cell was shown, it was at rank k of ranker i with probability

    n_i s_ik / Σ_j n_j s_jk_j        over the rankers j of the cell, each with its rank k_j

This is the conditional Poisson regression of `cross_fit`, with impressions in place of clicks and s in place of p.
Documents that no other ranker ranks, and queries with few results, do not matter.

One s_k holds for all rankers, unless impressions say that the pages of some ranker are longer or shorter than those of
others. If they agree with traffic at every rank, pages are whole: there is no `PageDepth`, and s is exactly 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, sum_by_index
from posbias.estimators.cross_fit import CellRows, CrossFitCounts, StratumSignatures
from posbias.harvesting.tables import Strata

# Impressions disagree with traffic if they differ by more than this share of the expected ones, and by more than this
# many standard errors over buckets.
_MIN_DIFFERENCE, _STANDARD_ERRORS = 0.05, 4.0


@dataclass(frozen=True, eq=False)
class PageDepth:
    """s_ik, the share of the page views of ranker i that show what it puts at rank k.

    Attributes:
        regression (CrossFitCounts): the regression of impressions, with ranks or (ranker, rank) as its places.
        place (array of shape m × M): the place of each ranker and rank.
        seen (array of bool, m × M): whether the ranker showed any document at the rank.
    """

    regression: CrossFitCounts
    place: IntArray
    seen: BoolArray

    @classmethod
    def of(cls, strata: Strata) -> PageDepth | None:
        """Return how often rankers show what they rank; None if impressions agree with traffic at every rank."""
        return None if not strata.by_design or _pages_are_whole(strata) else cls.unlike(strata, np.ones(1))

    @classmethod
    def unlike(cls, strata: Strata, given: FloatArray) -> PageDepth | None:
        """Return how often rankers show what they rank; None if impressions agree with s as `given`."""
        ranks = strata.max_rank
        # The busiest ranker comes first: its rank 1 is what all other places are compared with.
        order = np.argsort(np.argsort(-strata.views.sum(axis=0), kind="stable"), kind="stable")
        apart = order[:, None] * ranks + np.arange(ranks)
        by_ranker, by_rank, separate = (
            cls._at(strata, np.broadcast_to(place, apart.shape)) for place in (order[:, None], np.arange(ranks), apart)
        )
        # Traffic may be uneven without any effect of the rank, if one ranker replaced another.
        if not separate._disagrees(given * by_ranker.shown, np.arange(ranks)):
            return None
        return separate if separate._disagrees(by_rank.shown, apart) else by_rank

    @classmethod
    def _at(cls, strata: Strata, place: IntArray) -> PageDepth:
        cells = strata.cells
        seen = np.zeros(place.shape, dtype=np.bool_)
        shown = cells.impressions > 0
        seen[cells.ranker[shown], cells.rank[shown] - 1] = True
        placed = replace(cells, rank=place[cells.ranker, cells.rank - 1] + 1, clicks=cells.impressions)
        placed_strata = replace(strata, cells=placed, max_rank=int(place.max()) + 1)
        rows, signatures = CellRows.of(placed_strata, by_design=True), StratumSignatures.of(placed_strata)
        every = np.ones(strata.buckets, dtype=np.bool_)
        return cls(CrossFitCounts(rows, strata.views, signatures, "none", every), place, seen)

    @cached_property
    def shown(self) -> FloatArray:
        """s by ranker and rank, (m, M), relative to rank 1 of the busiest ranker."""
        return self._at_places(self.regression.estimate)

    def refits(self, weights: FloatArray) -> FloatArray:
        """Return s with buckets counted `weights` (..., B) times: (..., m, M)."""
        refits = self.regression.refits(np.atleast_2d(weights))
        return self._at_places(refits.reshape(*weights.shape[:-1], -1))

    def _at_places(self, values: FloatArray) -> FloatArray:
        shown = values[..., self.place]
        # Places that nothing connects with the others are compared only with each other.
        return np.where(self.seen, np.where(np.isnan(shown), 1.0, shown), 0.0)

    def _disagrees(self, shown: FloatArray, by: IntArray) -> bool:
        """Return whether impressions differ from traffic times `shown`, (m, M), in any of the groups of places `by`."""
        rows, traffic = self.regression.rows, self.regression.traffic
        groups = np.zeros(rows.ranks, dtype=np.int64)
        groups[self.place] = np.broadcast_to(by, self.place.shape)
        factor = np.ones(rows.ranks)
        factor[self.place] = shown
        promised = rows.promised(traffic) * factor[rows.rank]
        cell_total = rows.cell_sum(promised)
        expected = rows.cell_sum(rows.views) * promised / np.maximum(cell_total, 1e-300)
        size = int(groups.max()) + 1
        where = rows.cell_bucket[rows.cell] * size + groups[rows.rank]
        difference, total = (
            sum_by_index(where, values, rows.buckets * size).reshape(rows.buckets, size)
            for values in (rows.views - expected, expected)
        )
        whole = total.sum(axis=0)
        ratio = np.divide(difference.sum(axis=0), whole, out=np.zeros(size), where=whole > 0)
        # The variance of a ratio: a difference of the same proportion in all buckets is none of chance.
        variance = ((difference - ratio * total) ** 2).sum(axis=0)
        significant = (ratio * whole) ** 2 > _STANDARD_ERRORS**2 * variance
        return bool(np.any((np.abs(ratio) > _MIN_DIFFERENCE) & significant))


def _pages_are_whole(strata: Strata) -> bool:
    """Return whether every ranker showed a result at every rank of nearly all of its page views."""
    cells, ranks = strata.cells, strata.max_rank
    traffic = strata.views.sum(axis=0)
    shown = sum_by_index(cells.ranker * ranks + cells.rank - 1, cells.impressions, len(traffic) * ranks)
    return bool(np.all(shown.reshape(-1, ranks) >= (1 - _MIN_DIFFERENCE) * traffic[:, None]))
