"""The usual alternatives, for comparison: click rates (NaiveCTR) and click models fitted by EM (PBMEM, RegressionEM).

None of them holds the document fixed by an intervention, so each is biased for a reason that its docstring names.

PBMEM maximises the likelihood of the position-based model with one relevance r_i for each item i, a (query, document)
pair::

    Σ_i Σ_k  c log(p_k r_i) + n log(1 − p_k r_i)  +  prior · Σ log(p (1 − p))  +  prior · Σ log(r (1 − r))

with c clicks and n skips. In x = log p and u = log r it is concave: linear terms and log(1 − e^z), with p, r ≤ 1. Given
p, each r is the root of an equation of its own, so that M numbers remain, and Newton has their exact Hessian: with q =
n p r / (1 − p r)², the curvature of a term, each item adds diag(q) − q qᵀ / Σ q.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, sum_by_index
from posbias._defaults import DEFAULT_LEVEL, DEFAULT_MAX_RANK
from posbias._optional import optional
from posbias._text import listed
from posbias.errors import EstimateError
from posbias.estimators.base import (
    DEFAULT_INTERVAL,
    DEFAULT_RESAMPLES,
    Interval,
    LogEstimator,
    Reasons,
    ReportedCounts,
    no_intervals,
    reachable_ranks,
)
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
# The inner iterations for r given p, and their relative tolerance.
_INNER_STEPS, _INNER_TOLERANCE = 100, 1e-13
# Newton on log p: the largest step, and the most halvings of a step.
_MAX_STEP, _MAX_HALVINGS = 2.0, 30
# A refit that is further away than this in log p takes all steps, not one.
_MAX_ONE_STEP = 0.1
_MAX_PRIOR = 1_000_000
# Rows of a log times refits: up to this number they take less than a minute.
_MAX_REFITTED_ROWS = 4 * 10**8
# EM stops if the curve did not move for this many iterations: a single small step may be chance.
_STABLE_ITERATIONS = 5
# The number of bins of each feature for boosted trees.
_FEATURE_BINS = 255


class ClickRates(LogEstimator):
    """The base class of estimators that compare click rates: p_k / p_1 is the click rate at k over that at 1.

    A subclass defines how to `observe` a log, and which page views to `count`.
    """

    fits_on = ("log", "harvest")

    @abstractmethod
    def count(self, data: Observations | Harvest) -> tuple[FloatArray, ReportedCounts]:
        """Return impressions and clicks by bucket and rank, (2, B, M), and the counts that are reported."""

    def fit(
        self,
        log: ClickLog | Observations | Harvest,
        *,
        by: str | Sequence[str] = (),
        engine: EngineChoice | None = None,
        progress: Progress = silent,
        force: bool = False,
    ) -> Self:
        """Estimate the curve of a log or a harvest, and of each of its segments.

        Arguments:
            log (ClickLog, Observations or Harvest): the click log, what `observe` returned for it, or a harvest. The
                arguments `by`, `engine` and `progress` apply to a log only.
            by (str or sequence of str, default ()): columns that define segments; each segment gets a curve of its own.
            engine (Engine, str or None, default None): "duckdb" (embedded, the default) or "spark" (the active
                session).
            progress (callable, default silent): called with a description of the step and the share that is done.
            force (bool, default False): whether to go on if the log or the harvest has errors.
        """
        if not isinstance(log, Harvest):
            return super().fit(log, by=by, engine=engine, progress=progress, force=force)
        self._check()
        self.check_harvest(log, force=force)
        return self._fit_data(log)

    def check_harvest(self, harvest: Harvest, *, force: bool) -> None:
        """Reject a harvest on which the estimator is biased; logs are checked when they are observed."""

    def estimate(self, data: Observations | Harvest) -> None:
        """Estimate one curve, without segments, and store it."""
        counts, reported = self.count(data)
        # Buckets without these page views are not buckets of this estimate.
        impressions, clicks = counts[:, counts[0].any(axis=1)]
        total_impressions, total_clicks = impressions.sum(axis=0), clicks.sum(axis=0)
        propensity = relative_rates(total_impressions, total_clicks)
        intervals = self._compute_intervals(
            propensity, len(impressions), lambda weights: relative_rates(weights @ impressions, weights @ clicks)
        )
        self._store(reported, propensity, explain_rates(total_impressions, total_clicks), intervals)


class NaiveCTR(ClickRates):
    """Estimate p_k / p_1 as the click rate at k over that at 1, without controlling for relevance.

    It is here for comparison. Rankers put better documents first, so click rates fall by relevance and by examination
    at once: the curve is too steep, the more so the better the rankers are, and more data do not help. It fits on a log
    or a harvest.

    Arguments:
        max_rank (int, default 10): M; results shown below rank M are not counted. A harvest has its own M.
        level (float, default 0.95): the coverage of the intervals.
        interval (str or None, default "jackknife"): "jackknife" leaves out one bucket of queries at a time, "bootstrap"
            takes percentiles of resampled buckets, None computes no intervals.
        bootstrap (int, default 1000): the number of bootstrap resamples.
        seed (int, default 0): the random seed of the resamples. Nothing else is random.

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

    def count(self, data: Observations | Harvest) -> tuple[FloatArray, ReportedCounts]:
        """Return the counts of all rankers together."""
        return counts_by_bucket(data).sum(axis=2), ReportedCounts.of(data)


