"""Experiment "audit": do estimates, intervals and warnings hold in traffic as people have it?

The logs come from a simulator of its own, which shares no code with `posbias.simulation`: queries follow Zipf's law,
relevance is beta-distributed within each query, queries have different numbers of candidates, pages end at different
ranks, users see one ranker throughout and differ in how much they click, and rankers replace each other. In each
setting the experiment simulates many logs, counts them as a harvest, and fits `CrossFit` and its rivals. It counts how
often 95% intervals contain the truth, and how large errors are. Logs of settings in which no curve can be right are
diagnosed: they should raise a warning.

audit.csv has a row for each setting; audit-warnings.csv has the share of logs with each warning; audit-by-rank.csv has
the bias and the coverage at each rank. The result of each log is stored in the folder `audit` of the output as soon as
it is known, so that an interrupted run continues where it stopped. Results of other estimators are not used again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import posbias
from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, make_verdict, seed_of
from posbias._arrays import BoolArray, FloatArray, IntArray, group
from posbias.engines.duckdb import DuckDB
from posbias.errors import EstimateError, PosbiasError
from posbias.estimators import AdjacentChain, AllPairs, CrossFit, PivotOne
from posbias.estimators.base import Estimator, Jackknife
from posbias.estimators.significance import ALARM_LEVEL
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.tables import Cells, PairSums, canonical
from posbias.judging.diagnose import diagnose
from posbias.judging.diagnostics import unit_split_test
from posbias.logs.click_log import ClickLog, Layout
from posbias.sql.dialects import BUCKETS

# What CrossFit is compared with.
RIVALS: dict[str, Estimator] = {  # type: ignore[type-arg]
    "AllPairs": AllPairs(interval=None),
    "PivotOne": PivotOne(interval=None),
    "AdjacentChain": AdjacentChain(interval=None),
    "without guesses": CrossFit(relevance="none", interval=None),
    "observed exposure": CrossFit(exposure="observed", interval=None),
}
CURVES = ("CrossFit", *RIVALS)
# A coverage in this range counts as 95%, and the most that CrossFit's error may exceed that of the best rival.
_LOW, _HIGH, _MAX_ERROR = 0.93, 0.97, 1.03
# The largest share of healthy logs with a warning.
_MAX_ALARMS = 0.05
# The days that a log is spread over.
_DAYS = 28
_NAMES = "abcdefgh"
_MIN_VIEWS = 500
_DEEPEST_DEPTH = 10
# A crawler clicks this share of the results.
_CRAWLER_CLICKS = 0.5
# The bucket of the query or user with a number, drawn at random.
_BUCKET_OF = np.random.default_rng(0).integers(BUCKETS, size=2**16)


# ---- The settings


@dataclass(frozen=True)
class Setting:
    """Traffic as it is simulated.

    Attributes:
        views: the page views of a log.
        queries: the number of distinct queries.
        zipf: the query with the n-th most page views has a share proportional to n to the power of minus this.
        hot: the share of page views that one query has beyond that.
        traffic: the share of each ranker, in per cent.
        skill: how strongly the scores of each ranker follow relevance; their noise has variance 1.
        eta: p_k = k to the power of minus eta, unless `curve` gives the propensities.
        curve: the propensities p_1, p_2, ..., if they follow no power law.
        max_rank: M, the results of a whole page.
        candidates: the fewest and the most documents of a query.
        relevance: the mean chance of a click on an examined document by the most active user.
        assigned: what draws a ranker: each "view", "user" or "query"; "time" lets rankers serve one after another, and
            "ramp" lets the share of the second of two rise from 0 to 1 over time.
        users: the number of users; None if each page view has its own.
        user_shape: how much a user clicks is beta-distributed with this shape on both sides; None if all are alike.
        user_tail: the shape of the side of active users, if it differs: the larger, the fewer of them there are.
        depths: the depths of pages, one of which each page view draws; None for whole pages.
        ranker_depths: the same for each ranker, where they differ.
        mix_drift: how much the mix of queries changes over the time of the log.
        relevance_drift: the share of a document's relevance that is new at the end, which later rankers know. It
            changes in steps, as many as there are rankers, or steadily if the share of a ranker rises.
        replay: whether the log has no ranks of the rankers that were not shown.
        crawled: the share of page views of crawlers, which click half of their results.
        lost: the share of the clicks on pages of the last ranker that is not logged.
        healthy: whether the curve can be estimated; otherwise logs should raise a warning.
        detected: the share of logs that should raise it.
    """

    views: int = 8000
    queries: int = 3000
    zipf: float = 1.1
    hot: float = 0.0
    traffic: tuple[float, ...] = (50, 50)
    skill: tuple[float, ...] = (1.0, 1.0)
    eta: float = 1.0
    curve: tuple[float, ...] | None = None
    max_rank: int = 10
    candidates: tuple[int, int] = (10, 28)
    relevance: float = 0.3
    assigned: str = "view"
    users: int | None = None
    user_shape: float | None = None
    user_tail: float | None = None
    depths: tuple[int, ...] | None = None
    ranker_depths: tuple[tuple[int, ...], ...] | None = None
    mix_drift: float = 0.0
    relevance_drift: float = 0.0
    replay: bool = False
    crawled: float = 0.0
    lost: float = 0.0
    healthy: bool = True
    detected: float = 0.95

    @property
    def propensity(self) -> FloatArray:
        """The true propensities p_k / p_1."""
        power = np.arange(1.0, self.max_rank + 1) ** -self.eta
        return np.asarray(power if self.curve is None else np.array(self.curve) / self.curve[0])

    def shrunk(self, share: float) -> Setting:
        """Return the setting with a share of its page views, but not with very few."""
        return replace(self, views=max(min(self.views, _MIN_VIEWS), int(share * self.views)))

    @property
    def split(self) -> dict[str, float]:
        """The intended shares of traffic, by ranker."""
        return dict(zip(_NAMES, self.traffic, strict=False))


_FOLD = tuple(k**-0.5 * (1 if k <= 8 else 0.4) for k in range(1, 21))
_SECOND_FIRST = (0.8, 1.0, 0.7, 0.5, 0.4, 0.33, 0.28, 0.25, 0.22, 0.2)
_UNEQUAL = Setting(traffic=(60, 30, 10), skill=(2.0, 1.0, 0.4))
# Users move the curve only if rankers differ: between rankers of equal quality their effects cancel.
_USERS = Setting(views=12_000, relevance=0.5, eta=0.5, skill=(2.5, 0.3), assigned="user", user_shape=0.5)
_UNIFORM = tuple(range(2, _DEEPEST_DEPTH + 1))
SETTINGS: dict[str, Setting] = {
    "50/50": Setting(),
    "95/5": Setting(views=20_000, traffic=(95, 5)),
    "90/10, unequal, η 1.5": Setting(views=20_000, traffic=(90, 10), skill=(2.0, 0.7), eta=1.5),
    "80/5/5/5/5": Setting(views=12_000, traffic=(80, 5, 5, 5, 5), skill=(1.0,) * 5),
    "six rankers, 50/10 × 5": Setting(traffic=(50, 10, 10, 10, 10, 10), skill=(1.0,) * 6),
    "80/10/10, 30,000 queries": Setting(views=20_000, queries=30_000, traffic=(80, 10, 10), skill=(1.0,) * 3),
    "CTR 0.3%, 5 ranks": Setting(views=20_000, max_rank=5, relevance=0.006),
    "CTR 90%, 5 ranks": Setting(views=4000, max_rank=5, relevance=0.95, eta=0.05),
    "η 0.3": Setting(eta=0.3),
    "η 2.5": Setting(views=20_000, eta=2.5),
    "rank 2 above rank 1": Setting(curve=_SECOND_FIRST),
    "20 ranks, a fold, 80/10/10": Setting(
        curve=_FOLD, max_rank=20, candidates=(20, 38), traffic=(80, 10, 10), skill=(1.0,) * 3
    ),
    "50 ranks, 80/10/10": Setting(
        views=4000, max_rank=50, candidates=(50, 68), eta=0.7, traffic=(80, 10, 10), skill=(1.0,) * 3
    ),
    "30 queries": Setting(views=4000, queries=30),
    "one query has half of all views": Setting(hot=0.5),
    "sequential, mix of queries drifts": Setting(assigned="time", mix_drift=1.0),
    "sticky queries": Setting(views=12_000, traffic=(60, 30, 10), skill=(1.0,) * 3, assigned="query"),
    "sticky users": Setting(users=1600, assigned="user"),
    "users 120 × 100, who click differently, alike rankers": replace(_USERS, users=120, skill=(1.0, 1.0)),
    "users 120 × 100, who click differently": replace(_USERS, users=120),
    "users 300 × 40, who click differently": replace(_USERS, users=300),
    "users 500 × 20, who click differently": replace(_USERS, users=500, views=10_000),
    "users 2,000 × 5, who click differently": replace(_USERS, users=2000, views=10_000),
    "users 3,000 × 4, who click alike": Setting(views=12_000, users=3000, assigned="user"),
    "users 60 × 200, who click differently": replace(_USERS, users=60, queries=30_000, zipf=0.5, user_shape=0.3),
    "users 4,000 × 3, few of whom click much": Setting(
        views=12_000, users=4000, user_shape=0.3, user_tail=2.0, relevance=0.6, eta=0.7
    ),
    "pages cut at 3, 5 and 10": Setting(depths=(3, 5, 10)),
    "depths 2–10, 60/30/10 unequal": replace(_UNEQUAL, depths=_UNIFORM),
    "depths 2–10, 60/30/10 unequal, 40,000 views": replace(_UNEQUAL, views=40_000, depths=_UNIFORM),
    "shorter pages of one ranker": Setting(views=12_000, ranker_depths=((10,), (5, 6, 7, 8))),
    "depths by ranker, 60/30/10 unequal": replace(_UNEQUAL, views=12_000, ranker_depths=((10,), _UNIFORM, (3, 5, 10))),
    "replay, 40 queries": Setting(queries=40, replay=True),
    "replay, 95/5": Setting(views=20_000, traffic=(95, 5), replay=True),
    "replay, depths 2–10": Setting(views=12_000, depths=_UNIFORM, replay=True),
    "replay, users 120 × 100, who click differently": replace(_USERS, users=120, replay=True),
    "replay, users 300 × 40, who click differently": replace(_USERS, users=300, replay=True),
    "replay, users 2,000 × 5, who click differently": replace(_USERS, users=2000, views=10_000, replay=True),
    "replay, users 120 × 500, 100 queries": replace(
        _USERS, users=120, views=60_000, queries=100, zipf=0.8, replay=True
    ),
    "replay, replacement, relevance drifts": Setting(
        views=12_000, assigned="time", relevance_drift=0.7, replay=True, healthy=False
    ),
    "20 ranks, 2% crawlers": Setting(max_rank=20, candidates=(20, 38), crawled=0.02, healthy=False),
    "10% of one ranker's clicks lost": Setting(lost=0.1, healthy=False, detected=0.8),
    "10% of one ranker's clicks lost, 90/10": Setting(
        views=20_000, traffic=(90, 10), lost=0.1, healthy=False, detected=0.8
    ),
}


# ---- The simulator


def draw_log(setting: Setting, seed: int) -> pa.Table:
    """Return a simulated click log with one row for each result shown."""
    return draw_results(setting, seed).table()


def draw_results(setting: Setting, seed: int) -> Results:
    """Simulate the results that are shown to users, and their clicks."""
    rng = np.random.default_rng(seed)
    rankers, width = len(setting.traffic), setting.max_rank
    query = _draw_queries(setting, rng)
    user = rng.permutation(np.arange(setting.views) % (setting.users or setting.views))
    ranker = _draw_rankers(setting, rng, query, user)
    _, query = np.unique(query, return_inverse=True)
    early, late, exists = _draw_relevance(setting, rng, int(query.max()) + 1)
    ranks = _draw_ranks(setting, rng, early, late, exists)
    # order[q, i, k] is the document that ranker i puts at rank k + 1.
    order = np.argsort(ranks, axis=2)[:, :, :width]
    time = np.arange(setting.views) / setting.views
    activity = np.ones(setting.views)
    if setting.user_shape is not None:
        activity = rng.beta(setting.user_shape, setting.user_tail or setting.user_shape, setting.views)

    shown = np.arange(width) < np.minimum(_draw_depths(setting, rng, ranker), exists.sum(axis=1)[query])[:, None]
    view, rank = np.nonzero(shown)
    doc = order[query[view], ranker[view], rank]
    # Rankers that serve one after another find the relevance of their own time.
    moment = time if setting.assigned == "ramp" else np.floor(time * rankers) / max(rankers - 1, 1)
    drift = moment * setting.relevance_drift
    relevance = (1 - drift[view]) * early[query[view], doc] + drift[view] * late[query[view], doc]
    scale = setting.propensity / setting.propensity.max()
    chance = scale[rank] * relevance * activity[user[view]]
    clicked = rng.random(len(view)) < chance
    if setting.crawled:
        crawled = rng.random(setting.views) < setting.crawled
        clicked = np.where(crawled[view], rng.random(len(view)) < _CRAWLER_CLICKS, clicked)
    if setting.lost:
        clicked &= (ranker[view] < rankers - 1) | (rng.random(len(view)) >= setting.lost)
    return Results(
        setting=setting,
        view=view,
        day=(time[view] * _DAYS).astype(np.int64) + 1,
        query=query[view],
        user=user[view],
        doc=query[view] * 1000 + doc,
        ranker=ranker[view],
        rank=rank + 1,
        clicked=clicked.astype(np.int64),
        ranks=ranks[query[view], :, doc] + 1,
    )


@dataclass(frozen=True, eq=False)
class Results:
    """The results that were shown: a value for each in every array, and in `ranks` its rank by each ranker."""

    setting: Setting
    view: IntArray
    day: IntArray
    query: IntArray
    user: IntArray
    doc: IntArray
    ranker: IntArray
    rank: IntArray
    clicked: IntArray
    ranks: IntArray

    def table(self) -> pa.Table:
        """Return the click log with one row for each result."""
        columns = {
            "impression_id": self.view,
            "day": self.day,
            "query_id": self.query,
            "doc_id": self.doc,
            "ranker": pa.array(list(_NAMES)).take(pa.array(self.ranker)),
            "position": self.rank,
            "clicked": self.clicked,
        }
        if self.setting.users is not None:
            columns["user_id"] = self.user
        if not self.setting.replay:
            columns |= {f"rank_{_NAMES[i]}": self.ranks[:, i] for i in range(len(self.setting.traffic))}
        return pa.table(columns)

    def harvest(self) -> Harvest:
        """Return the harvest of the log. It has the counts of `posbias.harvest`, in other buckets, and is faster."""
        by_query, by_user = (_BUCKET_OF[which % len(_BUCKET_OF)] for which in (self.query, self.user + 7919))
        layout: Layout = Layout.REPLAY if self.setting.replay else Layout.WIDE
        harvest = Harvest(
            max_rank=self.setting.max_rank,
            rankers=tuple(_NAMES[: len(self.setting.traffic)]),
            layout=layout,
            weighting=layout.weighting,
            by=(),
            segments=((),),
            kind="exposures" if self.setting.replay else "signatures",
            table=self._cells(by_query),
        )
        if self.setting.users is None:
            return harvest
        counted = self._losses if self.setting.replay else self._cells
        return harvest.with_units("user_id", [counted(by_user), counted((by_query + by_user) % BUCKETS)])

    def _losses(self, bucket: IntArray) -> Cells | PairSums:
        """Return plain counts, and what sums over intervention sets lose without each bucket, by their definition.

        The sums are counted with and without the rows that each bucket has of a document.
        """
        first, plain = group([bucket, self.ranker, self.rank])
        shown, clicks = (np.bincount(plain, weights).astype(np.float64) for weights in (None, self.clicked))
        zero = np.zeros(len(first), np.int64)
        counts = PairSums(zero, bucket[first], self.ranker[first], self.rank[first], zero, clicks, shown - clicks)
        ranks, documents = self.setting.max_rank, group([self.doc])[1]
        whole = np.zeros((2, int(documents.max()) + 1, ranks))
        np.add.at(whole, (self.clicked, documents, self.rank - 1), 1)
        # A part is what a bucket has of a document.
        first, part = group([documents, bucket])
        own = np.zeros((2, len(first), ranks))
        np.add.at(own, (self.clicked, part, self.rank - 1), 1)
        counts_of, in_bucket = whole[:, documents[first]], bucket[first]
        shown_at = whole.sum(axis=0)[documents[first]] > 0
        lost = np.zeros((2, BUCKETS, ranks, ranks))
        for k, other in zip(*np.nonzero(~np.eye(ranks, dtype=np.bool_)), strict=True):
            compared = np.flatnonzero(shown_at[:, k] & shown_at[:, other])
            before = counts_of[:, compared][:, :, [k, other]]
            after = before - own[:, compared][:, :, [k, other]]
            change = _harmonic(before) - _harmonic(after)
            lost[:, :, k, other] = [np.bincount(in_bucket[compared], values, BUCKETS) for values in change]
        at, k, other = np.nonzero(lost.any(axis=0))
        none = np.zeros(len(at), np.int64)
        sums = PairSums(none, at, none - 1, k + 1, other + 1, lost[1, at, k, other], lost[0, at, k, other])
        return canonical(PairSums.concatenate([counts, sums]))

    def _cells(self, bucket: IntArray) -> Cells | PairSums:
        """Return the counts by bucket, stratum, ranker and rank."""
        if self.setting.replay:
            first, cell = group([self.doc, self.ranker, self.rank])
            counts = (np.bincount(cell, weights).astype(np.int64) for weights in (None, self.clicked))
            which, zero, one = self.doc[first], np.zeros(len(first), np.int64), np.ones(len(first), np.int64)
            keys = (zero, bucket[first], group([which])[1], one, self.ranker[first], self.rank[first])
            return canonical(Cells(*keys, *counts))
        ranks = np.where(self.ranks <= self.setting.max_rank, self.ranks, 0)
        first, stratum = group([bucket, *ranks.T])
        rankers, size = ranks.shape[1], len(first)
        place = self.ranker * size + stratum
        shown, clicks = (np.bincount(place, weights, rankers * size) for weights in (None, self.clicked))
        # A ranker has a cell wherever it ranks the documents of a stratum, whether or not it showed them.
        ranked = np.flatnonzero(ranks[first].T)
        ranker, which = np.divmod(ranked, size)
        zero = np.zeros(len(ranked), np.int64)
        counts = (values[ranked].astype(np.int64) for values in (shown, clicks))
        return canonical(
            Cells(zero, bucket[first][which], which, zero, ranker, ranks[first].T.ravel()[ranked], *counts)
        )


def _harmonic(counts: FloatArray) -> FloatArray:
    """Return what documents add to ¬ĉ and ĉ of two ranks, (2, n), from skips and clicks by document and rank."""
    shown = counts.sum(axis=0)
    return np.asarray(counts[:, :, 0] * shown[:, 1] / np.maximum(shown.sum(axis=1), 1))


def _draw_queries(setting: Setting, rng: np.random.Generator) -> IntArray:
    """Return the query of each page view, in the order of time."""
    weight = np.arange(1, setting.queries + 1) ** -setting.zipf
    weight = (1 - setting.hot) * weight / weight.sum()
    weight[0] += setting.hot
    if not setting.mix_drift:
        return rng.choice(setting.queries, setting.views, p=weight)
    trend = setting.mix_drift * rng.standard_normal(setting.queries)
    days = np.arange(setting.views) * _DAYS // setting.views
    query = np.zeros(setting.views, dtype=np.int64)
    for day in range(_DAYS):
        now = weight * np.exp(trend * (day / _DAYS - 0.5))
        query[days == day] = rng.choice(setting.queries, np.count_nonzero(days == day), p=now / now.sum())
    return query


def _draw_rankers(setting: Setting, rng: np.random.Generator, query: IntArray, user: IntArray) -> IntArray:
    """Return the ranker of each page view."""
    shares = np.array(setting.traffic) / sum(setting.traffic)
    if setting.assigned == "time":
        time = np.arange(setting.views) / setting.views
        return np.asarray(np.searchsorted(np.cumsum(shares)[:-1], time, side="right"))
    if setting.assigned == "ramp":
        return (rng.random(setting.views) < np.arange(setting.views) / setting.views).astype(np.int64)
    unit = {"view": np.arange(setting.views), "user": user, "query": query}[setting.assigned]
    return np.asarray(rng.choice(len(shares), int(unit.max()) + 1, p=shares)[unit])


def _draw_relevance(
    setting: Setting, rng: np.random.Generator, queries: int
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return the relevance at the begin and at the end by query and candidate, and which candidates exist."""
    few, many = setting.candidates
    exists = np.arange(many) < rng.integers(few, many + 1, queries)[:, None]
    mean = rng.beta(4 * setting.relevance, 4 * (1 - setting.relevance), (queries, 1)).clip(1e-4, 1 - 1e-4)
    early, late = (rng.beta(2 * mean, 2 * (1 - mean), exists.shape).clip(1e-6, 1) for _ in range(2))
    return early, late, exists


