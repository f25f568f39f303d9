"""Experiment "pooling": is `CrossFit(pool=True)` more accurate than separate curves or one common curve?

The experiment simulates logs with 2 to 1,000 segments whose curves are equal or differ by a known amount, and compares
the mean squared error of log p of three estimates: a separate curve for each segment, one common curve, and pooled
curves. It also counts how often the 95% intervals of pooled curves contain the truth.

pooling.csv has a row for each setting: the three errors, the ratio of the pooled error to the smaller of the other two,
and the coverage of the intervals, both with standard errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, make_verdict, seed_of
from experiments.simulated_logs import as_segments, buckets_of, draw_periods
from posbias._arrays import FloatArray
from posbias.estimators.cross_fit import CrossFit
from posbias.harvesting.harvest import Harvest
from posbias.logs.click_log import Layout
from posbias.simulation.world import World

# The coverage that counts as 95%, and the largest error ratio where segments do not differ.
_LOW, _HIGH, _MAX_RATIO = 0.93, 0.97, 1.05
_WORLD = World(repeats=5)
# The smallest number of segments of a shrunk setting.
_MIN_SEGMENTS = 10


def run_pooling(lab: Laboratory) -> Outcome:
    """Simulate segments of every setting, and estimate separate, common and pooled curves."""
    results: dict[str, PoolingErrors] = {}
    for number, (name, setting) in enumerate(SETTINGS.items()):
        logs = max(min(2, lab.sizes.pooling_logs), round(setting.logs * lab.sizes.pooling_logs))
        found = []
        for log in range(logs):
            found.append(measure(setting.shrunk(lab.sizes.world), seed_of(lab.seed, "pooling", name, log)))
            lab.progress(f"pooling: {name}", (number + (log + 1) / logs) / len(SETTINGS))
        results[name] = PoolingErrors(*np.array(found, dtype=np.float64).T)
    lines = {"coverage": np.array([one.coverage for one in results.values()]).T}
    figure = draw_settings(list(results), lines, "Share of 95% intervals that contain the truth", (_LOW, _HIGH))
    rows = [_row(name, one) for name, one in results.items()]
    return Outcome("pooling", rows, figure, _verdicts(results), notes=_notes(rows))


@dataclass(frozen=True, eq=False)
class PoolingErrors:
    """The mean squared errors of log p and the share of intervals that contain the truth, by log."""

    separate: FloatArray
    common: FloatArray
    pooled: FloatArray
    covered: FloatArray

    @property
    def ratio(self) -> tuple[float, float]:
        """The ratio of the pooled error to the smaller of the other two errors, and its standard error."""
        better = self.separate if self.separate.mean() < self.common.mean() else self.common
        ratio = self.pooled.mean() / better.mean()
        residual = self.pooled - ratio * better
        return float(ratio), float(residual.std() / np.sqrt(max(1, len(residual) - 1)) / better.mean())

    @property
    def coverage(self) -> tuple[float, float]:
        """The mean coverage, and its standard error."""
        return float(self.covered.mean()), float(self.covered.std() / np.sqrt(max(1, len(self.covered) - 1)))


@dataclass(frozen=True)
class PoolingSetting:
    """Segments of unequal size, and how their curves deviate from 1/k.

    Attributes:
        segments: the number of segments S.
        queries: the queries of a segment of median size; the largest can have twenty times as many.
        slope: the standard deviation of η between segments.
        wander: the standard deviation of a random walk of log p, from rank k to rank 2k.
        single: the standard deviation of independent deviations of log p at each rank.
        world: the world that the segments share.
        layout: the layout of the logs.
        logs: the share of the usual number of logs; large settings are slow.
    """

    segments: int
    queries: int
    slope: float = 0.0
    wander: float = 0.0
    single: float = 0.0
    world: World = _WORLD
    layout: Layout = Layout.WIDE
    logs: float = 1.0

    def shrunk(self, share: float) -> PoolingSetting:
        """Return the setting with a share of its segments, but not with very few."""
        return replace(self, segments=min(self.segments, max(_MIN_SEGMENTS, round(share * self.segments))))

    @property
    def alike(self) -> bool:
        """Whether segments do not differ."""
        return not (self.slope or self.wander or self.single)

    def curves(self, rng: np.random.Generator) -> FloatArray:
        """Draw log p of each segment, shape (S, M)."""
        place = np.log(np.arange(1, self.world.max_rank + 1))
        steps = np.sqrt(np.diff(place, prepend=0.0) / np.log(2))
        drawn = rng.standard_normal((3, self.segments, self.world.max_rank))
        x = -place - self.slope * drawn[0, :, :1] * place
        x += self.wander * np.cumsum(drawn[1] * steps, axis=1) + self.single * drawn[2] * (place > 0)
        # A propensity is at most 1.
        return np.asarray(np.minimum(x, 0.0))

    def sizes(self, rng: np.random.Generator) -> list[int]:
        """Draw the number of queries of each segment."""
        spread = np.exp(rng.standard_normal(self.segments))
        return [max(5, round(self.queries * min(20.0, size))) for size in spread]


SETTINGS: dict[str, PoolingSetting] = {
    "2 segments, alike": PoolingSetting(2, 300),
    "2 segments, η ± 0.05": PoolingSetting(2, 300, slope=0.05),
    "2 segments, η ± 0.3": PoolingSetting(2, 300, slope=0.3),
    "10 segments, alike": PoolingSetting(10, 100),
    "10 segments, η ± 0.05": PoolingSetting(10, 100, slope=0.05),
    "10 segments, η ± 0.1": PoolingSetting(10, 100, slope=0.1),
    "10 segments, η ± 0.3": PoolingSetting(10, 100, slope=0.3),
    "10 segments, wandering": PoolingSetting(10, 100, wander=0.2),
    "10 segments, each rank": PoolingSetting(10, 100, single=0.2),
    "10 segments, η ± 0.3, replay": PoolingSetting(10, 100, slope=0.3, layout=Layout.REPLAY),
    "10 segments, η ± 0.3, 3 rankers": PoolingSetting(10, 100, slope=0.3, world=World(repeats=5, rankers=tuple("abc"))),
    "100 segments, alike": PoolingSetting(100, 30, logs=1 / 3),
    "100 segments, η ± 0.05": PoolingSetting(100, 30, slope=0.05, logs=1 / 3),
    "100 segments, η ± 0.1": PoolingSetting(100, 30, slope=0.1, logs=1 / 3),
    "100 segments, η ± 0.3": PoolingSetting(100, 30, slope=0.3, logs=1 / 3),
    "1,000 segments, η ± 0.3": PoolingSetting(1000, 10, slope=0.3, logs=1 / 6),
}


def measure(setting: PoolingSetting, seed: int) -> tuple[float, ...]:
    """Simulate the segments of one log, and return the fields of `PoolingErrors`."""
    rng = np.random.default_rng(seed)
    truth = setting.curves(rng)
    harvest = _simulated_harvest(setting, truth, seed, rng)
    separate_fit, pooled = CrossFit(interval=None).fit(harvest), CrossFit(pool=True).fit(harvest)
    separate = _logs([part.propensity_ for part in separate_fit.segments_.values()])
    together = _logs([part.propensity_ for part in pooled.segments_.values()])
    # Compare only ranks for which the segment has its own estimate.
    known = np.isfinite(separate) & np.isfinite(together) & (np.arange(truth.shape[1]) > 0)
    errors = [((x - truth)[known] ** 2).mean() for x in (separate, np.log(separate_fit.propensity_), together)]
    ends = np.log([part.interval_ for part in pooled.segments_.values()])
    estimated = np.isfinite(ends[:, :, 0]) & (np.arange(truth.shape[1]) > 0)
    contains = (ends[:, :, 0] <= truth) & (truth <= ends[:, :, 1])
    return *errors, float(contains[estimated].mean())


def _simulated_harvest(setting: PoolingSetting, truth: FloatArray, seed: int, rng: np.random.Generator) -> Harvest:
    sizes = setting.sizes(rng)
    buckets, periods = buckets_of(max(sizes)), []
    for number, queries in enumerate(sizes):
        world = replace(setting.world, queries=queries, seed=seed + number)
        periods += draw_periods(world, buckets[:queries], [np.exp(truth[number])], world.seed)
    return as_segments(periods, setting.layout)


def _logs(curves: Sequence[FloatArray]) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(curves))


def _row(name: str, errors: PoolingErrors) -> Row:
    return {
        "setting": name,
        "estimator": "CrossFit",
        "logs": len(errors.pooled),
        "separate": float(errors.separate.mean()),
        "common": float(errors.common.mean()),
        "pooled": float(errors.pooled.mean()),
        "ratio": errors.ratio[0],
        "standard_error": errors.ratio[1],
        "coverage": errors.coverage[0],
        "standard_error_of_coverage": errors.coverage[1],
    }


def _verdicts(results: Mapping[str, PoolingErrors]) -> tuple[Verdict, ...]:
    enough = min(len(one.pooled) for one in results.values()) >= min(ENOUGH_LOGS, 10)
    alike = {name: results[name].ratio for name in results if SETTINGS[name].alike}
    different = {name: results[name].ratio for name in results if not SETTINGS[name].alike}
    coverage = {name: one.coverage for name, one in results.items()}
    outside = [name for name, (mean, se) in coverage.items() if mean + 2 * se < _LOW or mean - 2 * se > _HIGH]
    means = [mean for mean, _ in coverage.values()]
    return (
        make_verdict(
            f"Where segments do not differ, the pooled error is at most {_MAX_RATIO} times that of the better of "
            "separate and common curves (tolerance: two standard errors)",
            f"ratio at most {max(ratio for ratio, _ in alike.values()):.2f}",
            all(ratio - 2 * se <= _MAX_RATIO for ratio, se in alike.values()),
            enough=enough,
        ),
        make_verdict(
            "Where segments differ, the pooled error is smaller than both others",
            f"ratio {min(ratio for ratio, _ in different.values()):.2f} to "
            f"{max(ratio for ratio, _ in different.values()):.2f}",
            all(ratio < 1 for ratio, _ in different.values()),
            enough=enough,
        ),
        make_verdict(
            "On average over segments, 95% intervals contain the truth 93 to 97% of the time (tolerance: two standard "
            "errors)",
            f"{min(means):.1%} to {max(means):.1%}"
            + (f"; outside this range: {', '.join(outside)}" if outside else ""),
            not outside,
            enough=enough,
        ),
    )


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    lines = ["", "setting | logs | separate | common | pooled | ratio to the better | coverage"]
    for row in rows:
        errors = " | ".join(f"{row[name]:.4f}" for name in ("separate", "common", "pooled"))
        ratio = f"{row['ratio']:.2f} ± {row['standard_error']:.2f}"
        lines.append(f"{row['setting']} | {row['logs']} | {errors} | {ratio} | {100 * row['coverage']:.1f}%")
    return tuple(lines)