class PBMEM(LogEstimator):
    """Estimate p_k / p_1 by maximum likelihood of P(click) = p_k r_{qd}, one r_{qd} for each (query, document) pair.

    It is here for comparison. **It depends on repeats.** A pair that was shown at one rank only, however often, does
    not inform about examination: any p_k goes with some r. Ranks that no clicked pair connects to rank 1 are NaN. The
    other ranks suffer, too: with a few impressions for each pair, r is mostly the `prior`, and the curve is biased
    however large the log is. Only many repeats of each pair help, and the intervals do not show the bias.

    EM converges to this maximum ever more slowly. The likelihood is concave in log p and log r, so it has one maximum,
    and Newton's method on log p, with the best r for each p, finds it.

    Arguments:
        max_rank (int, default 10): M; results shown below rank M are not counted.
        iterations (int, default 200): the maximal number of iterations.
        tolerance (float, default 1e-6): stop when no log p_k moves by more.
        prior (float, default 1): pseudo-impressions of each kind (examined and not, relevant and not) that are added to
            the data of each parameter. 1 is customary, a uniform prior. 0 is maximum likelihood, where a pair that was
            clicked each time has r = 1.
        level (float, default 0.95): the coverage of the intervals.
        interval (str or None, default "jackknife"): "jackknife" leaves out one bucket of queries at a time, "bootstrap"
            takes percentiles of resampled buckets, None computes no intervals. A log of very many pairs has none.
        bootstrap (int, default 1000): the number of bootstrap resamples.
        seed (int, default 0): the random seed of the resamples. Nothing else is random.

    Attributes:
        iterations_ (int): the number of iterations.
        converged_ (bool): whether the last step was smaller than `tolerance`.

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
        interval: Interval | None = DEFAULT_INTERVAL,
        bootstrap: int = DEFAULT_RESAMPLES,
        seed: int = 0,
    ) -> None:
        super().__init__(max_rank=max_rank, level=level, interval=interval, bootstrap=bootstrap, seed=seed)
        self.iterations = iterations
        self.tolerance = tolerance
        self.prior = prior

    def _check(self) -> None:
        super()._check()
        number = isinstance(self.prior, int | float) and not isinstance(self.prior, bool)
        if not number or not 0 <= self.prior <= _MAX_PRIOR:
            raise EstimateError(
                f"prior must be a number of pseudo-impressions, from 0 to {_MAX_PRIOR:,}, not {self.prior!r}."
            )

    def observe(self, log: ClickLog, **options: Any) -> Observations:
        """Return impressions and clicks of each pair at each rank."""
        return observe_pairs(log, max_rank=self.max_rank, **options)

    def estimate(self, observations: Observations) -> None:
        """Estimate one curve, without segments, and store it."""
        items = ItemCounts.of(observations.rows, observations.max_rank)
        likelihood = PBMLikelihood.of(items, observations.rows["bucket"][items.first_row], self.prior)
        maximum = likelihood.maximise(likelihood.start(), self.iterations, self.tolerance)
        self.iterations_, self.converged_ = maximum.steps, maximum.converged
        connected = items.connected_ranks()
        propensity = np.where(connected, likelihood.relative_curve(maximum.x), np.nan)
        buckets = likelihood.rows.buckets
        refits = self.bootstrap if self.interval == "bootstrap" else buckets
        if self.interval is not None and len(items.item) * refits > _MAX_REFITTED_ROWS:
            reason = f"no interval: {refits:,} refits of {len(items.item):,} rows would take too long"
            intervals = no_intervals(items.ranks, reason)
        else:
            intervals = self._compute_intervals(propensity, buckets, partial(self._refits, items, likelihood, maximum))
        self._store(ReportedCounts.of(observations), propensity, _explain_pairs(items, connected), intervals)

    def _refits(
        self, items: ItemCounts, likelihood: PBMLikelihood, maximum: Maximum, weights: FloatArray
    ) -> FloatArray:
        """Return the curve for each row of bucket weights."""
        curves = likelihood.refits(maximum, weights, self.iterations, self.tolerance)
        connected = [items.connected_ranks(times[likelihood.rows.cell_bucket] > 0) for times in weights]
        return np.where(connected, curves, np.nan)


class RegressionEM(LogEstimator):
    """Estimate p_k / p_1 by EM of P(click) = p_k γ(x), where γ is a model of relevance on features of the documents.

    It is here for comparison. **It depends on the relevance model.** Queries need not recur, and one ranker is enough,
    but only because the model is trusted to know relevance. What the features or the model miss is mistaken for
    examination, and the curve is biased however large the log is. Features without information give the curve of
    `NaiveCTR`. Requires scikit-learn: pip install 'posbias[learn]'.

    There are no intervals: `interval_` is NaN. The E-step samples labels of relevance, so on a small log the curve
    fluctuates and does not converge.

    Arguments:
        features (sequence of str): the columns of the log with the features, numbers or booleans.
        max_rank (int, default 10): M; results shown below rank M are not counted.
        model (str or classifier, default "logistic"): "logistic" regression, "boosted" trees, or any scikit-learn
            classifier that takes sample weights.
        iterations (int, default 100): the maximal number of iterations.
        tolerance (float, default 5e-4): stop when no p_k / p_1 has moved by more for five iterations.
        sample (int, default 500000): the model is fitted to at most this many feature vectors, drawn once; p_k always
            comes from all rows.
        seed (int, default 0): the random seed of the labels and the sample.

    Attributes:
        iterations_ (int): the number of iterations.
        converged_ (bool): whether the curve stopped moving.
        model_ (classifier): the fitted model of relevance.

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
                "RegressionEM needs features: a list of columns of the log that predict relevance, such as "
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
        """Estimate one curve, without segments, and store it."""
        items = ItemCounts.of(observations.rows, observations.max_rank)
        model, vectors = self._prepare(observations, items)
        rng = np.random.default_rng(self.seed)
        p, r = np.full(items.ranks, 0.5), np.full(items.size, 0.5)
        curves = [np.ones(items.ranks)]
        sample = np.sort(rng.permutation(items.size)[: self.sample])
        for iteration in range(1, self.iterations + 1):
            examined, relevant = posteriors(p[items.rank], r[items.item])
            # A clicked result is relevant; a skipped one is labelled relevant with its posterior probability.
            labels = rng.binomial(items.skips.astype(np.int64), np.clip(relevant, 0, 1))
            positive = items.sum_by_item(items.clicks + labels)
            p = ratio(items.sum_by_rank(items.clicks + items.skips * examined), items.impressions)
            r = _fit_relevance(model, vectors, positive, items.item_impressions - positive, sample)
            curves.append(ratio(p, p[0]))
            moved = np.nanmax(np.ptp(curves[-1 - _STABLE_ITERATIONS :], axis=0), initial=0)
            self.iterations_ = iteration
            self.converged_ = bool(iteration > _STABLE_ITERATIONS and moved < self.tolerance)
            if self.converged_:
                break
        self.model_ = model
        clicks = items.sum_by_rank(items.clicks)
        # Without a click the most likely p_k is 0, which EM only approaches.
        curve = np.where(clicks > 0, curves[-1], np.where(items.impressions > 0, 0.0, np.nan))
        propensity = curve if clicks[0] > 0 else np.full(items.ranks, np.nan)
        self._store(ReportedCounts.of(observations), propensity, explain_rates(items.impressions, clicks))

    def _prepare(self, observations: Observations, items: ItemCounts) -> tuple[Any, FloatArray]:
        """Return the model and the feature vectors, binned or standardised as the model needs them."""
        from sklearn.base import clone

        rows = observations.rows
        vectors = np.column_stack([rows[f"feature_{i}"][items.first_row] for i in range(len(self.features))])
        if not isinstance(self.model, str):
            return clone(self.model), vectors
        if self.model == "boosted":
            return _MODELS[self.model](self.seed), _bin_features(vectors)
        for column, values in zip(self.features, vectors.T, strict=True):
            bad = int((~np.isfinite(values)).sum())
            if bad:
                raise EstimateError(
                    f"The feature {column!r} has no finite value in {bad:,} of {len(values):,} distinct vectors, which "
                    "logistic regression cannot use. Fill in the missing values (sql), or choose model='boosted'."
                )
        spread = vectors.std(axis=0)
        return _MODELS[self.model](self.seed), (vectors - vectors.mean(axis=0)) / np.where(spread > 0, spread, 1)


