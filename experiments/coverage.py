"""Experiment "coverage": how often do 95% confidence intervals contain the true propensity?

In each of 22 settings the experiment simulates many logs with a known curve, fits every harvest-based estimator with
its jackknife intervals, and counts how often an interval contains the truth. A claim holds if the share is 93% to 97%.

coverage.csv has a row for each setting and estimator: the coverage of 90%, 95% and 99% intervals, the standard error of
the 95% coverage, the lowest coverage of any rank, the share of ranks without an interval, the coverage of the joint
band, and widths in log p. coverage-by-rank.csv has the coverage of each rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, finite_mean, make_verdict, seed_of
from experiments.simulated_logs import buckets_of, draw_log, shrink_world
from posbias._arrays import BoolArray, FloatArray, IntArray
from posbias.errors import EstimateError
from posbias.estimators import AdjacentChain, AllPairs, CrossFit, PivotOne
from posbias.estimators.base import Estimator
from posbias.harvesting.harvest import Harvest
from posbias.logs.click_log import Layout
from posbias.simulation.world import World

ESTIMATORS: dict[str, type[Estimator]] = {  # type: ignore[type-arg]
    "CrossFit": CrossFit,
    "AllPairs": AllPairs,
    "AdjacentChain": AdjacentChain,
    "PivotOne": PivotOne,
}
LEVELS = (0.9, 0.95, 0.99)
# A coverage in this range counts as 95%.
_LOW, _HIGH = 0.93, 0.97
_FIVE = tuple("abcde")


def run_coverage(lab: Laboratory) -> Outcome:
    """Simulate logs of every setting, and count how often the intervals of each estimator contain the truth."""
    errors: dict[str, dict[str, IntervalErrors]] = {}
    logs = lab.sizes.coverage_logs
    for number, (name, setting) in enumerate(SETTINGS.items()):
        world = setting.shrunk_world(lab.sizes.world)
        buckets = buckets_of(world.queries)
        found = []
        for log in range(logs):
            found.append(measure(replace(world, seed=seed_of(lab.seed, "coverage", name, log)), setting, buckets))
            lab.progress(f"coverage: {name}", (number + (log + 1) / logs) / len(SETTINGS))
        errors[name] = {
            label: IntervalErrors(*(np.stack([one[label][part] for one in found]) for part in range(4)))
            for label in ESTIMATORS
        }
    rows = [row for name, by_estimator in errors.items() for row in _rows(name, by_estimator)]
    means = {label: np.array([errors[name][label].coverage(0.95)[:2] for name in SETTINGS]).T for label in ESTIMATORS}
    figure = draw_settings(list(SETTINGS), means, "Share of 95% intervals that contain the truth", (_LOW, _HIGH))
    by_rank = [row for name, by_estimator in errors.items() for row in _rank_rows(name, by_estimator)]
    return Outcome("coverage", rows, figure, _verdicts(errors), {"by-rank": by_rank}, _notes(errors))


@dataclass(frozen=True, eq=False)
class IntervalErrors:
    """Errors and intervals of an estimator by log and rank, from rank 2 on; NaN where there is no interval.

    Attributes:
        error: log p̂ − log p.
        scale: the standard error of log p̂.
        degrees: the degrees of freedom.
        joint: whether the joint band contains the whole curve, by log; NaN where no rank has an interval.
    """

    error: FloatArray
    scale: FloatArray
    degrees: FloatArray
    joint: FloatArray

    @property
    def known(self) -> BoolArray:
        """Whether there is an interval, by log and rank."""
        return np.isfinite(self.scale)

    def inside(self, level: float) -> FloatArray:
        """Return whether the interval at a confidence level contains the truth."""
        return np.where(self.known, np.abs(self.error) <= self.width(level) / 2, np.nan)

    def coverage(self, level: float) -> tuple[float, float, float]:
        """Return the share of intervals that contain the truth, its standard error, and the lowest share of any rank.

        The intervals of one log are correlated, so the standard error is that of a ratio of sums over logs.
        """
        inside = self.inside(level)
        containing, known = np.nansum(inside, axis=1), self.known.sum(axis=1)
        if not known.sum():
            return (float("nan"),) * 3
        mean = containing.sum() / known.sum()
        # If all of a few intervals contain the truth, the sample variance is 0, which understates the uncertainty.
        least = np.sqrt(level * (1 - level) / known.sum())
        error = max(np.sqrt(((containing - mean * known) ** 2).sum()) / known.sum(), least)
        by_rank = self.by_rank(level)
        # Ignore ranks that rarely have an interval: too few to measure coverage.
        settled = self.known.mean(axis=0) >= min(0.5, self.known.mean(axis=0).max())
        return float(mean), float(error), float(by_rank[settled].min())

    def by_rank(self, level: float) -> FloatArray:
        """Return the share of intervals that contain the truth at each rank from 2 on; NaN where there is none."""
        known = self.known.sum(axis=0)
        containing = np.nansum(self.inside(level), axis=0)
        return np.asarray(np.divide(containing, known, out=np.full(len(known), np.nan), where=known > 0))

    def width(self, level: float) -> FloatArray:
        """Return the width of the intervals in log p."""
        # Millions of t quantiles at once: the function of the package is made for one curve.
        from scipy.special import stdtrit

        return np.asarray(2 * stdtrit(self.degrees, (1 + level) / 2) * self.scale)


@dataclass(frozen=True)
class WorldSetting:
    """A simulated world and the layout of its log."""

    world: World
    layout: Layout = Layout.WIDE
    # Whether each page view draws its ranker independently, as CrossFit assumes.
    independent: bool = field(default=True)

    def shrunk_world(self, share: float) -> World:
        """Return the world with a share of its queries, but not with very few."""
        return shrink_world(self.world, share)


SETTINGS: dict[str, WorldSetting] = {
    "10 queries, 100 views each": WorldSetting(World(queries=10, repeats=100)),
    "20 queries, 100 views each": WorldSetting(World(queries=20, repeats=100)),
    "50 queries, 100 views each": WorldSetting(World(queries=50, repeats=100)),
    "100 queries": WorldSetting(World(queries=100)),
    "300 queries": WorldSetting(World(queries=300)),
    "1,000 queries": WorldSetting(World(queries=1000)),
    "5,000 queries": WorldSetting(World(queries=5000)),
    "20,000 queries": WorldSetting(World(queries=20_000)),
    "heavy-tailed queries": WorldSetting(World(queries=1000, skew=1.5)),
    "very heavy-tailed queries": WorldSetting(World(queries=300, repeats=30, skew=2.5)),
    "30 ranks": WorldSetting(World(queries=200, repeats=20, max_rank=30, eta=0.7)),
    "3 rankers, 80/10/10": WorldSetting(World(queries=1000, rankers=tuple("abc"), traffic=(80, 10, 10))),
    "5 rankers, 80/5/5/5/5": WorldSetting(World(queries=500, rankers=_FIVE, traffic=(80, 5, 5, 5, 5))),
    "near-identical rankers": WorldSetting(World(queries=3000, similarity=0.99)),
    "one view a query": WorldSetting(World(queries=10_000, repeats=1)),
    "η = 0.5": WorldSetting(World(queries=1000, eta=0.5)),
    "η = 2": WorldSetting(World(queries=5000, eta=2.0)),
    "replay": WorldSetting(World(queries=1000), Layout.REPLAY),
    "replay, 97/3, unequal": WorldSetting(World(queries=5000, traffic=(97, 3), quality=(1.0, 2.0)), Layout.REPLAY),
    "replay, heavy-tailed queries": WorldSetting(World(queries=1000, repeats=5, skew=2.0), Layout.REPLAY),
    "sticky, 2 rankers": WorldSetting(World(queries=2000, sticky=True), independent=False),
    "sticky, 5 rankers": WorldSetting(
        World(queries=1000, sticky=True, rankers=_FIVE, traffic=(80, 5, 5, 5, 5)), independent=False
    ),
}


def measure(world: World, setting: WorldSetting, buckets: IntArray) -> dict[str, tuple[FloatArray, ...]]:
    """Simulate one log, and return the fields of `IntervalErrors` for each estimator."""
    harvest = draw_log(world, buckets).harvest(setting.layout)
    return {label: _fit_errors(kind(), harvest, world.propensity) for label, kind in ESTIMATORS.items()}


def _fit_errors(estimator: Estimator, harvest: Harvest, truth: FloatArray) -> tuple[FloatArray, ...]:  # type: ignore[type-arg]
    try:
        estimator.fit(harvest)
    except EstimateError:
        unknown = np.full(len(truth) - 1, np.nan)
        return unknown, unknown, unknown, np.array(np.nan)
    known = np.isfinite(estimator.interval_[:, 0])
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(known, np.log(estimator.propensity_ / truth), np.nan)
    scale = np.where(known, np.sqrt(np.diagonal(estimator.covariance_)), np.nan)
    band = estimator.curve().joint()
    inside = (band[:, 0] <= truth) & (truth <= band[:, 1])
    joint = np.nan if not known[1:].any() else float(inside[1:][known[1:]].all())
    return error[1:], scale[1:], estimator.degrees_of_freedom_[1:], np.array(joint)


def _rows(name: str, errors: Mapping[str, IntervalErrors]) -> Sequence[Row]:
    rows = []
    for label, one in errors.items():
        row: dict[str, object] = {"setting": name, "estimator": label, "logs": len(one.error)}
        for level in LEVELS:
            mean, error, lowest = one.coverage(level)
            row |= {f"coverage_{level:.0%}": mean}
            if level == 0.95:
                row |= {"standard_error": error, "least_of_a_rank": lowest}
        widths = one.width(0.95)[one.known]
        row |= {
            "without_interval": float(1 - one.known.mean()),
            "joint_coverage": finite_mean(one.joint),
            "mean_width": finite_mean(widths),
            "median_width": float(np.median(widths)) if len(widths) else float("nan"),
            "median_degrees": float(np.median(one.degrees[one.known])) if len(widths) else float("nan"),
        }
        rows.append(row)
    return rows


def _rank_rows(name: str, errors: Mapping[str, IntervalErrors]) -> Sequence[Row]:
    rows = []
    for label, one in errors.items():
        shares = {f"coverage_{level:.0%}": one.by_rank(level).tolist() for level in LEVELS}
        for i, intervals in enumerate(one.known.sum(axis=0).tolist()):
            row = {"setting": name, "estimator": label, "rank": i + 2, "intervals": intervals}
            rows.append(row | {column: values[i] for column, values in shares.items()})
    return rows


def _verdicts(errors: Mapping[str, Mapping[str, IntervalErrors]]) -> tuple[Verdict, ...]:
    verdicts = []
    for label in ESTIMATORS:
        outside, lowest, highest = [], (2.0, ""), (-1.0, "")
        logs = min(len(errors[name][label].error) for name in SETTINGS)
        for name in SETTINGS:
            mean, error, _ = errors[name][label].coverage(0.95)
            if np.isnan(mean):
                continue
            lowest, highest = min(lowest, (mean, name)), max(highest, (mean, name))
            if mean + 2 * error < _LOW or mean - 2 * error > _HIGH:
                outside.append(f"{name} ({mean:.1%})")
        verdicts.append(
            make_verdict(
                f"95% intervals of {label} contain the truth {_LOW:.0%} to {_HIGH:.0%} of the time in every setting "
                "(tolerance: two standard errors)",
                f"{lowest[0]:.1%} ({lowest[1]}) to {highest[0]:.1%} ({highest[1]}) in {logs:,} logs of each setting"
                + (
                    f"; outside this range in {len(outside)} of {len(SETTINGS)} settings: {', '.join(outside)}"
                    if outside
                    else ""
                ),
                not outside,
                enough=logs >= ENOUGH_LOGS and bool(lowest[1]),
            )
        )
    return tuple(verdicts)


def _notes(errors: Mapping[str, Mapping[str, IntervalErrors]]) -> tuple[str, ...]:
    lines = ["", "setting | estimator | 90% | 95% | 99% | lowest of a rank | without interval | joint | width"]
    for name, by_estimator in errors.items():
        for row in _rows(name, by_estimator):
            lines.append(
                f"{name} | {row['estimator']} | {row['coverage_90%']:.3f} | {row['coverage_95%']:.3f} "
                f"± {row['standard_error']:.3f} | {row['coverage_99%']:.3f} | {row['least_of_a_rank']:.3f} | "
                f"{row['without_interval']:.3f} | {row['joint_coverage']:.3f} | {row['median_width']:.3f}"
            )
    return tuple(lines)
