"""What pooling segments brings: its error against separate curves and one for all, and how often intervals hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, judged, seed_of
from experiments.simulated_logs import as_segments, buckets_of, draw_periods
from posbias._arrays import FloatArray
from posbias.estimators.cross_fit import CrossFit
from posbias.harvesting.harvest import Harvest
from posbias.logs.layouts import Layout
from posbias.simulation.world import World

_LOW, _HIGH, _ALIKE = 0.93, 0.97, 1.05
_WORLD = World(repeats=5)
# A setting keeps so many segments however quick the look.
_FEWEST_SEGMENTS = 10


def run_pooling(lab: Laboratory) -> Outcome:
    """Draw segments of every setting, and estimate each apart, all as one, and pooled."""
    told: dict[str, Told] = {}
    for number, (name, setting) in enumerate(SETTINGS.items()):
        logs = max(min(2, lab.sizes.pooled_logs), round(setting.logs * lab.sizes.pooled_logs))
        found = []
        for log in range(logs):
            found.append(measure(setting.drawn(lab.sizes.world), seed_of(lab.seed, "pooling", name, log)))
            lab.progress(f"pooling: {name}", (number + (log + 1) / logs) / len(SETTINGS))
        told[name] = Told(*np.array(found, dtype=np.float64).T)
    lines = {"coverage": np.array([one.coverage for one in told.values()]).T}
    figure = draw_settings(list(told), lines, "Share of 95% intervals that hold the truth", (_LOW, _HIGH))
    rows = [_row(name, one) for name, one in told.items()]
    return Outcome("pooling", rows, figure, _verdicts(told), notes=_notes(rows))


@dataclass(frozen=True, eq=False)
class Told:
    """By log: the mean squared errors of log p, and the share of intervals that hold the truth."""

    separate: FloatArray
    common: FloatArray
    pooled: FloatArray
    covered: FloatArray

    @property
    def ratio(self) -> tuple[float, float]:
        """The error of pooling over that of the better of the others, and its standard error."""
        better = self.separate if self.separate.mean() < self.common.mean() else self.common
        ratio = self.pooled.mean() / better.mean()
        off = self.pooled - ratio * better
        return float(ratio), float(off.std() / np.sqrt(max(1, len(off) - 1)) / better.mean())

    @property
    def coverage(self) -> tuple[float, float]:
        """The mean share, and its standard error."""
        return float(self.covered.mean()), float(self.covered.std() / np.sqrt(max(1, len(self.covered) - 1)))


@dataclass(frozen=True)
class PoolingSetting:
    """Segments of unequal size, and how their curves deviate from 1/k.

    Attributes:
        segments: S.
        queries: of a segment of the median size; the largest has twenty times as many.
        slope: the standard deviation of η between segments.
        wander: of log p between ranks k and 2k, added up as one goes down.
        single: of log p at each rank by itself.
        world: what the segments have in common.
        layout: of the logs.
        logs: the share of the logs that are drawn of others.
    """

    segments: int
    queries: int
    slope: float = 0.0
    wander: float = 0.0
    single: float = 0.0
    world: World = _WORLD
    layout: Layout = Layout.WIDE
    logs: float = 1.0

    def drawn(self, part: float) -> PoolingSetting:
        """Return the setting with a part of its segments, where it has many."""
        return replace(self, segments=min(self.segments, max(_FEWEST_SEGMENTS, round(part * self.segments))))

    @property
    def alike(self) -> bool:
        """Whether segments do not differ."""
        return not (self.slope or self.wander or self.single)

    def curves(self, rng: np.random.Generator) -> FloatArray:
        """Draw the curve of each segment: log p, (S, M)."""
        place = np.log(np.arange(1, self.world.max_rank + 1))
        steps = np.sqrt(np.diff(place, prepend=0.0) / np.log(2))
        drawn = rng.standard_normal((3, self.segments, self.world.max_rank))
        x = -place - self.slope * drawn[0, :, :1] * place
        x += self.wander * np.cumsum(drawn[1] * steps, axis=1) + self.single * drawn[2] * (place > 0)
        # A click needs a chance below 1.
        return np.asarray(np.minimum(x, 0.0))

    def sizes(self, rng: np.random.Generator) -> list[int]:
        """Draw how many queries each segment has."""
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
    """Draw the segments of one log, and return the fields of `Told`."""
    rng = np.random.default_rng(seed)
    truth = setting.curves(rng)
    harvest = _drawn(setting, truth, seed, rng)
    apart, pooled = CrossFit(interval=None).fit(harvest), CrossFit(pool=True).fit(harvest)
    separate = _logs([part.propensity_ for part in apart.segments_.values()])
    together = _logs([part.propensity_ for part in pooled.segments_.values()])
    # Compared where a segment has a curve of its own.
    known = np.isfinite(separate) & np.isfinite(together) & (np.arange(truth.shape[1]) > 0)
    errors = [((x - truth)[known] ** 2).mean() for x in (separate, np.log(apart.propensity_), together)]
    ends = np.log([part.interval_ for part in pooled.segments_.values()])
    told = np.isfinite(ends[:, :, 0]) & (np.arange(truth.shape[1]) > 0)
    holds = (ends[:, :, 0] <= truth) & (truth <= ends[:, :, 1])
    return *errors, float(holds[told].mean())


def _drawn(setting: PoolingSetting, truth: FloatArray, seed: int, rng: np.random.Generator) -> Harvest:
    sizes = setting.sizes(rng)
    buckets, periods = buckets_of(max(sizes)), []
    for number, queries in enumerate(sizes):
        world = replace(setting.world, queries=queries, seed=seed + number)
        periods += draw_periods(world, buckets[:queries], [np.exp(truth[number])], world.seed)
    return as_segments(periods, setting.layout)


def _logs(curves: Sequence[FloatArray]) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(curves))


def _row(name: str, told: Told) -> Row:
    return {
        "setting": name,
        "estimator": "CrossFit",
        "logs": len(told.pooled),
        "separate": float(told.separate.mean()),
        "common": float(told.common.mean()),
        "pooled": float(told.pooled.mean()),
        "ratio": told.ratio[0],
        "standard_error": told.ratio[1],
        "coverage": told.coverage[0],
        "standard_error_of_coverage": told.coverage[1],
    }


def _verdicts(told: Mapping[str, Told]) -> tuple[Verdict, ...]:
    enough = min(len(one.pooled) for one in told.values()) >= min(ENOUGH_LOGS, 10)
    alike = {name: told[name].ratio for name in told if SETTINGS[name].alike}
    apart = {name: told[name].ratio for name in told if not SETTINGS[name].alike}
    coverage = {name: one.coverage for name, one in told.items()}
    outside = [name for name, (mean, se) in coverage.items() if mean + 2 * se < _LOW or mean - 2 * se > _HIGH]
    means = [mean for mean, _ in coverage.values()]
    return (
        judged(
            f"Where segments do not differ, the error is at most {_ALIKE} of the better of separate and common curves, "
            "two standard errors allowed",
            f"at most {max(ratio for ratio, _ in alike.values()):.2f}",
            all(ratio - 2 * se <= _ALIKE for ratio, se in alike.values()),
            enough=enough,
        ),
        judged(
            "Where they differ, it is below both",
            f"{min(ratio for ratio, _ in apart.values()):.2f} to {max(ratio for ratio, _ in apart.values()):.2f}",
            all(ratio < 1 for ratio, _ in apart.values()),
            enough=enough,
        ),
        judged(
            "On average over segments 95% intervals hold the truth 93 to 97% of the time, two standard errors allowed",
            f"{min(means):.1%} to {max(means):.1%}" + (f"; outside: {', '.join(outside)}" if outside else ""),
            not outside,
            enough=enough,
        ),
    )


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    lines = ["", "setting | logs | separate | common | pooled | over the better | coverage"]
    for row in rows:
        errors = " | ".join(f"{row[name]:.4f}" for name in ("separate", "common", "pooled"))
        ratio = f"{row['ratio']:.2f} ± {row['standard_error']:.2f}"
        lines.append(f"{row['setting']} | {row['logs']} | {errors} | {ratio} | {100 * row['coverage']:.1f}%")
    return tuple(lines)