def counts_by_bucket(data: Observations | Harvest) -> FloatArray:
    """Return impressions and clicks by bucket, ranker and rank: (2, B, m, M)."""
    if isinstance(data, Harvest):
        return data.counts("bucket", "ranker", "rank").astype(np.float64)
    rows = data.totals
    buckets, bucket = np.unique(rows["bucket"], return_inverse=True)
    shape = (len(buckets), len(data.rankers), data.max_rank)
    where = np.ravel_multi_index((bucket, rows["ranker"], rows["rank"] - 1), shape)
    counts = [sum_by_index(where, rows[name], int(np.prod(shape))) for name in ("impressions", "clicks")]
    return np.stack(counts).reshape(2, *shape)


@dataclass(frozen=True)
class ItemCounts:
    """Clicks and skips of items, each with one relevance, at each rank. Rows are sorted, so that sums are repeatable.

    Attributes:
        item (array of int): the item of each row, from 0 without gaps.
        rank (array of int): its rank, from 0.
        clicks (array): its clicks.
        skips (array): its impressions without a click.
        size (int): the number of items.
        ranks (int): M.
        impressions (array): impressions by rank.
        item_impressions (array): impressions by item.
        first_row (array of int): a row of the observations for each item.
    """

    item: IntArray
    rank: IntArray
    clicks: FloatArray
    skips: FloatArray
    size: int
    ranks: int
    impressions: FloatArray
    item_impressions: FloatArray
    first_row: IntArray

    @classmethod
    def of(cls, rows: Columns, max_rank: int) -> ItemCounts:
        """Return the items of a log or a segment."""
        order = np.lexsort((rows["clicks"], rows["impressions"], rows["rank"], rows["item"]))
        rank, impressions, clicks = (rows[name][order] for name in ("rank", "impressions", "clicks"))
        new = np.diff(rows["item"][order], prepend=-1) > 0
        item, size, rank = np.cumsum(new) - 1, int(new.sum()), rank - 1
        return cls(
            item=item,
            rank=rank,
            clicks=clicks.astype(np.float64),
            skips=(impressions - clicks).astype(np.float64),
            size=size,
            ranks=max_rank,
            impressions=sum_by_index(rank, impressions, max_rank),
            item_impressions=sum_by_index(item, impressions, size),
            first_row=order[new],
        )

    def sum_by_rank(self, values: FloatArray) -> FloatArray:
        """Return the sum of values at each rank."""
        return sum_by_index(self.rank, values, self.ranks)

    def sum_by_item(self, values: FloatArray) -> FloatArray:
        """Return the sum of values of each item."""
        return sum_by_index(self.item, values, self.size)

    def connected_ranks(self, counted: BoolArray | None = None) -> BoolArray:
        """Return which ranks chains of items, each clicked and shown at two ranks, connect to rank 1.

        Arguments:
            counted (array of bool, default None): which items count; by default all.
        """
        used = self.sum_by_item(self.clicks) > 0
        if counted is not None:
            used &= counted
        item, rank = self.item[used[self.item]], self.rank[used[self.item]]
        same = np.flatnonzero(item[1:] == item[:-1])
        links = np.zeros((self.ranks, self.ranks), dtype=np.bool_)
        links[rank[same], rank[same + 1]] = links[rank[same + 1], rank[same]] = True
        first_clicked = np.any((self.rank == 0) & (self.clicks > 0) & used[self.item])
        return reachable_ranks(links) & first_clicked


