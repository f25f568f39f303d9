"""SwapOne: a gold standard, from an experiment with the first result swapped with the k-th on purpose."""

from __future__ import annotations

import numpy as np

from posbias.arrays import FloatArray, IntArray
from posbias.estimators.base import Reasons
from posbias.estimators.pivot_one import PivotOne
from posbias.estimators.swapping import Swap, SwapCounts


class SwapOne(Swap):
    """p̂_k / p̂_1 = click rate at k / click rate at 1 of the documents that the ranker put first: Swap(1,k).

    An explicit experiment: the first result is swapped with the k-th at random, and what is logged is the position
    shown and the rank before the swap (`original_rank`). Rates, not counts, so any probability of a swap will do, as
    long as it does not depend on the query, beyond this: a query with fewer than k results cannot be swapped with k, so
    that queries are compared only with others of as many results. For that, log whole pages. Rows without a value
    in `original_rank` are no part of the experiment.

    Arguments:
        max_rank: M; results shown beyond it are not counted.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out queries bucket by bucket, the percentiles of a "bootstrap" over
            buckets, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.

    Example:
        >>> import posbias, pyarrow
        >>> log = pyarrow.table({
        ...     "query_id": [1, 2, 3], "doc_id": [1, 2, 3], "ranker": ["a"] * 3, "original_rank": [1, 1, 1],
        ...     "position": [1, 2, 3], "impressions": [200, 100, 300], "clicks": [100, 25, 50],
        ... })
        >>> SwapOne(max_rank=3, interval=None).fit(posbias.ClickLog(log)).propensity_.round(3)
        array([1.   , 0.5  , 0.333])

    Reference: Joachims et al., WSDM 2017; Agarwal et al., WSDM 2019, section 3.2.
    """

    name = "swap-one"
    ratios = PivotOne

    def count(self, counts: SwapCounts) -> tuple[FloatArray, FloatArray]:
        """Return what documents of rank 1 got there, once for each k, and at k."""
        moved = counts.at(counts.original == 1, counts.shown)
        return np.broadcast_to(moved[..., :1], moved[..., 1:].shape), moved[..., 1:]

    def pairs(self, max_rank: int) -> tuple[IntArray, IntArray]:
        """Return (1, k) for each k."""
        return np.zeros(max_rank - 1, dtype=np.int64), np.arange(1, max_rank)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Name the swap that was not made or not clicked."""
        if not (clicks[0] + skips[0]).any():
            return ["no ranker showed its first document both at rank 1 and elsewhere"] * len(clicks)
        if not clicks[0].any():
            return ["no click at rank 1 on documents that belong there"] * len(clicks)
        reasons: Reasons = [None]
        for k in range(1, len(clicks)):
            if clicks[0, k] + skips[0, k] == 0:
                reasons.append(f"no ranker showed its first document both at rank 1 and at rank {k + 1}")
            else:
                reasons.append(f"no click at rank 1 by rankers that swapped it with rank {k + 1}")
        return reasons
