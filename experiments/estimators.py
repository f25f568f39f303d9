"""Experiment "estimators": which estimator has the smallest error, and how close is it to the Cramér–Rao bound?

The experiment fits every estimator on the same simulated logs and compares the mean squared error (MSE) of the inverse
propensities p_1/p_k with that of AllPairs. It also computes the lowest possible variance of log p_k (the Cramér–Rao
bound) in three cases: relevance known, relevance unknown, and relevance learned from clicks.

estimators.csv has a row for each setting and estimator: the MSE of p_1/p_k and of log p_k, both relative to AllPairs
with standard errors, the bounds, and the efficiency against each bound (the error of an estimator that attains the
bound, divided by the error of this one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from experiments.coverage import WorldSetting
from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, finite_mean, make_verdict, seed_of
from experiments.simulated_logs import SimulatedLog, buckets_of, draw_log
from posbias._arrays import FloatArray, IntArray, group, sum_by_index
from posbias.errors import EstimateError
from posbias.estimators import PBMEM, AdjacentChain, AllPairs, CrossFit, PivotOne
from posbias.estimators.base import CurveEstimator
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.observations import Observations
from posbias.logs.click_log import Layout
from posbias.simulation.world import World

# The largest click probabilities: a probability of 1 would carry infinite information. The second is for guessed ones.
_MAX_PROBABILITY, _MAX_GUESSED_PROBABILITY = 1 - 1e-9, 0.99
# The Newton steps of the regression of relevance on ranks, and the pseudo-observations that regularise it.
_STEPS, _PRIOR = 8, 1.0
# The limits of the claims about CrossFit: never worse, much better, close to the bound.
_NEVER_ABOVE, _MUCH_BETTER, _CLOSE = 1.03, 0.65, 0.9
_CLAIMS = {
    "relevance unknown": "The lowest possible MSE of log p with unknown relevance",
    "relevance learned": "The MSE of log p with the best possible estimate of relevance from clicks",
}
# An estimator must estimate every rank in at least this share of the logs to be compared with CrossFit.
_ENOUGH = 0.5
_BASE, _OURS = "AllPairs", "CrossFit"
_DRAWN = (_OURS, "ConditionalPoisson, design", "ConditionalPoisson, observed")
# The limits of the x-axis; larger errors are not drawn.
_LIMITS = (0.3, 1.5)
_THREE, _FIVE, _TEN = tuple("abc"), tuple("abcde"), tuple("abcdefghij")
_QUERIES = 1000
SETTINGS: dict[str, WorldSetting] = {
    "2 rankers": WorldSetting(World(queries=_QUERIES)),
    "90/10": WorldSetting(World(queries=_QUERIES, traffic=(90, 10))),
    "η = 0.5": WorldSetting(World(queries=_QUERIES, eta=0.5)),
    "η = 2": WorldSetting(World(queries=2 * _QUERIES, eta=2.0)),
    "unequal quality": WorldSetting(World(queries=_QUERIES, quality=(0.0, 2.0))),
    "near-identical rankers": WorldSetting(World(queries=2 * _QUERIES, similarity=0.99)),
    "3 rankers": WorldSetting(World(queries=_QUERIES, rankers=_THREE)),
    "3 rankers, 80/10/10": WorldSetting(World(queries=_QUERIES, rankers=_THREE, traffic=(80, 10, 10))),
    "5 rankers": WorldSetting(World(queries=_QUERIES, rankers=_FIVE)),
    "5 rankers, 80/5/5/5/5": WorldSetting(World(queries=_QUERIES, rankers=_FIVE, traffic=(80, 5, 5, 5, 5))),
    "5 rankers, 80/5/5/5/5, one view a query": WorldSetting(
        World(queries=10 * _QUERIES, repeats=1, rankers=_FIVE, traffic=(80, 5, 5, 5, 5))
    ),
    "10 rankers": WorldSetting(World(queries=_QUERIES, rankers=_TEN)),
    "replay": WorldSetting(World(queries=_QUERIES), Layout.REPLAY),
    "replay, 97/3": WorldSetting(World(queries=2 * _QUERIES, traffic=(97, 3)), Layout.REPLAY),
    "replay, 3 rankers, 80/10/10": WorldSetting(
        World(queries=_QUERIES, rankers=_THREE, traffic=(80, 10, 10)), Layout.REPLAY
    ),
    "replay, 5 rankers, 80/5/5/5/5": WorldSetting(
        World(queries=_QUERIES, rankers=_FIVE, traffic=(80, 5, 5, 5, 5)), Layout.REPLAY
    ),
    "replay, 95/5, three views a query, unequal quality": WorldSetting(
        World(queries=5 * _QUERIES, repeats=3, traffic=(95, 5), quality=(0.0, 2.0)), Layout.REPLAY
    ),
    "replay, heavy-tailed queries": WorldSetting(World(queries=_QUERIES, skew=1.5), Layout.REPLAY),
    "sticky, 2 rankers": WorldSetting(World(queries=_QUERIES, sticky=True), independent=False),
    "sticky, 5 rankers": WorldSetting(World(queries=_QUERIES, rankers=_FIVE, sticky=True), independent=False),
}


def run_estimators(lab: Laboratory) -> Outcome:
    """Fit every estimator on the same logs of every setting, and compare their errors."""
    errors: dict[str, Errors] = {}
    logs = lab.sizes.estimator_logs
    for number, (name, setting) in enumerate(SETTINGS.items()):
        world = setting.shrunk_world(lab.sizes.world)
        buckets = buckets_of(world.queries)
        found = []
        for log in range(logs):
            found.append(measure(replace(world, seed=seed_of(lab.seed, "estimators", name, log)), setting, buckets))
            lab.progress(f"estimators: {name}", (number + (log + 1) / logs) / len(SETTINGS))
        errors[name] = Errors(
            *({key: np.array([one[i][key] for one in found]) for key in found[0][i]} for i in range(4))
        )
    rows = [row for name, one in errors.items() for row in _rows(name, one)]
    lines = {label: _line(errors, label) for label in _DRAWN}
    label = "MSE of inverse propensities, relative to AllPairs"
    figure = draw_settings(list(SETTINGS), lines, label, (0.995, 1.005), _LIMITS)
    return Outcome("estimators", rows, figure, _verdicts(errors), notes=_notes(errors))


@dataclass(frozen=True, eq=False)
class Errors:
    """Squared errors by log of a setting, averaged over ranks from 2 on; NaN without an estimate.

    Attributes:
        inverse: errors of p_1 / p_k, by estimator.
        log: errors of log p_k, by estimator.
        best: errors of log p_k of an estimator that attains the bound, by what is known of relevance.
        bounds: bounds of the variance of log p_k, by what is known of relevance.
    """

    inverse: Mapping[str, FloatArray]
    log: Mapping[str, FloatArray]
    best: Mapping[str, FloatArray]
    bounds: Mapping[str, FloatArray]


def measure(world: World, setting: WorldSetting, buckets: IntArray) -> tuple[dict[str, float], ...]:
    """Simulate one log and return the fields of `Errors`."""
    drawn = draw_log(world, buckets)
    truth = world.propensity[1:]
    inverse, log = {}, {}
    for label, curve in curves_of(drawn, setting).items():
        known = bool(np.all(np.isfinite(curve) & (curve > 0)))
        p = curve[1:] if known else np.full(len(truth), np.nan)
        inverse[label] = float(np.mean((1 / p - 1 / truth) ** 2))
        log[label] = float(np.mean(np.log(p / truth) ** 2))
    best = lowest_errors(drawn, setting)
    attained = {known: float(np.mean(one.error**2)) for known, one in best.items()}
    return inverse, log, attained, {known: float(one.variance.mean()) for known, one in best.items()}


def curves_of(drawn: SimulatedLog, setting: WorldSetting) -> dict[str, FloatArray]:
    """Return the curve of each estimator; NaN where the log does not identify one."""
    layout = setting.layout
    harvest = drawn.harvest(layout)
    curves = {
        "AllPairs": _fit(AllPairs(interval=None), harvest),
        "CrossFit": _fit(CrossFit(interval=None), harvest),
        "ConditionalPoisson, observed": _fit(CrossFit(interval=None, relevance="none", exposure="observed"), harvest),
        "AdjacentChain": _fit(AdjacentChain(interval=None), harvest),
        "PivotOne": _fit(PivotOne(interval=None), harvest),
    }
    if layout.ranks_known:
        curves["ConditionalPoisson, design"] = _fit(CrossFit(interval=None, relevance="none"), harvest)
    if drawn.world.repeats == 1:
        # No pair was shown twice, and the remaining estimators compare a pair with itself.
        return curves
    pairs = drawn.harvest(layout, "harmonic")
    for weighting in ("traffic", "harmonic", "uniform"):
        if weighting != harvest.weighting:
            curves[f"AllPairs, {weighting}"] = _fit(AllPairs(interval=None, weighting=weighting), pairs)
            curves[f"AdjacentChain, {weighting}"] = _fit(AdjacentChain(interval=None, weighting=weighting), pairs)
    curves["PBM-EM"] = _fit(PBMEM(max_rank=drawn.world.max_rank, interval=None), drawn.observations())
    return curves


def _fit(estimator: CurveEstimator, data: Harvest | Observations) -> FloatArray:
    try:
        return estimator.fit(data).propensity_  # type: ignore[attr-defined, no-any-return]
    except EstimateError:
        # With sticky rankers, one ranker serves each query, so no pair can be compared with itself.
        return np.full(data.max_rank, np.nan)


def lowest_errors(drawn: SimulatedLog, setting: WorldSetting) -> dict[str, Bound]:
    """Return the Cramér–Rao bounds of a log, by what is known of relevance."""
    by_design, repeated = setting.layout.ranks_known, drawn.world.repeats > 1
    unknown = ranks_known(drawn, by_pair=repeated) if by_design else ranks_unknown(drawn)
    # Relevance cannot be learned in replay, from one view of a query, or with sticky rankers.
    learnable = by_design and repeated and setting.independent
    learned = relevance_learned(drawn) if learnable else unknown
    return {
        "relevance known": relevance_known(drawn),
        "relevance unknown": unknown,
        "relevance learned": learned,
    }


class Bound(NamedTuple):
    """The bound of the variance of log p_k / p_1 by rank from 2 on, and the error of an estimator that attains it."""

    variance: FloatArray
    error: FloatArray


def ranks_known(drawn: SimulatedLog, *, by_pair: bool = True) -> Bound:
    """Return the bound if the ranks by all rankers are known, and the relevance of each pair except for its level.

    No estimator that treats relevance as unknown does better. With several views of a query, truly unknown relevance
    costs more. With one view, relevance is known only as the mean over pairs with the same ranks; `by_pair=False` uses
    this mean, and requires rankers of equal quality.
    """
    relevance = drawn.relevance if by_pair else _mean_relevance(drawn)
    return _bound_within_pairs(drawn, _cell_numbers(drawn), _expected_views(drawn), relevance.ravel())


def _mean_relevance(drawn: SimulatedLog) -> FloatArray:
    """Return for each pair the mean relevance of all pairs with the same set of ranks."""
    ranks = np.sort(drawn.ranks.astype(np.int64), axis=1).transpose(0, 2, 1).reshape(-1, drawn.ranks.shape[1])
    first, which = group(list(ranks.T))
    mean = sum_by_index(which, drawn.relevance.ravel(), len(first)) / sum_by_index(
        which, np.ones(len(which)), len(first)
    )
    return np.asarray(mean[which].reshape(drawn.relevance.shape))


def _bound_within_pairs(drawn: SimulatedLog, where: IntArray, exposure: FloatArray, relevance: FloatArray) -> Bound:
    """Return the bound from views by pair and rank if the level of each pair's relevance is estimated too.

    With λ the Fisher information of the expected views of a pair about each rank and s the score of its actual views,
    the information is the sum over pairs of diag(λ) − λ λᵀ / Σλ, and the score the sum of s − λ Σs / Σλ.
    """
    width = drawn.world.max_rank
    chance = _chance(relevance[:, None] * drawn.world.propensity)
    views, clicks = (
        sum_by_index(where, c, exposure.size).reshape(-1, width) for c in (drawn.impressions, drawn.clicks)
    )
    weight = exposure * chance / (1 - chance)
    score = (clicks - views * chance) / (1 - chance)
    compared = np.count_nonzero(weight, axis=1) > 1
    weight, score = weight[compared], score[compared]
    share = weight / weight.sum(axis=1, keepdims=True)
    information = np.diag(weight.sum(axis=0)) - weight.T @ share
    inverse = np.linalg.pinv(information[1:, 1:])
    error = inverse @ (score - share * score.sum(axis=1, keepdims=True)).sum(axis=0)[1:]
    return Bound(np.asarray(np.diagonal(inverse)), np.asarray(error))


def _chance(chance: FloatArray) -> FloatArray:
    return np.minimum(chance, _MAX_PROBABILITY)


def _cell_numbers(drawn: SimulatedLog) -> IntArray:
    """Return the number of the cell (pair and rank) of each row."""
    pair = drawn.query * drawn.ranks.shape[2] + drawn.candidate
    return np.asarray(pair * drawn.world.max_rank + drawn.rank - 1)


def _expected_views(drawn: SimulatedLog) -> FloatArray:
    """Return the expected views of each pair at each rank, from the traffic shares of the rankers."""
    queries, rankers, pool = drawn.ranks.shape
    shares = sum_by_index(drawn.ranker, drawn.impressions, rankers)
    # Column 0 takes documents beyond rank M.
    exposure = np.zeros((queries * pool, drawn.world.max_rank + 1))
    for ranker in range(rankers):
        exposure[np.arange(queries * pool), drawn.ranks[:, ranker].ravel()] += shares[ranker] / shares.sum()
    return np.asarray(exposure[:, 1:] * np.repeat(drawn.views, pool)[:, None])


def ranks_unknown(drawn: SimulatedLog) -> Bound:
    """Return the bound if nothing is known about a pair except where it was shown (the replay layout)."""
    first, pair = group([drawn.query, drawn.candidate])
    width = drawn.world.max_rank
    where = pair * width + drawn.rank - 1
    exposure = sum_by_index(where, drawn.impressions, len(first) * width).reshape(-1, width)
    return _bound_within_pairs(drawn, where, exposure, drawn.relevance[drawn.query[first], drawn.candidate[first]])


def relevance_learned(drawn: SimulatedLog) -> Bound:
    """Return the error with the best estimate of relevance from clicks: the best that a learning estimator can reach.

    The estimate knows the distribution of relevance among documents with the same ranks, and the clicks of all views of
    the document except the current one. The score is that of CrossFit, with each view weighted by its estimate.
    """
    width, p = drawn.world.max_rank, drawn.world.propensity
    exposure, relevance = _expected_views(drawn), drawn.relevance.ravel()
    compared = np.count_nonzero(exposure, axis=1) > 1
    views, clicks = (
        sum_by_index(_cell_numbers(drawn), c, exposure.size).reshape(-1, width)
        for c in (drawn.impressions, drawn.clicks)
    )
    low, high = (_chance(p * r) for r in (drawn.world.noise, 1.0))
    evidence = (np.log((1 - high) / (1 - low)), np.log(high / low))
    odds = _odds_of_signature(drawn) + (views - clicks) @ evidence[0] + clicks @ evidence[1]
    scores, information = np.zeros(exposure.shape), np.zeros((width, width))
    for clicked, counts in enumerate((views - clicks, clicks)):
        pair, rank = np.nonzero(counts * compared[:, None])
        other_views = odds[pair] - evidence[clicked][rank]
        guess = drawn.world.noise + (1 - drawn.world.noise) / (1 + np.exp(-np.clip(other_views, -500, 500)))
        f = 1 / (1 - np.minimum(p * guess[:, None], _MAX_GUESSED_PROBABILITY))
        weight = exposure[pair] * p * f
        share = weight / weight.sum(axis=1, keepdims=True)
        residual = counts[pair, rank] * (clicked - p[rank] * guess) * f[np.arange(len(pair)), rank]
        scores += sum_by_index(pair * width + rank, residual, scores.size).reshape(scores.shape)
        for k in range(width):
            scores[:, k] -= sum_by_index(pair, residual * share[:, k], len(scores))
        size = counts[pair, rank] * relevance[pair] * weight.sum(axis=1) / exposure[pair].sum(axis=1)
        information += np.diag(size @ share) - (size[:, None] * share).T @ share
    inverse = np.linalg.pinv(information[1:, 1:])
    influence = scores.reshape(*drawn.relevance.shape, width).sum(axis=1)[:, 1:] @ inverse.T
    return Bound(np.asarray((influence**2).sum(axis=0)), np.asarray(influence.sum(axis=0)))


def _odds_of_signature(drawn: SimulatedLog) -> FloatArray:
    """Return the log odds that each pair is relevant given its ranks: a logistic regression fitted to the truth."""
    queries, rankers, pool = drawn.ranks.shape
    size = drawn.world.max_rank + 1
    ranked = np.zeros((queries * pool, rankers * size))
    for ranker in range(rankers):
        ranked[np.arange(queries * pool), ranker * size + drawn.ranks[:, ranker].ravel()] = 1
    truth, beta = (drawn.relevance == 1).ravel(), np.zeros(rankers * size)
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-(ranked @ beta)))
        gradient = ranked.T @ (truth - chance) + _PRIOR * (0.5 - 1 / (1 + np.exp(-beta)))
        slope = (ranked * (chance * (1 - chance))[:, None]).T @ ranked + _PRIOR / 4 * np.eye(len(beta))
        beta = beta + np.linalg.solve(slope, gradient)
    return np.asarray(ranked @ beta)


def relevance_known(drawn: SimulatedLog) -> Bound:
    """Return the bound if the relevance of every pair is known; then pairs with only one rank count too."""
    chance = _chance(drawn.world.propensity[drawn.rank - 1] * drawn.relevance[drawn.query, drawn.candidate])
    weight = sum_by_index(drawn.rank - 1, drawn.impressions * chance / (1 - chance), drawn.world.max_rank)
    score = sum_by_index(
        drawn.rank - 1, (drawn.clicks - drawn.impressions * chance) / (1 - chance), drawn.world.max_rank
    )
    return Bound(1 / weight[1:] + 1 / weight[0], score[1:] / weight[1:] - score[0] / weight[0])


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
            "mse": finite_mean(inverse),
            "relative": relative,
            "standard_error": error,
            "mse_log": finite_mean(errors.log[label]),
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


def ratio(ours: FloatArray, theirs: FloatArray) -> tuple[float, float]:
    """Return the ratio of two mean errors on the same logs, and its standard error by the delta method.

    Logs on which either has no estimate are left out.

    Example:
        >>> ratio(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
        (0.5, 0.0)
    """
    both = np.isfinite(ours) & np.isfinite(theirs)
    if both.sum() < 2:
        return float("nan"), float("nan")
    ours, theirs = ours[both], theirs[both]
    value = ours.mean() / theirs.mean()
    return float(value), float((ours - value * theirs).std(ddof=1) / theirs.mean() / np.sqrt(len(ours)))


def _line(errors: Mapping[str, Errors], label: str) -> FloatArray:
    missing = (float("nan"), float("nan"))
    values = [
        ratio(found.inverse[label], found.inverse[_BASE]) if label in found.inverse else missing
        for found in errors.values()
    ]
    return np.array(values).T


def _verdicts(errors: Mapping[str, Errors]) -> tuple[Verdict, ...]:
    return (
        _never_worse(errors),
        _much_better(errors),
        *(_close(errors, known, claim) for known, claim in _CLAIMS.items()),
    )


def _never_worse(errors: Mapping[str, Errors]) -> Verdict:
    found = {name: best_other(errors[name]) for name, setting in SETTINGS.items() if setting.independent}
    above = {name: one for name, one in found.items() if one[1] - 2 * one[2] > _NEVER_ABOVE}
    worst = max(found, key=lambda name: found[name][1])
    return make_verdict(
        f"The MSE of CrossFit is at most {_NEVER_ABOVE} times that of the best other estimator where each page view "
        "draws its ranker (tolerance: two standard errors)",
        f"{min(one[1] for one in found.values()):.2f} to {found[worst][1]:.2f} ± {found[worst][2]:.2f} times; highest "
        f"in {worst} (against {found[worst][0]})"
        + (f"; above the limit in {len(above)} of {len(found)} settings: {', '.join(above)}" if above else ""),
        not above,
        *(one[1] for one in found.values()),
        enough=_enough(errors),
    )


def best_other(errors: Errors) -> tuple[str, float, float]:
    """Return the other estimator with the smallest error, and the ratio of CrossFit to it with its standard error."""
    others = {
        label: ratio(errors.inverse[_OURS], theirs)
        for label, theirs in errors.inverse.items()
        if label != _OURS and np.isfinite(theirs).mean() >= _ENOUGH
    }
    label = max(others, key=lambda name: np.nan_to_num(others[name][0], nan=-np.inf))
    return label, *others[label]


def _enough(errors: Mapping[str, Errors]) -> bool:
    """Return whether every setting has enough logs for reliable standard errors."""
    return min(len(found.inverse[_OURS]) for found in errors.values()) >= ENOUGH_LOGS


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
    return make_verdict(
        f"The MSE of CrossFit is at most {_MUCH_BETTER} times that of AllPairs with three or more rankers, known "
        "ranks and unequal traffic (tolerance: two standard errors)",
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
    return make_verdict(
        f"{claim} is at least {_CLOSE} times that of CrossFit (tolerance: two standard errors)",
        " to ".join(f"{found[name][0]:.2f} ± {found[name][1]:.2f} ({name})" for name in (least, most))
        + (f"; below the limit in {len(below)} of {len(found)} settings: {', '.join(below)}" if below else ""),
        not below,
        *(value for value, _ in found.values()),
        enough=_enough(errors),
    )


def _notes(errors: Mapping[str, Errors]) -> tuple[str, ...]:
    lines = [
        "",
        "setting | estimator | MSE relative to AllPairs | in log p | efficiency (known) | (unknown) | (learned) | no "
        "estimate",
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
