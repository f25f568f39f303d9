"""AdjacentChain: each rank compared with the one above it, multiplied along the chain."""

from __future__ import annotations

import numpy as np

from posbias.arrays import FloatArray
from posbias.estimators.base import Reasons
from posbias.estimators.paired import PairEstimator


class AdjacentChain(PairEstimator):
    """p̂_k / p̂_1 = Π_{j<k} ĉ_{j+1}^{j,j+1} / ĉ_j^{j,j+1}: only documents that moved by one rank.

    A missing or clickless link leaves the ranks beyond it undefined.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000)))
        >>> AdjacentChain(interval=None).fit(posbias.harvest(log)).propensity_[:3].round(2)
        array([1.  , 0.49, 0.32])

    Reference: Agarwal et al., WSDM 2019, section 4.1.
    """

    name = "adjacent-chain"
    counts_clicks = True

    def propensities(self, clicks: FloatArray, skips: FloatArray) -> FloatArray:
        """Return the product of the links' ratios, NaN beyond the first broken one."""
        upper, lower = _links(clicks)
        seen = lower + _links(skips)[1] > 0
        ratio = np.divide(lower, upper, out=np.full(upper.shape, np.nan), where=(upper > 0) & seen)
        chain = np.cumprod(ratio, axis=-1)
        # Behind a link with no click at its lower rank the product is 0 whatever the data say: that is no estimate.
        behind = np.cumsum(lower == 0, axis=-1) - (lower == 0) > 0
        chain = np.where(behind, np.nan, chain)
        first = np.where(upper[..., :1] > 0, 1.0, np.nan)
        return np.concatenate([first, chain], axis=-1)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Name the link that breaks the chain."""
        reasons: Reasons = [None]
        broken: str | None = None
        for k in range(len(clicks) - 1):
            here = f"the chain is broken at ({k + 1},{k + 2})"
            upper, lower = clicks[k, k + 1], clicks[k + 1, k]
            if broken is None and min(upper + skips[k, k + 1], lower + skips[k + 1, k]) == 0:
                broken = f"{here}: no document is shown at both ranks"
            elif broken is None and upper == 0:
                broken = f"{here}: no click at rank {k + 1} in this set"
            reasons.append(broken)
            if broken is None and lower == 0:
                broken = f"{here}: no click at rank {k + 2} in this set"
        if reasons[1:] and reasons[1] is not None:
            reasons[0] = reasons[1]
        return reasons


def _links(table: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the entries [k, k+1] and [k+1, k]."""
    return np.diagonal(table, 1, -2, -1), np.diagonal(table, -1, -2, -1)
