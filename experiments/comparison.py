"""Estimators against each other and against what is possible: their errors on the same logs, in twenty settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.coverage import Setting
from experiments.drawn import buckets_of, draw_log
from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, judged, known_mean, seed_of
from experiments.rivals import best_of, curves_of
from posbias._arrays import FloatArray, IntArray
from posbias.logs.layouts import Layout
from posbias.simulation.world import World

# "Never worse", "much better", "close to the bound": what CrossFit is held to.
_NEVER_ABOVE, _MUCH_BETTER, _CLOSE = 1.03, 0.65, 0.9
_CLAIMS = {
    "relevance unknown": "Where relevance is unknown, the least possible MSE of log p",
    "relevance learned": "The MSE of log p of who guesses relevance from clicks as well as can be",
}
# An estimator that has an estimate of every rank in fewer of the logs than this is no rival.
_ENOUGH = 0.5
_BASE, _OURS = "AllPairs", "CrossFit"
_DRAWN = (_OURS, "ConditionalPoisson, design", "ConditionalPoisson, observed")
# What errs more is not drawn.
_ENDS = (0.3, 1.5)

_THREE, _FIVE, _TEN = tuple("abc"), tuple("abcde"), tuple("abcdefghij")
_QUERIES = 1000
SETTINGS: dict[str, Setting] = {
    "2 rankers": Setting(World(queries=_QUERIES)),
    "90/10": Setting(World(queries=_QUERIES, traffic=(90, 10))),
    "η = 0.5": Setting(World(queries=_QUERIES, eta=0.5)),
    "η = 2": Setting(World(queries=2 * _QUERIES, eta=2.0)),
    "unequal quality": Setting(World(queries=_QUERIES, quality=(0.0, 2.0))),
    "near-identical rankers": Setting(World(queries=2 * _QUERIES, similarity=0.99)),
    "3 rankers": Setting(World(queries=_QUERIES, rankers=_THREE)),
    "3 rankers, 80/10/10": Setting(World(queries=_QUERIES, rankers=_THREE, traffic=(80, 10, 10))),
    "5 rankers": Setting(World(queries=_QUERIES, rankers=_FIVE)),
    "5 rankers, 80/5/5/5/5": Setting(World(queries=_QUERIES, rankers=_FIVE, traffic=(80, 5, 5, 5, 5))),
    "5 rankers, 80/5/5/5/5, one view a query": Setting(
        World(queries=10 * _QUERIES, repeats=1, rankers=_FIVE, traffic=(80, 5, 5, 5, 5))
    ),
    "10 rankers": Setting(World(queries=_QUERIES, rankers=_TEN)),
    "replay": Setting(World(queries=_QUERIES), Layout.REPLAY),
    "replay, 97/3": Setting(World(queries=2 * _QUERIES, traffic=(97, 3)), Layout.REPLAY),
    "replay, 3 rankers, 80/10/10": Setting(
        World(queries=_QUERIES, rankers=_THREE, traffic=(80, 10, 10)), Layout.REPLAY
    ),
    "replay, 5 rankers, 80/5/5/5/5": Setting(
        World(queries=_QUERIES, rankers=_FIVE, traffic=(80, 5, 5, 5, 5)), Layout.REPLAY
    ),
    "replay, 95/5, three views a query, unequal quality": Setting(
        World(queries=5 * _QUERIES, repeats=3, traffic=(95, 5), quality=(0.0, 2.0)), Layout.REPLAY
    ),
    "replay, heavy-tailed queries": Setting(World(queries=_QUERIES, skew=1.5), Layout.REPLAY),
    "sticky, 2 rankers": Setting(World(queries=_QUERIES, sticky=True), independent=False),
    "sticky, 5 rankers": Setting(World(queries=_QUERIES, rankers=_FIVE, sticky=True), independent=False),
}


@dataclass(frozen=True, eq=False)
class Errors:
    """Squared errors over the logs of a setting, each the mean over ranks from the second; NaN without an estimate.

    Attributes:
        inverse: of p_1 / p_k, by estimator.
        log: of log p_k, by estimator.
        best: of log p_k, of who attains the bound, by what is known.
        bounds: of the variance of log p_k, by what is known.
    """

    inverse: Mapping[str, FloatArray]
    log: Mapping[str, FloatArray]
    best: Mapping[str, FloatArray]
    bounds: Mapping[str, FloatArray]


def ratio(ours: FloatArray, theirs: FloatArray) -> tuple[float, float]:
    """Return the ratio of two mean errors on the same logs, and its standard error by the delta method.

    Logs on which either has none are left out.

    Example:
        >>> ratio(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
        (0.5, 0.0)
    """
    both = np.isfinite(ours) & np.isfinite(theirs)
    if both.sum() < 2:
        return float("nan"), float("nan")
    ours, theirs = ours[both], theirs[both]
    found = ours.mean() / theirs.mean()
    return float(found), float((ours - found * theirs).std(ddof=1) / theirs.mean() / np.sqrt(len(ours)))


def run_estimators(lab: Laboratory) -> Outcome:
    """Fit every estimator on the same logs of every setting, and compare their errors."""
    errors: dict[str, Errors] = {}
    logs = lab.sizes.compared_logs
    for number, (name, setting) in enumerate(SETTINGS.items()):
        world = setting.drawn(lab.sizes.world)
        buckets = buckets_of(world.queries)
        found = []
        for log in range(logs):
            found.append(measure(replace(world, seed=seed_of(lab.seed, "estimators", name, log)), setting, buckets))
            lab.progress(f"estimators: {name}", (number + (log + 1) / logs) / len(SETTINGS))
        errors[name] = Errors(
            *({key: np.array([one[i][key] for one in found]) for key in found[0][i]} for i in range(4))
        )
    rows = [row for name, found_ in errors.items() for row in _rows(name, found_)]
    lines = {label: _line(errors, label) for label in _DRAWN}
    label = "MSE of inverse propensities, relative to AllPairs"
    figure = draw_settings(list(SETTINGS), lines, label, (0.995, 1.005), _ENDS)
    return Outcome("estimators", rows, figure, _verdicts(errors), notes=_notes(errors))


def measure(world: World, setting: Setting, buckets: IntArray) -> tuple[dict[str, float], ...]:
    """Draw one log and return the fields of `Errors`."""
    drawn = draw_log(world, buckets)
    truth = world.propensity[1:]
    inverse, log = {}, {}
    for label, curve in curves_of(drawn, setting).items():
        known = bool(np.all(np.isfinite(curve) & (curve > 0)))
        p = curve[1:] if known else np.full(len(truth), np.nan)
        inverse[label] = float(np.mean((1 / p - 1 / truth) ** 2))
        log[label] = float(np.mean(np.log(p / truth) ** 2))
    best = best_of(drawn, setting)
    attained = {known: float(np.mean(one.error**2)) for known, one in best.items()}
    return inverse, log, attained, {known: float(one.variance.mean()) for known, one in best.items()}


def _line(errors: Mapping[str, Errors], label: str) -> FloatArray:
    none = (float("nan"), float("nan"))
    values = [
        ratio(found.inverse[label], found.inverse[_BASE]) if label in found.inverse else none
        for found in errors.values()
    ]
    return np.array(values).T


def _rows(name: str, errors: Errors) -> Sequence[Row]:
    rows = []
    for label, inverse in errors.inverse.items():
        relative, error = ratio(inverse, errors.inverse[_BASE])
        relative_log, error_log = ratio(errors.log[label], errors.log[_BASE])
        row: dict[str, object] = {
            "setting": name,
            "estimator": label,
            "logs": len(inverse),
            "logs_without_estimate": int(np.isnan(inverse).sum()),
            "mse": known_mean(inverse),
            "relative": relative,
            "standard_error": error,
            "mse_log": known_mean(errors.log[label]),
            "relative_log": relative_log,
            "standard_error_log": error_log,
        }
        for known, best in errors.best.items():
            efficiency, spread = ratio(best, errors.log[label])
            column = known.replace(" ", "_")
            row |= {f"bound_{column}": float(errors.bounds[known].mean())}
            row |= {f"efficiency_{column}": efficiency, f"standard_error_{column}": spread}
        rows.append(row)
    return rows


def _verdicts(errors: Mapping[str, Errors]) -> tuple[Verdict, ...]:
    return (
        _never_worse(errors),
        _much_better(errors),
        *(_close(errors, known, claim) for known, claim in _CLAIMS.items()),
    )


def _enough(errors: Mapping[str, Errors]) -> bool:
    """Return whether the logs of every setting are enough for standard errors to tell by."""
    return min(len(found.inverse[_OURS]) for found in errors.values()) >= ENOUGH_LOGS


def best_rival(errors: Errors) -> tuple[str, float, float]:
    """Return the rival with the least error, and the ratio of ours to it with its standard error."""
    rivals = {
        label: ratio(errors.inverse[_OURS], theirs)
        for label, theirs in errors.inverse.items()
        if label != _OURS and np.isfinite(theirs).mean() >= _ENOUGH
    }
    label = max(rivals, key=lambda one: np.nan_to_num(rivals[one][0], nan=-np.inf))
    return label, *rivals[label]


def _never_worse(errors: Mapping[str, Errors]) -> Verdict:
    found = {name: best_rival(errors[name]) for name, setting in SETTINGS.items() if setting.independent}
    above = {name: one for name, one in found.items() if one[1] - 2 * one[2] > _NEVER_ABOVE}
    worst = max(found, key=lambda name: found[name][1])
    return judged(
        f"The MSE of CrossFit is never above {_NEVER_ABOVE} of the best rival's where each view draws its ranker, two "
        "standard errors allowed",
        f"{min(one[1] for one in found.values()):.2f} to {found[worst][1]:.2f} ± {found[worst][2]:.2f} of it, the most "
        f"in {worst} (against {found[worst][0]})"
        + (f"; above in {len(above)} of {len(found)}: {', '.join(above)}" if above else ""),
        not above,
        *(one[1] for one in found.values()),
        enough=_enough(errors),
    )


def _much_better(errors: Mapping[str, Errors]) -> Verdict:
    unbalanced = [
        name
        for name, setting in SETTINGS.items()
        if setting.independent
        and len(setting.world.rankers) > 2
        and setting.world.traffic
        and setting.layout.ranks_known
    ]
    found = {name: ratio(errors[name].inverse[_OURS], errors[name].inverse[_BASE]) for name in unbalanced}
    return judged(
        f"It is at most {_MUCH_BETTER} of that of AllPairs with three or more rankers, their ranks known and traffic "
        "unequal, two standard errors allowed",
        ", ".join(f"{value:.2f} ± {error:.2f} ({name})" for name, (value, error) in found.items()),
        all(value - 2 * error <= _MUCH_BETTER for value, error in found.values()),
        *(value for value, _ in found.values()),
        enough=_enough(errors),
    )


def _close(errors: Mapping[str, Errors], known: str, claim: str) -> Verdict:
    found = {
        name: ratio(errors[name].best[known], errors[name].log[_OURS])
        for name, setting in SETTINGS.items()
        if setting.independent
    }
    below = {name: one for name, one in found.items() if one[0] + 2 * one[1] < _CLOSE}
    least, most = (pick(found, key=lambda name: found[name][0]) for pick in (min, max))
    return judged(
        f"{claim} is at least {_CLOSE} of CrossFit's, two standard errors allowed",
        " to ".join(f"{found[name][0]:.2f} ± {found[name][1]:.2f} ({name})" for name in (least, most))
        + (f"; below in {len(below)} of {len(found)}: {', '.join(below)}" if below else ""),
        not below,
        *(value for value, _ in found.values()),
        enough=_enough(errors),
    )


def _notes(errors: Mapping[str, Errors]) -> tuple[str, ...]:
    lines = [
        "",
        "setting | estimator | of AllPairs | in log p | efficiency (known) | (unknown) | (learned) | without",
    ]
    for name, found in errors.items():
        for row in _rows(name, found):
            lines.append(
                f"{name} | {row['estimator']} | {row['relative']:.3f} ± {row['standard_error']:.3f} | "
                f"{row['relative_log']:.3f} ± {row['standard_error_log']:.3f} | "
                f"{row['efficiency_relevance_known']:.3f} | {row['efficiency_relevance_unknown']:.3f} | "
                f"{row['efficiency_relevance_learned']:.3f} | "
                f"{row['logs_without_estimate']}"
            )
    return tuple(lines)
