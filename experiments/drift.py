"""Experiment "drift": how often does `compare` report a difference between curves, rightly and wrongly?

The experiment simulates two periods (or several segments) with the same curve, and periods in which the propensity of
rank 5 rises by 10%. It counts how often the tests report a difference at the 5% level: with equal curves this must
happen in 3 to 7% of the logs; with a changed curve, in at least 85% of the logs at the changed rank.

drift.csv has a row for each setting: the share of logs with a difference at any rank (corrected for the number of
ranks), by the joint test, and with curves treated as independent; how often rank 5 and other ranks were reported; the
mean p-value; and the share of logs without a joint test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, finite_mean, make_verdict, seed_of
from experiments.simulated_logs import as_segments, buckets_of, draw_periods, shrink_world
from posbias._arrays import FloatArray, IntArray
from posbias.judging.compare import ComparedCurve, compare_curves
from posbias.judging.compare_segments import compare_segments
from posbias.logs.click_log import Layout
from posbias.simulation.world import World

# The confidence level of the tests, and the range of false-alarm rates that counts as 5%.
_LEVEL = 0.95
_LOW, _HIGH = 0.03, 0.07
_RANK, _RISE = 5, 0.1
_POWERFUL = ("p₅ up by 10%, 100,000 queries", "p₅ up by 10%, 100,000 queries, one view each")


def run_drift(lab: Laboratory) -> Outcome:
    """Simulate periods or segments of every setting, and count how often a difference is reported."""
    results: dict[str, DriftResults] = {}
    for number, (name, setting) in enumerate(SETTINGS.items()):
        world = setting.shrunk_world(lab.sizes.world)
        buckets = buckets_of(world.queries)
        logs = max(min(2, lab.sizes.drift_logs), round(setting.logs * lab.sizes.drift_logs))
        found = []
        for log in range(logs):
            found.append(measure(replace(world, seed=seed_of(lab.seed, "drift", name, log)), setting, buckets))
            lab.progress(f"drift: {name}", (number + (log + 1) / logs) / len(SETTINGS))
        results[name] = DriftResults(*np.array(found, dtype=np.float64).T)
    lines = {
        label: np.array([_share(getattr(results[name], field)) for name in SETTINGS]).T
        for label, field in (("rank by rank", "ranks"), ("joint test", "joint"), ("as independent", "independent"))
    }
    figure = draw_settings(list(SETTINGS), lines, "Share of logs with a reported difference (5% level)", (_LOW, _HIGH))
    rows = [_row(name, one) for name, one in results.items()]
    return Outcome("drift", rows, figure, _verdicts(results), notes=_notes(rows))


@dataclass(frozen=True, eq=False)
class DriftResults:
    """Reported differences by log of a setting; 1 for a difference, 0 for none.

    Attributes:
        ranks: at any rank, corrected for the number of ranks.
        joint: by the joint test; NaN where there was no test.
        independent: at any rank, with the curves treated as independent; NaN for segments.
        named: at rank 5.
        others: at any other rank.
        p_value: the smallest p-value of any rank, corrected for the number of ranks.
    """

    ranks: FloatArray
    joint: FloatArray
    independent: FloatArray
    named: FloatArray
    others: FloatArray
    p_value: FloatArray


@dataclass(frozen=True)
class DriftSetting:
    """Simulated periods or segments of one world.

    Attributes:
        world: the world of each period.
        rise: the relative rise of the propensity of rank 5 in the second period.
        shared: whether both periods have the same queries.
        segments: the number of periods that are compared as segments; None to compare two periods.
        layout: the layout of the logs.
        logs: the share of the usual number of logs; large worlds are slow.
    """

    world: World
    rise: float = 0.0
    shared: bool = True
    segments: int | None = None
    layout: Layout = Layout.WIDE
    logs: float = 1.0

    def shrunk_world(self, share: float) -> World:
        """Return the world with a share of its queries, but not with very few."""
        return shrink_world(self.world, share)


SETTINGS: dict[str, DriftSetting] = {
    "the same, 20 queries, 100 views each": DriftSetting(World(queries=20, repeats=100)),
    "the same, 300 queries": DriftSetting(World(queries=300)),
    "the same, 1,000 queries": DriftSetting(World(queries=1000)),
    "the same, 10,000 queries": DriftSetting(World(queries=10_000), logs=0.75),
    "the same, heavy-tailed queries": DriftSetting(World(queries=1000, skew=1.5)),
    "the same, 3 rankers, 80/10/10": DriftSetting(World(queries=1000, rankers=tuple("abc"), traffic=(80, 10, 10))),
    "the same, replay": DriftSetting(World(queries=1000), layout=Layout.REPLAY),
    "other queries, 1,000 each": DriftSetting(World(queries=1000), shared=False),
    "2 segments, 1,000 queries": DriftSetting(World(queries=1000), segments=2),
    "5 segments, 1,000 queries": DriftSetting(World(queries=1000), segments=5, logs=0.5),
    "5 segments, 10,000 queries": DriftSetting(World(queries=10_000), segments=5, logs=0.25),
    "20 segments, 1,000 queries": DriftSetting(World(queries=1000), segments=20, logs=0.25),
    "p₅ up by 10%, 3,000 queries": DriftSetting(World(queries=3000), _RISE, logs=0.25),
    "p₅ up by 10%, 10,000 queries": DriftSetting(World(queries=10_000), _RISE, logs=0.25),
    "p₅ up by 10%, 100,000 queries": DriftSetting(World(queries=100_000), _RISE, logs=0.15),
    "p₅ up by 10%, 100,000 queries, one view each": DriftSetting(World(queries=100_000, repeats=1), _RISE, logs=0.15),
}


def measure(world: World, setting: DriftSetting, buckets: IntArray) -> tuple[float, ...]:
    """Simulate the periods of one log, compare them, and return the fields of `DriftResults`."""
    if setting.segments is not None:
        curves = [world.propensity] * setting.segments
        of_segments = compare_segments(as_segments(draw_periods(world, buckets, curves, world.seed)), level=_LEVEL)
        joint = float("nan") if of_segments.joint is None else float(of_segments.joint.p_value < 1 - _LEVEL)
        least = 1.0 if of_segments.min_rank_p_value is None else of_segments.min_rank_p_value
        return float(least < 1 - _LEVEL), joint, float("nan"), float("nan"), float("nan"), least
    risen = world.propensity
    risen[_RANK - 1] *= 1 + setting.rise
    if setting.shared:
        periods = draw_periods(world, buckets, [world.propensity, risen], world.seed)
    else:
        elsewhere = replace(world, seed=world.seed + 1)
        periods = [
            draw_periods(own, buckets, [curve], own.seed)[0]
            for own, curve in ((world, world.propensity), (elsewhere, risen))
        ]
    one, other = (ComparedCurve.of(period.harvest(setting.layout), None, _LEVEL) for period in periods)
    found = compare_curves(one, other, _LEVEL, ("first", "second"))
    apart = compare_curves(replace(one, jackknife=None), other, _LEVEL, ("first", "second"))
    joint = float("nan") if found.joint is None else float(found.joint.p_value < 1 - _LEVEL)
    named = {d.rank for d in found.differences if d.differs}
    others = float(bool(named - {_RANK}))
    return float(found.differs), joint, float(apart.differs), float(_RANK in named), others, found.p_value


def _share(results: FloatArray) -> tuple[float, float]:
    """Return the share of logs with a reported difference, and its standard error."""
    known = results[np.isfinite(results)]
    if not len(known):
        return float("nan"), float("nan")
    mean = float(known.mean())
    # If none of a few logs differs, the sample variance is 0, which understates the uncertainty.
    return mean, float(np.sqrt(max(mean * (1 - mean), 0.05 * 0.95) / len(known)))


def _row(name: str, results: DriftResults) -> Row:
    return {
        "setting": name,
        "estimator": "CrossFit",
        "logs": len(results.ranks),
        "rank_by_rank": _share(results.ranks)[0],
        "standard_error": _share(results.ranks)[1],
        "all_at_once": finite_mean(results.joint),
        "as_independent": finite_mean(results.independent),
        "rank_5_named": finite_mean(results.named),
        "another_named": finite_mean(results.others),
        "mean_p_value": finite_mean(results.p_value),
        "without_joint": float(np.isnan(results.joint).mean()),
    }


def _verdicts(results: Mapping[str, DriftResults]) -> tuple[Verdict, ...]:
    equal = [name for name, setting in SETTINGS.items() if not setting.rise]
    verdicts = [
        _false_alarms("two equal curves", "ranks", {n: results[n] for n in equal if SETTINGS[n].segments is None}),
        _false_alarms("segments with equal curves", "joint", {n: results[n] for n in equal if SETTINGS[n].segments}),
        *(_detected_rise(name, results[name]) for name in _POWERFUL if name in results),
    ]
    return tuple(verdict for verdict in verdicts if verdict is not None)


def _false_alarms(compared: str, field: str, results: Mapping[str, DriftResults]) -> Verdict | None:
    """Judge the false-alarm rate of equal curves, if there are such settings."""
    if not results:
        return None
    shares = {name: _share(getattr(one, field)) for name, one in results.items()}
    known = {name: share for name, share in shares.items() if np.isfinite(share[0])}
    outside = [name for name, (mean, se) in known.items() if mean + 2 * se < _LOW or mean - 2 * se > _HIGH]
    means = [mean for mean, _ in known.values()]
    return make_verdict(
        f"At the 5% level, 3 to 7% of comparisons of {compared} report a difference in every setting (tolerance: two "
        "standard errors)",
        f"{min(means, default=np.nan):.1%} to {max(means, default=np.nan):.1%}"
        + (f"; outside this range: {', '.join(outside)}" if outside else ""),
        not outside,
        enough=bool(known) and min(len(one.ranks) for one in results.values()) >= ENOUGH_LOGS,
    )


def _detected_rise(name: str, results: DriftResults) -> Verdict:
    """Judge whether a rise at rank 5 is detected, and reported at that rank."""
    return make_verdict(
        f"{name}: a difference at rank 5 is reported with at least 85% power",
        f"a difference is reported in {_share(results.ranks)[0]:.0%} of {len(results.ranks)} logs, at rank 5 in "
        f"{finite_mean(results.named):.0%}, at another rank in {finite_mean(results.others):.0%}",
        finite_mean(results.named) >= 0.85,
        enough=len(results.ranks) >= ENOUGH_LOGS,
    )


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    columns = ("rank_by_rank", "all_at_once", "as_independent", "rank_5_named", "another_named")
    lines = ["", "setting | logs | rank by rank | joint test | as independent | rank 5 reported | other rank reported"]
    for row in rows:
        cells = " | ".join("–" if np.isnan(row[name]) else f"{100 * row[name]:.1f}" for name in columns)
        lines.append(f"{row['setting']} | {row['logs']} | {cells}")
    return tuple(lines)
