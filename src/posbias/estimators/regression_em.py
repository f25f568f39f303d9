"""RegressionEM: the position-based model by EM, with relevance from a model on features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from posbias.arrays import FloatArray, IntArray
from posbias.errors import EstimateError
from posbias.estimators.base import Evidence
from posbias.estimators.click_rates import explain_rates
from posbias.estimators.logged import LogEstimator
from posbias.estimators.pbm_items import ShownItems, posteriors, ratio
from posbias.extras import optional
from posbias.harvesting.observations import Observations, observe_features
from posbias.logs.click_log import ClickLog
from posbias.wording import listed

# The curve must stand still for so many iterations: one step may be small by chance, and long before EM is done.
_WINDOW = 5
_BINS = 255


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
        max_rank: int = 10,
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

    def observe(self, log: ClickLog, **how: Any) -> Observations:
        """Return impressions and clicks of each vector of features at each rank."""
        return observe_features(log, self.features, max_rank=self.max_rank, **how)

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
        self._keep(Evidence.of(observations), propensity, explain_rates(shown.impressions, clicks))

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


def _binned(vectors: FloatArray) -> FloatArray:
    """Return features as the bins that trees see, once and not anew at each step."""
    binned = vectors.copy()
    for column in binned.T:
        known = ~np.isnan(column)
        edges = np.unique(np.quantile(column[known], np.arange(1, _BINS) / _BINS)) if known.any() else column[:0]
        column[known] = np.searchsorted(edges, column[known])
    return binned


def _refit(model: Any, vectors: FloatArray, positive: FloatArray, negative: FloatArray, sample: IntArray) -> FloatArray:
    """Fit the model to how often each vector of a sample was labelled relevant and not, and return the relevance."""
    yes, no = sample[positive[sample] > 0], sample[negative[sample] > 0]
    if not len(yes) or not len(no):
        return np.full(len(vectors), float(len(yes) > 0))
    rows, labels = np.concatenate([yes, no]), np.repeat([1, 0], [len(yes), len(no)])
    model.fit(vectors[rows], labels, sample_weight=np.concatenate([positive[yes], negative[no]]))
    return np.asarray(model.predict_proba(vectors)[:, 1], dtype=np.float64)
