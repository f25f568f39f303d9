"""AllPairs: all interventional sets at once, by the paper's extremum estimator."""

from __future__ import annotations

import numpy as np

from posbias.arrays import FloatArray
from posbias.estimators.base import Reasons
from posbias.estimators.bounded_likelihood import maximise
from posbias.estimators.paired import PairEstimator
from posbias.estimators.rank_links import reachable


class AllPairs(PairEstimator):
    """argmax over p, r ∈ [0,1] of Σ_{k≠k'} ĉ log(p_k r_{kk'}) + ¬ĉ log(1 − p_k r_{kk'}), with r_{kk'} = r_{k'k}.

    Uses every interventional set, so that ranks which no document links directly are linked through others.
    Deterministic: no learning rate, no epochs, no seed.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000)))
        >>> AllPairs(interval=None).fit(posbias.harvest(log)).propensity_[:3].round(2)
        array([1.  , 0.5 , 0.35])

    Reference: Agarwal et al., WSDM 2019, section 4.2.
    """

    name = "all-pairs"

    def propensities(self, clicks: FloatArray, skips: FloatArray) -> FloatArray:
        """Return the maximiser, relative to rank 1."""
        return maximise(clicks, skips)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Say what keeps each rank from being connected to rank 1."""
        seen = clicks + skips > 0
        np.fill_diagonal(seen, False)
        linked = seen & seen.T & (clicks + clicks.T > 0)
        clicked = np.where(seen, clicks, 0).sum(axis=1) > 0
        if not clicked[0]:
            return ["no click at rank 1 in any interventional set"] * len(clicks)
        reached = reachable(linked & clicked[:, None])
        return [
            "no document at this rank is at another rank by another ranker, with clicks"
            if not linked[k].any()
            else "no chain of interventional sets with clicks connects it to rank 1"
            if not reached[k]
            else "several values fit equally well: its interventional sets hold hardly a skip"
            for k in range(len(clicks))
        ]
