"""Estimators of randomised traffic."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, sum_by_index
from posbias._validate import DEFAULT_LEVEL, DEFAULT_MAX_RANK
from posbias.errors import EstimateError
from posbias.estimators.base import Interval, LogEstimator, PairEstimator, Reasons, ReportedCounts
from posbias.estimators.click_models import ClickRates, shown_by_bucket
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
    """What both experiments share: sets of documents that chance put at rank k or k', compared as a harvest's are.

    Each group of documents (one ranker, one original rank, one length of page) is compared only with itself, so rankers
    may swap with any probability, each its own. Groups are added up by N N' / (N + N') of their impressions at both.
    """

    needs = "swaps"
    no_click_reason = "no click at rank {rank} on documents that were swapped there"
    # Section 4.1 of the paper: sets by experiment and harvested ones take the same estimators.
    ratios: ClassVar[type[PairEstimator]]

    @abstractmethod
    def count(self, counts: SwapCounts) -> tuple[FloatArray, FloatArray]:
        """Return impressions and clicks at the upper and at the lower rank of each set: (2, buckets, groups, M - 1)."""

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
        """Estimate one curve, and keep it."""
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
        """Return ĉ and ¬ĉ as (..., M, M) for buckets counted `weights` (..., buckets) times."""
        above, below = (np.tensordot(weights, part, axes=(-1, 1)) for part in (upper, lower))
        ranks = upper.shape[-1] + 1
        first, second = self.pairs(ranks)
        clicks, skips = (np.zeros((*weights.shape[:-1], ranks, ranks)) for _ in range(2))
        for rows, columns, own, other in ((first, second, above, below), (second, first, below, above)):
            shown, clicked = own[..., 0, :, :], own[..., 1, :, :]
            total = shown + other[..., 0, :, :]
            # A group's click rate C / N times N N' / (N + N').
            factor = np.divide(other[..., 0, :, :], total, out=np.zeros_like(total), where=total > 0)
            clicks[..., rows, columns] = (clicked * factor).sum(axis=-2)
            skips[..., rows, columns] = ((shown - clicked) * factor).sum(axis=-2)
        return clicks, skips


class SwapOne(Swap):
    """p̂_k / p̂_1 = click rate at k / click rate at 1 of the documents that the ranker put first: Swap(1,k).

    An explicit experiment: the first result is swapped with the k-th at random, and what is logged is the position
    shown and the rank before the swap (`original_rank`). Rates, not counts, so any probability of a swap will do, as
    long as it does not depend on the query, beyond this: a query with fewer than k results cannot be swapped with k, so
    that queries are compared only with others of as many results. For that, log whole pages. Rows without a value
    in `original_rank` are no part of the experiment.

    Arguments:
        max_rank: M; results shown beyond it are not counted.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out queries bucket by bucket, the percentiles of a "bootstrap" over
            buckets, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.

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
        """Return what documents of rank 1 got there, once for each k, and at k."""
        moved = counts.at(counts.original == 1, counts.shown)
        return np.broadcast_to(moved[..., :1], moved[..., 1:].shape), moved[..., 1:]

    def pairs(self, max_rank: int) -> tuple[IntArray, IntArray]:
        """Return (1, k) for each k."""
        return np.zeros(max_rank - 1, dtype=np.int64), np.arange(1, max_rank)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Name the swap that was not made or not clicked."""
        if not (clicks[0] + skips[0]).any():
            return ["no ranker showed its first document both at rank 1 and elsewhere"] * len(clicks)
        if not clicks[0].any():
            return ["no click at rank 1 on documents that belong there"] * len(clicks)
        reasons: Reasons = [None]
        for k in range(1, len(clicks)):
            if clicks[0, k] + skips[0, k] == 0:
                reasons.append(f"no ranker showed its first document both at rank 1 and at rank {k + 1}")
            else:
                reasons.append(f"no click at rank 1 by rankers that swapped it with rank {k + 1}")
        return reasons


class SwapAdjacent(Swap):
    """p̂_k / p̂_1 = Π_{j<k} of click rates at j + 1 over those at j, of documents swapped between them: Swap(k,k+1).

    An explicit experiment: neighbours are swapped at random, and what is logged is the position shown and the rank
    before the swap (`original_rank`). Both documents of a swap count, the one that went down and the one that went up.
    Rates, not counts, so any probability of a swap will do, as long as it does not depend on the query, beyond this: a
    query with k results cannot be swapped at (k,k+1), so that queries are compared only with others of as many results.
    For that, log whole pages. A missing or clickless link leaves the ranks beyond it undefined. Rows without a value in
    `original_rank` are no part of the experiment.

    Arguments:
        max_rank: M; results shown beyond it are not counted.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out queries bucket by bucket, the percentiles of a "bootstrap" over
            buckets, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.

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
        """Return what documents of either rank got at the upper and at the lower one."""
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
        max_rank: int = DEFAULT_MAX_RANK,
        level: float = DEFAULT_LEVEL,
        interval: Interval | None = "jackknife",
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(max_rank=max_rank, level=level, interval=interval, bootstrap=bootstrap, seed=seed)
        self.ranker = ranker

    def observe(self, log: ClickLog, **options: Any) -> Observations:
        """Return impressions and clicks by bucket, ranker and rank, and how far what the ranker showed again agrees."""
        return observe_random(log, self.ranker, max_rank=self.max_rank, **options)

    def _check_observations(self, given: Observations, by: Sequence[str]) -> Observations:
        seen = super()._check_observations(given, by)
        if seen.ranker != seen.rankers[ranker_number(self.ranker, seen.rankers)]:
            raise EstimateError(
                f"These observations are of {seen.ranker!r}, not of {self.ranker!r}. "
                f"Make them by {self!r}.observe(log)."
            )
        return seen

    def vet(self, harvest: Harvest, *, force: bool) -> None:
        """Refuse an order that is plainly no random one, unless the user wants to go on all the same."""
        number = ranker_number(self.ranker, harvest.rankers)
        agreement = RankAgreement.of_harvest(harvest, number)
        check_findings(agreement.findings(harvest.rankers[number]) if agreement else [], force=force)

    def estimate(self, seen: Observations | Harvest) -> None:
        """Estimate one curve, and keep it with what the order of its page views shows."""
        super().estimate(seen)
        number = ranker_number(self.ranker, seen.rankers)
        agreement = (
            RankAgreement.of_harvest(seen, number) if isinstance(seen, Harvest) else RankAgreement.of_rows(seen.rows)
        )
        self.notes_ = _notes(seen.rankers[number], agreement)

    def count(self, seen: Observations | Harvest) -> tuple[FloatArray, ReportedCounts]:
        """Return what the ranker showed."""
        number = ranker_number(self.ranker, seen.rankers)
        name = seen.rankers[number]
        shown = shown_by_bucket(seen)[:, :, number]
        impressions, clicks = shown.sum(axis=1).astype(int)
        return shown, ReportedCounts(impressions, clicks, {name: seen.page_views[name]}, None)


