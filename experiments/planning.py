"""How well plans predict standard errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.coverage import WorldSetting
from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, judged, seed_of
from experiments.simulated_logs import buckets_of, draw_log
from posbias._arrays import BoolArray, FloatArray
from posbias.estimators import FROM_HARVESTS
from posbias.harvesting.harvest import Harvest
from posbias.logs.layouts import Layout
from posbias.planning.forecast import Forecast, measure_errors
from posbias.planning.plan import plan
from posbias.simulation.world import World

# What is forecast, in the order of the arrays below.
SCENARIOS = ("four times the queries", "another split", "one more ranker")
_TIMES = 4
# "Within 15%": the promise of a plan.
_WITHIN = 0.15
# Logs drawn afterwards for each log that is planned from: the forecast is known less well.
_DRAWN_LOGS = 2
# A rank is judged only if this share of the plans has a number for it: otherwise those plans would be a selection.
_MOSTLY = 0.9
SETTINGS: dict[str, WorldSetting] = {
    "2 rankers": WorldSetting(World(queries=2000)),
    "near-identical rankers": WorldSetting(World(queries=3000, similarity=0.97)),
    "40 candidates, similarity 0.6": WorldSetting(World(queries=2000, candidates=40, similarity=0.6)),
    "3 rankers, 60/30/10": WorldSetting(World(queries=2000, rankers=tuple("abc"), traffic=(60, 30, 10))),
    "unequal quality, 80/20, η = 0.5": WorldSetting(World(queries=2000, quality=(0.5, 2.0), eta=0.5, traffic=(80, 20))),
    "one view a query": WorldSetting(World(queries=15_000, repeats=1)),
    "heavy-tailed queries": WorldSetting(World(queries=2000, skew=1.0)),
    "good rankers": WorldSetting(World(queries=2000, quality=3.0)),
}


def run_planning(lab: Laboratory) -> Outcome:
    """Plan from logs of every setting, draw logs of each scenario, and compare standard errors."""
    found: dict[str, dict[str, ForecastVariances]] = {}
    logs = lab.sizes.planned_logs
    for number, (name, setting) in enumerate(SETTINGS.items()):
        world = setting.drawn(lab.sizes.world)
        drawn = []
        for log in range(logs):
            drawn.append(measure(world, seed_of(lab.seed, "planning", name, log)))
            lab.progress(f"planning: {name}", (number + (log + 1) / logs) / len(SETTINGS))
        found[name] = {
            label: ForecastVariances(*(np.stack([one[label][part] for one in drawn]) for part in range(2)))
            for label in FROM_HARVESTS
        }
    rows = [row for name, by_estimator in found.items() for row in _rows(name, by_estimator)]
    by_rank = [row for name, by_estimator in found.items() for row in _rank_rows(name, by_estimator)]
    lines = {label: np.array([found[name][label].furthest() for name in SETTINGS]).T for label in FROM_HARVESTS}
    label = "Forecast over actual standard error: furthest from 1 of all ranks"
    figure = draw_settings(list(SETTINGS), lines, label, (1 - _WITHIN, 1 + _WITHIN))
    return Outcome("planning", rows, figure, _verdicts(found), {"by-rank": by_rank}, _notes(rows))


@dataclass(frozen=True, eq=False)
class ForecastVariances:
    """Variances of log p by log, scenario and rank from the second: (logs, 3, M − 1); NaN where there is none.

    Attributes:
        forecast: by the plan of one log.
        actual: of logs drawn from the scenario, on average over a few.
    """

    forecast: FloatArray
    actual: FloatArray

    @property
    def judged(self) -> BoolArray:
        """Whether nearly all plans have a number for a rank, and the logs drawn an interval."""
        known = np.isfinite(self.forecast) & np.isfinite(self.actual)
        return np.asarray(known.mean(axis=0) >= _MOSTLY)

    def ratios(self) -> tuple[FloatArray, FloatArray]:
        """Return forecast standard errors over actual ones, and the standard errors of these ratios: (3, M − 1)."""
        known = np.isfinite(self.forecast) & np.isfinite(self.actual)
        logs = np.maximum(known.sum(axis=0), 1)
        means, spreads = [], []
        for values in (self.forecast, self.actual):
            mean = np.where(known, values, 0.0).sum(axis=0) / logs
            squares = np.where(known, (values - mean) ** 2, 0.0).sum(axis=0)
            means.append(mean)
            with np.errstate(invalid="ignore", divide="ignore"):
                spreads.append(squares / (logs - 1) / logs / mean**2)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(self.judged, np.sqrt(means[0] / means[1]), np.nan)
        # By the delta method; a square root halves it.
        return ratio, np.where(self.judged, ratio * np.sqrt(spreads[0] + spreads[1]) / 2, np.nan)

    def furthest(self) -> tuple[float, float]:
        """Return the ratio that is furthest from 1, and its standard error; NaN if there is none."""
        ratio, error = self.ratios()
        if np.isnan(ratio).all():
            return float("nan"), float("nan")
        place = np.unravel_index(int(np.nanargmax(np.abs(ratio - 1))), ratio.shape)
        return float(ratio[place]), float(error[place])

    def beyond(self) -> int:
        """Return how many ratios are more than 15% from 1, two standard errors allowed."""
        ratio, error = self.ratios()
        return int(np.count_nonzero(np.abs(ratio - 1) - 2 * error > _WITHIN))


def measure(world: World, seed: int) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Plan from one log and draw a few of each scenario; return `ForecastVariances` of each estimator as a pair."""
    made = _drawn(replace(world, seed=seed))
    split = dict(zip(world.rankers, _split(world), strict=True))
    planned = plan(made, queries=world.queries, traffic=split, seed=seed % 1000)
    forecasts = [planned.forecasts, planned.scenarios[0].forecasts, planned.scenarios[-1].forecasts]
    times = np.array([_TIMES, 1, 1])
    variances = np.stack([[_errors(one) for one in each] for each in forecasts]) ** 2 / times[:, None, None]
    actual = np.stack([_actual_variances(one, seed) for one in scenario_worlds(world)])
    return {label: (variances[:, i], actual[:, i]) for i, label in enumerate(FROM_HARVESTS)}


