"""One trial of learning from clicks: simulated clicks, labels made from them, and rankers trained on them."""

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
from posbias.errors import PosbiasError
from posbias.estimators import CrossFit
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

# What an inverse propensity is capped at, as `posbias weights` does by default.
CAP = DEFAULT_CAP
Features = npt.NDArray[np.float32]
# Scores of documents at each number of trees asked for, a row each.
Scores = FloatArray
# Fixed before any result was seen, and the same for all rules.
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
# A page, and the paper's click noise.
RANKS, _NOISE = 10, 0.1
# Queries that each production ranker was trained on: it is of use, and far from perfect.
_PRODUCTION = 30
# Fewer could be split, but not learned from.
_FEWEST_QUERIES = 100
_FOLDS = 2
# What learners have of their own against position bias; who learns with true propensities too, and who cross-validates:
# neither depends on the learner, and both take their time.
_OWN = {"LightGBM": "position", "XGBoost": "lambdarank_unbiased"}
_WITH_TRUTH, _CHOOSING = ("linear", "LightGBM"), "LightGBM"
Rule = str
# nDCG@10 at each number of trees, by learner and rule.
Found = dict[tuple[str, Rule], FloatArray]


def learn_from_clicks(site: Site, eta: float, views: int, trees: Sequence[int], seed: int) -> Found:
    """Draw a log, estimate the curve from it, and learn by every rule with every learner."""
    user = site.user(eta)
    clicked = draw_clicks(site.training, site.rankings, user, views, seed_of(seed, eta, views))
    true, estimated = user.propensity(RANKS), clicked.estimate()
    found: Found = {}
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
        if name in _OWN:
            found[name, _OWN[name]] = site.quality(learn_built_in(clicked, _OWN[name], site.held_out.features, trees))
    return found


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Site:
    """A service: queries with clicks to learn from, queries held out, and two rankers in production."""

    training: Judgments
    held_out: Judgments
    rankings: Mapping[str, IntArray]
    production: float

    def quality(self, scores: Scores) -> FloatArray:
        """Return nDCG@10 on the held-out queries, for every row of scores."""
        return np.array([ndcg(self.held_out, rank_scores(self.held_out, one)) for one in scores])

    def user(self, eta: float) -> PositionBased:
        """Return who clicks here: the likelier the better the grade, as nDCG has it."""
        return PositionBased(eta=eta, noise=_NOISE, graded=True, max_grade=max(1, int(self.training.grades.max())))


