"""One run of the experiment "learning": simulate clicks, make training labels from them, and train rankers.

`Site` is a simulated search service, `Clicked` its clicks, and `Lesson` a training set with its loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from experiments.judgments import Judgments
from experiments.outcomes import seed_of
from experiments.ranking_svm import ndcg, rank_documents, rank_scores, train_ranker
from posbias._arrays import BoolArray, FloatArray, IntArray
from posbias._defaults import DEFAULT_CAP
from posbias._optional import optional
from posbias.engines.duckdb import DuckDB
from posbias.errors import EstimateError, PosbiasError
from posbias.estimators import AllPairs, CrossFit
from posbias.harvesting.harvest import harvest
from posbias.learning.learners import blend_factors, cautious_factors, choose_rule
from posbias.logs.click_log import ClickLog
from posbias.objectives import (
    poisson_exposure,
    poisson_loss,
    poisson_start,
    scaled_counts,
    scaled_weights,
    softmax_ips,
    softmax_loss,
)
from posbias.simulation.users import PositionBased

# The cap of inverse propensities, the default of `posbias weights`.
CAP = DEFAULT_CAP
Features = npt.NDArray[np.float32]
# Scores of documents, one row for each number of trees.
Scores = FloatArray
# These parameters were fixed before the first result, and are the same for all rules.
RATE, LEAVES, IN_LEAF, PENALTY = 0.1, 15, 20, 1.0
_LIGHTGBM = {
    "learning_rate": RATE,
    "num_leaves": LEAVES,
    "min_data_in_leaf": IN_LEAF,
    "lambda_l2": PENALTY,
    "num_threads": 1,
    "verbosity": -1,
    "seed": 0,
    "force_col_wise": True,
    "max_bin": 63,
}
_XGBOOST = {
    "learning_rate": RATE,
    "max_depth": 0,
    "max_leaves": LEAVES,
    "grow_policy": "lossguide",
    "min_child_weight": 1.0,
    "lambda": PENALTY,
    "tree_method": "hist",
    "max_bin": 63,
    "nthread": 1,
    "seed": 0,
    "verbosity": 0,
}
_LINEAR_PENALTY = 1e-3
# The results per page, and the click noise of the paper.
RANKS, _NOISE = 10, 0.1
# Training queries of each production ranker: enough to be useful, too few to be perfect.
_PRODUCTION = 30
# A weak ranker ranks by one of the features whose correlation with the grade, within queries, is closest to this.
_WEAK_CORRELATION, _WEAK_FEATURES = 0.05, 6
# Too few queries could be split, but not learned from.
_MIN_QUERIES = 100
_FOLDS = 2
# The built-in corrections of the learners; the learners that also use true propensities; and the one that
# cross-validates. The last two are slow and depend little on the learner, so not all learners do them.
_BUILT_IN = {"LightGBM": "position", "XGBoost": "lambdarank_unbiased"}
_WITH_TRUTH, _CHOOSING = ("linear", "LightGBM"), "LightGBM"
Rule = str
# nDCG@10 at each number of trees, by learner and rule.
NdcgByRule = dict[tuple[str, Rule], FloatArray]


def learn_from_clicks(site: Site, eta: float, views: int, trees: Sequence[int], seed: int) -> NdcgByRule:
    """Simulate a log, estimate the curve from it, and train every learner by every rule."""
    user = site.user(eta)
    clicked = draw_clicks(site.training, site.rankings, user, views, seed_of(seed, eta, views))
    true, estimated = user.propensity(RANKS), clicked.estimate()
    found: NdcgByRule = {}
    for name, learn in LEARNERS.items():
        curves = {"": estimated, ", true p": true} if name in _WITH_TRUTH else {"": estimated}
        lessons = {"naive": ips_lesson(clicked, np.ones(RANKS))}
        for of, p in curves.items():
            lessons |= {f"IPS{of}": ips_lesson(clicked, p), f"Poisson{of}": exposure_lesson(clicked, p)}
        scores = {rule: learn(lesson, [site.held_out.features], trees)[0] for rule, lesson in lessons.items()}
        for of, p in curves.items():
            three, n = [scores[rule] for rule in ("naive", f"IPS{of}", f"Poisson{of}")], clicked.effective_clicks(p)
            scores[f"cautious{of}"] = add_up(cautious_factors, site.held_out, n, *three)
        n = clicked.effective_clicks(estimated)
        scores["blend"] = add_up(blend_factors, site.held_out, n, scores["IPS"], scores["Poisson"])
        found |= {(name, rule): site.quality(given) for rule, given in scores.items()}
        if name == _CHOOSING:
            ips = prefers_ips(clicked, estimated, learn, trees)
            found[name, "chosen"] = np.where(ips, found[name, "IPS"], found[name, "Poisson"])
        if name in _BUILT_IN:
            found[name, _BUILT_IN[name]] = site.quality(
                learn_built_in(clicked, _BUILT_IN[name], site.held_out.features, trees)
            )
    return found


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Site:
    """A simulated search service: training queries, held-out queries, and two production rankers."""

    training: Judgments
    held_out: Judgments
    rankings: Mapping[str, IntArray]
    production: float

    def quality(self, scores: Scores) -> FloatArray:
        """Return nDCG@10 on the held-out queries for every row of scores."""
        return np.array([ndcg(self.held_out, rank_scores(self.held_out, one)) for one in scores])

    def user(self, eta: float) -> PositionBased:
        """Return the user model: click probability rises with the grade, like the gain of nDCG."""
        return PositionBased(eta=eta, noise=_NOISE, graded=True, max_grade=max(1, int(self.training.grades.max())))


def draw_clicks(
    judgments: Judgments, rankings: Mapping[str, IntArray], user: PositionBased, views: int, seed: int
) -> Clicked:
    """Simulate clicks: show every query `views` times, each time by a random ranker.

    In the position-based model, clicks on a document do not depend on the rest of the page. So the clicks of all views
    at one rank are one binomial number, and a hundred views cost as much as one.
    """
    rng = np.random.default_rng(seed)
    max_rank = next(iter(rankings.values())).shape[1]
    split = rng.multinomial(views, np.full(len(rankings), 1 / len(rankings)), judgments.queries)
    chance = np.concatenate([[0.0], user.propensity(max_rank)])
    attractive = user.attractiveness(judgments.grades)
    served = {}
    for (name, ranking), of_query in zip(rankings.items(), split.T, strict=True):
        ranks = _ranks(judgments, ranking)
        shows = of_query[judgments.query_of]
        served[name] = Served(ranks, shows, rng.binomial(shows, chance[ranks] * attractive))
    return Clicked(judgments, served, max_rank)


@dataclass(frozen=True, eq=False)
class Clicked:
    """The simulated clicks by ranker, and the number of results per page."""

    judgments: Judgments
    served: Mapping[str, Served]
    max_rank: int

    @property
    def shown(self) -> BoolArray:
        """Whether any page view showed each document."""
        return np.asarray(np.logical_or.reduce([one.shown for one in self.served.values()]))

    @property
    def clicks(self) -> FloatArray:
        """The clicks on every document."""
        return _summed(one.clicks for one in self.served.values())

    def weights(self, propensity: FloatArray) -> FloatArray:
        """Return the IPS label of every document, Σ clicks · min(p_1 / p_k, cap)."""
        inverse = np.concatenate([[0.0], 1 / floored(propensity)])
        return _summed(one.clicks * inverse[one.ranks] for one in self.served.values())

    def effective_clicks(self, propensity: FloatArray) -> float:
        """Return the effective sample size of the weighted clicks, (Σ w)² / Σ w²."""
        inverse = np.concatenate([[0.0], 1 / floored(propensity)])
        first, second = (
            sum(float((one.clicks * inverse[one.ranks] ** power).sum()) for one in self.served.values())
            for power in (1, 2)
        )
        return first**2 / second if second > 0 else 0.0

    def exposure(self, propensity: FloatArray) -> FloatArray:
        """Return the exposure of every document; a view that did not show it counts as one at the last rank."""
        p = floored(propensity)
        seen = np.concatenate([p[-1:], p])
        return _summed(one.views * seen[one.ranks] for one in self.served.values())

    def exposure_shown(self, propensity: FloatArray) -> FloatArray:
        """Return the exposure of every document in the page views that showed it."""
        seen = np.concatenate([[0.0], floored(propensity)])
        return _summed(one.views * seen[one.ranks] for one in self.served.values())

    def to_log(self) -> pa.Table:
        """Return the aggregated log: impressions and clicks of every document by ranker."""
        ranks = {f"rank_{name}": one.ranks for name, one in self.served.items()}
        parts = []
        for name, one in self.served.items():
            rows = np.flatnonzero(one.shown)
            columns = {
                "query_id": self.judgments.query_of[rows],
                "doc_id": rows,
                "ranker": pa.array(np.full(len(rows), name)),
                "position": one.ranks[rows],
                "impressions": one.views[rows],
                "clicks": one.clicks[rows],
            }
            of_all = {column: pa.array(rank[rows], mask=rank[rows] == 0) for column, rank in ranks.items()}
            parts.append(pa.table(columns | of_all))
        return pa.concat_tables(parts).combine_chunks()

    def estimate(self) -> FloatArray:
        """Return the curve that CrossFit estimates from this log; NaN for ranks without an estimate.

        AllPairs stands in for it in a very small log, where no document was clicked at two ranks.
        """
        harvested = harvest(ClickLog(self.to_log()), max_rank=self.max_rank, engine=DuckDB(threads=1))
        try:
            return CrossFit(interval=None).fit(harvested).propensity_
        except EstimateError:
            return AllPairs(interval=None).fit(harvested).propensity_


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Served:
    """The rank of every document by one ranker (0 if not shown), the views of its query, and the clicks on it."""

    ranks: IntArray
    views: IntArray
    clicks: IntArray

    @property
    def shown(self) -> BoolArray:
        """Whether this ranker showed each document."""
        return np.asarray((self.ranks > 0) & (self.views > 0))


def _summed(parts: Iterable[npt.NDArray[Any]]) -> FloatArray:
    return np.asarray(np.sum(list(parts), axis=0), dtype=np.float64)


def floored(propensity: FloatArray) -> FloatArray:
    """Return p with the cap applied; a rank without an estimate takes that of the rank above it.

    Example:
        >>> floored(np.array([1, 0.5, np.nan, 0.01])).tolist()
        [1.0, 0.5, 0.5, 0.05]
    """
    known = np.where(np.isfinite(propensity), np.arange(len(propensity)), 0)
    return np.maximum(propensity[np.maximum.accumulate(known)], 1 / CAP)


def _ranks(judgments: Judgments, ranking: IntArray) -> IntArray:
    """Return the rank of every document; 0 if it is not on the page."""
    ranks = np.zeros(judgments.documents, dtype=np.int64)
    query, place = np.nonzero(ranking >= 0)
    ranks[judgments.offsets[query] + ranking[query, place]] = place + 1
    return ranks


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Lesson:
    """A training set: the features of its rows, the loss of scores, and its first and second derivatives."""

    features: Features
    loss: Callable[[FloatArray], float]
    slopes: Callable[[FloatArray], tuple[FloatArray, FloatArray]]
    start: float = 0.0


def learn_linear(lesson: Lesson, held_out: Sequence[Features], trees: Sequence[int]) -> list[Scores]:
    """Fit a linear ranker; it has no trees, so its scores are the same for every number of trees."""
    from scipy.optimize import minimize

    # Computed in 64 bits: squares of large feature values overflow 32 bits.
    middle = lesson.features.mean(axis=0, dtype=np.float64)
    spread = np.maximum(lesson.features.std(axis=0, dtype=np.float64), 1e-6)
    x = ((lesson.features - middle) / spread).astype(np.float32)
    x = np.column_stack([x, np.ones(len(x), dtype=np.float32)])
    total = max(1, len(x))
    penalty = np.append(np.full(x.shape[1] - 1, _LINEAR_PENALTY), 0)

    def aim(w: FloatArray) -> tuple[float, FloatArray]:
        s = np.clip(x @ w, -50, 50)
        slope = lesson.slopes(s)[0] @ x
        return float(lesson.loss(s) / total + penalty @ w**2 / 2), np.asarray(slope / total + penalty * w)

    first = np.append(np.zeros(x.shape[1] - 1), lesson.start)
    w = minimize(aim, first, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x[:-1] / spread
    return [np.tile(rows @ w, (len(trees), 1)) for rows in held_out]


def learn_lightgbm(lesson: Lesson, held_out: Sequence[Features], trees: Sequence[int]) -> list[Scores]:
    """Fit boosted trees with LightGBM; one fit gives the scores for every number of trees."""
    lightgbm = optional("lightgbm", "This learner needs")
    data = lightgbm.Dataset(lesson.features, init_score=np.full(len(lesson.features), lesson.start), params=_LIGHTGBM)
    settings = _LIGHTGBM | {"objective": lambda scores, _: lesson.slopes(scores)}
    return _lightgbm_scores(lightgbm.train(settings, data, max(trees)), held_out, trees)


def learn_xgboost(lesson: Lesson, held_out: Sequence[Features], trees: Sequence[int]) -> list[Scores]:
    """Fit boosted trees with XGBoost; one fit gives the scores for every number of trees."""
    xgboost = optional("xgboost", "This learner needs")
    data = xgboost.QuantileDMatrix(lesson.features, nthread=1, max_bin=_XGBOOST["max_bin"])
    settings = _XGBOOST | {"base_score": lesson.start}
    model = xgboost.train(settings, data, max(trees), obj=lambda scores, _: lesson.slopes(scores))
    return _xgboost_scores(model, held_out, trees)


def _lightgbm_scores(model: Any, held_out: Sequence[Features], trees: Sequence[int]) -> list[Scores]:
    def part(rows: Features, first: int, last: int) -> FloatArray:
        return np.asarray(model.predict(rows, start_iteration=first, num_iteration=last - first, raw_score=True))

    return [_scores_by_trees(part, rows, trees) for rows in held_out]


def _xgboost_scores(model: Any, held_out: Sequence[Features], trees: Sequence[int]) -> list[Scores]:
    def part(rows: Features, first: int, last: int) -> FloatArray:
        found = model.inplace_predict(rows, iteration_range=(first, last), predict_type="margin")
        return np.asarray(found, dtype=np.float64)

    return [_scores_by_trees(part, rows, trees) for rows in held_out]


def _scores_by_trees(part: Callable[[Features, int, int], FloatArray], rows: Features, trees: Sequence[int]) -> Scores:
    """Return cumulative scores by number of trees. A constant in each part does not change the ranking."""
    return np.cumsum([part(rows, first, last) for first, last in zip([0, *trees[:-1]], trees, strict=True)], axis=0)


LEARNERS: dict[str, Callable[[Lesson, Sequence[Features], Sequence[int]], list[Scores]]] = {
    "linear": learn_linear,
    "LightGBM": learn_lightgbm,
    "XGBoost": learn_xgboost,
}


def ips_lesson(clicked: Clicked, propensity: FloatArray, rows: BoolArray | None = None) -> Lesson:
    """Return the training set with IPS weights of the documents shown; with p = 1, the weights are the raw clicks."""
    taken = clicked.shown if rows is None else clicked.shown & rows
    weights = clicked.weights(propensity)[taken]
    return softmax_lesson(clicked.judgments.features[taken], weights, _groups(clicked.judgments, taken))


def softmax_lesson(features: Features, weights: FloatArray, groups: IntArray) -> Lesson:
    """Return a training set with the softmax loss over the documents of each group."""
    w = scaled_weights(weights)
    return Lesson(features, lambda s: softmax_loss(s, w, groups), lambda s: softmax_ips(s, w, groups))


def _groups(judgments: Judgments, rows: BoolArray) -> IntArray:
    """Return the number of these rows of each query that has any."""
    sizes = np.bincount(judgments.query_of[rows], minlength=judgments.queries)
    return sizes[sizes > 0]


def exposure_lesson(clicked: Clicked, propensity: FloatArray, rows: BoolArray | None = None) -> Lesson:
    """Return the training set with clicks and exposure of all candidates, shown or not."""
    taken = np.ones(clicked.judgments.documents, dtype=bool) if rows is None else rows
    exposure = clicked.exposure(propensity)[taken]
    return poisson_lesson(clicked.judgments.features[taken], clicked.clicks[taken], exposure)


def poisson_lesson(features: Features, clicks: FloatArray, exposure: FloatArray) -> Lesson:
    """Return a training set with the Poisson likelihood of clicks given the exposure."""
    c, e = scaled_counts(clicks, exposure)
    return Lesson(features, lambda s: poisson_loss(s, c, e), lambda s: poisson_exposure(s, c, e), poisson_start(c, e))


def add_up(factors: Callable[..., Sequence[float]], judgments: Judgments, n: float, *rankers: Scores) -> Scores:
    """Return the weighted sum of rankers by their factors for n effective clicks, for each number of trees."""
    of_trees = zip(*rankers, strict=True)
    return np.array([np.asarray(factors(*scores, judgments.query_of, n)) @ np.array(scores) for scores in of_trees])


def prefers_ips(clicked: Clicked, propensity: FloatArray, learn: Learner, trees: Sequence[int]) -> BoolArray:
    """Return whether `choose_rule` prefers IPS to Poisson, for each number of trees."""
    judgments = clicked.judgments
    weights, views = clicked.weights(propensity), clicked.shown.astype(np.int64)

    def fitted(lesson: Callable[[Clicked, FloatArray, BoolArray], Lesson]) -> Callable[[IntArray, IntArray], Scores]:
        # The folds are the same for every number of trees, and one fit gives all of them.
        cache: dict[int, Scores] = {}

        def fit(rows: IntArray, scored: IntArray) -> Scores:
            if scored[0] not in cache:
                taken = np.zeros(judgments.documents, dtype=bool)
                taken[rows] = True
                cache[scored[0]] = learn(lesson(clicked, propensity, taken), [judgments.features[scored]], trees)[0]
            return cache[scored[0]]

        return fit

    fits = {"Poisson": fitted(exposure_lesson), "IPS": fitted(ips_lesson)}
    chosen = []
    for number in range(len(trees)):
        rules = {name: lambda rows, scored, fit=fit, at=number: fit(rows, scored)[at] for name, fit in fits.items()}
        chosen.append(choose_rule(rules, judgments.query_of, weights, views, folds=_FOLDS).name)
    return np.asarray([name == "IPS" for name in chosen])


Learner = Callable[[Lesson, Sequence[Features], Sequence[int]], list[Scores]]


def learn_built_in(clicked: Clicked, rule: Rule, held_out: Features, trees: Sequence[int]) -> Scores:
    """Train with the built-in correction of LightGBM or XGBoost, on pages as they were shown."""
    judgments = clicked.judgments
    rows, ranks, clicks, groups = [], [], [], []
    for one in clicked.served.values():
        shown = np.flatnonzero(one.shown)
        shown = shown[np.lexsort((one.ranks[shown], judgments.query_of[shown]))]
        rows.append(shown)
        ranks.append(one.ranks[shown])
        clicks.append(one.clicks[shown])
        groups.append(_groups(judgments, one.shown))
    features = judgments.features[np.concatenate(rows)]
    labels, sizes = np.concatenate(clicks), np.concatenate(groups)
    if rule == "position":
        return learn_positions(features, labels, np.concatenate(ranks), sizes, [held_out], trees)[0]
    return learn_unbiased(features, labels, sizes, [held_out], trees)[0]


def learn_positions(
    features: Features,
    clicks: IntArray,
    positions: IntArray,
    groups: IntArray,
    held_out: Sequence[Features],
    trees: Sequence[int],
) -> list[Scores]:
    """Fit LightGBM's lambdarank with `position`, its built-in correction: pages as shown, clicks as labels."""
    lightgbm = optional("lightgbm", "This learner needs")
    data = lightgbm.Dataset(features, clicks, group=groups, position=positions, params=_LIGHTGBM)
    gains = list(range(int(clicks.max(initial=0)) + 1))
    settings = _LIGHTGBM | {"objective": "lambdarank", "label_gain": gains}
    return _lightgbm_scores(lightgbm.train(settings, data, max(trees)), held_out, trees)