# ---- The likelihood of the position-based model


@dataclass(frozen=True)
class PBMLikelihood:
    """The likelihood of the position-based model, with the formulas of the module's docstring.

    Attributes:
        rows (CellRows): a row for each item and rank; items are its cells.
        prior (float): pseudo-impressions.
        free (array of bool): the ranks whose p is estimated; without a prior, those with a click.
    """

    rows: CellRows
    prior: float
    free: BoolArray

    @classmethod
    def of(cls, items: ItemCounts, bucket: IntArray, prior: float) -> PBMLikelihood:
        """Return the likelihood of items, given the bucket of each."""
        buckets, number = np.unique(bucket, return_inverse=True)
        rows = CellRows(
            cell=items.item,
            rank=items.rank,
            views=items.clicks + items.skips,
            clicks=items.clicks,
            design_row=np.zeros(len(items.item), dtype=np.int64),
            design=None,
            cell_bucket=number,
            cell_stratum=np.zeros(items.size, dtype=np.int64),
            cell_weight=np.ones(items.size),
            mergeable=False,
            buckets=len(buckets),
            ranks=items.ranks,
        )
        return cls(rows, prior, _free_ranks(rows, prior))

    def weighted(self, weights: FloatArray) -> PBMLikelihood:
        """Return the likelihood of weighted buckets."""
        rows = replace(self.rows, cell_weight=weights[self.rows.cell_bucket])
        return replace(self, rows=rows, free=_free_ranks(rows, self.prior))

    def start(self) -> FloatArray:
        """Return a start for log p from the click rates of the ranks."""
        clicks, views = self.rows.sum_by_rank(self.rows.clicks) + 0.5, self.rows.sum_by_rank(self.rows.views) + 1
        return np.asarray(np.log(clicks / views) - np.log(clicks / views).max() - 0.1)

    def relative_curve(self, x: FloatArray) -> FloatArray:
        """Return p_k / p_1; 0 at a rank without a click or a prior, NaN where nothing was shown."""
        seen = self.rows.sum_by_rank(self.rows.views) > 0
        return np.where(self.free, np.exp(x - x[0]), np.where(seen & self.free[0], 0.0, np.nan))

    def maximise(self, x: FloatArray, steps: int, tolerance: float, relevance: FloatArray | None = None) -> Maximum:
        """Return the maximum by Newton's method from x with halved steps, under p ≤ 1.

        Arguments:
            x (array of length M): the start.
            steps (int): the maximal number of steps.
            tolerance (float): the last step.
            relevance (array, default None): a start for r; by default ½.
        """
        x = np.where(self.free, np.minimum(x, 0.0), 0.0)
        if self.prior:
            x = np.where(self.free, np.minimum(x, -1e-6), 0.0)
        here = self.at(x, np.full(len(self.rows.cell_bucket), 0.5) if relevance is None else relevance)
        for step in range(1, steps + 1):
            moving = self.moving_ranks(x, here)
            direction = self._newton_direction(here, moving)
            size = float(np.abs(direction).max(initial=0))
            if size < tolerance:
                return Maximum(x, here.relevance, step, converged=True)
            scale = min(1.0, _MAX_STEP / size)
            for _ in range(_MAX_HALVINGS):
                next_x = x.copy()
                next_x[moving] = self._below_bound(x[moving] + scale * direction, x[moving])
                there = self.at(next_x, here.relevance)
                if there.value >= here.value:
                    break
                scale /= 2
            else:
                # No point is higher within rounding error: it is the maximum if the gradient is rounding error, too.
                flat = np.abs(here.gradient[moving]).max(initial=0) <= 1e-7 * max(1.0, self.rows.clicks.sum())
                return Maximum(x, here.relevance, step, converged=bool(flat))
            x, here = next_x, there
        return Maximum(x, here.relevance, steps, converged=False)

    def moving_ranks(self, x: FloatArray, here: LikelihoodSlope) -> IntArray:
        """Return the free ranks that the bound p ≤ 1 does not hold."""
        return np.flatnonzero(self.free & ~((x >= 0) & (here.gradient > 0) & (self.prior == 0)))

    def _below_bound(self, x: FloatArray, before: FloatArray) -> FloatArray:
        """Return log p below its bound 0; with a prior, which diverges there, at most half the way to it."""
        if self.prior:
            return np.minimum(x, before / 2)
        return np.minimum(x, 0.0)

    def _newton_direction(self, here: LikelihoodSlope, moving: IntArray) -> FloatArray:
        information = here.information[np.ix_(moving, moving)]
        # Where only ratios of p are identified, a small ridge keeps their level.
        ridge = 1e-10 * np.maximum(np.diagonal(information), 1 + np.abs(here.gradient[moving]))
        return np.asarray(np.linalg.solve(information + np.diag(ridge), here.gradient[moving]))

    def at(self, x: FloatArray, r: FloatArray) -> LikelihoodSlope:
        """Return the likelihood at x with the best r for it, which is searched for from a given r."""
        rows, prior = self.rows, self.prior
        p = np.where(self.free, np.exp(x), 0.0)
        row_p = p[rows.rank]
        r = self._best_relevance(row_p, r)
        t = np.minimum(row_p * r[rows.cell], 1 - 1e-16)
        skips = rows.views - rows.clicks
        # A term without clicks, or without skips, is 0, even if its logarithm is infinite.
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
            free_p = p[self.free]
            value += prior * (np.log(free_p) + np.log1p(-free_p)).sum()
        share = np.where((r < 1)[rows.cell], q / np.maximum(total, _TINY)[rows.cell], 0.0)
        information = np.diag(rows.sum_by_rank(q)) - rows.cross_products((share, q), by_bucket=False)
        if prior:
            gradient = gradient + np.where(self.free, prior * (1 - 2 * p) / np.maximum(1 - p, _TINY), 0.0)
            information += np.diag(np.where(self.free, prior * p / np.maximum(1 - p, _TINY) ** 2, 0.0))
        return LikelihoodSlope(float(value), gradient, information, r, (rows.clicks - pull, q, share))

    def refits(self, maximum: Maximum, weights: FloatArray, steps: int, tolerance: float) -> FloatArray:
        """Return p_k / p_1 with buckets counted `weights` (n, B) times: by one Newton step, or by all if it is long."""
        rows, here = self.rows, self.at(maximum.x, maximum.relevance)
        push, q, q_share = here.parts
        moving, index = self.moving_ranks(maximum.x, here), np.arange(rows.ranks)
        by_bucket = rows.sum_by_bucket(push)
        information_by_bucket = -rows.cross_products((q_share, q), by_bucket=True)
        information_by_bucket[:, index, index] += rows.sum_by_bucket(q)
        # The rest comes from the prior, whatever the weights are.
        gradient = weights @ by_bucket + here.gradient - by_bucket.sum(axis=0)
        information = (
            np.tensordot(weights, information_by_bucket, axes=1) + here.information - information_by_bucket.sum(axis=0)
        )
        information = information[:, moving[:, None], moving]
        size = len(moving)
        information[:, np.arange(size), np.arange(size)] *= 1 + 1e-10
        all_steps = (
            np.linalg.solve(information, gradient[:, moving, None])[:, :, 0] if size else np.zeros((len(weights), 0))
        )
        curves = []
        for times, step in zip(weights, all_steps, strict=True):
            # Only ratios of p matter.
            if size and np.ptp(np.append(step, 0.0)) <= _MAX_ONE_STEP:
                x = maximum.x.copy()
                x[moving] += step
                curves.append(self.relative_curve(x))
            else:
                again = self.weighted(times)
                refit = again.maximise(maximum.x, steps, tolerance, maximum.relevance)
                curves.append(again.relative_curve(refit.x))
        return np.array(curves)

    def _best_relevance(self, p: FloatArray, r: FloatArray) -> FloatArray:
        """Return the best r of each item given p at its rows, the root of Σ n p r / (1 − p r) = Σ c, with the prior."""
        rows, prior = self.rows, self.prior
        push = sum_by_index(rows.cell, rows.clicks, len(rows.cell_bucket)) + prior
        skips = rows.views - rows.clicks
        low, high = np.zeros(len(r)), np.ones(len(r))
        r = np.clip(r, 1e-9, 1 - 1e-9)
        for _ in range(_INNER_STEPS):
            t = p * r[rows.cell]
            pull = skips * t / np.maximum(1 - t, _TINY)
            pull_sum, slope = (
                sum_by_index(rows.cell, values, len(r)) for values in (pull, pull / np.maximum(1 - t, _TINY))
            )
            if prior:
                pull_sum += prior * r / (1 - r)
                slope += prior * r / (1 - r) ** 2
            low, high = np.where(pull_sum < push, r, low), np.where(pull_sum < push, high, r)
            # Newton in log r; where it leaves the bracket, the middle of the bracket.
            with np.errstate(over="ignore"):
                ahead = r * np.exp(np.clip((push - pull_sum) / np.maximum(slope, _TINY), -50, 50))
            ahead = np.where((ahead > low) & (ahead < high), ahead, (low + high) / 2)
            moved = np.abs(ahead - r) > _INNER_TOLERANCE * r
            r = ahead
            if not moved.any():
                break
        bounded = self._at_one(p, skips, push) if not prior else np.zeros(len(r), dtype=np.bool_)
        return np.where(bounded, 1.0, np.where(push > 0, r, 0.0))

    def _at_one(self, p: FloatArray, skips: FloatArray, push: FloatArray) -> BoolArray:
        """Return which items have r = 1: there, clicks push upward more than skips pull down."""
        cell = self.rows.cell
        with np.errstate(divide="ignore", invalid="ignore"):
            pull = np.where(skips > 0, skips * p / (1 - p), 0.0)
        return sum_by_index(cell, pull, len(push)) <= push