def draw_clicks(
    judgments: Judgments, rankings: Mapping[str, IntArray], user: PositionBased, views: int, seed: int
) -> Clicked:
    """Show every query so many times, each time by a ranker drawn at random, and let users click.

    By the position-based model clicks on a document depend on nothing else on its page, so that those of all views
    at one rank are one binomial number: a hundred views cost what one does.
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
    """The clicks of all page views by each ranker, and how long a page is."""

    judgments: Judgments
    served: Mapping[str, Served]
    max_rank: int

    @property
    def shown(self) -> BoolArray:
        """Which documents some page view showed."""
        return np.asarray(np.logical_or.reduce([one.shown for one in self.served.values()]))

    @property
    def clicks(self) -> FloatArray:
        """Clicks on every document."""
        return _summed(one.clicks for one in self.served.values())

    def weights(self, propensity: FloatArray) -> FloatArray:
        """Return the IPS label of every document, Σ clicks · min(p_1 / p_k, cap)."""
        inverse = np.concatenate([[0.0], 1 / floored(propensity)])
        return _summed(one.clicks * inverse[one.ranks] for one in self.served.values())

    def effective_clicks(self, propensity: FloatArray) -> float:
        """Return how many clicks of equal weight would be as good, (Σ w)² / Σ w²."""
        inverse = np.concatenate([[0.0], 1 / floored(propensity)])
        first, second = (
            sum(float((one.clicks * inverse[one.ranks] ** power).sum()) for one in self.served.values())
            for power in (1, 2)
        )
        return first**2 / second if second > 0 else 0.0

    def exposure(self, propensity: FloatArray) -> FloatArray:
        """Return how often every document was seen; a view that did not show it counts as one at the last rank."""
        p = floored(propensity)
        seen = np.concatenate([p[-1:], p])
        return _summed(one.views * seen[one.ranks] for one in self.served.values())

    def to_log(self) -> pa.Table:
        """Return the log, aggregated: impressions and clicks of every document by each ranker."""
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
        """Return the curve that CrossFit harvests from this log; NaN where a rank has no number."""
        harvested = harvest(ClickLog(self.to_log()), max_rank=self.max_rank, engine=DuckDB(threads=1))
        return CrossFit(interval=None).fit(harvested).propensity_


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Served:
    """What one ranker showed: the rank of every document (0: not shown), and clicks on it in the views of its query."""

    ranks: IntArray
    views: IntArray
    clicks: IntArray

    @property
    def shown(self) -> BoolArray:
        """Which documents this ranker showed at all."""
        return np.asarray((self.ranks > 0) & (self.views > 0))


def _summed(parts: Iterable[npt.NDArray[Any]]) -> FloatArray:
    return np.asarray(np.sum(list(parts), axis=0), dtype=np.float64)


def floored(propensity: FloatArray) -> FloatArray:
    """Return p with the cap applied; a rank without a number is taken for the one above it, as a cautious user might.

    Example:
        >>> floored(np.array([1, 0.5, np.nan, 0.01])).tolist()
        [1.0, 0.5, 0.5, 0.05]
    """
    known = np.where(np.isfinite(propensity), np.arange(len(propensity)), 0)
    return np.maximum(propensity[np.maximum.accumulate(known)], 1 / CAP)


def _ranks(judgments: Judgments, ranking: IntArray) -> IntArray:
    """The rank of every document, 0 where it is not on the page."""
    ranks = np.zeros(judgments.documents, dtype=np.int64)
    query, place = np.nonzero(ranking >= 0)
    ranks[judgments.offsets[query] + ranking[query, place]] = place + 1
    return ranks


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Lesson:
    """What to learn from: rows, and the loss of their scores with its slope and bend."""

    features: Features
    loss: Callable[[FloatArray], float]
    slopes: Callable[[FloatArray], tuple[FloatArray, FloatArray]]
    start: float = 0.0


def learn_linear(lesson: Lesson, held_out: Sequence[Features], trees: Sequence[int]) -> list[Scores]:
    """Fit a linear ranker; it has no trees, and the same scores at every number of them."""
    from scipy.optimize import minimize

    # In 64 bits: the square of what a file may hold does not fit into 32.
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
    """Fit boosted trees with LightGBM; one fit serves every number of trees."""
    lightgbm = optional("lightgbm", "This learner needs")
    data = lightgbm.Dataset(lesson.features, init_score=np.full(len(lesson.features), lesson.start), params=_LIGHTGBM)
    settings = _LIGHTGBM | {"objective": lambda scores, _: lesson.slopes(scores)}
    return _lightgbm_scores(lightgbm.train(settings, data, max(trees)), held_out, trees)


def learn_xgboost(lesson: Lesson, held_out: Sequence[Features], trees: Sequence[int]) -> list[Scores]:
    """Fit boosted trees with XGBoost; one fit serves every number of trees."""
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
    """Scores of trees so far: what the next trees add, added up. A constant, if each has one, moves no document."""
    return np.cumsum([part(rows, first, last) for first, last in zip([0, *trees[:-1]], trees, strict=True)], axis=0)


LEARNERS: dict[str, Callable[[Lesson, Sequence[Features], Sequence[int]], list[Scores]]] = {
    "linear": learn_linear,
    "LightGBM": learn_lightgbm,
    "XGBoost": learn_xgboost,
}


def ips_lesson(clicked: Clicked, propensity: FloatArray, rows: BoolArray | None = None) -> Lesson:
    """Learn from IPS weights of the documents shown; with p = 1 everywhere, from clicks as they are."""
    taken = clicked.shown if rows is None else clicked.shown & rows
    weights = clicked.weights(propensity)[taken]
    return softmax_lesson(clicked.judgments.features[taken], weights, _groups(clicked.judgments, taken))


def softmax_lesson(features: Features, weights: FloatArray, groups: IntArray) -> Lesson:
    """Learn by the softmax loss over the documents of each group."""
    w = scaled_weights(weights)
    return Lesson(features, lambda s: softmax_loss(s, w, groups), lambda s: softmax_ips(s, w, groups))


def _groups(judgments: Judgments, rows: BoolArray) -> IntArray:
    """How many of these rows each query has, of those that have any."""
    sizes = np.bincount(judgments.query_of[rows], minlength=judgments.queries)
    return sizes[sizes > 0]


def exposure_lesson(clicked: Clicked, propensity: FloatArray, rows: BoolArray | None = None) -> Lesson:
    """Learn from clicks and exposure of all candidates, shown or not."""
    taken = np.ones(clicked.judgments.documents, dtype=bool) if rows is None else rows
    exposure = clicked.exposure(propensity)[taken]
    return poisson_lesson(clicked.judgments.features[taken], clicked.clicks[taken], exposure)


def poisson_lesson(features: Features, clicks: FloatArray, exposure: FloatArray) -> Lesson:
    """Learn by the likelihood of clicks, given how often each document was seen."""
    c, e = scaled_counts(clicks, exposure)
    return Lesson(features, lambda s: poisson_loss(s, c, e), lambda s: poisson_exposure(s, c, e), poisson_start(c, e))


def add_up(factors: Callable[..., Sequence[float]], judgments: Judgments, n: float, *rankers: Scores) -> Scores:
    """Return one ranker of some, by their factors for n effective clicks, at each number of trees."""
    of_trees = zip(*rankers, strict=True)
    return np.array([np.asarray(factors(*scores, judgments.query_of, n)) @ np.array(scores) for scores in of_trees])


def prefers_ips(clicked: Clicked, propensity: FloatArray, learn: Learner, trees: Sequence[int]) -> BoolArray:
    """Choose between IPS and exposure Poisson by `choose_rule`, at each number of trees."""
    judgments = clicked.judgments
    weights, views = clicked.weights(propensity), clicked.shown.astype(np.int64)

    def fitted(lesson: Callable[[Clicked, FloatArray, BoolArray], Lesson]) -> Callable[[IntArray, IntArray], Scores]:
        # The folds are the same at every number of trees, which one fit serves.
        kept: dict[int, Scores] = {}

        def fit(rows: IntArray, scored: IntArray) -> Scores:
            if scored[0] not in kept:
                taken = np.zeros(judgments.documents, dtype=bool)
                taken[rows] = True
                kept[scored[0]] = learn(lesson(clicked, propensity, taken), [judgments.features[scored]], trees)[0]
            return kept[scored[0]]

        return fit

    fits = {"Poisson": fitted(exposure_lesson), "IPS": fitted(ips_lesson)}
    chosen = []
    for number in range(len(trees)):
        rules = {name: lambda rows, scored, fit=fit, at=number: fit(rows, scored)[at] for name, fit in fits.items()}
        chosen.append(choose_rule(rules, judgments.query_of, weights, views, folds=_FOLDS).name)
    return np.asarray([name == "IPS" for name in chosen])


Learner = Callable[[Lesson, Sequence[Features], Sequence[int]], list[Scores]]


def learn_built_in(clicked: Clicked, rule: Rule, held_out: Features, trees: Sequence[int]) -> Scores:
    """Learn by what LightGBM or XGBoost have against position bias, from pages as they were shown."""
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
    """Fit LightGBM's lambdarank with `position`, its own correction: pages as they were shown, clicks as labels."""
    lightgbm = optional("lightgbm", "This learner needs")
    data = lightgbm.Dataset(features, clicks, group=groups, position=positions, params=_LIGHTGBM)
    gains = list(range(int(clicks.max(initial=0)) + 1))
    settings = _LIGHTGBM | {"objective": "lambdarank", "label_gain": gains}
    return _lightgbm_scores(lightgbm.train(settings, data, max(trees)), held_out, trees)


