"""Experiment "evaluation": does `evaluate` find the better of two rankings, with reliable confidence intervals?

The experiment simulates logs, evaluates new rankings of known quality on them with `posbias.evaluate`, and compares the
estimates with the truth. It also compares how often posbias, raw clicks, and plain inverse propensity scoring (IPS) on
full ranks choose the better of two rankings.

evaluation.csv has a row for each setting and ranking: the true ratio of its DCG to that of the log (among the documents
shown, and among all), the mean estimate, the coverage of the intervals of the ratio and of the value (with propensities
estimated again in each jackknife replicate, and with fixed propensities), and the mean width in the log of the ratio.
evaluation-users.csv has the coverage on logs whose users were assigned to rankers and click differently, from the
simulator of the audit. There the truth is the geometric mean of the estimates over all logs of a setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

import posbias
from experiments.audit import SETTINGS as AUDITED
from experiments.audit import Setting, draw_log
from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, make_verdict, seed_of
from experiments.simulated_logs import FIRST, LOG, EvaluationLog, buckets_of, shrink_world
from posbias._arrays import BoolArray, FloatArray, IntArray
from posbias.engines.duckdb import DuckDB
from posbias.findings import quiet
from posbias.learning.evaluate import Estimate
from posbias.logs.click_log import Layout
from posbias.simulation.world import World

# The quality of the new rankings: 1 is as good as the logged rankers.
QUALITIES = (0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5)
_NEW = tuple(f"new {quality:g}" for quality in QUALITIES)
# The coverage that counts as 95%; the smallest difference of two rankings that are compared; how often the better one
# must be chosen; and the smallest coverage of the value.
_LOW, _HIGH = 0.93, 0.97
_MIN_RATIO, _MIN_ACCURACY, _MIN_COVERAGE = 1.05, 0.95, 0.9
METHODS = ("ours", "raw clicks", "plain IPS")
# Users see one of two unequal rankers and click differently. No query is frequent: those would be treated as fixed.
_USERS = replace(AUDITED["users 120 × 100, who click differently"], queries=30_000, zipf=0.5)
_RECURRING = replace(_USERS, queries=1000, zipf=0.3)
USERS: dict[str, Setting] = {
    "users 60 × 200": replace(_USERS, users=60, user_shape=0.3),
    "users 60 × 200, 1,000 queries": replace(_RECURRING, users=60, user_shape=0.3),
    "users 120 × 100": _USERS,
    "users 120 × 100, 1,000 queries": _RECURRING,
    "users 120 × 100, 100 queries, replay": replace(_RECURRING, queries=100, replay=True),
    "users 300 × 40": replace(_USERS, users=300),
    "users 2,000 × 6": replace(_USERS, users=2000),
}
# Their logs take longer: so many times fewer are evaluated.
_FEWER_LOGS = 5


def run_evaluation(lab: Laboratory) -> Outcome:
    """Evaluate rankings on simulated logs of every setting, and compare the estimates with the truth."""
    logs = lab.sizes.evaluation_logs
    found: dict[str, EvaluationResults] = {}
    for number, (name, setting) in enumerate(SETTINGS.items()):
        world = setting.shrunk_world(lab.sizes.world)
        buckets = buckets_of(world.queries)
        parts = []
        for log in range(logs):
            seed = seed_of(lab.seed, "evaluation", name, log)
            parts.append(measure(replace(world, seed=seed), setting, buckets))
            lab.progress(f"evaluation: {name}", (number + (log + 1) / logs) / (len(SETTINGS) + len(USERS)))
        found[name] = _combine(parts)
    users = {name: _evaluate_users(name, lab, len(SETTINGS)) for name in USERS}
    rows = [row for name, one in found.items() for row in _rows(name, one)]
    lines = {
        "ratio": [one.coverage(one.ratio, one.true_ratio) for one in found.values()],
        "value": [one.coverage(one.value, one.true_value) for one in found.values()],
        "value, fixed propensities": [one.coverage(one.fixed, one.true_value) for one in found.values()],
    }
    drawn = {label: np.array(held).T for label, held in lines.items()}
    figure = draw_settings(list(SETTINGS), drawn, "Share of 95% intervals that contain the truth", (_LOW, _HIGH))
    verdicts = (*_verdicts(found), _judge_users(users))
    tables = {"users": [row for name, one in users.items() for row in _user_rows(name, one)]}
    return Outcome("evaluation", rows, figure, verdicts, tables, (*_notes(found), *_user_notes(users)))


@dataclass(frozen=True, eq=False)
class EvaluationResults:
    """The estimates and the truth over all logs of a setting.

    Attributes:
        ratio, value: the estimate and the ends of its interval by log and ranking, shape (logs, rankings, 3).
        fixed: the value with fixed propensities, in the same form.
        shown: the true DCG over the documents shown, of the log first; shape (logs, 1 + rankings).
        frequent: the part of `shown` that frequent queries have.
        every: the same over all documents, by full ranks.
        scores: the value of the log and of each ranking by each method, shape (logs, 1 + rankings).
        page_views, frequent_views: the page views of each log, and those of frequent queries.
        unseen: the share of the relevant candidates that were never shown, by log.
    """

    ratio: FloatArray
    value: FloatArray
    fixed: FloatArray
    shown: FloatArray
    frequent: FloatArray
    every: FloatArray
    scores: Mapping[str, FloatArray]
    page_views: FloatArray
    frequent_views: FloatArray
    unseen: FloatArray

    @property
    def true_ratio(self) -> FloatArray:
        """The true ratio of each ranking to the log among the documents shown, by log and ranking."""
        values = self._true_values
        return np.asarray(values[:, 1:] / values[:, :1])

    @property
    def _true_values(self) -> FloatArray:
        """The true value by log and ranking: of its own frequent queries, and of the other queries of all logs."""
        rest = (self.page_views - self.frequent_views)[:, None]
        return np.asarray(self.frequent + rest * (self.shown - self.frequent).sum(axis=0) / rest.sum())

    @property
    def full_ratio(self) -> FloatArray:
        """The true ratio of each ranking to the log among all documents."""
        sums = self.every.sum(axis=0)
        return np.asarray(sums[1:] / sums[0])

    @property
    def true_value(self) -> FloatArray:
        """The true value of each ranking among the documents shown."""
        return np.asarray(self._true_values[:, 1:] / self.page_views[:, None])

    def coverage(self, estimates: FloatArray, truth: FloatArray) -> tuple[float, float]:
        """Return the share of intervals that contain the truth, and its standard error, clustered by log."""
        inside = ((estimates[..., 1] <= truth) & (truth <= estimates[..., 2])).mean(axis=1)
        least = np.sqrt(0.05 * 0.95 / inside.size / estimates.shape[1])
        error = max(inside.std(ddof=1) / np.sqrt(len(inside)), least)
        return float(inside.mean()), float(error)

    def choice_accuracy(self, method: str) -> tuple[float, float, str]:
        """Return how often the better of two rankings has the higher score: the mean, the lowest, and its two rankings.

        A pair counts if one ranking is truly better by 5% or more over all documents. The log is one of the rankings.
        """
        sums, scores = self.every.sum(axis=0), self.scores[method]
        shares: dict[str, float] = {}
        names = ("the log", *_names(self))
        for i, j in combinations(range(len(sums)), 2):
            better, worse = (i, j) if sums[i] > sums[j] else (j, i)
            if sums[better] >= _MIN_RATIO * sums[worse]:
                shares[f"{names[better]} over {names[worse]}"] = float((scores[:, better] > scores[:, worse]).mean())
        if not shares:
            return float("nan"), float("nan"), ""
        lowest = min(shares, key=lambda pair: shares[pair])
        return float(np.mean([*shares.values()])), shares[lowest], lowest


def _names(one: EvaluationResults) -> tuple[str, ...]:
    return _NEW if len(one.full_ratio) == len(_NEW) else ("from raw clicks", "from weighted clicks")


def _world(traffic: tuple[float, float] = (1, 1), **settings: object) -> World:
    options: dict[str, object] = {"queries": 1000, "repeats": 5, "candidates": 20, "similarity": 0.5, **settings}
    return World(
        rankers=("a", "b", *_NEW),
        traffic=(*traffic, *(0.0 for _ in _NEW)),
        quality=(1.0, 1.0, *QUALITIES),
        **options,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class EvaluationSetting:
    """A simulated world and the layout of its log."""

    world: World = field(default_factory=_world)
    layout: Layout = Layout.WIDE
    # Whether the evaluated rankings are learned from clicks on the pages of the log.
    learnt: bool = False
    # The share of page views that one query has.
    hot: float = 0.0

    def shrunk_world(self, share: float) -> World:
        """Return the world with a share of its queries, but not with very few."""
        return shrink_world(self.world, share)


SETTINGS: dict[str, EvaluationSetting] = {
    "1,000 queries, 5 views each": EvaluationSetting(),
    "300 queries": EvaluationSetting(_world(queries=300)),
    "η = 0.5": EvaluationSetting(_world(eta=0.5)),
    "η = 2": EvaluationSetting(_world(eta=2.0, repeats=10)),
    "30 candidates": EvaluationSetting(_world(candidates=30)),
    "one view a query": EvaluationSetting(_world(queries=5000, repeats=1)),
    "traffic 90/10": EvaluationSetting(_world(traffic=(9, 1))),
    "60 queries": EvaluationSetting(_world(queries=60)),
    "a query with 30% of views": EvaluationSetting(hot=0.3),
    "the same, traffic 90/10": EvaluationSetting(_world(traffic=(9, 1)), hot=0.3),
    "heavy-tailed queries, traffic 90/10": EvaluationSetting(_world(traffic=(9, 1), skew=2.0)),
    "sticky": EvaluationSetting(_world(sticky=True, queries=2000)),
    "replay": EvaluationSetting(_world(repeats=10), Layout.REPLAY),
    "learnt from clicks": EvaluationSetting(_world(queries=500, repeats=40, noise=0.3, similarity=0.9), learnt=True),
}


def measure(world: World, setting: EvaluationSetting, buckets: IntArray) -> dict[str, FloatArray]:
    """Simulate one log, evaluate its rankings and return the fields of `EvaluationResults`."""
    if setting.learnt:
        log = EvaluationLog.with_learned_rankings(world, buckets)
    else:
        log = EvaluationLog.draw(world, buckets, hot=setting.hot)
    joint, fixed = log.evaluate(setting.layout)
    lists = range(FIRST, FIRST + len(log.ranks))
    shown, frequent, every = log.true_values()
    return {
        "ratio": _table([joint.ratio(one, LOG) for one in lists]),
        "value": _table([joint.value_of(one) for one in lists]),
        "fixed": _table([fixed.value_of(one) for one in lists]),
        "shown": shown,
        "frequent": frequent,
        "every": every,
        "ours": joint.value[LOG:],
        "raw clicks": log.raw_click_values(),
        "plain IPS": log.plain_ips_values(),
        "page_views": np.array(float(log.drawn.views.sum())),
        "frequent_views": np.array(float(log.drawn.views[log.frequent].sum())),
        "unseen": np.array(1 - log.shown[log.drawn.relevance == 1].mean()),
    }


def _evaluate_users(name: str, lab: Laboratory, first: int) -> FloatArray:
    """Return three ratios of logs with users, each with the ends of its interval: (logs, 3, 3).

    They are those of the two rankers to the log, and of the second ranker to the first.
    """
    setting, logs = USERS[name].shrunk(lab.sizes.world), max(lab.sizes.evaluation_logs // _FEWER_LOGS, 2)
    number, found = [*USERS].index(name), []
    for log in range(logs):
        table = draw_log(setting, seed_of(lab.seed, "evaluation", name, log))
        with quiet():
            result = posbias.evaluate(
                posbias.ClickLog(table, unit="user_id"),
                ["ranker:a", "ranker:b"],
                max_rank=setting.max_rank,
                engine=DuckDB(threads=1),
            )
        one, other = result.rankings
        found.append(_table([one.ratio, other.ratio, other.ratio_to_first]))  # type: ignore[list-item]
        lab.progress(f"evaluation: {name}", (first + number + (log + 1) / logs) / (first + len(USERS)))
    return np.stack(found)


def _table(estimates: Sequence[Estimate]) -> FloatArray:
    return np.array([[one.value, one.low, one.high] for one in estimates], dtype=np.float64)


def _combine(parts: Sequence[Mapping[str, FloatArray]]) -> EvaluationResults:
    fields = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    return EvaluationResults(scores={method: fields.pop(method) for method in METHODS}, **fields)


def _rows(name: str, one: EvaluationResults) -> Sequence[Row]:
    rows = []
    for number, ranking in enumerate(_names(one)):
        true, full = one.true_ratio[:, number], one.full_ratio[number]
        ends, value = one.ratio[:, number], one.value[:, number]
        rows.append(
            {
                "setting": name,
                "ranking": ranking,
                "logs": len(ends),
                "true_ratio_among_shown": float(true.mean()),
                "true_ratio_of_all": float(full),
                "mean_ratio": float(ends[:, 0].mean()),
                "coverage_ratio": _coverage(ends, true),
                "coverage_value": _coverage(value, one.true_value[:, number]),
                "coverage_value_fixed": _coverage(one.fixed[:, number], one.true_value[:, number]),
                "mean_width_ratio": float(np.log(ends[:, 2] / ends[:, 1]).mean()),
            }
        )
    return rows


def _coverage(ends: FloatArray, truth: FloatArray) -> float:
    inside: BoolArray = (ends[:, 1] <= truth) & (truth <= ends[:, 2])
    return float(inside.mean())


def _verdicts(found: Mapping[str, EvaluationResults]) -> tuple[Verdict, ...]:
    logs = min(len(one.page_views) for one in found.values())
    learned = [one for name, one in found.items() if SETTINGS[name].learnt]
    return (
        _judge_coverage(found, logs),
        _judge_value_coverage(found, logs),
        _judge_choices(found, logs),
        *(_judge_raw_clicks(one, logs) for one in learned),
    )


def _judge_coverage(found: Mapping[str, EvaluationResults], logs: int) -> Verdict:
    held = {name: one.coverage(one.ratio, one.true_ratio) for name, one in found.items()}
    outside = [f"{name} ({m:.1%})" for name, (m, e) in held.items() if m + 2 * e < _LOW or m - 2 * e > _HIGH]
    least, most = (pick(held, key=lambda name: held[name][0]) for pick in (min, max))
    return make_verdict(
        f"95% intervals of the ratio contain the truth {_LOW:.0%} to {_HIGH:.0%} of the time in every setting "
        "(tolerance: two standard errors)",
        f"{held[least][0]:.1%} ({least}) to {held[most][0]:.1%} ({most}) in {logs:,} logs of each setting"
        + (f"; outside this range in {len(outside)} of {len(held)} settings: {', '.join(outside)}" if outside else ""),
        not outside,
        enough=logs >= ENOUGH_LOGS,
    )


def _judge_value_coverage(found: Mapping[str, EvaluationResults], logs: int) -> Verdict:
    held = [one.coverage(one.value, one.true_value) for one in found.values()]
    fixed = [one.coverage(one.fixed, one.true_value)[0] for one in found.values()]
    means = [mean for mean, _ in held]
    return make_verdict(
        f"95% intervals of the value contain the truth at least {_MIN_COVERAGE:.0%} of the time in every setting if "
        "each jackknife replicate estimates the propensities again (tolerance: two standard errors)",
        f"{min(means):.1%} to {max(means):.1%}; with fixed propensities {min(fixed):.1%} to {max(fixed):.1%}",
        all(mean + 2 * error >= _MIN_COVERAGE for mean, error in held),
        enough=logs >= ENOUGH_LOGS,
    )


def _judge_choices(found: Mapping[str, EvaluationResults], logs: int) -> Verdict:
    accuracy = {name: {method: one.choice_accuracy(method) for method in METHODS} for name, one in found.items()}
    means = {method: np.array([one[method][0] for one in accuracy.values() if one[method][2]]) for method in METHODS}
    least = min(accuracy, key=lambda name: np.nan_to_num(accuracy[name]["ours"][0], nan=2.0))
    return make_verdict(
        f"If one of two rankings is truly better by {_MIN_RATIO - 1:.0%} or more, posbias chooses it at least "
        f"{_MIN_ACCURACY:.0%} of the time",
        f"{means['ours'].mean():.1%} over all settings, lowest {accuracy[least]['ours'][0]:.1%} ({least}); raw clicks "
        f"{means['raw clicks'].mean():.1%}, plain IPS on full ranks {means['plain IPS'].mean():.1%}",
        means["ours"].mean() >= _MIN_ACCURACY,
        enough=logs >= ENOUGH_LOGS,
    )


_COMPARED = ("first ranker to the log", "second ranker to the log", "second ranker to the first")


def _user_coverage(ratios: FloatArray) -> tuple[float, float]:
    """Return the coverage of all three ratios, and its standard error over logs."""
    truth = np.exp(np.log(ratios[..., 0]).mean(axis=0))
    inside = ((ratios[..., 1] <= truth) & (truth <= ratios[..., 2])).mean(axis=1)
    return float(inside.mean()), float(max(inside.std(ddof=1), np.sqrt(0.05 * 0.95 / 3)) / np.sqrt(len(inside)))


def _user_rows(name: str, ratios: FloatArray) -> Sequence[Row]:
    logs = np.log(ratios)
    truth = logs[..., 0].mean(axis=0)
    return [
        {
            "setting": name,
            "ratio": compared,
            "logs": len(ratios),
            "mean_ratio": float(np.exp(truth[i])),
            "coverage": float(((logs[:, i, 1] <= truth[i]) & (truth[i] <= logs[:, i, 2])).mean()),
            "standard_deviation": float(logs[:, i, 0].std(ddof=1)),
            "mean_half_width": float((logs[:, i, 2] - logs[:, i, 1]).mean() / 2),
        }
        for i, compared in enumerate(_COMPARED)
    ]


def _judge_users(users: Mapping[str, FloatArray]) -> Verdict:
    held = {name: _user_coverage(ratios) for name, ratios in users.items()}
    outside = [f"{name} ({m:.1%})" for name, (m, e) in held.items() if m + 2 * e < _LOW or m - 2 * e > _HIGH]
    least, most = (pick(held, key=lambda name: held[name][0]) for pick in (min, max))
    logs = min(map(len, users.values()))
    return make_verdict(
        f"95% intervals of ratios contain the truth {_LOW:.0%} to {_HIGH:.0%} of the time if users were assigned to "
        "rankers and click differently (tolerance: two standard errors)",
        f"{held[least][0]:.1%} ({least}) to {held[most][0]:.1%} ({most}) in {logs:,} logs of each setting"
        + (f"; outside this range in {len(outside)} of {len(held)} settings: {', '.join(outside)}" if outside else ""),
        not outside,
        enough=logs >= ENOUGH_LOGS,
    )


def _user_notes(users: Mapping[str, FloatArray]) -> tuple[str, ...]:
    lines = ["", "setting | logs | all | " + " | ".join(_COMPARED)]
    for name, ratios in users.items():
        each = " | ".join(f"{row['coverage']:.3f}" for row in _user_rows(name, ratios))
        lines.append(f"{name} | {len(ratios)} | {{:.3f}} ± {{:.3f}} | {each}".format(*_user_coverage(ratios)))
    return tuple(lines)


def _judge_raw_clicks(one: EvaluationResults, logs: int) -> Verdict:
    raw, ours = (
        float((one.scores[method][:, 1] > one.scores[method][:, 2]).mean()) for method in ("raw clicks", "ours")
    )
    truth = one.full_ratio
    return make_verdict(
        "Raw clicks choose the ranking learned from raw clicks, and posbias chooses the better one learned from "
        "weighted clicks, at least 95% of the time each",
        f"the true DCG of the second is {truth[1] / truth[0] - 1:+.1%} against the first; raw clicks choose the first "
        f"in {raw:.1%} of the logs, posbias in {ours:.1%}",
        raw >= _MIN_ACCURACY and ours <= 1 - _MIN_ACCURACY and truth[1] > truth[0],
        enough=logs >= ENOUGH_LOGS,
    )


def _notes(found: Mapping[str, EvaluationResults]) -> tuple[str, ...]:
    lines = [
        "",
        "setting | ratio | value | value, fixed propensities | better one chosen | by raw clicks | by plain IPS",
    ]
    for name, one in found.items():
        held = [
            "{:.3f} ± {:.3f}".format(*one.coverage(estimates, truth))
            for estimates, truth in (
                (one.ratio, one.true_ratio),
                (one.value, one.true_value),
                (one.fixed, one.true_value),
            )
        ]
        accuracy = {method: one.choice_accuracy(method) for method in METHODS}
        lines.append(
            f"{name} | {' | '.join(held)} | {accuracy['ours'][0]:.3f} | {accuracy['raw clicks'][0]:.3f} | "
            f"{accuracy['plain IPS'][0]:.3f}"
        )
    lines += ["", "setting | never shown | lowest share of a pair | by raw clicks | by plain IPS"]
    for name, one in found.items():
        pairs = (f"{lowest:.3f} ({pair})" for _, lowest, pair in map(one.choice_accuracy, METHODS))
        lines.append(f"{name} | {one.unseen.mean():.3f} | {' | '.join(pairs)}")
    lines += ["", "setting | ranking | true ratio | true ratio among documents shown | mean estimate"]
    for name, one in found.items():
        lines += [
            f"{name} | {row['ranking']} | {row['true_ratio_of_all']:.3f} | {row['true_ratio_among_shown']:.3f} | "
            f"{row['mean_ratio']:.3f}"
            for row in _rows(name, one)
        ]
    return tuple(lines)