def _draw_ranks(
    setting: Setting, rng: np.random.Generator, early: FloatArray, late: FloatArray, exists: BoolArray
) -> IntArray:
    """Return the rank by query, ranker and candidate, from 0: by the logit of relevance plus noise."""
    rankers = len(setting.skill)
    ranks = np.zeros((len(early), rankers, early.shape[1]), dtype=np.int64)
    common = rng.standard_normal(early.shape)
    for i, skill in enumerate(setting.skill):
        drift = setting.relevance_drift * i / max(rankers - 1, 1)
        known = ((1 - drift) * early + drift * late).clip(1e-6, 1 - 1e-6)
        noise = np.sqrt(0.5) * (common + rng.standard_normal(early.shape))
        score = np.where(exists, skill * 0.5 * np.log(known / (1 - known)) + noise, -np.inf)
        ranks[:, i] = np.argsort(np.argsort(-score, axis=1, kind="stable"), axis=1)
    return ranks


def _draw_depths(setting: Setting, rng: np.random.Generator, ranker: IntArray) -> IntArray:
    """Return how many results each page view shows at most."""
    whole = (setting.max_rank,)
    depths = setting.ranker_depths or (setting.depths or whole,) * len(setting.traffic)
    drawn = [rng.choice(choice, len(ranker)) for choice in depths]
    return np.choose(ranker, drawn)


