"""SwapOne and SwapAdjacent: the gold standards, from experiments that swap results on purpose."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from posbias.arrays import BoolArray, FloatArray, IntArray, tally
from posbias.engines.answers import Answer
from posbias.errors import EstimateError, LogError
from posbias.estimators.adjacent_chain import AdjacentChain
from posbias.estimators.base import Estimator, Reasons
from posbias.estimators.intervals import resample
from posbias.estimators.logged import Columns, LogEstimator, Observations
from posbias.estimators.pivot_one import PivotOne
from posbias.wording import listed

if TYPE_CHECKING:
    from posbias.engines import OpenLog
    from posbias.sql.shown import Plan

_MOST_NUMBERS = 10**7


class _Swap(LogEstimator):
    """What both experiments share: sets of documents that chance put at rank k or k', compared as a harvest's are.

    Each group of documents (one ranker, one original rank, one length of page) is compared only with itself, so rankers
    may swap with any probability, each its own. Groups are added up by N N' / (N + N') of their impressions at both.
    """

    clickless = "no click at rank {rank} on documents that were swapped there"
    # Section 4.1 of the paper: sets by experiment and harvested ones take the same estimators.
    ratios: ClassVar[type[Estimator]]

    def __init__(self, *, max_rank: int = 10, level: float = 0.95, bootstrap: int = 1000, seed: int = 0) -> None:
        self.max_rank = max_rank
        self.level = level
        self.bootstrap = bootstrap
        self.seed = seed

    @abstractmethod
    def count(self, counts: _Counts) -> tuple[FloatArray, FloatArray]:
        """Return impressions and clicks at the upper and at the lower rank of each set: (2, buckets, groups, M - 1)."""

    @abstractmethod
    def pairs(self, max_rank: int) -> tuple[IntArray, IntArray]:
        """Return the upper and the lower rank of each set, from 0."""

    @abstractmethod
    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Return, for each rank, why ĉ and ¬ĉ do not identify it, or None."""

    def read(self, engine: OpenLog, plan: Plan) -> tuple[Answer, Answer]:
        """Return impressions and clicks by bucket, ranker, original rank, rank shown and the last rank of the page."""
        from posbias.sql.swaps import NO_RANK, swaps

        column = engine.schema.original
        if column is None:
            raise LogError(
                "A swap experiment's log has a column with the rank that a result had before it was swapped, beside "
                f"the position at which it was shown. 'original_rank' is not in the log. Columns found: "
                f"{listed(engine.schema.types)}. Say which to read, in Python by original='COLUMN'. "
                "Add --original COLUMN"
            )
        table = engine.table(swaps(plan, column), "Counting swaps")
        rows, original = table["row_count"], table["original"]
        bad = int(rows[original == NO_RANK].sum())
        if bad:
            raise LogError(
                f"{bad:,} of {rows.sum():,} rows have a value in {column!r} that is not a rank. Ranks before the swap "
                "count from 1 like positions. Where a result was no part of the experiment, leave the value out."
            )
        if not len(rows):
            raise EstimateError(
                f"No row within the top {plan.max_rank} has a value in {column!r}: nothing was swapped."
            )
        return table, table

    def estimate(self, observations: Observations) -> None:
        """Estimate one curve, and keep it."""
        counts = _Counts(observations.rows, observations.max_rank)
        upper, lower = self.count(counts)
        ratios = self.ratios()
        draws = resample(counts.buckets, self.bootstrap, self.seed)
        clicks, skips = self._tables(upper, lower, np.ones(counts.buckets))
        # Resamples go as one batch, or as several where many groups and ranks would fill the memory.
        batches = np.array_split(draws, 1 + self.bootstrap * upper[:, 0].size // _MOST_NUMBERS)
        refits = np.concatenate([ratios.propensities(*self._tables(upper, lower, batch)) for batch in batches])
        self._keep(observations.evidence(), ratios.propensities(clicks, skips), self.explain(clicks, skips), refits)

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


class _Counts:
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
        counts = [tally(cell, self._rows[name][where], size) for name in ("impressions", "clicks")]
        return np.stack(counts).reshape(2, *self._shape)


class SwapOne(_Swap):
    """p̂_k / p̂_1 = click rate at k / click rate at 1 of the documents that the ranker put first: Swap(1,k).

    An explicit experiment: the first result is swapped with the k-th at random, and what is logged is the position
    shown and the rank before the swap (`original_rank`). Rates, not counts, so any probability of a swap will do, as
    long as it does not depend on the query, beyond this: a query with fewer than k results cannot be swapped with k, so
    that queries are compared only with others of as many results. For that, log whole pages. Rows without a value
    in `original_rank` are no part of the experiment.

    Arguments:
        max_rank: M; results shown beyond it are not counted.
        level: the coverage of the intervals.
        bootstrap: the number of resamples of whole queries; 0 for no interval.
        seed: of the resamples. The estimate itself has none.

    Example:
        >>> import posbias, pyarrow
        >>> log = pyarrow.table({
        ...     "query_id": [1, 2, 3], "doc_id": [1, 2, 3], "ranker": ["a"] * 3, "original_rank": [1, 1, 1],
        ...     "position": [1, 2, 3], "impressions": [200, 100, 300], "clicks": [100, 25, 50],
        ... })
        >>> SwapOne(max_rank=3, bootstrap=0).fit(posbias.ClickLog(log)).propensity_.round(3)
        array([1.   , 0.5  , 0.333])

    Reference: Joachims et al., WSDM 2017; Agarwal et al., WSDM 2019, section 3.2.
    """

    name = "swap-one"
    ratios = PivotOne

    def count(self, counts: _Counts) -> tuple[FloatArray, FloatArray]:
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


class SwapAdjacent(_Swap):
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
        bootstrap: the number of resamples of whole queries; 0 for no interval.
        seed: of the resamples. The estimate itself has none.

    Example:
        >>> import posbias, pyarrow
        >>> log = pyarrow.table({
        ...     "query_id": [1, 1, 2, 2], "doc_id": [1, 2, 3, 4], "ranker": ["a"] * 4, "original_rank": [1, 2, 1, 2],
        ...     "position": [1, 2, 2, 1], "impressions": [400, 400, 100, 100], "clicks": [200, 80, 25, 40],
        ... })
        >>> SwapAdjacent(max_rank=2, bootstrap=0).fit(posbias.ClickLog(log)).propensity_
        array([1. , 0.5])

    Reference: Wang et al., WSDM 2018; Agarwal et al., WSDM 2019, section 3.2.
    """

    name = "swap-adjacent"
    ratios = AdjacentChain

    def count(self, counts: _Counts) -> tuple[FloatArray, FloatArray]:
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
        """Name the link that breaks the chain."""
        reasons: Reasons = [None]
        broken: str | None = None
        for k in range(len(clicks) - 1):
            here = f"the chain is broken at ({k + 1},{k + 2})"
            if broken is None and clicks[k, k + 1] + skips[k, k + 1] == 0:
                broken = f"{here}: no ranker swapped these ranks"
            elif broken is None and clicks[k, k + 1] == 0:
                broken = f"{here}: no click at rank {k + 1} on documents of these ranks"
            reasons.append(broken)
            if broken is None and clicks[k + 1, k] == 0:
                broken = f"{here}: no click at rank {k + 2} on documents of these ranks"
        reasons[0] = reasons[1]
        return reasons
