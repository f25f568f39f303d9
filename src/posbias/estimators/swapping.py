"""What the gold standards share: experiments that swap results on purpose, compared as harvested sets are."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from posbias.arrays import BoolArray, FloatArray, IntArray, tally
from posbias.estimators.base import Evidence, Reasons
from posbias.estimators.logged import LogEstimator
from posbias.estimators.paired import PairEstimator
from posbias.harvesting.observations import Columns, Observations, observe_swaps
from posbias.logs.click_log import ClickLog


class Swap(LogEstimator):
    """What both experiments share: sets of documents that chance put at rank k or k', compared as a harvest's are.

    Each group of documents (one ranker, one original rank, one length of page) is compared only with itself, so rankers
    may swap with any probability, each its own. Groups are added up by N N' / (N + N') of their impressions at both.
    """

    needs = "swaps"
    clickless = "no click at rank {rank} on documents that were swapped there"
    # Section 4.1 of the paper: sets by experiment and harvested ones take the same estimators.
    ratios: ClassVar[type[PairEstimator]]

    @abstractmethod
    def count(self, counts: SwapCounts) -> tuple[FloatArray, FloatArray]:
        """Return impressions and clicks at the upper and at the lower rank of each set: (2, buckets, groups, M - 1)."""

    @abstractmethod
    def pairs(self, max_rank: int) -> tuple[IntArray, IntArray]:
        """Return the upper and the lower rank of each set, from 0."""

    @abstractmethod
    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Return, for each rank, why ĉ and ¬ĉ do not identify it, or None."""

    def observe(self, log: ClickLog, **how: Any) -> Observations:
        """Return impressions and clicks by bucket, ranker, original rank, rank shown and the last rank of the page."""
        return observe_swaps(log, max_rank=self.max_rank, **how)

    def estimate(self, observations: Observations) -> None:
        """Estimate one curve, and keep it."""
        counts = SwapCounts(observations.rows, observations.max_rank)
        upper, lower = self.count(counts)
        ratios = self.ratios()
        clicks, skips = self._tables(upper, lower, np.ones(counts.buckets))
        propensity = ratios.propensities(clicks, skips)
        intervals = self._intervals(
            propensity,
            counts.buckets,
            lambda weights: ratios.propensities(*self._tables(upper, lower, weights)),
            upper[:, 0].size,
        )
        self._keep(Evidence.of(observations), propensity, self.explain(clicks, skips), intervals)

    def _tables(self, upper: FloatArray, lower: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ĉ and ¬ĉ as (..., M, M) for buckets counted `weights` (..., buckets) times."""
        above, below = (np.tensordot(weights, part, axes=(-1, 1)) for part in (upper, lower))
        ranks = upper.shape[-1] + 1
        first, second = self.pairs(ranks)
        clicks, skips = (np.zeros((*weights.shape[:-1], ranks, ranks)) for _ in range(2))
        for rows, columns, own, other in ((first, second, above, below), (second, first, below, above)):
            shown, clicked = own[..., 0, :, :], own[..., 1, :, :]
            total = shown + other[..., 0, :, :]
            # A group's click rate C / N times N N' / (N + N').
            factor = np.divide(other[..., 0, :, :], total, out=np.zeros_like(total), where=total > 0)
            clicks[..., rows, columns] = (clicked * factor).sum(axis=-2)
            skips[..., rows, columns] = ((shown - clicked) * factor).sum(axis=-2)
        return clicks, skips


class SwapCounts:
    """Impressions and clicks of a swap experiment by bucket, group and some rank.

    A group is a ranker and a length of page. A page without a result at k cannot be swapped with k and stays as it is,
    so that short pages, whose results are others, are shown unswapped more often than long ones.
    """

    def __init__(self, rows: Columns, max_rank: int) -> None:
        # Where only the first results were logged, not pages, how long those were is not known.
        reach = np.where(np.all(rows["original"] == 1), max_rank, rows["reach"])
        buckets, self._bucket = np.unique(rows["bucket"], return_inverse=True)
        groups, self._group = np.unique(rows["ranker"] * (max_rank + 1) + reach, return_inverse=True)
        self._rows = rows
        self.buckets = len(buckets)
        self._shape = (self.buckets, len(groups), max_rank)
        self.original, self.shown = rows["original"], rows["rank"]

    def at(self, where: BoolArray, rank: IntArray) -> FloatArray:
        """Return those of the rows where the mask holds, by `rank` of the row: (2, buckets, groups, M)."""
        cell = np.ravel_multi_index((self._bucket[where], self._group[where], rank[where] - 1), self._shape)
        size = int(np.prod(self._shape))
        counts = [tally(cell, self._rows[name][where], size) for name in ("impressions", "clicks")]
        return np.stack(counts).reshape(2, *self._shape)
