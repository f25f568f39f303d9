"""Experiment "doubly-robust": does a relevance model as control variate improve evaluation and learning?

The doubly robust estimate of the relevance of a document is, after Oosterhuis (2022),

    r = m + (C − E m) / max(E, τ)

with C clicks, the exposure E = Σ_k N_k p_k / p_1, the prediction m of a relevance model, and a floor τ. `evaluate` uses
C / E. Where E is above the floor, both are the same: the exposure that posbias uses is that of the page views that took
place, so the model cancels. They differ for documents that were hardly or never shown. There the model decides.

The sites are those of the experiment "learning". The model is exposure Poisson with small trees of LightGBM, fitted to
the other half of the queries. The floor is that of the paper, 10 / √N for each page view of the query. Compared are

- evaluation: the values of new rankings over that of the log, by ρ (C / E, documents shown, as `evaluate`), by the
  doubly robust estimate of all candidates, and by the model alone (m, all candidates). The truth counts all candidates;
- learning: LightGBM with the softmax loss on C / E of the documents shown, and on the doubly robust relevance of all
  candidates (negative values count as 0), beside the cautious blend.

doubly-robust.csv has a row for each setting and method: the root mean square error and the bias of the log of the
ratio, how often the better of two rankings was chosen, and nDCG@10 on held-out queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from experiments.figures import draw_settings
from experiments.judgments import Judgments, generate_judgments, generate_non_linear_judgments
from experiments.laboratory import Laboratory
from experiments.learning_trial import (
    RANKS,
    Clicked,
    Site,
    add_up,
    draw_clicks,
    exposure_lesson,
    floored,
    ips_lesson,
    learn_lightgbm,
    open_site,
    softmax_lesson,
)
from experiments.outcomes import Outcome, Row, Verdict, make_verdict, seed_of
from posbias._arrays import BoolArray, FloatArray, IntArray
from posbias._optional import optional
from posbias.learning.learners import cautious_factors
from posbias.simulation.users import PositionBased

RHO, ROBUST, MODEL, BLEND = "ρ", "doubly robust", "model alone", "cautious blend"
LEARNED = "learned"
GENERATORS = {"something to learn": generate_non_linear_judgments, "nothing to learn": generate_judgments}
_ETAS = (0.5, 1.0, 2.0)
# How much the new rankings know of the grades, in standard deviations of their noise.
_QUALITIES = (0.0, 0.3, 0.6, 1.0, 1.5)
_MIN_RATIO = 1.05
_TREES = (80,)
_SMALL_TREES = {"num_leaves": 6, "min_data_in_leaf": 60, "learning_rate": 0.1, "lambda_l2": 1.0, "max_bin": 63}
_FLOOR = 10.0
# There are so many settings that each has fewer queries than in the experiment "ranker".
_QUERIES, _MIN_QUERIES = 0.4, 40
# Page views per query of the other log, from which one of the new rankings learned.
_OTHER_VIEWS = 16
_ENOUGH_SEEDS = 4
Scores = dict[str, FloatArray]
# What was measured in each run, by method.
Runs = list[dict[str, dict[str, float]]]


def run_doubly_robust(lab: Laboratory) -> Outcome:
    """Evaluate and learn with and without a relevance model, on every site and setting."""
    seeds, views = lab.sizes.ranker_seeds, lab.sizes.ranker_views
    kinds = GENERATORS if lab.generated else {"judgments of the file": None}
    found: dict[str, Runs] = {}
    for place, (kind, generate) in enumerate(kinds.items()):
        for number in range(seeds):
            seed = seed_of(lab.seed, "doubly robust", kind, number)
            queries = max(_MIN_QUERIES, round(_QUERIES * lab.sizes.ranker_queries))
            judgments = lab.judgments if generate is None else generate(2 * queries + 60, seed=seed)
            site = open_site(judgments, queries, seed)
            for eta in _ETAS:
                for count in views:
                    name = f"{kind}, η = {eta:g}, {count} view{'s' * (count > 1)}"
                    found.setdefault(name, []).append(measure(site, eta, count, seed_of(seed, eta, count)))
            lab.progress("doubly-robust", (place + (number + 1) / seeds) / len(kinds))
    rows = [row for name, runs in found.items() for row in _rows(name, runs)]
    gains = {
        "choice": [_difference(runs, "choice") for runs in found.values()],
        "nDCG@10": [_difference(runs, "ndcg") for runs in found.values()],
    }
    drawn = {name: np.array(values).T for name, values in gains.items()}
    figure = draw_settings(list(found), drawn, "Doubly robust minus ρ", (0.0, 0.0))
    claims = {
        "choice": "evaluation: the better of two rankings is chosen as often as by ρ",
        "error": "evaluation: the error of the ratio is not above that of ρ",
        "ndcg": "learning: nDCG@10 is not below that of ρ",
    }
    enough = seeds >= _ENOUGH_SEEDS
    verdicts = [_verdict(claim, found, what, RHO, enough=enough) for what, claim in claims.items()]
    blend = "learning: nDCG@10 is not below that of the cautious blend"
    verdicts.append(_verdict(blend, found, "ndcg", BLEND, enough=enough))
    return Outcome("doubly-robust", rows, figure, tuple(verdicts))


def measure(site: Site, eta: float, views: int, seed: int) -> dict[str, dict[str, float]]:
    """Return errors, choices and nDCG@10 by method on one simulated log."""
    user, judgments = site.user(eta), site.training
    clicked = draw_clicks(judgments, site.rankings, user, views, seed)
    curve = clicked.estimate()
    model = predict_relevance(clicked, curve, seed)
    exposure, shown = shown_exposure(clicked, curve), clicked.shown
    rate = np.divide(clicked.clicks, exposure, out=np.zeros_like(exposure), where=exposure > 0)
    robust = robust_relevance(clicked.clicks, exposure, model, views, views * judgments.queries)
    every = np.ones(judgments.documents, dtype=bool)
    relevance = {RHO: (rate, shown), ROBUST: (robust, every), MODEL: (model, every)}
    rankings = new_rankings(judgments, site.rankings, user, seed)
    truth = user.attractiveness(judgments.grades)
    true = {name: np.log(ratio(clicked, truth, scores, every)) for name, scores in rankings.items()}
    pairs = [(a, b) for a, b in combinations(true, 2) if abs(true[a] - true[b]) >= np.log(_MIN_RATIO)]
    found: dict[str, dict[str, float]] = {}
    for method, (values, counted) in relevance.items():
        estimate = {
            name: np.log(max(ratio(clicked, values, scores, counted), 0.01)) for name, scores in rankings.items()
        }
        errors = np.array([estimate[name] - true[name] for name in rankings])
        right = [(estimate[a] > estimate[b]) == (true[a] > true[b]) for a, b in pairs]
        found[method] = {
            "error": float(np.sqrt((errors**2).mean())),
            "bias": float(errors.mean()),
            "bias_learned": float(estimate[LEARNED] - true[LEARNED]),
            "choice": float(np.mean(right)) if right else np.nan,
        }
    held_out = [site.held_out.features]
    features, sizes = judgments.features, judgments.sizes
    of_shown = np.bincount(judgments.query_of[shown], minlength=judgments.queries)
    lessons = {
        RHO: softmax_lesson(features[shown], rate[shown], of_shown[of_shown > 0]),
        ROBUST: softmax_lesson(features, np.maximum(robust, 0), sizes),
    }
    for method, lesson in lessons.items():
        found[method]["ndcg"] = float(site.quality(learn_lightgbm(lesson, held_out, _TREES)[0])[0])
    three = ips_lesson(clicked, np.ones(RANKS)), ips_lesson(clicked, curve), exposure_lesson(clicked, curve)
    scores = [learn_lightgbm(lesson, held_out, _TREES)[0] for lesson in three]
    blend = add_up(cautious_factors, site.held_out, clicked.effective_clicks(curve), *scores)
    found[BLEND] = {"ndcg": float(site.quality(blend)[0])}
    return found


def predict_relevance(clicked: Clicked, curve: FloatArray, seed: int) -> FloatArray:
    """Return the click rate at rank 1 that exposure Poisson predicts for each candidate from the other queries."""
    lightgbm = optional("lightgbm", "This experiment needs")
    judgments = clicked.judgments
    exposure, clicks = clicked.exposure(curve), clicked.clicks
    half = np.random.default_rng(seed).permutation(judgments.queries)[judgments.query_of] % 2
    predicted = np.zeros(judgments.documents)
    settings = {"objective": "poisson", "poisson_max_delta_step": 1e-6, "verbosity": -1, "num_threads": 1}
    for part in (0, 1):
        learned = np.flatnonzero(half != part)
        c, e = clicks[learned], exposure[learned]
        scale = c[c > 0].mean() if (c > 0).any() else 1.0
        data = lightgbm.Dataset(judgments.features[learned], label=c / e, weight=e / scale)
        model = lightgbm.train(settings | _SMALL_TREES, data, 60)
        predicted[half == part] = model.predict(judgments.features[half == part])
    return predicted


def shown_exposure(clicked: Clicked, curve: FloatArray) -> FloatArray:
    """Return Σ_k N_k p_k of each document; 0 if it was never shown."""
    p = np.concatenate([[0.0], floored(curve)])
    return np.asarray(sum(one.views * p[one.ranks] for one in clicked.served.values()), dtype=np.float64)


def robust_relevance(
    clicks: FloatArray, exposure: FloatArray, model: FloatArray, views: float, page_views: float
) -> FloatArray:
    """Return the doubly robust relevance, m + (C − E m) / max(E, τ).

    The floor τ is 10 / √N for each page view of the query, with N page views in all. Above it, the result is C / E.

    Example:
        >>> clicks, exposure, model = np.array([2.0, 2.0, 0.0]), np.array([4.0, 1.0, 0.0]), np.full(3, 0.3)
        >>> robust_relevance(clicks, exposure, model, views=20, page_views=10_000).tolist()
        [0.5, 1.15, 0.3]
    """
    floor = views * min(1.0, _FLOOR / np.sqrt(page_views))
    return np.asarray(model + (clicks - exposure * model) / np.maximum(exposure, floor))


def new_rankings(judgments: Judgments, rankings: Mapping[str, IntArray], user: PositionBased, seed: int) -> Scores:
    """Return scores of all candidates by name: noisy grades, and a ranker learned from raw clicks of another log."""
    rng = np.random.default_rng(seed_of(seed, "rankings"))
    grades = (judgments.grades - judgments.grades.mean()) / max(float(judgments.grades.std()), 1e-9)
    scores = {f"quality {a:g}": a * grades + rng.standard_normal(judgments.documents) for a in _QUALITIES}
    other = draw_clicks(judgments, rankings, user, _OTHER_VIEWS, seed_of(seed, "another log"))
    learned = learn_lightgbm(ips_lesson(other, np.ones(RANKS)), [judgments.features], _TREES)[0]
    return scores | {LEARNED: learned[0]}


def ratio(clicked: Clicked, relevance: FloatArray, scores: FloatArray, counted: BoolArray) -> float:
    """Return the DCG@10 of the counted documents, ranked by scores, over that of the pages of the log."""
    query = clicked.judgments.query_of
    rows = np.flatnonzero(counted)
    order = rows[np.lexsort((-scores[rows], query[rows]))]
    sizes = np.bincount(query[rows], minlength=clicked.judgments.queries)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    views = sum(one.views for one in clicked.served.values())
    new = (_gain(rank) * (relevance * views)[order]).sum()
    logged = sum((relevance * one.views * _gain(one.ranks)).sum() for one in clicked.served.values())
    return float(new / max(logged, 1e-9))


def _gain(rank: IntArray) -> FloatArray:
    """Return λ = 1 / log2(1 + rank) of the top ten; rank 0 is a document that is not on the page."""
    return np.where((rank > 0) & (rank <= RANKS), 1 / np.log2(1 + np.maximum(rank, 1)), 0.0)


def _difference(runs: Runs, what: str, base: str = RHO) -> tuple[float, float]:
    """Return the mean of doubly robust minus another method, and its standard error."""
    return _mean([run[ROBUST][what] - run[base][what] for run in runs])


def _mean(values: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error; NaN is left out."""
    known = np.array(values)[np.isfinite(values)]
    if len(known) < 2:
        return float(known.mean()) if len(known) else float("nan"), float("nan")
    return float(known.mean()), float(known.std(ddof=1) / np.sqrt(len(known)))


