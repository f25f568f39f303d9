"""PivotOne: every rank compared with rank 1 directly."""

from __future__ import annotations

import numpy as np

from posbias.arrays import FloatArray
from posbias.estimators.base import Reasons
from posbias.estimators.paired import PairEstimator


class PivotOne(PairEstimator):
    """p̂_k / p̂_1 = ĉ_k^{1,k} / ĉ_1^{1,k}: only the documents that some ranker puts first.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000, similarity=0.5)))
        >>> PivotOne(interval=None).fit(posbias.harvest(log)).propensity_[:3].round(2)
        array([1.  , 0.5 , 0.31])

    Reference: Agarwal et al., WSDM 2019, section 4.1.
    """

    name = "pivot-one"
    counts_clicks = True

    def propensities(self, clicks: FloatArray, skips: FloatArray) -> FloatArray:
        """Return the ratio of clicks at k and at 1 over S_{1,k}."""
        at_one, at_k = clicks[..., 0, :], clicks[..., :, 0]
        seen = at_k + skips[..., :, 0] > 0
        ratio = np.divide(at_k, at_one, out=np.full(at_k.shape, np.nan), where=(at_one > 0) & seen)
        ratio[..., 0] = np.where(np.any(at_one > 0, axis=-1), 1.0, np.nan)
        return np.asarray(ratio)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Name the set S_{1,k} that is missing or has no clicks at rank 1."""
        reasons: Reasons = [None if np.any(clicks[0] > 0) else "no click at rank 1 in any interventional set"]
        for k in range(1, len(clicks)):
            if clicks[0, k] + skips[0, k] == 0 or clicks[k, 0] + skips[k, 0] == 0:
                reasons.append(f"no document shown at rank 1 is shown at rank {k + 1} by another ranker")
            elif clicks[0, k] == 0:
                reasons.append(f"no click at rank 1 on documents also ranked {k + 1}")
            else:
                reasons.append(None)
        return reasons
