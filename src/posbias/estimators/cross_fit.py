"""CrossFit: every view against a guess of its document's relevance that leaves this view out."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np

from posbias.arrays import FloatArray
from posbias.errors import EstimateError
from posbias.estimators.base import Evidence, Reasons
from posbias.estimators.cross_fitting import Comparison
from posbias.estimators.harvested import Estimator, uneven_traffic
from posbias.estimators.intervals import Interval
from posbias.harvesting.harvests import Harvest
from posbias.wording import listed

Exposure = Literal["design", "observed"]
Relevance = Literal["guessed", "signature", "none"]
_EXPOSURES: tuple[Exposure, ...] = ("design", "observed")
_RELEVANCES: tuple[Relevance, ...] = ("guessed", "signature", "none")


class CrossFit(Estimator[Comparison]):
    """Each view's click against what is expected there, given a guess of relevance from all other views of its kind.

    Views are compared within a bucket and stratum: documents that all rankers treat alike. There, where a view was
    shown is decided by which ranker was drawn, so that the guess may be wrong without harm; the better it is, the
    narrower the interval. It needs no bound on p, and each view must have drawn its ranker independently.

    Where the rankers' ranks are not known (replay), exposure is as observed, and the guess only weighs the views.

    Arguments:
        exposure: "design", what traffic promised each rank, or "observed", the impressions it had. By default the
            design where ranks are known.
        relevance: "guessed" from the clicks of the stratum and of those that rankers treat likewise; by "signature",
            from the latter alone, which sticky assignment needs; or "none". With none, exposure by design and as
            observed give the two forms of conditional Poisson regression.
        pool: estimate segments together. Each is drawn toward the curve of all as far as the data say that they are
            alike, and has a number at every rank that any of them tells. Their intervals allow for both.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out each of the harvest's buckets, the percentiles of a "bootstrap" over
            them, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.

    After `fit`, `dispersion_` says how much more unequally than by chance views were assigned to rankers: about 1 where
    each was drawn independently, about as many as a query has views where one ranker served them all. It is NaN
    where exposure is as observed.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000)))
        >>> CrossFit(interval=None).fit(posbias.harvest(log)).propensity_[:3].round(2)
        array([1.  , 0.5 , 0.35])
    """

    name = "cross-fit"
    clickless = "no click at rank {rank} on documents that are also at others"

    dispersion_: float

    def __init__(
        self,
        *,
        exposure: Exposure | None = None,
        relevance: Relevance = "guessed",
        pool: bool = False,
        level: float = 0.95,
        interval: Interval | None = "jackknife",
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(level=level, interval=interval, bootstrap=bootstrap, seed=seed)
        self.exposure = exposure
        self.relevance = relevance
        self.pool = pool

    def _check(self) -> None:
        super()._check()
        if self.exposure is not None and not (isinstance(self.exposure, str) and self.exposure in _EXPOSURES):
            raise EstimateError(f"exposure must be one of {listed(_EXPOSURES)}, or None, not {self.exposure!r}.")
        if not isinstance(self.relevance, str) or self.relevance not in _RELEVANCES:
            raise EstimateError(f"relevance must be one of {listed(_RELEVANCES)}, not {self.relevance!r}.")
        if not isinstance(self.pool, bool):
            raise EstimateError(f"pool must be True or False, not {self.pool!r}.")

    def count(self, harvest: Harvest) -> Comparison:
        """Return the views and clicks of each bucket and stratum by rank, and what traffic promised there."""
        strata = harvest.strata()
        if self.exposure == "design" and not strata.by_design:
            raise EstimateError(
                "In replay it is not known where the rankers that were not shown would have put a document, so that "
                "there is no exposure by design. Leave it out, or log every ranker's rank (ranks or rankings)."
            )
        by_design = strata.by_design and self.exposure != "observed"
        return Comparison.of(strata, by_design=by_design, relevance=self.relevance)

    def curves(self, counts: Comparison, weights: FloatArray) -> FloatArray:
        """Return the curve, and those of other weights of the buckets by one step from it."""
        weights = np.asarray(weights, dtype=np.float64)
        if weights.ndim == 1 and np.all(weights == 1):
            self.dispersion_, self.notes_ = counts.dispersion, counts.notes
            return counts.estimate
        return np.asarray(counts.refits(np.atleast_2d(weights)).reshape(*weights.shape[:-1], -1))

    def _estimate_parts(self, harvest: Harvest, counts: Comparison) -> Self:
        """Estimate the curve of each segment, all together if they are to be pooled."""
        if not (self.pool and harvest.by):
            return super()._estimate_parts(harvest, counts)
        from posbias.estimators.pooled_segments import PooledSegments

        self.by_ = harvest.by
        pooled, reasons = PooledSegments.of(harvest, counts), self.reasons(counts)
        level, given = None if self.interval is None else self.level, self.parameters()
        intervals = pooled.intervals(level, self.degrees_of_freedom_)
        told = zip(harvest.segments, intervals, pooled.notes(), strict=True)
        for i, (key, own, note) in enumerate(told):
            part = type(self)(**given)
            traffic = dict(zip(harvest.rankers, map(int, pooled.traffic[i]), strict=True))
            seen = Evidence(pooled.impressions[i], pooled.clicks[i], traffic, None)
            curve = np.exp(pooled.log_propensity[i])
            part._keep(seen, curve, reasons, own)
            part.dispersion_, part.notes_ = self.dispersion_, (note,)
            self.segments_[key] = part
        return self

    def most_degrees(self, counts: Comparison) -> float:
        """Return as many as the ranker that fewest queries tell of has queries of equal say, if they were assigned."""
        return counts.most_degrees

    def doubts(self, harvest: Harvest, counts: Comparison) -> tuple[str, ...]:
        """Say where traffic was not what it is in all, which a guess of relevance bears."""
        if counts.rows.shares is None or counts.left_out or (uneven := uneven_traffic(harvest)) is None:
            return ()
        if self.relevance == "none":
            return (f"{uneven} Without guesses of relevance the curve is wrong then.",)
        return (f"{uneven} Guesses of relevance make up for most of it; to be sure, estimate each period by itself.",)

    def reasons(self, counts: Comparison) -> Reasons:
        """Say what keeps a rank from being compared with rank 1."""
        return counts.reasons()
