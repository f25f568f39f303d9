"""What people use instead."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, sum_by_index
from posbias._optional import optional
from posbias._text import listed
from posbias._validate import DEFAULT_LEVEL, DEFAULT_MAX_RANK
from posbias.errors import EstimateError
from posbias.estimators.base import Interval, LogEstimator, Reasons, ReportedCounts, no_intervals, reachable_ranks
from posbias.estimators.cross_fit import CellRows
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.observations import (
    Columns,
    EngineChoice,
    Observations,
    observe_features,
    observe_pairs,
    observe_totals,
)
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent

_TINY = float(np.finfo(np.float64).tiny)
_INNER_STEPS, _INNER_END = 100, 1e-13
_REACH, _HALVINGS = 2.0, 30
# A refit that is further away than this in log p is not left to one step.
_FAR = 0.1
_MOST_PRIOR = 1_000_000
# CellRows of a log times refits that take under a minute.
_MOST_REFITTED = 4 * 10**8
# The curve must stand still for so many iterations: one step may be small by chance, and long before EM is done.
_WINDOW = 5
_BINS = 255


class ClickRates(LogEstimator):
    """p̂_k / p̂_1 = click rate at k / click rate at 1 of some page views, from a log or a harvest.

    A new one says how to `observe` a log, and which page views count: `count`.
    """

    fits_on = ("log", "harvest")

    @abstractmethod
    def count(self, seen: Observations | Harvest) -> tuple[FloatArray, ReportedCounts]:
        """Return impressions and clicks by bucket and rank, (2, B, M), and what stands beside the curve."""

    def fit(
        self,
        log: ClickLog | Observations | Harvest,
        *,
        by: Sequence[str] = (),
        engine: EngineChoice | None = None,
        progress: Progress = silent,
        force: bool = False,
    ) -> Self:
        """Estimate the curve of a log or a harvest; of the arguments after it, `force` alone is for both."""
        if not isinstance(log, Harvest):
            return super().fit(log, by=by, engine=engine, progress=progress, force=force)
        self._check()
        self.vet(log, force=force)
        return self._fit_data(log)

    def vet(self, harvest: Harvest, *, force: bool) -> None:
        """Refuse a harvest that this estimator cannot be right on; of a log, observing it does."""

    def estimate(self, seen: Observations | Harvest) -> None:
        """Estimate one curve, and keep it."""
        counts, evidence = self.count(seen)
        # A bucket without a page view of these has no say.
        impressions, clicks = counts[:, counts[0].any(axis=1)]
        shown, clicked = impressions.sum(axis=0), clicks.sum(axis=0)
        propensity = relative_rates(shown, clicked)
        intervals = self._compute_intervals(
            propensity, len(impressions), lambda weights: relative_rates(weights @ impressions, weights @ clicks)
        )
        self._store(evidence, propensity, explain_rates(shown, clicked), intervals)


class NaiveCTR(ClickRates):
    """p̂_k / p̂_1 = click rate at k / click rate at 1, whatever was shown there.

    It is there to be compared with. Rankers put the better documents first, so that the curve falls by relevance and
    by examination at once: it is steeper than the truth the better the rankers are, and more data do not mend it.
    It fits on a log or a harvest.

    Arguments:
        max_rank: M; what a log shows beyond it is not counted. A harvest has its own.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out queries bucket by bucket, the percentiles of a "bootstrap" over
            buckets, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000)))
        >>> NaiveCTR(interval=None).fit(log).propensity_[:3].round(2)  # The truth is 1, 0.5, 0.33.
        array([1.  , 0.43, 0.26])

    Reference: Agarwal et al., WSDM 2019, section 5.2.
    """

    name = "naive-ctr"
    needs = "totals"

    def observe(self, log: ClickLog, **options: Any) -> Observations:
        """Return impressions and clicks by bucket, ranker and rank."""
        return observe_totals(log, max_rank=self.max_rank, **options)

    def count(self, seen: Observations | Harvest) -> tuple[FloatArray, ReportedCounts]:
        """Return what all rankers showed."""
        return shown_by_bucket(seen).sum(axis=2), ReportedCounts.of(seen)


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
        max_rank: int = DEFAULT_MAX_RANK,
        iterations: int = 200,
        tolerance: float = 1e-6,
        prior: float = 1.0,
        level: float = DEFAULT_LEVEL,
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

    def observe(self, log: ClickLog, **options: Any) -> Observations:
        """Return impressions and clicks of each pair at each rank."""
        return observe_pairs(log, max_rank=self.max_rank, **options)

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
            intervals = self._compute_intervals(propensity, buckets, partial(self._refits, shown, likelihood, summit))
        self._store(ReportedCounts.of(observations), propensity, _explain(shown, linked), intervals)

    def _refits(self, shown: ShownItems, likelihood: PairLikelihood, summit: Summit, weights: FloatArray) -> FloatArray:
        """Return the curves of buckets counted so often."""
        curves = likelihood.refits(summit, weights, self.iterations, self.tolerance)
        linked = [shown.linked(times[likelihood.rows.cell_bucket] > 0) for times in weights]
        return np.where(linked, curves, np.nan)


class RegressionEM(LogEstimator):
    """EM of P(click) = p_k γ(x), where γ is a model of relevance on features, refitted at each step to sampled labels.

    It is there to be compared with. **It depends on the relevance model.** Queries need not recur, and one ranker is
    enough, but only because the model is trusted to tell relevance: what of it the features or the model miss is
    taken for examination, and the curve is biased whatever the size of the log. Features that tell nothing give the
    curve of `NaiveCTR`. Needs scikit-learn: pip install 'posbias[learn]'.

    There is no interval: `interval_` is NaN. `iterations_` says how many were run and `converged_` whether they were
    enough. Labels are sampled, so that on a small log the curve trembles and is never said to have converged.

    Arguments:
        features: the columns of the log that are to tell relevance, numbers or booleans.
        max_rank: M; results shown beyond it are not counted.
        model: "logistic" regression, "boosted" trees, or any classifier of scikit-learn's that takes sample weights.
        iterations: at most so many.
        tolerance: stop when no p_k / p_1 has moved by more for five iterations.
        sample: the model is fitted to at most so many vectors of features, drawn once; p_k always comes from all rows.
        seed: of the labels and the sample.

    Example:
        >>> import numpy as np, posbias, pyarrow
        >>> rng = np.random.default_rng(0)
        >>> relevance = np.sort(rng.normal(size=(20_000, 3)))[:, ::-1].ravel()  # The ranker shows the best first.
        >>> position = np.tile([1, 2, 3], 20_000)
        >>> clicked = rng.random(60_000) < 1 / position / (1 + np.exp(-relevance))
        >>> log = posbias.ClickLog(pyarrow.table({
        ...     "query_id": np.repeat(np.arange(20_000), 3), "doc_id": position, "ranker": ["a"] * 60_000,
        ...     "position": position, "clicked": clicked, "relevance": relevance,
        ... }))
        >>> RegressionEM(["relevance"], max_rank=3).fit(log).propensity_.round(1)
        array([1. , 0.5, 0.3])

    Reference: Wang et al., Position Bias Estimation for Unbiased Learning to Rank in Personal Search, WSDM 2018.
    """

    name = "regression-em"
    needs = "features"

    iterations_: int
    converged_: bool
    model_: Any

    def __init__(
        self,
        features: Sequence[str] = (),
        *,
        max_rank: int = DEFAULT_MAX_RANK,
        model: Any = "logistic",
        iterations: int = 100,
        tolerance: float = 5e-4,
        sample: int = 500_000,
        seed: int = 0,
    ) -> None:
        self.features = features
        self.max_rank = max_rank
        self.model = model
        self.iterations = iterations
        self.tolerance = tolerance
        self.sample = sample
        self.seed = seed

    def _check(self) -> None:
        super()._check()
        if isinstance(self.features, str) or not self.features:
            raise EstimateError(
                "RegressionEM needs features: a list of the log's columns that tell relevance, such as "
                f"features=['score', 'age'], not {self.features!r}.",
                {"features": ["COLUMN"]},
            )
        if isinstance(self.model, str) and self.model not in _MODELS:
            raise EstimateError(f"The model {self.model!r} is not known. Use one of {listed(_MODELS)}.")
        optional("sklearn", "RegressionEM needs")

    def observe(self, log: ClickLog, **options: Any) -> Observations:
        """Return impressions and clicks of each vector of features at each rank."""
        return observe_features(log, self.features, max_rank=self.max_rank, **options)

    def estimate(self, observations: Observations) -> None:
        """Run EM until the curve stands still, and keep it."""
        shown = ShownItems.of(observations.rows, observations.max_rank)
        model, vectors = self._prepare(observations, shown)
        rng = np.random.default_rng(self.seed)
        p, r = np.full(shown.ranks, 0.5), np.full(shown.items, 0.5)
        curves = [np.ones(shown.ranks)]
        sample = np.sort(rng.permutation(shown.items)[: self.sample])
        for done in range(1, self.iterations + 1):
            examined, relevant = posteriors(p[shown.rank], r[shown.item])
            # A click is of a relevant result; the others are relevant with the probability that EM gives them.
            labels = rng.binomial(shown.skips.astype(np.int64), np.clip(relevant, 0, 1))
            positive = shown.by_item(shown.clicks + labels)
            p = ratio(shown.by_rank(shown.clicks + shown.skips * examined), shown.impressions)
            r = _refit(model, vectors, positive, shown.repeats - positive, sample)
            curves.append(ratio(p, p[0]))
            moved = np.nanmax(np.ptp(curves[-1 - _WINDOW :], axis=0), initial=0)
            self.iterations_, self.converged_ = done, bool(done > _WINDOW and moved < self.tolerance)
            if self.converged_:
                break
        self.model_ = model
        clicks = shown.by_rank(shown.clicks)
        # Without clicks the most likely p_k is 0, which EM only comes closer and closer to; without any at rank 1 ...
        curve = np.where(clicks > 0, curves[-1], np.where(shown.impressions > 0, 0.0, np.nan))
        propensity = curve if clicks[0] > 0 else np.full(shown.ranks, np.nan)
        self._store(ReportedCounts.of(observations), propensity, explain_rates(shown.impressions, clicks))

    def _prepare(self, observations: Observations, shown: ShownItems) -> tuple[Any, FloatArray]:
        """Return the model to be fitted, and the vectors of features in the form that suits it."""
        from sklearn.base import clone

        rows = observations.rows
        vectors = np.column_stack([rows[f"feature_{i}"][shown.first] for i in range(len(self.features))])
        if not isinstance(self.model, str):
            return clone(self.model), vectors
        if self.model == "boosted":
            return _MODELS[self.model](self.seed), _binned(vectors)
        for column, values in zip(self.features, vectors.T, strict=True):
            bad = int((~np.isfinite(values)).sum())
            if bad:
                raise EstimateError(
                    f"The feature {column!r} has no finite value in {bad:,} of {len(values):,} distinct vectors, which "
                    "logistic regression cannot use. Fill them in the log or by a query, or choose model='boosted'."
                )
        spread = vectors.std(axis=0)
        return _MODELS[self.model](self.seed), (vectors - vectors.mean(axis=0)) / np.where(spread > 0, spread, 1)


def shown_by_bucket(seen: Observations | Harvest) -> FloatArray:
    """Return impressions and clicks by bucket, ranker and rank: (2, B, m, M)."""
    if isinstance(seen, Harvest):
        return seen.counts("bucket", "ranker", "rank").astype(np.float64)
    rows = seen.totals
    buckets, bucket = np.unique(rows["bucket"], return_inverse=True)
    shape = (len(buckets), len(seen.rankers), seen.max_rank)
    where = np.ravel_multi_index((bucket, rows["ranker"], rows["rank"] - 1), shape)
    counts = [sum_by_index(where, rows[name], int(np.prod(shape))) for name in ("impressions", "clicks")]
    return np.stack(counts).reshape(2, *shape)


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
            impressions=sum_by_index(rank, impressions, max_rank),
            repeats=sum_by_index(item, impressions, items),
            first=order[new],
        )

    def by_rank(self, values: FloatArray) -> FloatArray:
        """Return the sum of values at each rank."""
        return sum_by_index(self.rank, values, self.ranks)

    def by_item(self, values: FloatArray) -> FloatArray:
        """Return the sum of values of each item."""
        return sum_by_index(self.item, values, self.items)

    def linked(self, counted: BoolArray | None = None) -> BoolArray:
        """Return which ranks a chain of items, each clicked and shown at two ranks, connects to rank 1.

        Of all items, or of those that are `counted`.
        """
        kept = self.by_item(self.clicks) > 0
        if counted is not None:
            kept &= counted
        item, rank = self.item[kept[self.item]], self.rank[kept[self.item]]
        same = np.flatnonzero(item[1:] == item[:-1])
        links = np.zeros((self.ranks, self.ranks), dtype=np.bool_)
        links[rank[same], rank[same + 1]] = links[rank[same + 1], rank[same]] = True
        first = np.any((self.rank == 0) & (self.clicks > 0) & kept[self.item])
        return reachable_ranks(links) & first


@dataclass(frozen=True)
class PairLikelihood:
    """The terms of the likelihood: a row for each item and rank.

    `free` are the ranks whose p is to be found: without a prior, those with a click.
    """

    rows: CellRows
    prior: float
    free: BoolArray

    @classmethod
    def of(cls, shown: ShownItems, bucket: IntArray, prior: float) -> PairLikelihood:
        """Return that of items, each of a bucket."""
        buckets, number = np.unique(bucket, return_inverse=True)
        rows = CellRows(
            cell=shown.item,
            rank=shown.rank,
            views=shown.clicks + shown.skips,
            clicks=shown.clicks,
            design_row=np.zeros(len(shown.item), dtype=np.int64),
            design=None,
            cell_bucket=number,
            cell_stratum=np.zeros(shown.items, dtype=np.int64),
            cell_weight=np.ones(shown.items),
            mergeable=False,
            buckets=len(buckets),
            ranks=shown.ranks,
        )
        return cls(rows, prior, _free(rows, prior))

    def weighted(self, times: FloatArray) -> PairLikelihood:
        """Return that of buckets counted so many times."""
        rows = replace(self.rows, cell_weight=times[self.rows.cell_bucket])
        return replace(self, rows=rows, free=_free(rows, self.prior))

    def start(self) -> FloatArray:
        """Return log p from the click rates of the ranks: somewhere to start from."""
        clicks, views = self.rows.sum_by_rank(self.rows.clicks) + 0.5, self.rows.sum_by_rank(self.rows.views) + 1
        return np.asarray(np.log(clicks / views) - np.log(clicks / views).max() - 0.1)

    def relative(self, x: FloatArray) -> FloatArray:
        """Return p_k / p_1; 0 where a rank without a click has no prior, NaN where nothing was shown."""
        seen = self.rows.sum_by_rank(self.rows.views) > 0
        return np.where(self.free, np.exp(x - x[0]), np.where(seen & self.free[0], 0.0, np.nan))

    def climb(self, x: FloatArray, steps: int, tolerance: float, relevance: FloatArray | None = None) -> Summit:
        """Return the maximum, by Newton from x with halved steps, r near `relevance` if given; p may not pass 1."""
        x = np.where(self.free, np.minimum(x, 0.0), 0.0)
        if self.prior:
            x = np.where(self.free, np.minimum(x, -1e-6), 0.0)
        here = self.at(x, np.full(len(self.rows.cell_bucket), 0.5) if relevance is None else relevance)
        for step in range(1, steps + 1):
            moving = self.moving(x, here)
            ahead = self._direction(here, moving)
            size = float(np.abs(ahead).max(initial=0))
            if size < tolerance:
                return Summit(x, here.relevance, step, arrived=True)
            scale = min(1.0, _REACH / size)
            for _ in range(_HALVINGS):
                tried = x.copy()
                tried[moving] = self._within(x[moving] + scale * ahead, x[moving])
                there = self.at(tried, here.relevance)
                if there.value >= here.value:
                    break
                scale /= 2
            else:
                # Nothing is higher within rounding: it is the summit if what pulls is rounding too.
                level = np.abs(here.gradient[moving]).max(initial=0) <= 1e-7 * max(1.0, self.rows.clicks.sum())
                return Summit(x, here.relevance, step, arrived=bool(level))
            x, here = tried, there
        return Summit(x, here.relevance, steps, arrived=False)

    def moving(self, x: FloatArray, here: Slope) -> IntArray:
        """Return the ranks that are not held by p ≤ 1."""
        return np.flatnonzero(self.free & ~((x >= 0) & (here.gradient > 0) & (self.prior == 0)))

    def _within(self, x: FloatArray, before: FloatArray) -> FloatArray:
        """Return log p below its bound: 0, or with a prior, whose force grows there, half the way to it at most."""
        if self.prior:
            return np.minimum(x, before / 2)
        return np.minimum(x, 0.0)

    def _direction(self, here: Slope, moving: IntArray) -> FloatArray:
        information = here.information[np.ix_(moving, moving)]
        # Where only ratios of p are told, the level is any: a trifle keeps it where it is.
        ridge = 1e-10 * np.maximum(np.diagonal(information), 1 + np.abs(here.gradient[moving]))
        return np.asarray(np.linalg.solve(information + np.diag(ridge), here.gradient[moving]))

    def at(self, x: FloatArray, r: FloatArray) -> Slope:
        """Return the likelihood at x, with the best relevance for it, looked for from r."""
        rows, prior = self.rows, self.prior
        p = np.where(self.free, np.exp(x), 0.0)
        own = p[rows.rank]
        r = self._relevance(own, r)
        t = np.minimum(own * r[rows.cell], 1 - 1e-16)
        skips = rows.views - rows.clicks
        # Where nothing was clicked, or skipped, a term is 0 whatever it multiplies.
        logs = np.where(rows.clicks > 0, rows.clicks * np.log(np.maximum(t, _TINY)), 0.0)
        logs += np.where(skips > 0, skips * np.log1p(-t), 0.0)
        pull = skips * t / (1 - t)
        q = pull / (1 - t)
        total = sum_by_index(rows.cell, q, len(rows.cell_bucket))
        value, gradient = rows.weigh(logs).sum(), rows.sum_by_rank(rows.clicks - pull)
        if prior:
            inner = np.clip(r, _TINY, 1 - 1e-16)
            value += prior * (rows.cell_weight @ (np.log(inner) + np.log1p(-inner)))
            total = total + prior * inner / (1 - inner) ** 2
            shown = p[self.free]
            value += prior * (np.log(shown) + np.log1p(-shown)).sum()
        share = np.where((r < 1)[rows.cell], q / np.maximum(total, _TINY)[rows.cell], 0.0)
        information = np.diag(rows.sum_by_rank(q)) - rows.cross_products((share, q), by_bucket=False)
        if prior:
            gradient = gradient + np.where(self.free, prior * (1 - 2 * p) / np.maximum(1 - p, _TINY), 0.0)
            information += np.diag(np.where(self.free, prior * p / np.maximum(1 - p, _TINY) ** 2, 0.0))
        return Slope(float(value), gradient, information, r, (rows.clicks - pull, q, share))

    def refits(self, summit: Summit, weights: FloatArray, steps: int, tolerance: float) -> FloatArray:
        """Return p_k / p_1 of buckets counted `weights` (n, B) times: one step from the summit, or all if it is far."""
        rows, here = self.rows, self.at(summit.x, summit.relevance)
        push, q, share = here.parts
        moving, index = self.moving(summit.x, here), np.arange(rows.ranks)
        gradients, slopes = rows.sum_by_bucket(push), -rows.cross_products((share, q), by_bucket=True)
        slopes[:, index, index] += rows.sum_by_bucket(q)
        # What is left is the prior's, whatever the weights.
        gradient = weights @ gradients + here.gradient - gradients.sum(axis=0)
        slope = np.tensordot(weights, slopes, axes=1) + here.information - slopes.sum(axis=0)
        slope = slope[:, moving[:, None], moving]
        size = len(moving)
        slope[:, np.arange(size), np.arange(size)] *= 1 + 1e-10
        ahead = np.linalg.solve(slope, gradient[:, moving, None])[:, :, 0] if size else np.zeros((len(weights), 0))
        answer = []
        for times, step in zip(weights, ahead, strict=True):
            # Only ratios count.
            if size and np.ptp(np.append(step, 0.0)) <= _FAR:
                x = summit.x.copy()
                x[moving] += step
                answer.append(self.relative(x))
            else:
                again = self.weighted(times)
                answer.append(again.relative(again.climb(summit.x, steps, tolerance, summit.relevance).x))
        return np.array(answer)

    def _relevance(self, p: FloatArray, r: FloatArray) -> FloatArray:
        """Return the best r of each item given p at its rows, from r near it: Σ n p r / (1 − p r) + … = Σ c + …"""
        rows, prior = self.rows, self.prior
        wanted = sum_by_index(rows.cell, rows.clicks, len(rows.cell_bucket)) + prior
        skips = rows.views - rows.clicks
        low, high = np.zeros(len(r)), np.ones(len(r))
        r = np.clip(r, 1e-9, 1 - 1e-9)
        for _ in range(_INNER_STEPS):
            t = p * r[rows.cell]
            pull = skips * t / np.maximum(1 - t, _TINY)
            have, steep = (
                sum_by_index(rows.cell, values, len(r)) for values in (pull, pull / np.maximum(1 - t, _TINY))
            )
            if prior:
                have += prior * r / (1 - r)
                steep += prior * r / (1 - r) ** 2
            low, high = np.where(have < wanted, r, low), np.where(have < wanted, high, r)
            # In log r; where Newton leaves the bracket, its middle.
            with np.errstate(over="ignore"):
                ahead = r * np.exp(np.clip((wanted - have) / np.maximum(steep, _TINY), -50, 50))
            ahead = np.where((ahead > low) & (ahead < high), ahead, (low + high) / 2)
            moved = np.abs(ahead - r) > _INNER_END * r
            r = ahead
            if not moved.any():
                break
        bounded = self._at_one(p, skips, wanted) if not prior else np.zeros(len(r), dtype=np.bool_)
        return np.where(bounded, 1.0, np.where(wanted > 0, r, 0.0))

    def _at_one(self, p: FloatArray, skips: FloatArray, wanted: FloatArray) -> BoolArray:
        """Return which items would have a relevance of 1 or more: there, clicks push more than skips pull."""
        cell = self.rows.cell
        with np.errstate(divide="ignore", invalid="ignore"):
            pull = np.where(skips > 0, skips * p / (1 - p), 0.0)
        return sum_by_index(cell, pull, len(wanted)) <= wanted


def _free(rows: CellRows, prior: float) -> BoolArray:
    return (rows.sum_by_rank(rows.clicks) > 0) | ((rows.sum_by_rank(rows.views) > 0) & (prior > 0))


class Summit(NamedTuple):
    """Where the climb ended: log p, r, the steps it took, and whether it arrived."""

    x: FloatArray
    relevance: FloatArray
    steps: int
    arrived: bool


class Slope(NamedTuple):
    """The likelihood at one log p, with the best r: its value, its first derivative and minus its second, and r."""

    value: float
    gradient: FloatArray
    information: FloatArray
    relevance: FloatArray
    parts: tuple[FloatArray, FloatArray, FloatArray]  # by row: c − n p r / (1 − p r), q, and q / Σ q


def _explain(shown: ShownItems, linked: BoolArray) -> Reasons:
    if not shown.by_rank(shown.clicks)[0]:
        return ["no click at rank 1"] * shown.ranks
    return [
        "no chain of (query, document) pairs, each clicked and shown at two ranks, connects it to rank 1"
        if seen
        else f"nothing was shown at rank {k}"
        for k, seen in enumerate(shown.impressions, start=1)
    ]


def _logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    # Each step begins where the last one ended; the penalty only keeps separable data finite.
    return LogisticRegression(C=100.0, solver="newton-cholesky", warm_start=True)


def _boosted(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(
        max_iter=20, learning_rate=0.3, max_leaf_nodes=16, early_stopping=False, random_state=seed
    )


_MODELS = {"logistic": _logistic, "boosted": _boosted}


def posteriors(p: FloatArray, r: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the probability that a result was examined, and that it is relevant, though it was not clicked."""
    both = p * r
    skipped = np.maximum(1 - both, np.finfo(np.float64).tiny)
    return (p - both) / skipped, (r - both) / skipped


def ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Return part / whole, NaN where there is no whole."""
    return np.asarray(np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=whole > 0))


def _refit(model: Any, vectors: FloatArray, positive: FloatArray, negative: FloatArray, sample: IntArray) -> FloatArray:
    """Fit the model to how often each vector of a sample was labelled relevant and not, and return the relevance."""
    yes, no = sample[positive[sample] > 0], sample[negative[sample] > 0]
    if not len(yes) or not len(no):
        return np.full(len(vectors), float(len(yes) > 0))
    rows, labels = np.concatenate([yes, no]), np.repeat([1, 0], [len(yes), len(no)])
    model.fit(vectors[rows], labels, sample_weight=np.concatenate([positive[yes], negative[no]]))
    return np.asarray(model.predict_proba(vectors)[:, 1], dtype=np.float64)


def explain_rates(impressions: FloatArray, clicks: FloatArray) -> Reasons:
    """Return, for each rank, why there is no relative rate, or None."""
    if not clicks[0]:
        return ["no click at rank 1"] * len(clicks)
    return [None if shown else f"nothing was shown at rank {k}" for k, shown in enumerate(impressions, start=1)]


def _binned(vectors: FloatArray) -> FloatArray:
    """Return features as the bins that trees see, once and not anew at each step."""
    binned = vectors.copy()
    for column in binned.T:
        known = ~np.isnan(column)
        edges = np.unique(np.quantile(column[known], np.arange(1, _BINS) / _BINS)) if known.any() else column[:0]
        column[known] = np.searchsorted(edges, column[known])
    return binned


def relative_rates(impressions: FloatArray, clicks: FloatArray) -> FloatArray:
    """Return the click rate of each rank over that of rank 1; NaN where nothing was shown, or rank 1 not clicked."""
    rate = np.divide(clicks, impressions, out=np.full(clicks.shape, np.nan), where=impressions > 0)
    return np.asarray(np.divide(rate, rate[..., :1], out=np.full(rate.shape, np.nan), where=rate[..., :1] > 0))
