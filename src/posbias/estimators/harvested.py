"""What estimators share that fit on a harvest: they choose its counts and fit batches of bucket weights."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from posbias.arrays import FloatArray
from posbias.errors import EstimateError
from posbias.estimators.base import CurveEstimator, Evidence, Reasons, require_first
from posbias.estimators.intervals import Interval
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.page_views import FEW_VIEWS
from posbias.logs.schemas import ANY_RANKER


class Counts(Protocol):
    """What an estimator takes from a harvest: `Interventions`, `Strata`, or anything that says this much of itself."""

    @property
    def buckets(self) -> int:
        """How many buckets there are, each to be counted by a weight of its own."""

    @property
    def clicked(self) -> bool:
        """Whether there is a click on anything that compares ranks."""


C = TypeVar("C", bound=Counts)

# So many rankers with few page views are named.
_MOST_NAMED = 4


class Estimator(CurveEstimator, Generic[C]):
    """An estimator of p_k / p_1 from a harvest.

    A new one defines `name`, `count`, `curves` and `reasons`; or, if pair tables are all it needs, it is a
    `PairEstimator`. The base does segments, intervals, tables and plots.

    Arguments:
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out each of the harvest's buckets, the percentiles of a "bootstrap" over
            them, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.
    """

    fits_on: ClassVar[tuple[str, ...]] = ("harvest",)

    harvest_: Harvest

    def __init__(
        self,
        *,
        level: float = 0.95,
        interval: Interval | None = "jackknife",
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        self.level = level
        self.interval = interval
        self.bootstrap = bootstrap
        self.seed = seed

    @abstractmethod
    def count(self, harvest: Harvest) -> C:
        """Return what the estimator needs of a harvest, by bucket: `harvest.interventions()`, `harvest.strata()`."""

    @abstractmethod
    def curves(self, counts: C, weights: FloatArray) -> FloatArray:
        """Return p_k / p_1 as (..., M) for buckets counted `weights` (..., B) times; NaN where it is not identified."""

    @abstractmethod
    def reasons(self, counts: C) -> Reasons:
        """Return, for each rank, why the counts do not identify it, or None."""

    def most_degrees(self, counts: C) -> float:
        """Return the most degrees of freedom that a standard error can have, where deletions do not tell."""
        return np.inf

    def fit(self, harvest: Harvest) -> Self:
        """Estimate the curve of a harvest, and of each of its segments."""
        self._check()
        if not isinstance(harvest, Harvest):
            raise EstimateError(
                f"fit takes a Harvest, not a {type(harvest).__name__}. Make one with posbias.harvest(ClickLog(...))."
            )
        require_first(harvest.impressions)
        counts = self.count(harvest)
        if not counts.clicked:
            raise EstimateError(_nothing(harvest))
        self._fit_counts(harvest, counts)
        self._require_estimate()
        return self._estimate_parts(harvest, counts)

    def _estimate_parts(self, harvest: Harvest, counts: C) -> Self:
        """Estimate the curve of each segment, given what was counted of all."""
        return self._estimate_segments(harvest)

    def estimate(self, harvest: Harvest) -> None:
        """Estimate one curve, and keep it."""
        self._fit_counts(harvest, self.count(harvest))

    def _fit_counts(self, harvest: Harvest, counts: C) -> None:
        self.notes_ = ()
        propensity = self.curves(counts, np.ones(counts.buckets))
        intervals = self._intervals(
            propensity,
            counts.buckets,
            lambda weights: self.curves(counts, weights),
            len(propensity) ** 2,
            self.most_degrees(counts),
        )
        self.harvest_ = harvest
        self.notes_ += (*_few_views(harvest), *self.doubts(harvest, counts))
        self._keep(Evidence.of(harvest, self._weighting(harvest)), propensity, self.reasons(counts), intervals)

    def doubts(self, harvest: Harvest, counts: C) -> tuple[str, ...]:
        """Say what in a harvest this estimator takes for granted, and should not."""
        return ()

    def _weighting(self, harvest: Harvest) -> str | None:
        """Return the weighting of pairs that the curve has, if it has any."""
        return None


def _few_views(harvest: Harvest) -> tuple[str, ...]:
    """Say which rankers served so few page views that what they compare is chance; in replay it is not they who do."""
    if not harvest.layout.ranks_known:
        return ()
    few = {name: n for name, n in harvest.page_views.items() if 0 < n < FEW_VIEWS}
    if not few:
        return ()
    shown = ", ".join(f"{name!r} ({n:,})" for name, n in list(few.items())[:_MOST_NAMED])
    more = f" and {len(few) - _MOST_NAMED:,} more" if len(few) > _MOST_NAMED else ""
    return (
        f"Rankers with fewer than {FEW_VIEWS} page views: {shown}{more}. What only they compare is chance: wait for "
        "more of them, or leave them out.",
    )


def uneven_traffic(harvest: Harvest) -> str | None:
    """Say which ranker showed too little of what its traffic promised, where exposure is what traffic promised."""
    found = harvest.promised.uneven() if harvest.kind == "signatures" else None
    if found is None:
        return None
    return (
        f"Ranker {harvest.rankers[found.ranker]!r} showed {found.shown:,} of the results that others rank "
        f"too, where its share of all page views promised {found.promised:,.0f}: as where a ranker took "
        "another's place, or traffic was split anew, while not all rankers' ranks were logged."
    )


def _nothing(harvest: Harvest) -> str:
    """Say why there is nothing to estimate from."""
    served = [name for name, n in harvest.page_views.items() if n]
    if not harvest.clicks.sum():
        return (
            f"There is not a single click in the top {harvest.max_rank} ranks. Check the column of clicks, and that "
            "page views without clicks are not all that was logged."
        )
    if harvest.rankers == (ANY_RANKER,):
        return (
            "No (query, document) pair was both shown at two ranks and clicked, within one window if there is one. "
            "Queries must recur with their documents at other ranks. Is the query what was looked for, and not the id "
            "of a request (query)? If so, harvest a longer period, take a longer window, or log each ranker's rank "
            "(ranks or rankings)."
        )
    if len(served) < 2:
        return (
            f"Only one ranker served the log ({', '.join(served) or 'none'}). Propensities come from documents that "
            "two rankers put at different ranks: add the log of another ranker, or of the same one before it changed."
        )
    if harvest.kind == "exposures":
        return (
            f"No (query, document) pair was both shown at two ranks and clicked. In replay a query must recur and be "
            f"served by different rankers ({', '.join(served)}). Is the query what was looked for, and not the id of a "
            "request (query)? If so, log each ranker's rank (ranks or rankings) so that queries need not recur, or "
            "harvest a longer period."
        )
    return (
        f"The rankers {', '.join(served)} never put a document that was clicked at two different ranks of the top "
        f"{harvest.max_rank}: there is no intervention to harvest. Use rankers that differ more, or a longer period."
    )