def _drawn(world: World) -> Harvest:
    return draw_log(world, buckets_of(world.queries)).harvest(Layout.WIDE)


def _split(world: World) -> tuple[float, ...]:
    """Return another split of traffic: most to the ranker that has the least now, or to the last."""
    return (0.3, 0.7) if len(world.rankers) == 2 else (0.2, 0.3, 0.5)


def _errors(forecast: Forecast) -> list[float]:
    """Return the standard errors of ranks with a forecast."""
    return [each.standard_error or np.nan if each.times is not None else np.nan for each in forecast.requirements]


def _actual_variances(world: World, seed: int) -> FloatArray:
    """Return the mean variance of log p by estimator and rank over logs of a world."""
    drawn = [_drawn(replace(world, seed=seed_of(seed, "came", i))) for i in range(_DRAWN_LOGS)]
    return np.asarray(
        np.mean([[measure_errors(label, made).se[1:] ** 2 for label in FROM_HARVESTS] for made in drawn], axis=0)
    )


def scenario_worlds(world: World) -> tuple[World, World, World]:
    """Return the world of each of `SCENARIOS`."""
    count = len(world.rankers)
    joined = (*(share * count / (count + 1) for share in world.shares), 1 / (count + 1))
    quality = (*world.qualities, float(np.mean(world.qualities)))
    return (
        replace(world, queries=_TIMES * world.queries),
        replace(world, traffic=_split(world)),
        replace(world, rankers=(*world.rankers, "new"), traffic=joined, quality=quality),
    )


def _rows(name: str, found: Mapping[str, ForecastVariances]) -> Sequence[Row]:
    rows = []
    for label, one in found.items():
        ratio, error = one.ratios()
        row: dict[str, object] = {"setting": name, "estimator": label, "logs": len(one.actual)}
        for i, scenario in enumerate(SCENARIOS):
            known = ratio[i][one.judged[i]]
            column = scenario.replace(" ", "_")
            row |= {
                f"least_{column}": float(known.min()) if len(known) else float("nan"),
                f"most_{column}": float(known.max()) if len(known) else float("nan"),
                f"ranks_{column}": len(known),
            }
        errors = error[one.judged]
        rows.append(row | {"standard_error": float(np.median(errors)) if len(errors) else float("nan")})
    return rows


def _rank_rows(name: str, found: Mapping[str, ForecastVariances]) -> Sequence[Row]:
    rows = []
    for label, one in found.items():
        ratio, error = one.ratios()
        for i, scenario in enumerate(SCENARIOS):
            for k, (value, spread) in enumerate(zip(ratio[i].tolist(), error[i].tolist(), strict=True), start=2):
                row = {"setting": name, "estimator": label, "scenario": scenario, "rank": k}
                rows.append(row | {"ratio": value, "standard_error": spread})
    return rows


def _verdicts(found: Mapping[str, Mapping[str, ForecastVariances]]) -> tuple[Verdict, ...]:
    verdicts = []
    for label in FROM_HARVESTS:
        own = {name: one[label] for name, one in found.items()}
        ratios = np.concatenate([one.ratios()[0][one.judged] for one in own.values()])
        beyond = {name: count for name, one in own.items() if (count := one.beyond())}
        logs = min(len(one.actual) for one in own.values())
        few = f"; beyond at {sum(beyond.values())} of {len(ratios)}: {', '.join(beyond)}" if beyond else ""
        least, most = (float(pick(ratios)) if len(ratios) else float("nan") for pick in (np.min, np.max))
        verdicts.append(
            judged(
                f"Standard errors of {label} that a plan forecasts are within {_WITHIN:.0%} of the actual ones, at "
                "every rank for which nearly all plans of a setting have a number, two standard errors allowed",
                f"{least:.2f} to {most:.2f} of the actual ones, on average over {logs:,} plans{few}",
                not beyond,
                least,
                most,
                enough=logs >= ENOUGH_LOGS,
            )
        )
    return tuple(verdicts)


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    lines = ["", f"setting | estimator | {' | '.join(SCENARIOS)} | ± of one rank"]
    for row in rows:
        cells = [
            f"{row[f'least_{column}']:.2f}–{row[f'most_{column}']:.2f} ({row[f'ranks_{column}']} ranks)"
            if row[f"ranks_{column}"]
            else "–"
            for column in (scenario.replace(" ", "_") for scenario in SCENARIOS)
        ]
        lines.append(f"{row['setting']} | {row['estimator']} | {' | '.join(cells)} | {row['standard_error']:.3f}")
    return tuple(lines)
