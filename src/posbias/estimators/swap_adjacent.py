"""SwapAdjacent: a gold standard, from an experiment with neighbours swapped on purpose."""

from __future__ import annotations

import numpy as np

from posbias.arrays import FloatArray, IntArray
from posbias.estimators.adjacent_chain import AdjacentChain
from posbias.estimators.base import Reasons
from posbias.estimators.swapping import Swap, SwapCounts


class SwapAdjacent(Swap):
    """p̂_k / p̂_1 = Π_{j<k} of click rates at j + 1 over those at j, of documents swapped between them: Swap(k,k+1).

    An explicit experiment: neighbours are swapped at random, and what is logged is the position shown and the rank
    before the swap (`original_rank`). Both documents of a swap count, the one that went down and the one that went up.
    Rates, not counts, so any probability of a swap will do, as long as it does not depend on the query, beyond this: a
    query with k results cannot be swapped at (k,k+1), so that queries are compared only with others of as many results.
    For that, log whole pages. A missing or clickless link leaves the ranks beyond it undefined. Rows without a value in
    `original_rank` are no part of the experiment.

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
        ...     "query_id": [1, 1, 2, 2], "doc_id": [1, 2, 3, 4], "ranker": ["a"] * 4, "original_rank": [1, 2, 1, 2],
        ...     "position": [1, 2, 2, 1], "impressions": [400, 400, 100, 100], "clicks": [200, 80, 25, 40],
        ... })
        >>> SwapAdjacent(max_rank=2, interval=None).fit(posbias.ClickLog(log)).propensity_
        array([1. , 0.5])

    Reference: Wang et al., WSDM 2018; Agarwal et al., WSDM 2019, section 3.2.
    """

    name = "swap-adjacent"
    ratios = AdjacentChain

    def count(self, counts: SwapCounts) -> tuple[FloatArray, FloatArray]:
        """Return what documents of either rank got at the upper and at the lower one."""
        original, shown = counts.original, counts.shown
        stayed = counts.at(original == shown, shown)
        down, up = (counts.at(shown - original == step, np.minimum(original, shown)) for step in (1, -1))
        upper = np.concatenate([stayed[..., :-1], up[..., :-1]], axis=2)
        return upper, np.concatenate([down[..., :-1], stayed[..., 1:]], axis=2)

    def pairs(self, max_rank: int) -> tuple[IntArray, IntArray]:
        """Return (k, k + 1) for each k."""
        return np.arange(max_rank - 1), np.arange(1, max_rank)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Name the link that breaks the chain."""
        reasons: Reasons = [None]
        broken: str | None = None
        for k in range(len(clicks) - 1):
            here = f"the chain is broken at ({k + 1},{k + 2})"
            if broken is None and clicks[k, k + 1] + skips[k, k + 1] == 0:
                broken = f"{here}: no ranker swapped these ranks"
            elif broken is None and clicks[k, k + 1] == 0:
                broken = f"{here}: no click at rank {k + 1} on documents of these ranks"
            reasons.append(broken)
            if broken is None and clicks[k + 1, k] == 0:
                broken = f"{here}: no click at rank {k + 2} on documents of these ranks"
        reasons[0] = reasons[1]
        return reasons