class SwapCounts:
    """Impressions and clicks of a swap experiment by bucket, group and some rank.

    A group is a ranker and a length of page. A page without a result at k cannot be swapped with k and stays as it is,
    so that short pages, whose results are others, are shown unswapped more often than long ones.
    """

    def __init__(self, rows: Columns, max_rank: int) -> None:
        # Where only the first results were logged, not pages, how long those were is not known.
        reach = np.where(np.all(rows["original"] == 1), max_rank, rows["reach"])
        buckets, self._bucket = np.unique(rows["bucket"], return_inverse=True)
        groups, self._group = np.unique(rows["ranker"] * (max_rank + 1) + reach, return_inverse=True)
        self._rows = rows
        self.buckets = len(buckets)
        self._shape = (self.buckets, len(groups), max_rank)
        self.original, self.shown = rows["original"], rows["rank"]

    def at(self, where: BoolArray, rank: IntArray) -> FloatArray:
        """Return those of the rows where the mask holds, by `rank` of the row: (2, buckets, groups, M)."""
        cell = np.ravel_multi_index((self._bucket[where], self._group[where], rank[where] - 1), self._shape)
        size = int(np.prod(self._shape))
        counts = [sum_by_index(cell, self._rows[name][where], size) for name in ("impressions", "clicks")]
        return np.stack(counts).reshape(2, *self._shape)


def _notes(ranker: str, agreement: RankAgreement | None) -> tuple[str, ...]:
    """Say what speaks against random order, or that nothing could be looked at."""
    if agreement is None or not agreement.enough_results:
        why = "this harvest does not tell pairs apart" if agreement is None else "hardly a result was shown again"
        return (f"that {ranker!r} shows results in random order is taken on trust: {why}",)
    return tuple(f"{finding.message}. {finding.remedy}" for finding in agreement.findings(ranker))
