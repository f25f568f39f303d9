"""What estimators share that compare click rates of ranks as they are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np

from posbias.arrays import FloatArray, tally
from posbias.estimators.base import Evidence, Reasons
from posbias.estimators.logged import LogEstimator
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.observations import EngineChoice, Observations
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent


class ClickRates(LogEstimator):
    """p̂_k / p̂_1 = click rate at k / click rate at 1 of some page views, from a log or a harvest.

    A new one says how to `observe` a log, and which page views count: `count`.
    """

    fits_on = ("log", "harvest")

    @abstractmethod
    def count(self, seen: Observations | Harvest) -> tuple[FloatArray, Evidence]:
        """Return impressions and clicks by bucket and rank, (2, B, M), and what stands beside the curve."""

    def fit(
        self,
        log: ClickLog | Observations | Harvest,
        *,
        by: Sequence[str] = (),
        engine: EngineChoice | None = None,
        progress: Progress = silent,
        force: bool = False,
    ) -> Self:
        """Estimate the curve of a log or a harvest; of the arguments after it, `force` alone is for both."""
        if not isinstance(log, Harvest):
            return super().fit(log, by=by, engine=engine, progress=progress, force=force)
        self._check()
        self.vet(log, force=force)
        return self._fit(log)

    def vet(self, harvest: Harvest, *, force: bool) -> None:
        """Refuse a harvest that this estimator cannot be right on; of a log, observing it does."""

    def estimate(self, seen: Observations | Harvest) -> None:
        """Estimate one curve, and keep it."""
        counts, evidence = self.count(seen)
        # A bucket without a page view of these has no say.
        impressions, clicks = counts[:, counts[0].any(axis=1)]
        shown, clicked = impressions.sum(axis=0), clicks.sum(axis=0)
        propensity = relative_rates(shown, clicked)
        intervals = self._intervals(
            propensity, len(impressions), lambda weights: relative_rates(weights @ impressions, weights @ clicks)
        )
        self._keep(evidence, propensity, explain_rates(shown, clicked), intervals)


def shown_by_bucket(seen: Observations | Harvest) -> FloatArray:
    """Return impressions and clicks by bucket, ranker and rank: (2, B, m, M)."""
    if isinstance(seen, Harvest):
        return seen.shown("bucket", "ranker", "rank").astype(np.float64)
    rows = seen.totals
    buckets, bucket = np.unique(rows["bucket"], return_inverse=True)
    shape = (len(buckets), len(seen.rankers), seen.max_rank)
    where = np.ravel_multi_index((bucket, rows["ranker"], rows["rank"] - 1), shape)
    counts = [tally(where, rows[name], int(np.prod(shape))) for name in ("impressions", "clicks")]
    return np.stack(counts).reshape(2, *shape)


def relative_rates(impressions: FloatArray, clicks: FloatArray) -> FloatArray:
    """Return the click rate of each rank over that of rank 1; NaN where nothing was shown, or rank 1 not clicked."""
    rate = np.divide(clicks, impressions, out=np.full(clicks.shape, np.nan), where=impressions > 0)
    return np.asarray(np.divide(rate, rate[..., :1], out=np.full(rate.shape, np.nan), where=rate[..., :1] > 0))


def explain_rates(impressions: FloatArray, clicks: FloatArray) -> Reasons:
    """Return, for each rank, why there is no relative rate, or None."""
    if not clicks[0]:
        return ["no click at rank 1"] * len(clicks)
    return [None if shown else f"nothing was shown at rank {k}" for k, shown in enumerate(impressions, start=1)]