def learn_unbiased(
    features: Features, clicks: IntArray, groups: IntArray, held_out: Sequence[Features], trees: Sequence[int]
) -> list[Scores]:
    """Fit XGBoost's `lambdarank_unbiased`, its own correction: rows in the order shown, clicks as labels."""
    xgboost = optional("xgboost", "This learner needs")
    query = np.repeat(np.arange(len(groups)), groups)
    data = xgboost.QuantileDMatrix(features, clicks, qid=query, nthread=1, max_bin=_XGBOOST["max_bin"])
    settings = _XGBOOST | {"objective": "rank:ndcg", "ndcg_exp_gain": False, "lambdarank_unbiased": True}
    return _xgboost_scores(xgboost.train(settings, data, max(trees)), held_out, trees)


def open_site(judgments: Judgments, queries: int, seed: int) -> Site:
    """Split judgments into queries to learn from, as many held out, and a few that production learned from."""
    if judgments.queries < _FEWEST_QUERIES:
        raise PosbiasError(
            f"There are {judgments.queries} queries in the judgments, and learning needs {_FEWEST_QUERIES}: use other "
            "judgments as data, or the built-in ones without it."
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


def _dense(judgments: Judgments) -> Judgments:
    """LightGBM and XGBoost disagree about sparse matrices: to the one what is left out is 0, to the other missing."""
    features = judgments.features
    if isinstance(features, np.ndarray):
        return judgments
    return Judgments(judgments.offsets, judgments.grades, features.toarray())


def learn_from_labels(site: Site, trees: Sequence[int]) -> Found:
    """Learn from what no click log has: the gain of every document."""
    training = site.training
    lesson = softmax_lesson(training.features, np.asarray(2.0**training.grades - 1, dtype=np.float64), training.sizes)
    return {
        (name, "full labels"): site.quality(learn(lesson, [site.held_out.features], trees)[0])
        for name, learn in LEARNERS.items()
    }
