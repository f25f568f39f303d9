"""One trial of learning from clicks: rankers learned by every rule from one simulated log, on held-out queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.clicked import Clicked, draw_clicks
from experiments.judgments import Judgments
from experiments.learners import (
    LEARNERS,
    Features,
    Lesson,
    Scores,
    learn_positions,
    learn_unbiased,
    poisson_lesson,
    softmax_lesson,
)
from experiments.outcomes import seed_of
from experiments.ranking_svm import ndcg, rank_documents, rank_scores, train_ranker
from posbias._arrays import BoolArray, FloatArray, IntArray
from posbias.errors import PosbiasError
from posbias.learning.learners import blend_factors, cautious_factors, choose_rule
from posbias.simulation.users import PositionBased

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
Learner = Callable[[Lesson, Sequence[Features], Sequence[int]], list[Scores]]


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


def learn_from_labels(site: Site, trees: Sequence[int]) -> Found:
    """Learn from what no click log has: the gain of every document."""
    training = site.training
    lesson = softmax_lesson(training.features, np.asarray(2.0**training.grades - 1, dtype=np.float64), training.sizes)
    return {
        (name, "full labels"): site.quality(learn(lesson, [site.held_out.features], trees)[0])
        for name, learn in LEARNERS.items()
    }


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


def add_up(factors: Callable[..., Sequence[float]], judgments: Judgments, n: float, *rankers: Scores) -> Scores:
    """Return one ranker of some, by their factors for n effective clicks, at each number of trees."""
    of_trees = zip(*rankers, strict=True)
    return np.array([np.asarray(factors(*scores, judgments.query_of, n)) @ np.array(scores) for scores in of_trees])


def ips_lesson(clicked: Clicked, propensity: FloatArray, rows: BoolArray | None = None) -> Lesson:
    """Learn from IPS weights of the documents shown; with p = 1 everywhere, from clicks as they are."""
    taken = clicked.shown if rows is None else clicked.shown & rows
    weights = clicked.weights(propensity)[taken]
    return softmax_lesson(clicked.judgments.features[taken], weights, _groups(clicked.judgments, taken))


def exposure_lesson(clicked: Clicked, propensity: FloatArray, rows: BoolArray | None = None) -> Lesson:
    """Learn from clicks and exposure of all candidates, shown or not."""
    taken = np.ones(clicked.judgments.documents, dtype=bool) if rows is None else rows
    exposure = clicked.exposure(propensity)[taken]
    return poisson_lesson(clicked.judgments.features[taken], clicked.clicks[taken], exposure)


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


def _groups(judgments: Judgments, rows: BoolArray) -> IntArray:
    """How many of these rows each query has, of those that have any."""
    sizes = np.bincount(judgments.query_of[rows], minlength=judgments.queries)
    return sizes[sizes > 0]


def _dense(judgments: Judgments) -> Judgments:
    """LightGBM and XGBoost disagree about sparse matrices: to the one what is left out is 0, to the other missing."""
    features = judgments.features
    if isinstance(features, np.ndarray):
        return judgments
    return Judgments(judgments.offsets, judgments.grades, features.toarray())