def _free_ranks(rows: CellRows, prior: float) -> BoolArray:
    return (rows.sum_by_rank(rows.clicks) > 0) | ((rows.sum_by_rank(rows.views) > 0) & (prior > 0))


class Maximum(NamedTuple):
    """The maximum of the likelihood."""

    x: FloatArray  # log p
    relevance: FloatArray  # r
    steps: int
    converged: bool


class LikelihoodSlope(NamedTuple):
    """The likelihood at one x = log p, with the best r."""

    value: float
    gradient: FloatArray  # its first derivative
    information: FloatArray  # minus its second derivative
    relevance: FloatArray  # r
    parts: tuple[FloatArray, FloatArray, FloatArray]  # by row: c − n p r / (1 − p r), q, and q / Σ q


def _explain_pairs(items: ItemCounts, connected: BoolArray) -> Reasons:
    """Return, for each rank, why no pairs connect it to rank 1."""
    if not items.sum_by_rank(items.clicks)[0]:
        return ["no click at rank 1"] * items.ranks
    return [
        "no chain of (query, document) pairs, each clicked and shown at two ranks, connects it to rank 1; use more data"
        if impressions
        else f"no result was shown at rank {k}"
        for k, impressions in enumerate(items.impressions, start=1)
    ]


# ---- The relevance model of RegressionEM


