"""How rankings are judged by clicks: how often intervals hold the truth, and the better of two is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, judged, seed_of
from experiments.simulated_logs import FIRST, LOG, JudgedLog, buckets_of, quick_world
from posbias._arrays import BoolArray, FloatArray, IntArray
from posbias.learning.evaluate import Estimate
from posbias.logs.layouts import Layout
from posbias.simulation.world import World

# What is judged: as good as the logged rankers at 1, and no likelier to show the same.
QUALITIES = (0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5)
_NEW = tuple(f"new {quality:g}" for quality in QUALITIES)
# What counts as 95%, how far two rankings must differ to be told apart, and how often they then must be.
_LOW, _HIGH = 0.93, 0.97
_DIFFER, _CHOSEN, _AT_LEAST = 1.05, 0.95, 0.9
WAYS = ("ours", "raw clicks", "plain IPS")


def run_evaluation(lab: Laboratory) -> Outcome:
    """Judge rankings by logs of every setting, and hold what is found against the truth."""
    logs = lab.sizes.judged_logs
    found: dict[str, Found] = {}
    for number, (name, setting) in enumerate(SETTINGS.items()):
        world = setting.drawn(lab.sizes.world)
        buckets = buckets_of(world.queries)
        parts = []
        for log in range(logs):
            seed = seed_of(lab.seed, "evaluation", name, log)
            parts.append(measure(replace(world, seed=seed), setting, buckets))
            lab.progress(f"evaluation: {name}", (number + (log + 1) / logs) / len(SETTINGS))
        found[name] = _gathered(parts)
    rows = [row for name, one in found.items() for row in _rows(name, one)]
    lines = {
        "ratio": [one.coverage(one.ratio, one.true_ratio) for one in found.values()],
        "value": [one.coverage(one.value, one.true_value) for one in found.values()],
        "value, p held fixed": [one.coverage(one.fixed, one.true_value) for one in found.values()],
    }
    drawn = {label: np.array(held).T for label, held in lines.items()}
    figure = draw_settings(list(SETTINGS), drawn, "Share of 95% intervals that hold the truth", (_LOW, _HIGH))
    return Outcome("evaluation", rows, figure, _verdicts(found), notes=_notes(found))


@dataclass(frozen=True, eq=False)
class Found:
    """What came of the logs of a setting.

    Attributes:
        ratio, value: of each log and ranking, the estimate and the ends of its interval: (logs, rankings, 3).
        fixed: the value with propensities held fixed, likewise.
        shown: true sums of each log over documents shown, the log's own first: (logs, 1 + rankings).
        every: the same over all documents, by full ranks.
        scores: what each way makes of the log and each ranking: (logs, 1 + rankings).
        page_views: of each log.
        unseen: the share of the relevant candidates that was never shown, in each log.
    """

    ratio: FloatArray
    value: FloatArray
    fixed: FloatArray
    shown: FloatArray
    every: FloatArray
    scores: Mapping[str, FloatArray]
    page_views: FloatArray
    unseen: FloatArray

    @property
    def true_ratio(self) -> FloatArray:
        """The ratio of each ranking to the log, ranked among what was shown, over the queries of all logs."""
        sums = self.shown.sum(axis=0)
        return np.asarray(sums[1:] / sums[0])

    @property
    def full_ratio(self) -> FloatArray:
        """The same of all documents."""
        sums = self.every.sum(axis=0)
        return np.asarray(sums[1:] / sums[0])

    @property
    def true_value(self) -> FloatArray:
        """The value of each ranking, among what was shown."""
        return np.asarray(self.shown.sum(axis=0)[1:] / self.page_views.sum())

    def coverage(self, of: FloatArray, truth: FloatArray) -> tuple[float, float]:
        """Return the share of intervals that hold the truth, and its standard error: those of one log go together."""
        inside = ((of[..., 1] <= truth) & (truth <= of[..., 2])).mean(axis=1)
        error = max(inside.std(ddof=1) / np.sqrt(len(inside)), np.sqrt(0.05 * 0.95 / inside.size / of.shape[1]))
        return float(inside.mean()), float(error)

    def right(self, way: str) -> tuple[float, float, str]:
        """Return how often the truly better of two is scored higher, the least of any two, and which two these are.

        Two count where one is truly better by 5% or more, by all documents; the log is one of those compared.
        """
        sums, scores = self.every.sum(axis=0), self.scores[way]
        told: dict[str, float] = {}
        names = ("the log", *_names(self))
        for one, other in combinations(range(len(sums)), 2):
            better, worse = (one, other) if sums[one] > sums[other] else (other, one)
            if sums[better] >= _DIFFER * sums[worse]:
                told[f"{names[better]} over {names[worse]}"] = float((scores[:, better] > scores[:, worse]).mean())
        if not told:
            return float("nan"), float("nan"), ""
        least = min(told, key=lambda two: told[two])
        return float(np.mean([*told.values()])), told[least], least


def _names(one: Found) -> tuple[str, ...]:
    return _NEW if len(one.true_ratio) == len(_NEW) else ("from raw clicks", "from weighed clicks")


def _world(traffic: tuple[float, float] = (1, 1), **settings: object) -> World:
    given: dict[str, object] = {"queries": 1000, "repeats": 5, "candidates": 20, "similarity": 0.5, **settings}
    return World(
        rankers=("a", "b", *_NEW),
        traffic=(*traffic, *(0.0 for _ in _NEW)),
        quality=(1.0, 1.0, *QUALITIES),
        **given,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class EvaluationSetting:
    """One world and the layout of its log."""

    world: World = field(default_factory=_world)
    layout: Layout = Layout.WIDE
    # Whether what is judged is learnt from clicks on the log's own pages.
    learnt: bool = False

    def drawn(self, share: float) -> World:
        """Return the world with a share of its queries, where it has many."""
        return quick_world(self.world, share)


SETTINGS: dict[str, EvaluationSetting] = {
    "1,000 queries, 5 views each": EvaluationSetting(),
    "300 queries": EvaluationSetting(_world(queries=300)),
    "η = 0.5": EvaluationSetting(_world(eta=0.5)),
    "η = 2": EvaluationSetting(_world(eta=2.0, repeats=10)),
    "30 candidates": EvaluationSetting(_world(candidates=30)),
    "one view a query": EvaluationSetting(_world(queries=5000, repeats=1)),
    "traffic 90/10": EvaluationSetting(_world(traffic=(9, 1))),
    "sticky": EvaluationSetting(_world(sticky=True, queries=2000)),
    "replay": EvaluationSetting(_world(repeats=10), Layout.REPLAY),
    "learnt from clicks": EvaluationSetting(_world(queries=500, repeats=40, noise=0.3, similarity=0.9), learnt=True),
}


def measure(world: World, setting: EvaluationSetting, buckets: IntArray) -> dict[str, FloatArray]:
    """Draw one log, judge its rankings and return the fields of `Found`."""
    log = JudgedLog.learnt(world, buckets) if setting.learnt else JudgedLog.of(world, buckets)
    joint, fixed = log.judge(setting.layout)
    lists = range(FIRST, FIRST + len(log.ranks))
    shown, every = log.truth()
    return {
        "ratio": _table([joint.ratio(one, LOG) for one in lists]),
        "value": _table([joint.value_of(one) for one in lists]),
        "fixed": _table([fixed.value_of(one) for one in lists]),
        "shown": shown,
        "every": every,
        "ours": joint.value[LOG:],
        "raw clicks": log.raw(),
        "plain IPS": log.plain(),
        "page_views": np.array(float(log.drawn.views.sum())),
        "unseen": np.array(1 - log.shown[log.drawn.relevance == 1].mean()),
    }


def _table(estimates: Sequence[Estimate]) -> FloatArray:
    return np.array([[one.value, one.low, one.high] for one in estimates], dtype=np.float64)


def _gathered(parts: Sequence[Mapping[str, FloatArray]]) -> Found:
    fields = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    return Found(scores={way: fields.pop(way) for way in WAYS}, **fields)


def _rows(name: str, one: Found) -> Sequence[Row]:
    rows = []
    for number, ranking in enumerate(_names(one)):
        true, full = one.true_ratio[number], one.full_ratio[number]
        ends, value = one.ratio[:, number], one.value[:, number]
        held = (ends[:, 1] <= true) & (true <= ends[:, 2])
        rows.append(
            {
                "setting": name,
                "ranking": ranking,
                "logs": len(ends),
                "true_ratio_among_shown": float(true),
                "true_ratio_of_all": float(full),
                "mean_ratio": float(ends[:, 0].mean()),
                "coverage_ratio": float(held.mean()),
                "coverage_value": _held(value, one.true_value[number]),
                "coverage_value_fixed": _held(one.fixed[:, number], one.true_value[number]),
                "mean_width_ratio": float(np.log(ends[:, 2] / ends[:, 1]).mean()),
            }
        )
    return rows


def _held(ends: FloatArray, truth: float) -> float:
    inside: BoolArray = (ends[:, 1] <= truth) & (truth <= ends[:, 2])
    return float(inside.mean())


def _verdicts(found: Mapping[str, Found]) -> tuple[Verdict, ...]:
    logs = min(len(one.page_views) for one in found.values())
    learnt = [one for name, one in found.items() if SETTINGS[name].learnt]
    return (_covered(found, logs), _fixed(found, logs), _chosen(found, logs), *(_naive(one, logs) for one in learnt))


def _covered(found: Mapping[str, Found], logs: int) -> Verdict:
    held = {name: one.coverage(one.ratio, one.true_ratio) for name, one in found.items()}
    outside = [f"{name} ({m:.1%})" for name, (m, e) in held.items() if m + 2 * e < _LOW or m - 2 * e > _HIGH]
    least, most = (pick(held, key=lambda name: held[name][0]) for pick in (min, max))
    return judged(
        f"95% intervals of the ratio hold the truth {_LOW:.0%} to {_HIGH:.0%} of the time in every setting, two "
        "standard errors allowed",
        f"{held[least][0]:.1%} ({least}) to {held[most][0]:.1%} ({most}) in {logs:,} logs of each"
        + (f"; outside in {len(outside)} of {len(held)}: {', '.join(outside)}" if outside else ""),
        not outside,
        enough=logs >= ENOUGH_LOGS,
    )


def _fixed(found: Mapping[str, Found], logs: int) -> Verdict:
    held = [one.coverage(one.value, one.true_value) for one in found.values()]
    fixed = [one.coverage(one.fixed, one.true_value)[0] for one in found.values()]
    means = [mean for mean, _ in held]
    return judged(
        f"95% intervals of the value itself hold the truth in at least {_AT_LEAST:.0%} of the logs of every setting "
        "where propensities are estimated anew, two standard errors allowed",
        f"{min(means):.1%} to {max(means):.1%}; with propensities held fixed {min(fixed):.1%} to {max(fixed):.1%}",
        all(mean + 2 * error >= _AT_LEAST for mean, error in held),
        enough=logs >= ENOUGH_LOGS,
    )


def _chosen(found: Mapping[str, Found], logs: int) -> Verdict:
    right = {name: {way: one.right(way) for way in WAYS} for name, one in found.items()}
    told = {way: np.array([one[way][0] for one in right.values() if one[way][2]]) for way in WAYS}
    least = min(right, key=lambda name: np.nan_to_num(right[name]["ours"][0], nan=2.0))
    return judged(
        f"Of two rankings of which one is truly better by {_DIFFER - 1:.0%} or more, that one is chosen in at least "
        f"{_CHOSEN:.0%}",
        f"{told['ours'].mean():.1%} over all settings, {right[least]['ours'][0]:.1%} at the least ({least}); by raw "
        f"clicks {told['raw clicks'].mean():.1%}, by plain IPS on full ranks {told['plain IPS'].mean():.1%}",
        told["ours"].mean() >= _CHOSEN,
        enough=logs >= ENOUGH_LOGS,
    )


def _naive(one: Found, logs: int) -> Verdict:
    raw, ours = (float((one.scores[way][:, 1] > one.scores[way][:, 2]).mean()) for way in ("raw clicks", "ours"))
    truth = one.full_ratio
    return judged(
        "Raw clicks choose the ranking learnt from raw clicks, and ours the one learnt from weighed clicks, which is "
        "better, in at least 95% each",
        f"the latter has {truth[1] / truth[0] - 1:+.1%} DCG in truth; raw clicks choose the former in {raw:.1%}, "
        f"ours in {ours:.1%}",
        raw >= _CHOSEN and ours <= 1 - _CHOSEN and truth[1] > truth[0],
        enough=logs >= ENOUGH_LOGS,
    )


def _notes(found: Mapping[str, Found]) -> tuple[str, ...]:
    lines = ["", "setting | ratio | value | value, p fixed | chosen | by raw clicks | by plain IPS"]
    for name, one in found.items():
        held = [
            "{:.3f} ± {:.3f}".format(*one.coverage(of, truth))
            for of, truth in ((one.ratio, one.true_ratio), (one.value, one.true_value), (one.fixed, one.true_value))
        ]
        right = {way: one.right(way) for way in WAYS}
        lines.append(
            f"{name} | {' | '.join(held)} | {right['ours'][0]:.3f} | {right['raw clicks'][0]:.3f} | "
            f"{right['plain IPS'][0]:.3f}"
        )
    lines += ["", "setting | never shown | least of two chosen | by raw clicks | by plain IPS"]
    for name, one in found.items():
        two = (f"{least:.3f} ({which})" for _, least, which in map(one.right, WAYS))
        lines.append(f"{name} | {one.unseen.mean():.3f} | {' | '.join(two)}")
    lines += ["", "setting | ranking | true ratio | among those shown | mean estimate"]
    for name, one in found.items():
        lines += [
            f"{name} | {row['ranking']} | {row['true_ratio_of_all']:.3f} | {row['true_ratio_among_shown']:.3f} | "
            f"{row['mean_ratio']:.3f}"
            for row in _rows(name, one)
        ]
    return tuple(lines)
