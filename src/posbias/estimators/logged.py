"""What estimators share that fit on a log: what they need of it is counted in harvesting, and the rest is NumPy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from posbias.errors import EstimateError
from posbias.estimators.base import CurveEstimator, require_first
from posbias.estimators.intervals import Interval
from posbias.harvesting.observations import EngineChoice, Kind, Observations
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent


class LogEstimator(CurveEstimator):
    """An estimator of p_k / p_1 from what the rows of a log show: its `Observations`.

    A new one defines `name`, the kind of observations it needs and how to `observe` them, and `estimate`.

    Arguments:
        max_rank: M; results shown beyond it are not counted.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out queries bucket by bucket, the percentiles of a "bootstrap" over
            buckets, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.
    """

    fits_on: ClassVar[tuple[str, ...]] = ("log",)
    needs: ClassVar[Kind]

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

    @abstractmethod
    def observe(self, log: ClickLog, **how: Any) -> Observations:
        """Return what the estimator needs to know of a log, which `fit` takes in its place."""

    @abstractmethod
    def estimate(self, observations: Observations) -> None:
        """Estimate one curve, and keep it."""

    def fit(
        self,
        log: ClickLog | Observations,
        *,
        by: Sequence[str] = (),
        engine: EngineChoice | None = None,
        progress: Progress = silent,
        force: bool = False,
    ) -> Self:
        """Estimate the curve of a log, and of each of its segments.

        Arguments:
            log: the click log, or what `observe` counted on it, which then has M and the segments of its own.
            by: segment columns; each segment gets its own curve too.
            engine: "duckdb" (embedded, the default) or "spark" (the active session).
            progress: called with what is being done and the share done.
            force: go on where the log was found to be damaged.
        """
        self._check()
        if isinstance(log, ClickLog):
            observations = self.observe(log, by=by, engine=engine, progress=progress, force=force)
        else:
            observations = self._accepted(log, by)
        if not observations.clicks.any():
            raise EstimateError(
                f"There is not a single click in the top {observations.max_rank} ranks. Check the column of clicks."
            )
        return self._fit(observations)

    def _accepted(self, given: Observations, by: Sequence[str]) -> Observations:
        """Return observations made beforehand if they are those that the estimator needs."""
        kind = type(self).__name__
        if not isinstance(given, Observations):
            raise EstimateError(
                f"{kind} looks at the rows of a log: fit takes a ClickLog, not a {type(given).__name__}."
            )
        remedy = f"Make them by {self!r}.observe(log)."
        if given.kind != self.needs:
            raise EstimateError(f"{kind} needs observations of {self.needs}, and these are of {given.kind}. {remedy}")
        features = tuple(self.parameters().get("features", ()))
        if given.features != features:
            raise EstimateError(f"These observations are of other features, {given.features}. {remedy}")
        if by:
            raise EstimateError(f"Observations have segments of their own, by {given.by}: leave by={by!r} to observe.")
        return given

    def _fit(self, seen: Any) -> Self:
        require_first(seen.impressions)
        self.estimate(seen)
        self._require_estimate()
        return self._estimate_segments(seen)