def _logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    # Each fit starts from the last one. The penalty only keeps coefficients of separable data finite.
    return LogisticRegression(C=100.0, solver="newton-cholesky", warm_start=True)


def _boosted(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(
        max_iter=20, learning_rate=0.3, max_leaf_nodes=16, early_stopping=False, random_state=seed
    )


_MODELS = {"logistic": _logistic, "boosted": _boosted}


def posteriors(p: FloatArray, r: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the probabilities that a result without a click was examined, and that it is relevant."""
    both = p * r
    skipped = np.maximum(1 - both, np.finfo(np.float64).tiny)
    return (p - both) / skipped, (r - both) / skipped


def ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Return part / whole; NaN where the whole is 0."""
    return np.asarray(np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=whole > 0))


def _fit_relevance(
    model: Any, vectors: FloatArray, positive: FloatArray, negative: FloatArray, sample: IntArray
) -> FloatArray:
    """Fit the model to how often each vector of a sample was labelled relevant or not, and return all relevances."""
    relevant, irrelevant = sample[positive[sample] > 0], sample[negative[sample] > 0]
    if not len(relevant) or not len(irrelevant):
        return np.full(len(vectors), float(len(relevant) > 0))
    rows = np.concatenate([relevant, irrelevant])
    labels = np.repeat([1, 0], [len(relevant), len(irrelevant)])
    model.fit(vectors[rows], labels, sample_weight=np.concatenate([positive[relevant], negative[irrelevant]]))
    return np.asarray(model.predict_proba(vectors)[:, 1], dtype=np.float64)


def explain_rates(impressions: FloatArray, clicks: FloatArray) -> Reasons:
    """Return, for each rank, why it has no relative click rate, or None."""
    if not clicks[0]:
        return ["no click at rank 1"] * len(clicks)
    return [None if n else f"no result was shown at rank {k}" for k, n in enumerate(impressions, start=1)]


def _bin_features(vectors: FloatArray) -> FloatArray:
    """Return features as quantile bins, as trees use them, so that they are binned once and not at each step."""
    binned = vectors.copy()
    for column in binned.T:
        known = ~np.isnan(column)
        edges = (
            np.unique(np.quantile(column[known], np.arange(1, _FEATURE_BINS) / _FEATURE_BINS))
            if known.any()
            else column[:0]
        )
        column[known] = np.searchsorted(edges, column[known])
    return binned


def relative_rates(impressions: FloatArray, clicks: FloatArray) -> FloatArray:
    """Return the click rate of each rank over that of rank 1; NaN where nothing was shown, or rank 1 not clicked."""
    rate = np.divide(clicks, impressions, out=np.full(clicks.shape, np.nan), where=impressions > 0)
    return np.asarray(np.divide(rate, rate[..., :1], out=np.full(rate.shape, np.nan), where=rate[..., :1] > 0))
