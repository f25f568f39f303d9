"""NaiveCTR: click rates as they are, with no control for relevance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from posbias.arrays import FloatArray, tally
from posbias.estimators.base import Evidence, Reasons
from posbias.estimators.intervals import Interval
from posbias.estimators.logged import LogEstimator
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.observations import EngineChoice, Observations, observe_totals
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent


class NaiveCTR(LogEstimator):
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
    fits_on = ("log", "harvest")
    needs = "totals"

    def __init__(
        self,
        *,
        max_rank: int = 10,
        level: float = 0.95,
        interval: Interval | None = "jackknife",
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        self.max_rank = max_rank
        self.level = level
        self.interval = interval
        self.bootstrap = bootstrap
        self.seed = seed

    def fit(
        self,
        log: ClickLog | Observations | Harvest,
        *,
        by: Sequence[str] = (),
        engine: EngineChoice | None = None,
        progress: Progress = silent,
        force: bool = False,
    ) -> Self:
        """Estimate the curve of a log or a harvest; the arguments after it are for a log."""
        if not isinstance(log, Harvest):
            return super().fit(log, by=by, engine=engine, progress=progress, force=force)
        self._check()
        return self._fit(log)

    def observe(self, log: ClickLog, **how: Any) -> Observations:
        """Return impressions and clicks by bucket, ranker and rank."""
        return observe_totals(log, max_rank=self.max_rank, **how)

    def estimate(self, seen: Observations | Harvest) -> None:
        """Estimate one curve, and keep it."""
        impressions, clicks = _by_bucket(seen)
        shown, clicked = impressions.sum(axis=0), clicks.sum(axis=0)
        propensity = relative_rates(shown, clicked)
        intervals = self._intervals(
            propensity, len(impressions), lambda weights: relative_rates(weights @ impressions, weights @ clicks)
        )
        self._keep(Evidence.of(seen), propensity, explain_rates(shown, clicked), intervals)


def _by_bucket(seen: Observations | Harvest) -> FloatArray:
    """Return impressions and clicks by bucket and rank: (2, B, M)."""
    if isinstance(seen, Harvest):
        return seen.shown("bucket", "rank").astype(np.float64)
    rows, ranks = seen.totals, seen.max_rank
    buckets, bucket = np.unique(rows["bucket"], return_inverse=True)
    where = bucket * ranks + rows["rank"] - 1
    counts = [tally(where, rows[name], len(buckets) * ranks) for name in ("impressions", "clicks")]
    return np.stack(counts).reshape(2, -1, ranks)


def relative_rates(impressions: FloatArray, clicks: FloatArray) -> FloatArray:
    """Return the click rate of each rank over that of rank 1; NaN where nothing was shown, or rank 1 not clicked."""
    rate = np.divide(clicks, impressions, out=np.full(clicks.shape, np.nan), where=impressions > 0)
    return np.asarray(np.divide(rate, rate[..., :1], out=np.full(rate.shape, np.nan), where=rate[..., :1] > 0))


def explain_rates(impressions: FloatArray, clicks: FloatArray) -> Reasons:
    """Return, for each rank, why there is no relative rate, or None."""
    if not clicks[0]:
        return ["no click at rank 1"] * len(clicks)
    return [None if shown else f"nothing was shown at rank {k}" for k, shown in enumerate(impressions, start=1)]