def _rows(name: str, runs: Runs) -> list[Row]:
    rows: list[Row] = []
    for method in (RHO, ROBUST, MODEL, BLEND):
        row: dict[str, Any] = {"setting": name, "method": method}
        for what in ("error", "bias", "bias_learned", "choice", "ndcg"):
            row[what], row[f"{what}_standard_error"] = _mean([run[method].get(what, np.nan) for run in runs])
        rows.append(row)
    return rows


def _verdict(claim: str, found: Mapping[str, Runs], what: str, base: str, *, enough: bool) -> Verdict:
    """Return whether doubly robust is nowhere worse than another method, two standard errors allowed.

    A lower error is better; of all else, more.
    """
    sign = -1 if what == "error" else 1
    each = {name: _difference(runs, what, base) for name, runs in found.items()}
    gains = np.array([sign * mean for mean, _ in each.values()])
    errors = np.array([error for _, error in each.values()])
    worst = int(gains.argmin())
    return make_verdict(
        f"{claim}, two standard errors allowed",
        f"worse in {int((gains + 2 * errors < 0).sum())} of {len(gains)} settings, better in "
        f"{int((gains - 2 * errors > 0).sum())}; on average {gains.mean():+.3f}, at worst {gains[worst]:+.3f} ± "
        f"{errors[worst]:.3f} ({list(each)[worst]})",
        bool((gains + 2 * errors >= 0).all()),
        enough=enough,
    )