def learn_unbiased(
    features: Features, clicks: IntArray, groups: IntArray, held_out: Sequence[Features], trees: Sequence[int]
) -> list[Scores]:
    """Fit XGBoost's `lambdarank_unbiased`, its built-in correction: rows in the order shown, clicks as labels."""
    xgboost = optional("xgboost", "This learner needs")
    query = np.repeat(np.arange(len(groups)), groups)
    data = xgboost.QuantileDMatrix(features, clicks, qid=query, nthread=1, max_bin=_XGBOOST["max_bin"])
    settings = _XGBOOST | {"objective": "rank:ndcg", "ndcg_exp_gain": False, "lambdarank_unbiased": True}
    return _xgboost_scores(xgboost.train(settings, data, max(trees)), held_out, trees)


def open_site(judgments: Judgments, queries: int, seed: int) -> Site:
    """Split judgments into training queries, as many held-out queries, and a few for the production rankers."""
    if judgments.queries < _MIN_QUERIES:
        raise PosbiasError(
            f"There are {judgments.queries} queries in the judgments, and learning needs {_MIN_QUERIES}: use other "
            "judgments as data, or omit data to use generated ones."
        )
    few = min(_PRODUCTION, judgments.queries // 10)
    half = min(queries, (judgments.queries - 2 * few) // 2)
    order = np.random.default_rng(seed).permutation(judgments.queries)
    training, held_out = (_dense(judgments.take(order[i * half : (i + 1) * half])) for i in range(2))
    own = [order[2 * half + i * few : 2 * half + (i + 1) * few] for i in range(2)]
    weights = [train_ranker(judgments, ids) for ids in own]
    rankings = {name: rank_documents(training, weight, RANKS) for name, weight in zip("ab", weights, strict=True)}
    quality = [ndcg(held_out, rank_documents(held_out, weight)) for weight in weights]
    return Site(training, held_out, rankings, float(np.mean(quality)))


def with_weak_rankers(site: Site, seed: int) -> Site:
    """Return the site with rankers that each rank by one feature, which says little about the grade."""
    training, rng = site.training, np.random.default_rng(seed)
    within = _without_query_means(training, training.features)
    grades = _without_query_means(training, training.grades[:, None])
    scale = np.maximum(within.std(axis=0) * grades.std(), 1e-12)
    correlation = (within * grades).mean(axis=0) / scale
    weak = np.argsort(np.abs(np.abs(correlation) - _WEAK_CORRELATION))[:_WEAK_FEATURES]
    rankings = {}
    for name, feature in zip(site.rankings, rng.choice(weak, len(site.rankings), replace=False), strict=True):
        weight = np.zeros(within.shape[1])
        weight[feature] = 1 if correlation[feature] >= 0 else -1
        rankings[name] = rank_documents(training, weight, RANKS)
    return Site(training, site.held_out, rankings, float("nan"))


def _without_query_means(judgments: Judgments, values: npt.NDArray[Any]) -> FloatArray:
    """Return columns of values less their mean over the candidates of the query."""
    sums = np.add.reduceat(values.astype(np.float64), judgments.offsets[:-1], axis=0)
    return np.asarray(values - (sums / judgments.sizes[:, None])[judgments.query_of])


def _dense(judgments: Judgments) -> Judgments:
    """Return dense features: in sparse matrices, LightGBM treats absent values as 0 and XGBoost as missing."""
    features = judgments.features
    if isinstance(features, np.ndarray):
        return judgments
    return Judgments(judgments.offsets, judgments.grades, features.toarray())


def learn_from_labels(site: Site, trees: Sequence[int]) -> NdcgByRule:
    """Train on the true gain of every document, which no click log has: an upper limit."""
    training = site.training
    lesson = softmax_lesson(training.features, np.asarray(2.0**training.grades - 1, dtype=np.float64), training.sizes)
    return {
        (name, "full labels"): site.quality(learn(lesson, [site.held_out.features], trees)[0])
        for name, learn in LEARNERS.items()
    }
