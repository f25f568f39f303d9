"""Experiment "ranker": what does `posbias.fit_ranker` gain, and how much of it is the correction?

Sites are simulated as in the experiment "learning". On each, `fit_ranker` learns one LightGBM model from the clicks. It
is compared on held-out queries with

- naive: the softmax loss on raw clicks, trees of 15 leaves;
- raw lambdarank: LightGBM's lambdarank on raw clicks, what teams run;
- `lambdarank_unbiased`: XGBoost's own correction;
- the cautious blend with trees of 15 leaves, without the choice of a size and without the student;
- p = 1: `fit_ranker` with every propensity set to 1. What it gains is not due to the correction;
- full labels: the softmax loss on all grades, which no log has.

The rankers that serve are Ranking SVMs. In half of the seeds there are also sites with weak rankers: each ranks by one
feature that says little about the grade.

ranker.csv has a row for each kind of judgments, number of page views and rule: nDCG@10, the gain over naive with its
standard error, the share of the gain of full labels, the share of single runs that are more than 0.003 below naive, and
the lowest gain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.figures import draw_settings
from experiments.judgments import generate_judgments, generate_non_linear_judgments
from experiments.laboratory import Laboratory
from experiments.learning import DATA, LINEAR, NON_LINEAR
from experiments.learning_trial import (
    RANKS,
    Clicked,
    Site,
    add_up,
    draw_clicks,
    exposure_lesson,
    ips_lesson,
    learn_built_in,
    learn_lightgbm,
    open_site,
    softmax_lesson,
    with_weak_rankers,
)
from experiments.outcomes import Outcome, Row, Verdict, make_verdict, seed_of
from posbias._arrays import FloatArray
from posbias._optional import optional
from posbias.learning.learners import cautious_factors
from posbias.learning.rankers import fit_ranker

OURS, CONTROL, NAIVE, FULL_LABELS = "fit_ranker", "fit_ranker, p = 1", "naive", "full labels"
RULES = (NAIVE, "raw lambdarank", "lambdarank_unbiased", "cautious blend", CONTROL, OURS, FULL_LABELS)
_ETA = 1.0
# The trees of all rules but ours, which chooses.
_TREES = (80,)
_LOSS, _MAX_LOSING, _MARGIN = 0.003, 0.06, 0.008
_MANY_VIEWS = 16
_ENOUGH_SEEDS = 4
_WEAK, _WEAK_VIEWS = "{}, weak rankers", range(4, 17)
# nDCG@10 by rule of each run, by kind of judgments and page views per query.
Found = dict[tuple[str, int], list[dict[str, float]]]


def run_ranker(lab: Laboratory) -> Outcome:
    """Fit rankers on every site and number of page views, and compare them with the usual ones."""
    kinds = (
        {DATA: None} if not lab.generated else {NON_LINEAR: generate_non_linear_judgments, LINEAR: generate_judgments}
    )
    found: Found = {}
    queries, seeds = lab.sizes.ranker_queries, lab.sizes.ranker_seeds
    for place, (kind, generate) in enumerate(kinds.items()):
        for number in range(seeds):
            seed = seed_of(lab.seed, "ranker", number)
            judgments = lab.judgments if generate is None else generate(2 * queries + 60, seed=seed)
            site = open_site(judgments, queries, seed)
            sites = {kind: site} | ({_WEAK.format(kind): with_weak_rankers(site, seed)} if number % 2 == 0 else {})
            for i, views in enumerate(lab.sizes.ranker_views):
                for title, each in sites.items():
                    if each is site or views in _WEAK_VIEWS:
                        run = measure(each, views, seed_of(lab.seed, "ranker", number, views))
                        found.setdefault((title, views), []).append(run)
                share = (number + (i + 1) / len(lab.sizes.ranker_views)) / seeds
                lab.progress(f"ranker: {kind}", (place + share) / len(kinds))
    rows = [row for (kind, views), runs in found.items() for row in _rows(kind, views, runs)]
    drawn = {rule: np.array([_gain(runs, rule) for runs in found.values()]).T for rule in RULES if rule != NAIVE}
    figure = draw_settings([_title(*setting) for setting in found], drawn, "Gain in nDCG@10 over naive", (0.0, 0.0))
    return Outcome("ranker", rows, figure, tuple(_verdicts(found, enough=seeds >= _ENOUGH_SEEDS)))


def _title(kind: str, views: int) -> str:
    return f"{kind}, {views} view{'s' * (views > 1)}"


def measure(site: Site, views: int, seed: int) -> dict[str, float]:
    """Return nDCG@10 on held-out queries by each rule."""
    clicked = draw_clicks(site.training, site.rankings, site.user(_ETA), views, seed)
    curve, flat = clicked.estimate(), np.ones(RANKS)
    held_out, judgments = site.held_out.features, site.training
    lessons = [ips_lesson(clicked, flat), ips_lesson(clicked, curve), exposure_lesson(clicked, curve)]
    naive, ips, poisson = (learn_lightgbm(lesson, [held_out], _TREES)[0] for lesson in lessons)
    clicks = clicked.effective_clicks(curve)
    labels = softmax_lesson(judgments.features, np.asarray(2.0**judgments.grades - 1), judgments.sizes)
    scores = {
        NAIVE: naive,
        "raw lambdarank": _raw_lambdarank(clicked, held_out),
        "lambdarank_unbiased": learn_built_in(clicked, "lambdarank_unbiased", held_out, _TREES),
        "cautious blend": add_up(cautious_factors, site.held_out, clicks, naive, ips, poisson),
        CONTROL: _fit(clicked, flat, held_out),
        OURS: _fit(clicked, curve, held_out),
        FULL_LABELS: learn_lightgbm(labels, [held_out], _TREES)[0],
    }
    return {rule: float(site.quality(each)[0]) for rule, each in scores.items()}


def _fit(clicked: Clicked, p: FloatArray, held_out: Any) -> FloatArray:
    """Return the scores of `fit_ranker`, as one row."""
    features = [f"f{i}" for i in range(held_out.shape[1])]
    served = clicked.served.values()
    table = {
        "query_id": clicked.judgments.query_of,
        "impressions": np.sum([one.views * one.shown for one in served], axis=0),
        "clicks": clicked.clicks,
        "exposure": clicked.exposure(p),
        "exposure_shown": clicked.exposure_shown(p),
        "weight": clicked.weights(p),
        **dict(zip(features, clicked.judgments.features.T, strict=True)),
    }
    ranker = fit_ranker(table, features, parameters={"num_threads": 1})
    return ranker.predict(held_out)[None, :]


def _raw_lambdarank(clicked: Clicked, held_out: Any) -> FloatArray:
    """Return the scores of LightGBM's lambdarank with raw clicks of the documents shown as labels, as one row."""
    lightgbm = optional("lightgbm", "This learner needs")
    judgments, shown = clicked.judgments, np.flatnonzero(clicked.shown)
    clicks = np.minimum(clicked.clicks[shown], 1000).astype(np.int64)
    sizes = np.bincount(judgments.query_of[shown])
    data = lightgbm.Dataset(judgments.features[shown], clicks, group=sizes[sizes > 0])
    settings = {
        "objective": "lambdarank",
        "label_gain": list(range(int(clicks.max()) + 1)),
        "num_leaves": 15,
        "lambda_l2": 1.0,
        "max_bin": 63,
        "verbosity": -1,
        "num_threads": 1,
    }
    return np.asarray(lightgbm.train(settings, data, _TREES[0]).predict(held_out))[None, :]


