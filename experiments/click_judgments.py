"""Experiment "judgments": do judgments from clicks agree with the truth, and better than the usual click rates?

Two rankers serve queries whose documents have a known relevance: the probability of a click on a document that is
examined. Queries differ in how much is clicked. `posbias.judgments` judges every document shown, with the curve that
`CrossFit` estimates from the same log. Its relevance is compared with the truth within each query, beside three rates
that are in use:

- click rate: clicks / impressions;
- COEC: clicks over expected clicks, those of an average document at the same ranks;
- lowest click: clicks / impressions at or above the lowest rank that was clicked in the page view.

judgments.csv has a row for each setting and method: Kendall's tau with the truth (ties count as 0), and the nDCG of the
documents in the order of their judgments, with the true relevance as gain. It also has the coverage of 95% intervals,
over all documents and over those with enough exposure to be judged by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import posbias
from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, make_verdict, seed_of
from posbias._arrays import FloatArray, IntArray
from posbias._defaults import DEFAULT_MIN_EXPOSURE
from posbias.engines.duckdb import DuckDB
from posbias.errors import PosbiasError

OURS = "posbias"
METHODS = (OURS, "click rate", "COEC", "lowest click")
_RANKS, _CANDIDATES, _DEPTH = 10, 20, 10
_GRADES = (0.45, 0.25, 0.15, 0.10, 0.05)
_RELEVANCE = np.array([0.05, 0.15, 0.3, 0.55, 0.9])
# The standard deviations of the log relevance between queries, and between documents of one grade.
_BETWEEN_QUERIES, _WITHIN_GRADE = 0.5, 0.3
_RANKER_NOISE = 1.5
_LOW, _HIGH = 0.93, 0.97


@dataclass(frozen=True)
class Setting:
    """Page views of each query, the bias p = (1/k)^η, and how much the rankers know of the grades."""

    views: int
    eta: float
    quality: float


SETTINGS = {
    f"η = {eta:g}, {name} rankers, {views} view{'s' * (views > 1)}": Setting(views, eta, quality)
    for eta in (0.5, 1.0, 2.0)
    for name, quality in {"poor": 0.3, "good": 2.0}.items()
    for views in (1, 4, 16, 100)
}


def run_judgments(lab: Laboratory) -> Outcome:
    """Judge the documents of simulated logs in every setting, and compare the judgments with the truth."""
    found: dict[str, list[Agreement]] = {}
    for number, (name, setting) in enumerate(SETTINGS.items()):
        found[name] = []
        for log in range(lab.sizes.judgment_logs):
            seed = seed_of(lab.seed, "judgments", name, log)
            found[name].append(measure(setting, lab.sizes.judgment_queries, seed))
            lab.progress(f"judgments: {name}", (number + (log + 1) / lab.sizes.judgment_logs) / len(SETTINGS))
    rows = [row for name, parts in found.items() for row in _rows(name, parts)]
    drawn = {
        f"{OURS} − {method}": np.array(
            [_mean([part.ndcg[OURS] - part.ndcg[method] for part in parts]) for parts in found.values()]
        ).T
        for method in METHODS[1:]
    }
    figure = draw_settings(list(SETTINGS), drawn, "nDCG@10 of the order by judgments, gain over", (0.0, 0.0))
    enough = lab.sizes.judgment_logs >= ENOUGH_LOGS
    verdicts = []
    for title, values in (("nDCG@10", [row["ndcg_gain"] for row in rows]), ("tau", [row["tau_gain"] for row in rows])):
        gains = np.array([gain for gain, row in zip(values, rows, strict=True) if row["method"] != OURS])
        errors = np.array([row[f"{title.removesuffix('@10').lower()}_error"] for row in rows if row["method"] != OURS])
        worst = int(np.argmin(gains))
        where = [f"{row['setting']}, {row['method']}" for row in rows if row["method"] != OURS][worst]
        verdicts.append(
            make_verdict(
                f"The {title} of judgments is above that of each rate in every setting, two standard errors allowed",
                f"the least gain is {gains[worst]:+.3f} ({where}), the mean {gains.mean():+.3f}; "
                f"{int((gains + 2 * errors < 0).sum())} of {len(gains)} are below, {int((gains < 0).sum())} without "
                "allowance",
                bool((gains + 2 * errors >= 0).all()),
                gains,
                enough=enough,
            )
        )
    ours = [row for row in rows if row["method"] == OURS]
    judged = np.array([row["coverage_judged"] for row in ours])
    kept = judged[np.isfinite(judged)]
    verdicts.append(
        make_verdict(
            f"95% intervals of judged documents hold the truth in {_LOW:.0%} to {_HIGH:.0%}",
            f"{kept.min(initial=1):.3f} to {kept.max(initial=0):.3f}",
            bool(((kept >= _LOW) & (kept <= _HIGH)).all()),
            kept,
            enough=enough and len(kept) > 0,
        )
    )
    return Outcome("judgments", rows, figure, tuple(verdicts))


class Agreement(NamedTuple):
    """How well the judgments of one log agree with the truth, by method; coverages are of ours."""

    tau: dict[str, float]
    ndcg: dict[str, float]
    coverage: float
    coverage_judged: float
    judged: float


def measure(setting: Setting, queries: int, seed: int) -> Agreement:
    """Simulate a log, judge its documents by every method, and compare them with the truth."""
    log, relevance = draw_log(setting, queries, seed)
    click_log = posbias.ClickLog(log)
    engine = DuckDB(threads=1)
    harvest = posbias.harvest(click_log, engine=engine)
    try:
        curve = posbias.CrossFit(interval=None).fit(harvest).curve()
    except posbias.EstimateError:
        # A very small log, where no document was clicked at two ranks.
        curve = posbias.AllPairs(interval=None).fit(harvest).curve()
    try:
        judged = posbias.judgments(click_log, curve, min_exposure=1e-6, grades=None, engine=engine).table
    except PosbiasError:
        # A rank without a number: the ranks above it are enough to extrapolate the curve. If none of them has a number
        # above 0, nothing can be corrected.
        last = next(p.position for p in curve.positions if p.propensity is None) - 1
        shorter = posbias.Curve(curve.estimator, last, None, None, None, curve.positions[:last], {})
        known = any(p.propensity for p in shorter.positions[1:])
        given = shorter if known else np.ones(_RANKS)
        judged = posbias.judgments(
            click_log, given, min_exposure=1e-6, grades=None, engine=engine, beyond="extrapolate"
        ).table
    query, doc = (judged[name].to_numpy() for name in ("query_id", "doc_id"))
    truth = relevance[query, doc]
    values = {OURS: judged["relevance"].to_numpy()} | {
        name: rate[query, doc] for name, rate in _usual_rates(log, relevance.shape).items()
    }
    inside = (judged["low"].to_numpy() <= truth) & (truth <= judged["high"].to_numpy())
    enough = judged["exposure"].to_numpy() >= DEFAULT_MIN_EXPOSURE
    rng = np.random.default_rng(seed)
    agreement = {name: _agreement(value, truth, query, rng) for name, value in values.items()}
    return Agreement(
        {name: tau for name, (tau, _) in agreement.items()},
        {name: ndcg for name, (_, ndcg) in agreement.items()},
        float(inside.mean()),
        float(inside[enough].mean()) if enough.any() else np.nan,
        float(enough.mean()),
    )


def draw_log(setting: Setting, queries: int, seed: int) -> tuple[pa.Table, FloatArray]:
    """Return a wide log of two rankers, and the relevance by query and document."""
    rng = np.random.default_rng(seed)
    shape = queries, _CANDIDATES
    grade = rng.choice(len(_GRADES), shape, p=_GRADES)
    spread = _BETWEEN_QUERIES * rng.standard_normal((queries, 1)) + _WITHIN_GRADE * rng.standard_normal(shape)
    relevance = (_RELEVANCE[grade] * np.exp(spread)).clip(0.005, 0.95)
    scores = setting.quality * grade + _RANKER_NOISE * rng.standard_normal((2, *shape))
    ranks = np.argsort(np.argsort(-scores, axis=2), axis=2)
    ranker = rng.integers(0, 2, queries * setting.views)
    view_query = np.repeat(np.arange(queries), setting.views)
    shown = ranks[ranker, view_query]
    view, doc = np.nonzero(shown < _RANKS)
    rank, query = shown[view, doc], view_query[view]
    chance = (1 / (rank + 1)) ** setting.eta * relevance[query, doc]
    columns = {
        "impression_id": view,
        "query_id": query,
        "doc_id": doc,
        "ranker": pa.array(["a", "b"]).take(pa.array(ranker[view])),
        "position": rank + 1,
        "clicked": (rng.random(len(view)) < chance).astype(np.int64),
        "rank_a": ranks[0][query, doc] + 1,
        "rank_b": ranks[1][query, doc] + 1,
    }
    return pa.table(columns), relevance


def _usual_rates(log: pa.Table, shape: tuple[int, int]) -> dict[str, FloatArray]:
    """Return the three usual rates by query and document."""
    columns = ("impression_id", "query_id", "doc_id", "position", "clicked")
    view, query, doc, rank, clicked = (log[name].to_numpy() for name in columns)
    pair = query * shape[1] + doc
    rates = np.bincount(rank, clicked) / np.maximum(np.bincount(rank), 1)
    lowest = np.zeros(int(view.max()) + 1, dtype=np.int64)
    np.maximum.at(lowest, view, rank * clicked)
    sizes = {
        "click rate": np.ones(len(pair)),
        "COEC": rates[rank],
        "lowest click": (rank <= lowest[view]).astype(np.float64),
    }
    clicks = np.bincount(pair, clicked, shape[0] * shape[1])
    found = {}
    for name, size in sizes.items():
        total = np.bincount(pair, size, shape[0] * shape[1])
        found[name] = np.divide(clicks, total, out=np.zeros_like(total), where=total > 0).reshape(shape)
    return found


def _agreement(value: FloatArray, truth: FloatArray, query: IntArray, rng: np.random.Generator) -> tuple[float, float]:
    """Return the mean over queries of Kendall's tau and of nDCG@10; equal values are in random order."""
    taus, ndcgs = [], []
    discount = 1 / np.log2(2 + np.arange(_DEPTH))
    for one in np.unique(query):
        v, t = value[query == one], truth[query == one]
        above = np.triu(np.sign(v[:, None] - v) * np.sign(t[:, None] - t), 1)
        taus.append(above.sum() / (len(v) * (len(v) - 1) / 2))
        order = np.lexsort((rng.random(len(v)), -v))[:_DEPTH]
        best = np.sort(t)[::-1][:_DEPTH]
        ndcgs.append((t[order] * discount[: len(order)]).sum() / (best * discount[: len(best)]).sum())
    return float(np.mean(taus)), float(np.mean(ndcgs))


def _mean(values: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    array = np.array(values)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else np.nan


def _rows(name: str, parts: list[Agreement]) -> list[Row]:
    rows: list[Row] = []
    for method in METHODS:
        tau_gain, tau_error = _mean([part.tau[OURS] - part.tau[method] for part in parts])
        ndcg_gain, ndcg_error = _mean([part.ndcg[OURS] - part.ndcg[method] for part in parts])
        ours = method == OURS
        judged = np.array([part.coverage_judged for part in parts])
        rows.append(
            {
                "setting": name,
                "method": method,
                "tau": _mean([part.tau[method] for part in parts])[0],
                "ndcg": _mean([part.ndcg[method] for part in parts])[0],
                "tau_gain": tau_gain,
                "tau_error": tau_error,
                "ndcg_gain": ndcg_gain,
                "ndcg_error": ndcg_error,
                "coverage": _mean([part.coverage for part in parts])[0] if ours else np.nan,
                "coverage_judged": float(np.nanmean(judged)) if ours and np.isfinite(judged).any() else np.nan,
                "judged": _mean([part.judged for part in parts])[0] if ours else np.nan,
            }
        )
    return rows
