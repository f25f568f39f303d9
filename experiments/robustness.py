"""Figures (a) to (f) of the robustness analysis: the error of estimators as one setting varies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments import claims
from experiments.figures import Axis, draw_errors
from experiments.laboratory import Laboratory
from experiments.outcomes import Outcome, Row, Verdict, seed_of
from experiments.ranking_svm import same_rank_share
from posbias._arrays import FloatArray
from posbias.errors import EstimateError
from posbias.estimators import AdjacentChain, AllPairs, PairEstimator, PivotOne
from posbias.harvesting.harvest import Harvest
from posbias.simulation.users import PositionBased

ESTIMATORS: dict[str, type[PairEstimator]] = {
    "AllPairs": AllPairs,
    "AdjacentChain": AdjacentChain,
    "PivotOne": PivotOne,
}
_DRAWN = ("AllPairs", "AdjacentChain")
# 6 sweeps of Yahoo's 19,944 queries are the 119,664 of figure (f).
_ALL_SWEEPS = 6
# An estimator that is half as far off as one who takes all ranks for equal has seen too little to be judged by.
_TELLS = 0.5**2


@dataclass(frozen=True)
class Setting:
    """One point of a figure: how rankers are trained, how users click, how often each ranker serves all queries."""

    frac: float
    overlap: float
    eta: float = 1.0
    noise: float = 0.1
    sweeps: tuple[float, float] = (5, 5)


@dataclass(frozen=True)
class Study:
    """One figure: a setting of which one part varies, and what the paper says about the errors."""

    base: Setting
    values: tuple[float, ...]
    vary: Callable[[Setting, float], Setting]
    axis: Axis
    judge: Callable[[Sequence[float], Mapping[str, FloatArray]], tuple[Verdict, ...]]
    column: str
    similarity_on_top: bool = False


STUDIES = {
    "a": Study(
        Setting(0.02, 0.8),
        (1, 2, 3, 5, 10, 20, 40),
        lambda base, x: replace(base, sweeps=(x, x)),
        Axis("Number of sweeps", log=True, ticks=(1, 2, 5, 10, 20, 40)),
        claims.judge_data,
        "sweeps",
    ),
    "b": Study(
        Setting(0.02, 0.8),
        (0.01, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99),
        lambda base, x: replace(base, overlap=x),
        Axis("Overlap of the training sets", ticks=(0, 0.2, 0.4, 0.6, 0.8, 1)),
        claims.judge_overlap,
        "overlap",
        similarity_on_top=True,
    ),
    "c": Study(
        Setting(0.02, 0.8),
        (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5),
        lambda base, x: replace(base, frac=x),
        Axis("Fraction of the training data", log=True, ticks=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5)),
        claims.judge_fraction,
        "frac",
    ),
    "d": Study(
        Setting(0.5, 0.5),
        (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5),
        lambda base, x: replace(base, noise=x),
        Axis("Noise $\\epsilon_-$"),
        claims.judge_noise,
        "eps_minus",
    ),
    "e": Study(
        Setting(0.5, 0.5),
        (0.25, 0.5, 1.0, 1.5, 2.0),
        lambda base, x: replace(base, eta=x),
        Axis("Severity of bias $\\eta$"),
        claims.judge_severity,
        "eta",
    ),
    "f": Study(
        Setting(0.02, 0.5),
        (0.5, 1, 2, 3, 4, 5, 5.5),
        lambda base, x: replace(base, sweeps=(x, _ALL_SWEEPS - x)),
        Axis("Sweeps of $f_1$ (of 6 in all)"),
        claims.judge_imbalance,
        "sweeps_1",
    ),
}


def run_study(lab: Laboratory, name: str) -> Outcome:
    """Run one of the figures (a) to (f)."""
    study = STUDIES[name]
    values = study.values[:: lab.sizes.every]
    runs = lab.sizes.runs
    tasks = [(value, run) for value in values for run in range(runs)]
    measured = lab.map(
        lambda task: _measure(lab, name, study.vary(study.base, task[0]), *task), tasks, f"figure {name}"
    )
    errors = {label: np.array([point[label] for point in measured]).reshape(len(values), runs) for label in ESTIMATORS}
    similarity = np.array([point["similarity"] for point in measured]).reshape(len(values), runs).mean(axis=1)
    figure = draw_errors(
        values,
        {label: errors[label] for label in _DRAWN},
        study.axis,
        similarity.tolist() if study.similarity_on_top else None,
    )
    verdicts = study.judge(values, errors)
    blind = np.array([point["blind"] for point in measured]).reshape(len(values), runs).mean(axis=1)
    if np.any(claims.mean_and_spread(errors["AllPairs"])[0] > _TELLS * blind):
        verdicts = tuple(replace(verdict, holds=None) for verdict in verdicts)
    return Outcome(name, _rows(study.column, values, errors, similarity), figure, verdicts)


def inverse_error(estimate: FloatArray, truth: FloatArray) -> float:
    """Return the MSE of the inverse relative propensities, section "Robustness Analysis": Σ (p̂_1/p̂_k − p_1/p_k)² / M.

    NaN where a rank has no estimate, or one of 0, whose inverse is infinite.

    Example:
        >>> inverse_error(np.array([1.0, 0.5, 0.25]), np.array([1, 1 / 2, 1 / 3]))
        0.333...
    """
    if not np.all(estimate > 0):
        return float("nan")
    return float(np.mean((1 / estimate - 1 / truth) ** 2))


def _measure(lab: Laboratory, name: str, setting: Setting, value: float, run: int) -> dict[str, float]:
    rankings = lab.rankers(setting.frac, setting.overlap, run)
    seed = seed_of(lab.seed, name, value, run)
    views = {ranker: lab.views(n, seed_of(seed, ranker)) for ranker, n in zip("ab", setting.sweeps, strict=True)}
    user = PositionBased(eta=setting.eta, noise=setting.noise, threshold=lab.threshold)
    harvest = lab.harvest(rankings, views, user, seed)
    truth = user.propensity(harvest.max_rank)
    found = {label: inverse_error(_fit(kind, harvest), truth) for label, kind in ESTIMATORS.items()}
    # So much errs who takes all ranks for equal.
    blind = inverse_error(np.ones_like(truth), truth)
    return found | {"similarity": same_rank_share(*rankings.values()), "blind": blind}


def _fit(kind: type[PairEstimator], harvest: Harvest) -> FloatArray:
    try:
        return kind(interval=None).fit(harvest).propensity_
    except EstimateError:
        # Rankers that agree on all that was clicked: nothing is identified.
        return np.full(harvest.max_rank, np.nan)


def _rows(
    column: str, values: Sequence[float], errors: Mapping[str, FloatArray], similarity: FloatArray
) -> Sequence[Row]:
    summary = {label: claims.mean_and_spread(table) for label, table in errors.items()}
    return [
        {
            column: value,
            "estimator": label,
            "mse": float(summary[label][0][i]),
            "std": float(summary[label][1][i]),
            "runs": table.shape[1],
            "runs_without_estimate": int(np.isnan(table[i]).sum()),
            "similarity": float(similarity[i]),
        }
        for i, value in enumerate(values)
        for label, table in errors.items()
    ]
