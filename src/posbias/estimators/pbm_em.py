"""PBMEM: the position-based model, with one relevance for each (query, document), at its maximum likelihood."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from posbias.arrays import BoolArray, FloatArray
from posbias.errors import EstimateError
from posbias.estimators.base import Evidence, Reasons
from posbias.estimators.intervals import Interval, no_intervals
from posbias.estimators.logged import LogEstimator
from posbias.estimators.pair_likelihood import PairLikelihood, Summit
from posbias.estimators.pbm_items import ShownItems
from posbias.harvesting.observations import Observations, observe_pairs
from posbias.logs.click_log import ClickLog

_MOST_PRIOR = 1_000_000
# Rows of a log times refits that take under a minute.
_MOST_REFITTED = 4 * 10**8


class PBMEM(LogEstimator):
    """The most likely P(click) = p_k r_{qd}, with one parameter r_{qd} for each (query, document) pair.

    It is there to be compared with. **It depends on repeats.** A pair that was shown at one rank only, however often,
    tells nothing of examination: any p_k goes with some r. Ranks that no pair with clicks connects to rank 1 are NaN,
    but the other ranks suffer too: with a handful of impressions a pair, r is mostly what `prior` says, and the
    curve is biased whatever the size of the log. Only many repeats of each pair mend it. Intervals do not show it.

    EM climbs to this maximum ever more slowly. In log p and log r the likelihood is concave, so that it has one, and
    Newton on log p, with the best r for each p, reaches it: `converged_` says that the last step was smaller than
    `tolerance`, and `iterations_` how many there were.

    Arguments:
        max_rank: M; results shown beyond it are not counted.
        iterations: at most so many.
        tolerance: stop when no log p_k moves by more.
        prior: imagined impressions of each kind, examined and not, relevant and not, added to what each parameter is
            estimated from. 1 is customary, a uniform prior. 0 is maximum likelihood, at which a pair clicked each time
            it was shown has r = 1.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out queries bucket by bucket, the percentiles of a "bootstrap" over
            buckets, or None for no interval. A log of very many pairs has none, and says so.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=100, repeats=1000, max_rank=3)))
        >>> PBMEM(max_rank=3).fit(log).propensity_.round(2)  # The truth is 1, 0.5, 0.33.
        array([1.  , 0.53, 0.36])

    Reference: Chuklin, Markov, de Rijke: Click Models for Web Search, 2015, sections 3.2 and 4.3.
    """

    name = "pbm-em"
    needs = "pairs"

    iterations_: int
    converged_: bool

    def __init__(
        self,
        *,
        max_rank: int = 10,
        iterations: int = 200,
        tolerance: float = 1e-6,
        prior: float = 1.0,
        level: float = 0.95,
        interval: Interval | None = "jackknife",
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(max_rank=max_rank, level=level, interval=interval, bootstrap=bootstrap, seed=seed)
        self.iterations = iterations
        self.tolerance = tolerance
        self.prior = prior

    def _check(self) -> None:
        super()._check()
        number = isinstance(self.prior, int | float) and not isinstance(self.prior, bool)
        if not number or not 0 <= self.prior <= _MOST_PRIOR:
            raise EstimateError(
                f"prior must be a number of imagined impressions, from 0 to {_MOST_PRIOR:,}, not {self.prior!r}."
            )

    def observe(self, log: ClickLog, **how: Any) -> Observations:
        """Return impressions and clicks of each pair at each rank."""
        return observe_pairs(log, max_rank=self.max_rank, **how)

    def estimate(self, observations: Observations) -> None:
        """Climb to the maximum, and keep it."""
        shown = ShownItems.of(observations.rows, observations.max_rank)
        likelihood = PairLikelihood.of(shown, observations.rows["bucket"][shown.first], self.prior)
        summit = likelihood.climb(likelihood.start(), self.iterations, self.tolerance)
        self.iterations_, self.converged_ = summit.steps, summit.arrived
        linked = shown.linked()
        propensity = np.where(linked, likelihood.relative(summit.x), np.nan)
        buckets = likelihood.rows.buckets
        refits = self.bootstrap if self.interval == "bootstrap" else buckets
        if self.interval is not None and len(shown.item) * refits > _MOST_REFITTED:
            # Resamples of so many pairs would take more than a minute.
            intervals = no_intervals(shown.ranks, f"no interval: {refits:,} refits of {len(shown.item):,} rows")
        else:
            intervals = self._intervals(propensity, buckets, partial(self._refits, shown, likelihood, summit))
        self._keep(Evidence.of(observations), propensity, _explain(shown, linked), intervals)

    def _refits(self, shown: ShownItems, likelihood: PairLikelihood, summit: Summit, weights: FloatArray) -> FloatArray:
        """Return the curves of buckets counted so often."""
        curves = likelihood.refits(summit, weights, self.iterations, self.tolerance)
        linked = [shown.linked(times[likelihood.rows.bucket] > 0) for times in weights]
        return np.where(linked, curves, np.nan)


def _explain(shown: ShownItems, linked: BoolArray) -> Reasons:
    if not shown.by_rank(shown.clicks)[0]:
        return ["no click at rank 1"] * shown.ranks
    return [
        "no chain of (query, document) pairs, each clicked and shown at two ranks, connects it to rank 1"
        if seen
        else f"nothing was shown at rank {k}"
        for k, seen in enumerate(shown.impressions, start=1)
    ]