# ---- The measurement of one log


def measure(setting: Setting, seed: int) -> dict[str, Any]:
    """Simulate and estimate one log, and return what is known about it as a JSON record.

    A log whose curve cannot be right is diagnosed, too.
    """
    results = draw_results(setting, seed)
    harvest = results.harvest()
    estimator = _fit(CrossFit(), harvest)
    nothing = np.full(setting.max_rank, np.nan)
    curves = {"CrossFit": nothing if estimator is None else estimator.propensity_}
    for name, rival in RIVALS.items():
        fitted = _fit(type(rival)(**rival.parameters()), harvest)
        curves[name] = nothing if fitted is None else fitted.propensity_
    record = {"seed": seed, "curves": {name: _as_list(curve) for name, curve in curves.items()}}
    jackknife = None if estimator is None else estimator.jackknife_
    record["inside"] = _as_list(_contains_truth(setting, jackknife))
    if harvest.units is not None:
        by_query = None if jackknife is None else replace(jackknife, units=None)
        record["inside_by_query"] = _as_list(_contains_truth(setting, by_query))
    if setting.assigned == "user":
        record["mismatch"] = _has_split_alarm(results)
    if not setting.healthy:
        engine = DuckDB(threads=1)
        log = ClickLog(results.table(), unit=None if setting.users is None else "user_id")
        findings = diagnose(log, split=setting.split, max_rank=setting.max_rank, engine=engine).findings
        record["warnings"] = sorted({f.code for f in findings if f.severity != "info"})
    return record