def _gain(runs: list[dict[str, float]], rule: str, over: str = NAIVE) -> tuple[float, float]:
    """Return the mean gain over another rule, and its standard error."""
    gains = np.array([run[rule] - run[over] for run in runs])
    return float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else float("nan")


def _rows(kind: str, views: int, runs: list[dict[str, float]]) -> list[Row]:
    full, _ = _gain(runs, FULL_LABELS)
    rows: list[Row] = []
    for rule in RULES:
        gain, error = _gain(runs, rule)
        losing = float(np.mean([run[rule] < run[NAIVE] - _LOSS for run in runs]))
        rows.append(
            {
                "judgments": kind,
                "views": views,
                "rule": rule,
                "ndcg": float(np.mean([run[rule] for run in runs])),
                "gain": gain,
                "error": error,
                "share_of_full_labels": gain / full if full > 0 else float("nan"),
                "losing_runs": losing,
                "least_gain": min(run[rule] - run[NAIVE] for run in runs),
                "runs": len(runs),
            }
        )
    return rows


def _verdicts(found: Found, *, enough: bool) -> list[Verdict]:
    titles = {setting: _title(*setting) for setting in found}
    lowest = {titles[setting]: _gain(runs, OURS)[0] for setting, runs in found.items()}
    runs = [run for every in found.values() for run in every]
    losing = float(np.mean([run[OURS] < run[NAIVE] - _LOSS for run in runs]))
    many = {setting: every for setting, every in found.items() if setting[1] >= _MANY_VIEWS}
    # Where full labels gain nothing, any gain is more than half of theirs.
    gains = {titles[setting]: (_gain(every, OURS)[0], _gain(every, FULL_LABELS)[0]) for setting, every in many.items()}
    rivals = {rule: min(_gain(every, OURS, rule)[0] for every in found.values()) for rule in RULES[1:3]}
    control = {titles[setting]: _gain(every, OURS, CONTROL) for setting, every in found.items()}
    return [
        make_verdict(
            f"fit_ranker is never more than {_LOSS} below naive on average",
            "; ".join(f"{gain:+.4f} ({title})" for title, gain in lowest.items()),
            min(lowest.values()) >= -_LOSS,
            enough=enough,
        ),
        make_verdict(
            f"at most {_MAX_LOSING:.0%} of single runs are more than {_LOSS} below naive",
            f"{losing:.0%} of {len(runs)}",
            losing <= _MAX_LOSING,
            enough=enough,
        ),
        make_verdict(
            f"fit_ranker has half of what full labels gain with {_MANY_VIEWS} or more views",
            "; ".join(f"{ours:+.4f} of {full:+.4f} ({title})" for title, (ours, full) in gains.items()),
            all(ours >= full / 2 for ours, full in gains.values()),
            enough=enough and len(gains) > 0,
        ),
        make_verdict(
            f"fit_ranker is {_MARGIN} or more above raw-click lambdarank and lambdarank_unbiased on average",
            ", ".join(f"at least {gain:+.4f} above {rule}" for rule, gain in rivals.items()),
            min(rivals.values()) >= _MARGIN,
            enough=enough,
        ),
        make_verdict(
            "the correction itself gains: fit_ranker is above its control with p = 1",
            "; ".join(f"{gain:+.4f} ± {error:.4f} ({title})" for title, (gain, error) in control.items()),
            all(gain > 0 for gain, _ in control.values()),
            enough=enough,
        ),
    ]
