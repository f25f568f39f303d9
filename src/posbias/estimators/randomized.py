"""Gold standards from randomised traffic: the swap experiments SwapOne and SwapAdjacent, and RandomTraffic.

A swap experiment exchanges two results at random, so that the documents shown at rank k and at rank k' are the same on
average. Their click rates are then compared as those of harvested intervention sets are (paper, sections 3.2 and
4.1). RandomTraffic needs page views in random order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, sum_by_index
from posbias._defaults import DEFAULT_LEVEL, DEFAULT_MAX_RANK
from posbias.errors import EstimateError
from posbias.estimators.base import (
    DEFAULT_INTERVAL,
    DEFAULT_RESAMPLES,
    Interval,
    LogEstimator,
    PairEstimator,
    Reasons,
    ReportedCounts,
)
from posbias.estimators.click_models import ClickRates, counts_by_bucket
from posbias.estimators.pair_estimators import AdjacentChain, PivotOne, explain_chain
from posbias.harvesting.count import check_findings
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.observations import (
    Columns,
    Observations,
    RankAgreement,
    observe_random,
    observe_swaps,
    ranker_number,
)
from posbias.logs.click_log import ClickLog


class Swap(LogEstimator):
    """The base class of both swap experiments.

    A group is the documents of one ranker, one original rank and one page length. Each group is compared only with
    itself, so rankers may swap with any probability. Groups are added up with weights N N' / (N + N') of their
    impressions at both ranks.
    """

    needs = "swaps"
    no_click_reason = "no click at rank {rank} on documents that were swapped there"
    # Paper, section 4.1: the estimators of harvested sets apply to sets by experiment, too.
    ratios: ClassVar[type[PairEstimator]]

    @abstractmethod
    def count(self, counts: SwapCounts) -> tuple[FloatArray, FloatArray]:
        """Return impressions and clicks at the upper and at the lower rank of each set, each (2, B, groups, M − 1)."""

    @abstractmethod
    def pairs(self, max_rank: int) -> tuple[IntArray, IntArray]:
        """Return the upper and the lower rank of each set, from 0."""

    @abstractmethod
    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Return, for each rank, why ĉ and ¬ĉ do not identify it, or None."""

    def observe(self, log: ClickLog, **options: Any) -> Observations:
        """Return impressions and clicks by bucket, ranker, original rank, rank shown and the last rank of the page."""
        return observe_swaps(log, max_rank=self.max_rank, **options)

    def estimate(self, observations: Observations) -> None:
        """Estimate one curve, without segments, and store it."""
        counts = SwapCounts(observations.rows, observations.max_rank)
        upper, lower = self.count(counts)
        ratios = self.ratios()
        clicks, skips = self._tables(upper, lower, np.ones(counts.buckets))
        propensity = ratios.propensities(clicks, skips)
        intervals = self._compute_intervals(
            propensity,
            counts.buckets,
            lambda weights: ratios.propensities(*self._tables(upper, lower, weights)),
            table_size=upper[:, 0].size,
        )
        self._store(ReportedCounts.of(observations), propensity, self.explain(clicks, skips), intervals)

    def _tables(self, upper: FloatArray, lower: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ĉ and ¬ĉ, (..., M, M), with buckets counted `weights` (..., B) times."""
        above, below = (np.tensordot(weights, part, axes=(-1, 1)) for part in (upper, lower))
        ranks = upper.shape[-1] + 1
        first, second = self.pairs(ranks)
        clicks, skips = (np.zeros((*weights.shape[:-1], ranks, ranks)) for _ in range(2))
        for rows, columns, here, there in ((first, second, above, below), (second, first, below, above)):
            shown, clicked = here[..., 0, :, :], here[..., 1, :, :]
            total = shown + there[..., 0, :, :]
            # The click rate C / N of a group times N N' / (N + N').
            factor = np.divide(there[..., 0, :, :], total, out=np.zeros_like(total), where=total > 0)
            clicks[..., rows, columns] = (clicked * factor).sum(axis=-2)
            skips[..., rows, columns] = ((shown - clicked) * factor).sum(axis=-2)
        return clicks, skips


class SwapOne(Swap):
    """Estimate p_k / p_1 as the click rate at k over that at 1, of documents that the ranker put first: Swap(1,k).

    In this experiment the first result is swapped with the k-th at random. The log has the position shown and the rank
    before the swap (`original_rank`). The estimator compares rates, so a swap may have any probability, as long as it
    does not depend on the query. One exception is allowed for: a query with fewer than k results cannot be swapped with
    k, so queries are compared only with others of as many results. For that, log whole pages. Rows without a value in
    `original_rank` are not part of the experiment.

    Arguments:
        max_rank (int, default 10): M; results shown below rank M are not counted.
        level (float, default 0.95): the coverage of the intervals.
        interval (str or None, default "jackknife"): "jackknife" leaves out one bucket of queries at a time, "bootstrap"
            takes percentiles of resampled buckets, None computes no intervals.
        bootstrap (int, default 1000): the number of bootstrap resamples.
        seed (int, default 0): the random seed of the resamples. Nothing else is random.

    Example:
        >>> import posbias, pyarrow
        >>> log = pyarrow.table({
        ...     "query_id": [1, 2, 3], "doc_id": [1, 2, 3], "ranker": ["a"] * 3, "original_rank": [1, 1, 1],
        ...     "position": [1, 2, 3], "impressions": [200, 100, 300], "clicks": [100, 25, 50],
        ... })
        >>> SwapOne(max_rank=3, interval=None).fit(posbias.ClickLog(log)).propensity_.round(3)
        array([1.   , 0.5  , 0.333])

    Reference: Joachims et al., WSDM 2017; Agarwal et al., WSDM 2019, section 3.2.
    """

    name = "swap-one"
    ratios = PivotOne

    def count(self, counts: SwapCounts) -> tuple[FloatArray, FloatArray]:
        """Return the counts of documents of original rank 1 when shown there, once for each k, and when shown at k."""
        shown = counts.at(counts.original == 1, counts.shown)
        return np.broadcast_to(shown[..., :1], shown[..., 1:].shape), shown[..., 1:]

    def pairs(self, max_rank: int) -> tuple[IntArray, IntArray]:
        """Return (1, k) for each k."""
        return np.zeros(max_rank - 1, dtype=np.int64), np.arange(1, max_rank)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Return, for each rank k, why the swap of 1 and k gives no ratio, or None."""
        if not (clicks[0] + skips[0]).any():
            return ["no ranker showed its first document both at rank 1 and elsewhere"] * len(clicks)
        if not clicks[0].any():
            return ["no click at rank 1 on documents of original rank 1"] * len(clicks)
        reasons: Reasons = [None]
        for k in range(1, len(clicks)):
            if clicks[0, k] + skips[0, k] == 0:
                reasons.append(f"no ranker showed its first document both at rank 1 and at rank {k + 1}")
            else:
                reasons.append(f"no click at rank 1 by rankers that swapped it with rank {k + 1}; use more data")
        return reasons


class SwapAdjacent(Swap):
    """Estimate p_k / p_1 = Π_{j<k} of the click rate at j + 1 over that at j, of documents of these ranks: Swap(k,k+1).

    In this experiment adjacent results are swapped at random. The log has the position shown and the rank before the
    swap (`original_rank`). Both documents of a swap count, the one that moved down and the one that moved up. The
    estimator compares rates, so a swap may have any probability, as long as it does not depend on the query. One
    exception is allowed for: a query with k results cannot be swapped at (k,k+1), so queries are compared only with
    others of as many results. For that, log whole pages. If two adjacent ranks were not swapped, or have no click on
    one, the ranks below them have no estimate. Rows without a value in `original_rank` are not part of the experiment.

    Arguments:
        max_rank (int, default 10): M; results shown below rank M are not counted.
        level (float, default 0.95): the coverage of the intervals.
        interval (str or None, default "jackknife"): "jackknife" leaves out one bucket of queries at a time, "bootstrap"
            takes percentiles of resampled buckets, None computes no intervals.
        bootstrap (int, default 1000): the number of bootstrap resamples.
        seed (int, default 0): the random seed of the resamples. Nothing else is random.

    Example:
        >>> import posbias, pyarrow
        >>> log = pyarrow.table({
        ...     "query_id": [1, 1, 2, 2], "doc_id": [1, 2, 3, 4], "ranker": ["a"] * 4, "original_rank": [1, 2, 1, 2],
        ...     "position": [1, 2, 2, 1], "impressions": [400, 400, 100, 100], "clicks": [200, 80, 25, 40],
        ... })
        >>> SwapAdjacent(max_rank=2, interval=None).fit(posbias.ClickLog(log)).propensity_
        array([1. , 0.5])

    Reference: Wang et al., WSDM 2018; Agarwal et al., WSDM 2019, section 3.2.
    """

    name = "swap-adjacent"
    ratios = AdjacentChain

    def count(self, counts: SwapCounts) -> tuple[FloatArray, FloatArray]:
        """Return the counts of documents of either original rank when shown at the upper and at the lower one."""
        original, shown = counts.original, counts.shown
        stayed = counts.at(original == shown, shown)
        down, up = (counts.at(shown - original == step, np.minimum(original, shown)) for step in (1, -1))
        upper = np.concatenate([stayed[..., :-1], up[..., :-1]], axis=2)
        return upper, np.concatenate([down[..., :-1], stayed[..., 1:]], axis=2)

    def pairs(self, max_rank: int) -> tuple[IntArray, IntArray]:
        """Return (k, k + 1) for each k."""
        return np.arange(max_rank - 1), np.arange(1, max_rank)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Return, for each rank, which adjacent ranks above it break the chain, or None."""
        undefined: Reasons = []
        zero: Reasons = []
        for k in range(len(clicks) - 1):
            chain = f"the chain breaks between ranks {k + 1} and {k + 2}"
            no_click = [f"{chain}: no click at rank {rank} on documents of these ranks" for rank in (k + 1, k + 2)]
            missing = clicks[k, k + 1] + skips[k, k + 1] == 0
            no_swap = f"{chain}: no ranker swapped them"
            undefined.append(no_swap if missing else no_click[0] if clicks[k, k + 1] == 0 else None)
            zero.append(no_click[1] if clicks[k + 1, k] == 0 else None)
        return explain_chain(undefined, zero)


class RandomTraffic(ClickRates):
    """Estimate p_k / p_1 as the click rate at k over that at 1, from page views in random order.

    In random order every rank shows results of the same relevance on average, so click rates differ by examination
    alone. Queries need not recur, and no ranks by other rankers are needed. The price is that users saw worse results.

    The estimator tests the order on (query, document) pairs that were shown several times. If they return to the same
    rank more often than by chance, it adds a note; it rejects an order that clearly is a ranking, even a noisy one. A
    harvest by signatures does not distinguish pairs; there the order is compared with the ranks by the other rankers.
    Where neither is possible, or no pairs recur, a note says that random order was assumed.

    Arguments:
        ranker (str, bool or None, default None): the ranker that shows results in random order, as the log names it. It
            may be left out if the log has only one.
        max_rank (int, default 10): M; results shown below rank M are not counted. A harvest has its own M.
        level (float, default 0.95): the coverage of the intervals.
        interval (str or None, default "jackknife"): "jackknife" leaves out one bucket of queries at a time, "bootstrap"
            takes percentiles of resampled buckets, None computes no intervals.
        bootstrap (int, default 1000): the number of bootstrap resamples.
        seed (int, default 0): the random seed of the resamples. Nothing else is random.

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
        max_rank: int = DEFAULT_MAX_RANK,
        level: float = DEFAULT_LEVEL,
        interval: Interval | None = DEFAULT_INTERVAL,
        bootstrap: int = DEFAULT_RESAMPLES,
        seed: int = 0,
    ) -> None:
        super().__init__(max_rank=max_rank, level=level, interval=interval, bootstrap=bootstrap, seed=seed)
        self.ranker = ranker

    def observe(self, log: ClickLog, **options: Any) -> Observations:
        """Return impressions and clicks by bucket, ranker and rank, and the agreement of ranks shown again."""
        return observe_random(log, self.ranker, max_rank=self.max_rank, **options)

    def check_harvest(self, harvest: Harvest, *, force: bool) -> None:
        """Reject an order that clearly is not random, unless forced."""
        number = ranker_number(self.ranker, harvest.rankers)
        agreement = RankAgreement.of_harvest(harvest, number)
        check_findings(agreement.findings(harvest.rankers[number]) if agreement else [], force=force)

    def estimate(self, data: Observations | Harvest) -> None:
        """Estimate one curve, without segments, and store it with notes about the order of its page views."""
        super().estimate(data)
        number = ranker_number(self.ranker, data.rankers)
        agreement = (
            RankAgreement.of_harvest(data, number) if isinstance(data, Harvest) else RankAgreement.of_rows(data.rows)
        )
        self.notes_ = _order_notes(data.rankers[number], agreement)

    def count(self, data: Observations | Harvest) -> tuple[FloatArray, ReportedCounts]:
        """Return the counts of the ranker, (2, B, M), and those that are reported."""
        number = ranker_number(self.ranker, data.rankers)
        name = data.rankers[number]
        counts = counts_by_bucket(data)[:, :, number]
        impressions, clicks = counts.sum(axis=1).astype(int)
        return counts, ReportedCounts(impressions, clicks, {name: data.page_views[name]}, None)

    def _check_observations(self, observations: Observations, by: Sequence[str]) -> Observations:
        checked = super()._check_observations(observations, by)
        if checked.ranker != checked.rankers[ranker_number(self.ranker, checked.rankers)]:
            raise EstimateError(
                f"These observations are of {checked.ranker!r}, not of {self.ranker!r}. "
                f"Make them with {self!r}.observe(log)."
            )
        return checked