def _contains_truth(setting: Setting, jackknife: Jackknife | None) -> FloatArray:
    """Return, by rank, whether the 95% interval contains the truth; NaN where there is none."""
    if jackknife is None:
        return np.full(setting.max_rank, np.nan)
    low, high = jackknife.intervals(0.95).bounds.T
    return np.where(np.isfinite(low), (low <= setting.propensity) & (setting.propensity <= high), np.nan)


def _has_split_alarm(results: Results) -> bool:
    """Return whether the test of `diagnose` says that users were not split between rankers as intended."""
    first, _ = group([results.user])
    user, ranker, shares = results.user[first], results.ranker[first], np.array(results.setting.traffic)
    units = np.zeros((BUCKETS, len(shares)))
    np.add.at(units, (_BUCKET_OF[user % len(_BUCKET_OF)], ranker), 1)
    return unit_split_test(units[units.any(axis=1)], shares / shares.sum()).p_value < ALARM_LEVEL


def _fit(estimator: Estimator, harvest: Harvest) -> Estimator | None:  # type: ignore[type-arg]
    try:
        return estimator.fit(harvest)
    except EstimateError:
        return None


def _as_list(values: FloatArray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


# ---- The experiment


def run_audit(lab: Laboratory) -> Outcome:
    """Simulate logs of every setting, and count coverage, errors and warnings."""
    chosen = _chosen(lab.setting)
    logs = lab.sizes.audit_logs
    found: dict[str, Audited] = {}
    for number, name in enumerate(chosen):
        setting = SETTINGS[name].shrunk(lab.sizes.world)
        store = LogStore.of(lab.folder, name, setting)
        for log in range(logs):
            seed = seed_of(lab.seed, "audit", name, log)
            if seed not in store.records:
                store.add(measure(setting, seed))
            lab.progress(f"audit: {name}", (number + (log + 1) / logs) / len(chosen))
        found[name] = Audited.of(setting, [store.records[seed_of(lab.seed, "audit", name, log)] for log in range(logs)])
    rows = [_row(name, one) for name, one in found.items()]
    coverage = np.array([one.coverage for one in found.values()]).T
    figure = draw_settings(
        list(found), {"CrossFit": coverage}, "Share of 95% intervals that contain the truth", (_LOW, _HIGH)
    )
    tables = {
        "warnings": [row for name, one in found.items() for row in _warning_rows(name, one)],
        "by-rank": [row for name, one in found.items() for row in _rank_rows(name, one)],
    }
    return Outcome("audit", rows, figure, _verdicts(found), tables, _notes(rows))


def _chosen(name: str | None) -> list[str]:
    """Return the settings whose names contain a text, or all."""
    chosen = [setting for setting in SETTINGS if name is None or name.lower() in setting.lower()]
    if not chosen:
        raise PosbiasError(f"There is no setting {name!r}. Use a part of one of: {'; '.join(SETTINGS)}.")
    return chosen


@dataclass(frozen=True)
class LogStore:
    """The records of the logs of one setting by seed, in a file with one line for each."""

    path: Path | None
    records: dict[int, dict[str, Any]]

    @classmethod
    def of(cls, folder: Path | None, name: str, setting: Setting) -> LogStore:
        """Return the stored records; none without a folder."""
        if folder is None:
            return cls(None, {})
        key = hashlib.sha256(f"{setting}{source_digest()}".encode()).hexdigest()[:12]
        slug = "".join(char if char.isalnum() else "-" for char in name)
        path = folder / "audit" / f"{slug}-{key}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
        return cls(path, {record["seed"]: record for record in map(json.loads, lines)})

    def add(self, record: dict[str, Any]) -> None:
        """Store the record of one more log."""
        self.records[record["seed"]] = record
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


@cache
def source_digest() -> str:
    """Return a digest of the source code that curves depend on."""
    folder = Path(posbias.__file__).parent
    rooms = ("_stats.py", "_arrays.py", "estimators/*.py", "harvesting/tables.py", "harvesting/interventions.py")
    files = [*(file for room in rooms for file in sorted(folder.glob(room))), Path(__file__)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


@dataclass(frozen=True, eq=False)
class Audited:
    """The measurements of all logs of one setting.

    Attributes:
        setting: the setting.
        inside: whether the interval contains the truth, by log and rank from 2 on; NaN where there is none.
        inside_by_query: the same for intervals that do not know users; None if the log has no users.
        curves: the estimates by estimator, log and rank from 2 on; NaN where there is none.
        warnings: the codes of the warnings and errors of each log; None if logs are not diagnosed.
        mismatches: the share of logs with a false sample-ratio alarm; NaN if rankers are not drawn by user.
    """

    setting: Setting
    inside: FloatArray
    inside_by_query: FloatArray | None
    curves: Mapping[str, FloatArray]
    warnings: Sequence[Sequence[str]] | None = None
    mismatches: float = float("nan")

    @classmethod
    def of(cls, setting: Setting, records: Sequence[Mapping[str, Any]]) -> Audited:
        """Collect the records of single logs."""

        def ranks(name: str) -> FloatArray:
            return np.array([record[name] for record in records], dtype=np.float64)[:, 1:]

        first = records[0]
        curves = {name: np.array([r["curves"][name] for r in records], dtype=np.float64)[:, 1:] for name in CURVES}
        return cls(
            setting=setting,
            inside=ranks("inside"),
            inside_by_query=ranks("inside_by_query") if "inside_by_query" in first else None,
            curves=curves,
            warnings=[record["warnings"] for record in records] if "warnings" in first else None,
            mismatches=float(np.mean([record.get("mismatch", np.nan) for record in records])),
        )

    @property
    def logs(self) -> int:
        """The number of logs."""
        return len(self.inside)

    @property
    def coverage(self) -> tuple[float, float]:
        """The share of intervals that contain the truth, and its standard error over logs."""
        return _share_over_logs(self.inside)

    def errors(self, name: str, *, inverse: bool) -> FloatArray:
        """Return the errors of log p, or of p_1 / p_k, by log and rank; NaN where there is no estimate above 0."""
        truth, curve = self.setting.propensity[1:], self.curves[name]
        with np.errstate(divide="ignore"):
            error = 1 / curve - 1 / truth if inverse else np.log(curve / truth)
        return np.where(np.isfinite(error), error, np.nan)

    def error_ratio(self, rival: str, *, inverse: bool) -> float:
        """Return the root mean squared error of CrossFit over a rival's, where both have an estimate."""
        ours, theirs = (self.errors(name, inverse=inverse) for name in ("CrossFit", rival))
        both = np.isfinite(ours) & np.isfinite(theirs)
        return float(np.sqrt((ours[both] ** 2).sum() / (theirs[both] ** 2).sum())) if both.any() else float("nan")

    def best_rival(self, *, inverse: bool) -> tuple[float, str]:
        """Return the largest ratio of CrossFit's error to a rival's, and the rival.

        A rival counts if it has an estimate nearly wherever CrossFit has one.
        """
        ours = np.isfinite(self.errors("CrossFit", inverse=inverse)).sum()
        rivals = [name for name in RIVALS if np.isfinite(self.errors(name, inverse=inverse)).sum() > 0.9 * ours]
        ratios = [(self.error_ratio(name, inverse=inverse), name) for name in rivals]
        return max((ratio for ratio in ratios if np.isfinite(ratio[0])), default=(float("nan"), ""))

    def share_warned(self, code: str | None = None) -> float:
        """Return the share of logs with any warning, or with one code; NaN if logs are not diagnosed."""
        if self.warnings is None:
            return float("nan")
        return float(np.mean([bool(found if code is None else code in found) for found in self.warnings]))


def _share_over_logs(inside: FloatArray) -> tuple[float, float]:
    """Return the share of intervals, by log and rank, that contain the truth, and its standard error over logs."""
    known = np.isfinite(inside)
    total = known.sum()
    if not total:
        return float("nan"), float("nan")
    share = float(np.nansum(inside) / total)
    return share, float(np.sqrt(((np.nansum(inside, axis=1) - share * known.sum(axis=1)) ** 2).sum()) / total)


def _row(name: str, one: Audited) -> dict[str, Any]:
    coverage, standard_error = one.coverage
    row: dict[str, Any] = {
        "setting": name,
        "logs": one.logs,
        "coverage_95%": coverage,
        "standard_error": standard_error,
        "coverage_by_query_alone": _mean(one.inside if one.inside_by_query is None else one.inside_by_query),
        "without_interval": float(np.isnan(one.inside).mean()),
    }
    for label, inverse in (("log_p", False), ("inverse_p", True)):
        best, rival = one.best_rival(inverse=inverse)
        errors = one.errors("CrossFit", inverse=inverse)
        row |= {
            f"rmse_{label}": float(np.sqrt(np.nanmean(errors**2))) if np.isfinite(errors).any() else float("nan"),
            f"over_all_pairs_{label}": one.error_ratio("AllPairs", inverse=inverse),
            f"over_best_rival_{label}": best,
            f"best_rival_{label}": rival,
        }
    bias = one.errors("CrossFit", inverse=False)[:, -1]
    row |= {
        "bias_at_last_rank": float(np.nanmean(bias)) if np.isfinite(bias).any() else float("nan"),
        "sample_ratio_alarms": one.mismatches,
        "any_warning": one.share_warned(),
    }
    return row


def _warning_rows(name: str, one: Audited) -> Sequence[Row]:
    codes = sorted({code for found in one.warnings or () for code in found})
    return [{"setting": name, "code": code, "share": one.share_warned(code)} for code in codes or ["(none)"]]


def _rank_rows(name: str, one: Audited) -> Sequence[Row]:
    errors = {label: one.errors(label, inverse=False) for label in ("CrossFit", "AllPairs")}
    rows = []
    for i in range(one.inside.shape[1]):
        row: dict[str, Any] = {"setting": name, "rank": i + 2, "coverage_95%": _mean(one.inside[:, i])}
        for label, error in errors.items():
            row |= {f"bias_{label}": _mean(error[:, i]), f"rmse_{label}": float(np.sqrt(_mean(error[:, i] ** 2)))}
        rows.append(row)
    return rows


def _mean(values: FloatArray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _verdicts(found: Mapping[str, Audited]) -> tuple[Verdict, ...]:
    healthy = {name: one for name, one in found.items() if one.setting.healthy}
    broken = {name: one for name, one in found.items() if not one.setting.healthy}
    enough = min(one.logs for one in found.values()) >= ENOUGH_LOGS
    verdicts = []

    def judge(claim: str, values: Mapping[str, float], fails: Iterable[str], form: str) -> None:
        known = {name: value for name, value in values.items() if np.isfinite(value)}
        if not known:
            return
        failing = [f"{name} ({format(known[name], form)})" for name in fails if name in known]
        text = f"{format(min(known.values()), form)} to {format(max(known.values()), form)}"
        text += f"; not in {len(failing)} of {len(known)} settings: {', '.join(failing)}" if failing else ""
        verdicts.append(make_verdict(claim, text, not failing, enough=enough))

    coverage = {name: one.coverage for name, one in healthy.items()}
    judge(
        f"95% intervals contain the truth {_LOW:.0%} to {_HIGH:.0%} of the time (tolerance: two standard errors)",
        {name: share for name, (share, _) in coverage.items()},
        [n for n, (share, error) in coverage.items() if share + 2 * error < _LOW or share - 2 * error > _HIGH],
        ".1%",
    )
    for what, inverse in (("log p", False), ("p_1 / p_k", True)):
        ratios = {name: one.best_rival(inverse=inverse)[0] for name, one in healthy.items()}
        claim = f"The error of CrossFit in {what} is at most {_MAX_ERROR} times that of the best rival"
        judge(claim, ratios, [name for name, ratio in ratios.items() if ratio > _MAX_ERROR], ".2f")
    shares = {name: one.mismatches for name, one in healthy.items()}
    claim = f"Sample-ratio alarms are raised in at most {_MAX_ALARMS:.0%} of the logs in which users draw rankers"
    judge(claim, shares, [name for name, share in shares.items() if _above(share, found[name].logs)], ".0%")
    shares = {name: one.share_warned() for name, one in broken.items()}
    claim = "Logs in which the curve is wrong raise a warning: 95% of them, and 80% if a ranker's clicks were lost"
    judge(claim, shares, [name for name, share in shares.items() if share < SETTINGS[name].detected], ".0%")
    return tuple(verdicts)


def _above(share: float, logs: int) -> bool:
    """Return whether a share of logs is above the largest allowed one by more than two standard errors."""
    return share > _MAX_ALARMS + 2 * math.sqrt(_MAX_ALARMS * (1 - _MAX_ALARMS) / logs)


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    lines = [
        "",
        "setting | logs | coverage | by query | error over AllPairs: log p, 1/p | over the best rival | bias",
    ]
    for row in rows:
        lines.append(
            f"{row['setting']} | {row['logs']} | {row['coverage_95%']:.3f} ± {row['standard_error']:.3f} | "
            f"{row['coverage_by_query_alone']:.3f} | "
            f"{row['over_all_pairs_log_p']:.2f}, {row['over_all_pairs_inverse_p']:.2f} | "
            f"{row['over_best_rival_log_p']:.2f} ({row['best_rival_log_p']}), "
            f"{row['over_best_rival_inverse_p']:.2f} ({row['best_rival_inverse_p']}) | "
            f"{row['bias_at_last_rank']:+.2f}"
        )
    return tuple(lines)
