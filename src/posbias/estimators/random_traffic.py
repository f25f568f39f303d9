"""RandomTraffic: a gold standard, from page views that show results in random order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posbias.arrays import FloatArray
from posbias.errors import EstimateError
from posbias.estimators.base import Evidence
from posbias.estimators.click_rates import ClickRates, shown_by_bucket
from posbias.estimators.intervals import Interval
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.observations import Observations, observe_random
from posbias.harvesting.random_order import Agreement, number_of
from posbias.harvesting.refusals import refuse_errors
from posbias.logs.click_log import ClickLog


class RandomTraffic(ClickRates):
    """p̂_k / p̂_1 = click rate at k / click rate at 1 over page views in random order.

    Where chance puts results, every rank holds results of the same relevance on average, and click rates differ by
    examination alone. No query need recur, and no rank by another ranker be known. Users saw worse results for it.

    Whether the order is random shows in (query, document) pairs that were shown several times: if they come back to
    where they stood more than chance lets them, a note says so, and an order that is plainly a ranking, if a noisy one,
    is refused. A harvest by signatures does not tell pairs apart, and is held against the ranks of the other rankers.
    Where neither tells, or a log has no pairs that recur, random order is taken on trust, as a note says.

    Arguments:
        ranker: the ranker that shows results in random order, as the log names it. A log's only one need not be named.
        max_rank: M; what a log shows beyond it is not counted. A harvest has its own.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out queries bucket by bucket, the percentiles of a "bootstrap" over
            buckets, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.

    Example:
        >>> import posbias
        >>> world = posbias.World(queries=5000, rankers=("a", "shuffled"), random=("shuffled",), max_rank=3)
        >>> log = posbias.ClickLog(posbias.simulate(world, "replay"))
        >>> RandomTraffic("shuffled", max_rank=3, interval=None).fit(log).propensity_.round(2)
        array([1.  , 0.5 , 0.33])

    Reference: Wang et al., SIGIR 2016; Wang et al., WSDM 2018 (RandTopN).
    """

    name = "random-traffic"
    needs = "random"

    def __init__(
        self,
        ranker: str | bool | None = None,
        *,
        max_rank: int = 10,
        level: float = 0.95,
        interval: Interval | None = "jackknife",
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(max_rank=max_rank, level=level, interval=interval, bootstrap=bootstrap, seed=seed)
        self.ranker = ranker

    def observe(self, log: ClickLog, **how: Any) -> Observations:
        """Return impressions and clicks by bucket, ranker and rank, and how far what the ranker showed again agrees."""
        return observe_random(log, self.ranker, max_rank=self.max_rank, **how)

    def _accepted(self, given: Observations, by: Sequence[str]) -> Observations:
        seen = super()._accepted(given, by)
        if seen.ranker != seen.rankers[number_of(self.ranker, seen.rankers)]:
            raise EstimateError(
                f"These observations are of {seen.ranker!r}, not of {self.ranker!r}. "
                f"Make them by {self!r}.observe(log)."
            )
        return seen

    def vet(self, harvest: Harvest, *, force: bool) -> None:
        """Refuse an order that is plainly no random one, unless the user wants to go on all the same."""
        number = number_of(self.ranker, harvest.rankers)
        agreement = Agreement.of_harvest(harvest, number)
        refuse_errors(agreement.findings(harvest.rankers[number]) if agreement else [], force=force)

    def estimate(self, seen: Observations | Harvest) -> None:
        """Estimate one curve, and keep it with what the order of its page views shows."""
        super().estimate(seen)
        number = number_of(self.ranker, seen.rankers)
        agreement = Agreement.of_harvest(seen, number) if isinstance(seen, Harvest) else Agreement.of_rows(seen.rows)
        self.notes_ = _notes(seen.rankers[number], agreement)

    def count(self, seen: Observations | Harvest) -> tuple[FloatArray, Evidence]:
        """Return what the ranker showed."""
        number = number_of(self.ranker, seen.rankers)
        name = seen.rankers[number]
        shown = shown_by_bucket(seen)[:, :, number]
        impressions, clicks = shown.sum(axis=1).astype(int)
        return shown, Evidence(impressions, clicks, {name: seen.page_views[name]}, None)


def _notes(ranker: str, agreement: Agreement | None) -> tuple[str, ...]:
    """Say what speaks against random order, or that nothing could be looked at."""
    if agreement is None or not agreement.told:
        why = "this harvest does not tell pairs apart" if agreement is None else "hardly a result was shown again"
        return (f"that {ranker!r} shows results in random order is taken on trust: {why}",)
    return tuple(f"{finding.message}. {finding.remedy}" for finding in agreement.findings(ranker))
