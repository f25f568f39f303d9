"""NaiveCTR: click rates as they are, with no control for relevance."""

from __future__ import annotations

from typing import Any

from posbias.arrays import FloatArray
from posbias.estimators.base import Evidence
from posbias.estimators.click_rates import ClickRates, shown_by_bucket
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.observations import Observations, observe_totals
from posbias.logs.click_log import ClickLog


class NaiveCTR(ClickRates):
    """p̂_k / p̂_1 = click rate at k / click rate at 1, whatever was shown there.

    It is there to be compared with. Rankers put the better documents first, so that the curve falls by relevance and
    by examination at once: it is steeper than the truth the better the rankers are, and more data do not mend it.
    It fits on a log or a harvest.

    Arguments:
        max_rank: M; what a log shows beyond it is not counted. A harvest has its own.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out queries bucket by bucket, the percentiles of a "bootstrap" over
            buckets, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000)))
        >>> NaiveCTR(interval=None).fit(log).propensity_[:3].round(2)  # The truth is 1, 0.5, 0.33.
        array([1.  , 0.43, 0.26])

    Reference: Agarwal et al., WSDM 2019, section 5.2.
    """

    name = "naive-ctr"
    needs = "totals"

    def observe(self, log: ClickLog, **how: Any) -> Observations:
        """Return impressions and clicks by bucket, ranker and rank."""
        return observe_totals(log, max_rank=self.max_rank, **how)

    def count(self, seen: Observations | Harvest) -> tuple[FloatArray, Evidence]:
        """Return what all rankers showed."""
        return shown_by_bucket(seen).sum(axis=2), Evidence.of(seen)
