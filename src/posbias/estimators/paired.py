"""What estimators share that are computed from the interventional sets of a harvest: its pair tables ĉ and ¬ĉ."""

from __future__ import annotations

from abc import abstractmethod

from posbias.arrays import FloatArray
from posbias.estimators.base import Reasons
from posbias.estimators.harvested import Estimator, uneven_traffic
from posbias.estimators.intervals import Interval
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.interventions import Interventions
from posbias.harvesting.strata import Cells
from posbias.logs.weightings import Weighting


class PairEstimator(Estimator[Interventions]):
    """An estimator of p_k / p_1 from the interventional sets of a harvest.

    A new one defines `name`, `propensities` and `explain`.

    Arguments:
        weighting: how much each (query, document) pair counts; the harvest's own weighting by default.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out each of the harvest's buckets, the percentiles of a "bootstrap" over
            them, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.
    """

    # Whether clicks alone are compared, and not click rates: then a page view that ends above a rank looks like one in
    # which nothing was clicked there.
    counts_clicks = False
    clickless = "no click at rank {rank} in its interventional sets"

    def __init__(
        self,
        *,
        weighting: Weighting | None = None,
        level: float = 0.95,
        interval: Interval | None = "jackknife",
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(level=level, interval=interval, bootstrap=bootstrap, seed=seed)
        self.weighting = weighting

    @abstractmethod
    def propensities(self, clicks: FloatArray, skips: FloatArray) -> FloatArray:
        """Return p_k / p_1 as (..., M) from ĉ and ¬ĉ as (..., M, M); NaN where it is not identified."""

    @abstractmethod
    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Return, for each rank, why ĉ and ¬ĉ do not identify it, or None."""

    def count(self, harvest: Harvest) -> Interventions:
        """Return ĉ and ¬ĉ by bucket."""
        return harvest.interventions(self.weighting)

    def curves(self, counts: Interventions, weights: FloatArray) -> FloatArray:
        """Return the curve of each batch of bucket weights."""
        return self.propensities(*counts.tables(weights))

    def reasons(self, counts: Interventions) -> Reasons:
        """Return why the sets of the log as it is do not identify a rank."""
        return self.explain(*counts.total())

    def doubts(self, harvest: Harvest, counts: Interventions) -> tuple[str, ...]:
        """Say where rankers showed less than traffic promised, by which pairs are weighed."""
        if not isinstance(harvest.table, Cells) or self._weighting(harvest) != "traffic":
            return ()
        uneven = uneven_traffic(harvest)
        if uneven:
            return (
                f"{uneven} {self.name} weighs by traffic, and is wrong then: use cross-fit, which bears most of it, or "
                "estimate each period by itself.",
            )
        # What pages leave out, clicks alone do not tell from fewer clicks.
        short = harvest.promised.short() if self.counts_clicks else []
        if not short:
            return ()
        name = harvest.rankers[short[0].ranker]
        return (
            f"Ranker {name!r} showed {short[0].shown:,} results at rank {short[0].rank} where its traffic promised "
            f"{short[0].promised:,.0f}, as where pages end above it or begin below. {self.name} takes them for shown, "
            "and is wrong there; cross-fit and all-pairs do not.",
        )

    def _weighting(self, harvest: Harvest) -> str:
        return self.weighting or harvest.weighting
