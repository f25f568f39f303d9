"""How often two curves are said to differ: where they do not, and where one rank changed; and so for segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, judged, known_mean, seed_of
from experiments.simulated_logs import as_segments, buckets_of, draw_periods, quick_world
from posbias._arrays import FloatArray, IntArray
from posbias.judging.compare import ComparedCurve, compare_curves
from posbias.judging.compare_segments import compare_segments
from posbias.logs.layouts import Layout
from posbias.simulation.world import World

# The level of the test, and what counts as that.
_LEVEL = 0.95
_LOW, _HIGH = 0.03, 0.07
_RANK, _RISE = 5, 0.1
_POWERFUL = ("p₅ up by 10%, 100,000 queries", "p₅ up by 10%, 100,000 queries, one view each")


def run_drift(lab: Laboratory) -> Outcome:
    """Draw two periods, or segments, of every setting, and count how often they are said to differ."""
    told: dict[str, Told] = {}
    for number, (name, setting) in enumerate(SETTINGS.items()):
        world = setting.drawn(lab.sizes.world)
        buckets = buckets_of(world.queries)
        logs = max(min(2, lab.sizes.drift_logs), round(setting.logs * lab.sizes.drift_logs))
        found = []
        for log in range(logs):
            found.append(measure(replace(world, seed=seed_of(lab.seed, "drift", name, log)), setting, buckets))
            lab.progress(f"drift: {name}", (number + (log + 1) / logs) / len(SETTINGS))
        told[name] = Told(*np.array(found, dtype=np.float64).T)
    lines = {
        label: np.array([_share(getattr(told[name], field)) for name in SETTINGS]).T
        for label, field in (("rank by rank", "ranks"), ("all at once", "joint"), ("as independent", "independent"))
    }
    figure = draw_settings(list(SETTINGS), lines, "Share of logs said to differ at the 5% level", (_LOW, _HIGH))
    rows = [_row(name, one) for name, one in told.items()]
    return Outcome("drift", rows, figure, _verdicts(told), notes=_notes(rows))


@dataclass(frozen=True, eq=False)
class Told:
    """What was said over the logs of a setting.

    Attributes:
        ranks: whether any rank was said to differ, allowing for all of them, by log.
        joint: whether all at once were, by log; NaN where there was no test.
        independent: whether any rank was with the curves taken for independent; NaN of segments.
        named: whether rank 5 was.
        others: whether any other rank was.
        p_value: the least of any rank, allowing for all of them.
    """

    ranks: FloatArray
    joint: FloatArray
    independent: FloatArray
    named: FloatArray
    others: FloatArray
    p_value: FloatArray


@dataclass(frozen=True)
class DriftSetting:
    """Periods of one world.

    Attributes:
        world: of each period.
        rise: of p at rank 5 in the second of two periods.
        shared: whether both periods have the same queries.
        segments: how many periods are compared as segments, in place of two.
        layout: of the logs.
        logs: the share of the logs that are drawn of others; large worlds take their time.
    """

    world: World
    rise: float = 0.0
    shared: bool = True
    segments: int | None = None
    layout: Layout = Layout.WIDE
    logs: float = 1.0

    def drawn(self, part: float) -> World:
        """Return the world with a part of its queries, where it has many."""
        return quick_world(self.world, part)


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
    """Draw the periods of one log, and return what is said of them: the fields of `Told`."""
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


def _share(told: FloatArray) -> tuple[float, float]:
    """Return how often something was said, and the standard error of it."""
    known = told[np.isfinite(told)]
    if not len(known):
        return float("nan"), float("nan")
    mean = float(known.mean())
    # Few logs of which none was said to differ do not make it certain.
    return mean, float(np.sqrt(max(mean * (1 - mean), 0.05 * 0.95) / len(known)))


def _row(name: str, told: Told) -> Row:
    return {
        "setting": name,
        "estimator": "CrossFit",
        "logs": len(told.ranks),
        "rank_by_rank": _share(told.ranks)[0],
        "standard_error": _share(told.ranks)[1],
        "all_at_once": known_mean(told.joint),
        "as_independent": known_mean(told.independent),
        "rank_5_named": known_mean(told.named),
        "another_named": known_mean(told.others),
        "mean_p_value": known_mean(told.p_value),
        "without_joint": float(np.isnan(told.joint).mean()),
    }


def _verdicts(told: Mapping[str, Told]) -> tuple[Verdict, ...]:
    alike = [name for name, setting in SETTINGS.items() if not setting.rise]
    verdicts = [
        _alike("Two curves that are the same", "ranks", {n: told[n] for n in alike if SETTINGS[n].segments is None}),
        _alike("Segments with one curve", "joint", {n: told[n] for n in alike if SETTINGS[n].segments}),
        *(_risen(name, told[name]) for name in _POWERFUL if name in told),
    ]
    return tuple(verdict for verdict in verdicts if verdict is not None)


def _alike(claim: str, field: str, told: Mapping[str, Told]) -> Verdict | None:
    """Return whether what does not differ is said to differ as rarely as promised, if there are such settings."""
    if not told:
        return None
    shares = {name: _share(getattr(one, field)) for name, one in told.items()}
    known = {name: share for name, share in shares.items() if np.isfinite(share[0])}
    outside = [name for name, (mean, se) in known.items() if mean + 2 * se < _LOW or mean - 2 * se > _HIGH]
    means = [mean for mean, _ in known.values()]
    return judged(
        f"{claim} are said to differ 3 to 7% of the time at the 5% level in every setting, two standard errors allowed",
        f"{min(means, default=np.nan):.1%} to {max(means, default=np.nan):.1%}"
        + (f"; outside: {', '.join(outside)}" if outside else ""),
        not outside,
        enough=bool(known) and min(len(one.ranks) for one in told.values()) >= ENOUGH_LOGS,
    )


def _risen(name: str, told: Told) -> Verdict:
    """Return whether a rise of one rank is found, and that rank named."""
    return judged(
        f"{name}: found with 85% power, and rank 5 named",
        f"found in {_share(told.ranks)[0]:.0%} of {len(told.ranks)} logs, rank 5 named in "
        f"{known_mean(told.named):.0%}, another in {known_mean(told.others):.0%}",
        known_mean(told.named) >= 0.85,
        enough=len(told.ranks) >= ENOUGH_LOGS,
    )


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    columns = ("rank_by_rank", "all_at_once", "as_independent", "rank_5_named", "another_named")
    lines = ["", "setting | logs | rank by rank | all at once | as independent | rank 5 named | another named"]
    for row in rows:
        told = " | ".join("–" if np.isnan(row[name]) else f"{100 * row[name]:.1f}" for name in columns)
        lines.append(f"{row['setting']} | {row['logs']} | {told}")
    return tuple(lines)
