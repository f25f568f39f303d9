"""Experiment "planning": are the standard errors that `plan` forecasts accurate?

The experiment simulates a log, plans from its harvest, and then simulates what was planned: four times the queries,
another split of traffic, and one more ranker. It compares the forecast standard errors of log p with the actual ones; a
claim holds if they agree within 15%.

planning.csv has a row for each setting and estimator: the lowest and highest ratio of forecast to actual standard error
in each scenario, and the number of ranks compared. planning-by-rank.csv has the ratio of each rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.coverage import WorldSetting
from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, make_verdict, seed_of
from experiments.simulated_logs import buckets_of, draw_log
from posbias._arrays import BoolArray, FloatArray
from posbias.estimators import FROM_HARVESTS
from posbias.harvesting.harvest import Harvest
from posbias.logs.click_log import Layout
from posbias.planning.forecast import Forecast, measure_errors
from posbias.planning.plan import plan
from posbias.simulation.world import World

# The scenarios, in the order of the arrays below.
SCENARIOS = ("four times the queries", "another split", "one more ranker")
_TIMES = 4
# Plans claim an accuracy of 15%.
_TOLERANCE = 0.15
# The number of logs of each scenario that are simulated for each plan.
_DRAWN_LOGS = 2
# A rank is judged only if this share of the plans forecasts it: fewer plans would be a biased selection.
_MIN_SHARE = 0.9
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
    """Plan from logs of every setting, simulate logs of each scenario, and compare standard errors."""
    found: dict[str, dict[str, ForecastVariances]] = {}
    logs = lab.sizes.planning_logs
    for number, (name, setting) in enumerate(SETTINGS.items()):
        world = setting.shrunk_world(lab.sizes.world)
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
    label = "Ratio of forecast to actual standard error (the rank furthest from 1)"
    figure = draw_settings(list(SETTINGS), lines, label, (1 - _TOLERANCE, 1 + _TOLERANCE))
    return Outcome("planning", rows, figure, _verdicts(found), {"by-rank": by_rank}, _notes(rows))


@dataclass(frozen=True, eq=False)
class ForecastVariances:
    """Variances of log p by log, scenario and rank from 2 on, shape (logs, 3, M − 1); NaN where there is none.

    Attributes:
        forecast: the forecast of the plan.
        actual: the mean variance of a few simulated logs of the scenario.
    """

    forecast: FloatArray
    actual: FloatArray

    @property
    def judged(self) -> BoolArray:
        """Whether nearly all plans forecast a rank and the simulated logs have an interval for it."""
        known = np.isfinite(self.forecast) & np.isfinite(self.actual)
        return np.asarray(known.mean(axis=0) >= _MIN_SHARE)

    def ratios(self) -> tuple[FloatArray, FloatArray]:
        """Return the ratios of forecast to actual standard errors, and their standard errors, shape (3, M − 1)."""
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
        # Delta method: the square root halves the relative error.
        return ratio, np.where(self.judged, ratio * np.sqrt(spreads[0] + spreads[1]) / 2, np.nan)

    def furthest(self) -> tuple[float, float]:
        """Return the ratio that is furthest from 1, and its standard error; NaN if there is none."""
        ratio, error = self.ratios()
        if np.isnan(ratio).all():
            return float("nan"), float("nan")
        place = np.unravel_index(int(np.nanargmax(np.abs(ratio - 1))), ratio.shape)
        return float(ratio[place]), float(error[place])

    def beyond(self) -> int:
        """Return how many ratios differ from 1 by more than 15% plus two standard errors."""
        ratio, error = self.ratios()
        return int(np.count_nonzero(np.abs(ratio - 1) - 2 * error > _TOLERANCE))


def measure(world: World, seed: int) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Plan from one log, simulate logs of each scenario, and return the fields of `ForecastVariances` by estimator."""
    harvest = _simulated_harvest(replace(world, seed=seed))
    split = dict(zip(world.rankers, _split(world), strict=True))
    # Scenarios are forecast for the first estimator of a plan.
    plans = [
        plan(harvest, queries=world.queries, traffic=split, estimators=[label], seed=seed % 1000)
        for label in FROM_HARVESTS
    ]
    forecasts = [[one.forecasts[0], *(one.scenarios[i].forecasts[0] for i in (0, -1))] for one in plans]
    times = np.array([_TIMES, 1, 1])
    variances = np.array([[_errors(one) for one in each] for each in forecasts]).swapaxes(0, 1) ** 2
    variances /= times[:, None, None]
    actual = np.stack([_actual_variances(one, seed) for one in scenario_worlds(world)])
    return {label: (variances[:, i], actual[:, i]) for i, label in enumerate(FROM_HARVESTS)}


def _simulated_harvest(world: World) -> Harvest:
    return draw_log(world, buckets_of(world.queries)).harvest(Layout.WIDE)


def _split(world: World) -> tuple[float, ...]:
    """Return another split of traffic, which gives most to the last ranker."""
    return (0.3, 0.7) if len(world.rankers) == 2 else (0.2, 0.3, 0.5)


def _errors(forecast: Forecast) -> list[float]:
    """Return the forecast standard errors by rank; NaN without a forecast."""
    return [each.standard_error or np.nan if each.times is not None else np.nan for each in forecast.requirements]


def _actual_variances(world: World, seed: int) -> FloatArray:
    """Return the mean variance of log p by estimator and rank over simulated logs of a world."""
    harvests = [_simulated_harvest(replace(world, seed=seed_of(seed, "came", i))) for i in range(_DRAWN_LOGS)]
    return np.asarray(
        np.mean(
            [[measure_errors(label, harvest).se[1:] ** 2 for label in FROM_HARVESTS] for harvest in harvests], axis=0
        )
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
        exceptions = (
            f"; beyond the tolerance at {sum(beyond.values())} of {len(ratios)} ranks: {', '.join(beyond)}"
            if beyond
            else ""
        )
        least, most = (float(pick(ratios)) if len(ratios) else float("nan") for pick in (np.min, np.max))
        verdicts.append(
            make_verdict(
                f"Forecast standard errors of {label} are within {_TOLERANCE:.0%} of the actual ones at every rank "
                "that nearly all plans of a setting forecast (tolerance: two standard errors)",
                f"ratio {least:.2f} to {most:.2f}, on average over {logs:,} plans{exceptions}",
                not beyond,
                least,
                most,
                enough=logs >= ENOUGH_LOGS,
            )
        )
    return tuple(verdicts)


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    lines = ["", f"setting | estimator | {' | '.join(SCENARIOS)} | standard error of a ratio"]
    for row in rows:
        cells = [
            f"{row[f'least_{column}']:.2f}–{row[f'most_{column}']:.2f} ({row[f'ranks_{column}']} ranks)"
            if row[f"ranks_{column}"]
            else "–"
            for column in (scenario.replace(" ", "_") for scenario in SCENARIOS)
        ]
        lines.append(f"{row['setting']} | {row['estimator']} | {' | '.join(cells)} | {row['standard_error']:.3f}")
    return tuple(lines)