class SwapCounts:
    """Impressions and clicks of a swap experiment by bucket, group and rank.

    A group is a ranker and a page length. A page without a result at k cannot be swapped with k, so short pages are
    unswapped more often than long ones, and their results differ.
    """

    def __init__(self, rows: Columns, max_rank: int) -> None:
        # If only the first results of pages were logged, the lengths of pages are not known.
        page_length = np.where(np.all(rows["original"] == 1), max_rank, rows["reach"])
        buckets, self._bucket = np.unique(rows["bucket"], return_inverse=True)
        groups, self._group = np.unique(rows["ranker"] * (max_rank + 1) + page_length, return_inverse=True)
        self._rows = rows
        self.buckets = len(buckets)
        self._shape = (self.buckets, len(groups), max_rank)
        self.original, self.shown = rows["original"], rows["rank"]

    def at(self, mask: BoolArray, rank: IntArray) -> FloatArray:
        """Return impressions and clicks of some rows, by a rank of each row: (2, B, groups, M)."""
        cell = np.ravel_multi_index((self._bucket[mask], self._group[mask], rank[mask] - 1), self._shape)
        size = int(np.prod(self._shape))
        counts = [sum_by_index(cell, self._rows[name][mask], size) for name in ("impressions", "clicks")]
        return np.stack(counts).reshape(2, *self._shape)


def _order_notes(ranker: str, agreement: RankAgreement | None) -> tuple[str, ...]:
    """Return the evidence against random order, or a note that the order was not tested."""
    if agreement is None or not agreement.enough_results:
        why = (
            "this harvest does not distinguish (query, document) pairs"
            if agreement is None
            else "too few results were shown again"
        )
        return (f"Not tested: whether {ranker!r} shows results in random order ({why}). Random order was assumed.",)
    return tuple(f"{finding.message}. {finding.remedy}" for finding in agreement.findings(ranker))
