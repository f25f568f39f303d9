"""PBMEM: the position-based model by EM, with one relevance for each (query, document)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from posbias.arrays import BoolArray, FloatArray, IntArray, tally
from posbias.errors import EstimateError
from posbias.estimators.base import Evidence, Reasons
from posbias.estimators.logged import LogEstimator
from posbias.harvesting.observations import Columns, Observations, observe_pairs
from posbias.logs.click_log import ClickLog


class PBMEM(LogEstimator):
    """EM of P(click) = p_k r_{qd}, with one parameter r_{qd} for each (query, document) pair.

    It is there to be compared with. **It depends on repeats.** A pair that was shown at one rank only, however often,
    tells nothing of examination: any p_k goes with some r. Ranks that no pair with clicks connects to rank 1 are NaN,
    but the other ranks suffer too: with a handful of impressions a pair, r is mostly what `prior` says, and the
    curve is biased whatever the size of the log. Only many repeats of each pair mend it.

    There is no interval: `interval_` is NaN. `iterations_` says how many were run and `converged_` whether they were
    enough.

    Arguments:
        max_rank: M; results shown beyond it are not counted.
        iterations: at most so many.
        tolerance: stop when no p_k / p_1 changes by more.
        prior: imagined impressions of each kind, examined and not, relevant and not, added to what each parameter is
            estimated from. 1 is customary, a uniform prior. 0 is maximum likelihood, at which a pair clicked each time
            it was shown has r = 1.

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
        self, *, max_rank: int = 10, iterations: int = 500, tolerance: float = 1e-5, prior: float = 1.0
    ) -> None:
        self.max_rank = max_rank
        self.iterations = iterations
        self.tolerance = tolerance
        self.prior = prior

    def _check(self) -> None:
        super()._check()
        if self.prior < 0:
            raise EstimateError(f"prior must be a number of imagined impressions, 0 or more, not {self.prior!r}.")

    def observe(self, log: ClickLog, **how: Any) -> Observations:
        """Return impressions and clicks of each pair at each rank."""
        return observe_pairs(log, max_rank=self.max_rank, **how)

    def estimate(self, observations: Observations) -> None:
        """Run EM until the curve stands still, and keep it."""
        shown = ShownItems.of(observations.rows, observations.max_rank)
        p, r = np.full(observations.max_rank, 0.5), np.full(shown.items, 0.5)
        curve = ratio(p, p[0])
        for done in range(1, self.iterations + 1):
            p, r = self._step(shown, p, r)
            before, curve = curve, ratio(p, p[0])
            self.iterations_, self.converged_ = (
                done,
                bool(np.nanmax(np.abs(curve - before), initial=0) < self.tolerance),
            )
            if self.converged_:
                break
        if not self.prior:
            # Without clicks the most likely p_k is 0, which EM only comes closer and closer to.
            curve = np.where(shown.by_rank(shown.clicks) > 0, curve, 0.0)
        linked = shown.linked()
        propensity = np.where(linked, curve, np.nan)
        self._keep(Evidence.of(observations), propensity, _explain(shown, linked))

    def _step(self, shown: ShownItems, p: FloatArray, r: FloatArray) -> tuple[FloatArray, FloatArray]:
        """One step of EM: who was examined and who relevant, given clicks and skips; then p and r as their shares."""
        examined, relevant = posteriors(p[shown.rank], r[shown.item])
        imagined = self.prior
        p = ratio(shown.by_rank(shown.clicks + shown.skips * examined) + imagined, shown.impressions + 2 * imagined)
        r = ratio(shown.by_item(shown.clicks + shown.skips * relevant) + imagined, shown.repeats + 2 * imagined)
        return p, r


@dataclass(frozen=True)
class ShownItems:
    """Clicks and skips of items, each of one relevance, at each rank (from 0); sorted, so that sums are repeatable.

    `impressions` are by rank, `repeats` are the impressions by item, and `first` is a row of each item.
    """

    item: IntArray
    rank: IntArray
    clicks: FloatArray
    skips: FloatArray
    items: int
    ranks: int
    impressions: FloatArray
    repeats: FloatArray
    first: IntArray

    @classmethod
    def of(cls, rows: Columns, max_rank: int) -> ShownItems:
        """Return the items of a log or a segment, numbered without gaps."""
        order = np.lexsort((rows["clicks"], rows["impressions"], rows["rank"], rows["item"]))
        rank, impressions, clicks = (rows[name][order] for name in ("rank", "impressions", "clicks"))
        new = np.diff(rows["item"][order], prepend=-1) > 0
        item, items, rank = np.cumsum(new) - 1, int(new.sum()), rank - 1
        return cls(
            item=item,
            rank=rank,
            clicks=clicks.astype(np.float64),
            skips=(impressions - clicks).astype(np.float64),
            items=items,
            ranks=max_rank,
            impressions=tally(rank, impressions, max_rank),
            repeats=tally(item, impressions, items),
            first=order[new],
        )

    def by_rank(self, values: FloatArray) -> FloatArray:
        """Return the sum of values at each rank."""
        return tally(self.rank, values, self.ranks)

    def by_item(self, values: FloatArray) -> FloatArray:
        """Return the sum of values of each item."""
        return tally(self.item, values, self.items)

    def linked(self) -> BoolArray:
        """Return which ranks a chain of items, each clicked and shown at two ranks, connects to rank 1."""
        from scipy.sparse.csgraph import connected_components

        clicked = self.by_item(self.clicks)[self.item] > 0
        item, rank = self.item[clicked], self.rank[clicked]
        same = np.flatnonzero(item[1:] == item[:-1])
        links = np.zeros((self.ranks, self.ranks))
        links[rank[same], rank[same + 1]] = 1
        _, component = connected_components(links, directed=False)
        return np.asarray((component == component[0]) & (self.by_rank(self.clicks)[0] > 0))


def posteriors(p: FloatArray, r: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the probability that a result was examined, and that it is relevant, though it was not clicked."""
    both = p * r
    skipped = np.maximum(1 - both, np.finfo(np.float64).tiny)
    return (p - both) / skipped, (r - both) / skipped


def ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Return part / whole, NaN where there is no whole."""
    return np.asarray(np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=whole > 0))


def _explain(shown: ShownItems, linked: BoolArray) -> Reasons:
    if not shown.by_rank(shown.clicks)[0]:
        return ["no click at rank 1"] * shown.ranks
    return [
        "no chain of (query, document) pairs, each clicked and shown at two ranks, connects it to rank 1"
        if seen
        else f"nothing was shown at rank {k}"
        for k, seen in enumerate(shown.impressions, start=1)
    ]
