"""Experiments "a" to "f": how robust is AllPairs? (Figures (a) to (f) of the paper, section "Robustness Analysis".)

Each experiment varies one setting: (a) the amount of data, (b) the similarity of the rankers, (c) their quality, (d)
click noise, (e) the severity of position bias, (f) the balance of traffic. In every run two Ranking SVMs are trained,
clicks are simulated and harvested, and AllPairs, AdjacentChain and PivotOne are compared by the MSE of the inverse
propensities.

Each CSV file has a row for each point and estimator: the setting, the mean and standard deviation of the MSE over runs,
the number of runs and of runs without an estimate, and the similarity of the rankers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.figures import SettingAxis, draw_errors
from experiments.laboratory import Laboratory
from experiments.outcomes import Outcome, Row, Verdict, make_verdict, mean_and_spread, seed_of
from experiments.ranking_svm import same_rank_share
from posbias._arrays import BoolArray, FloatArray
from posbias.errors import EstimateError
from posbias.estimators import AdjacentChain, AllPairs, PairEstimator, PivotOne
from posbias.harvesting.harvest import Harvest
from posbias.simulation.users import PositionBased

Errors = Mapping[str, FloatArray]
# "Robust": the MSE of the worst setting is within this factor of the best; errors of single runs differ by a factor of
# 3.
_ROBUST = 5.0
# "Substantially better": the other error is at least this many times as large.
_SUBSTANTIAL = 1.5
# "Sharply": at least by this factor.
_SHARP = 10.0
# An estimator is compared only if it has an estimate at this share of the points or more.
_MIN_SHARE = 0.5
ESTIMATORS: dict[str, type[PairEstimator]] = {
    "AllPairs": AllPairs,
    "AdjacentChain": AdjacentChain,
    "PivotOne": PivotOne,
}
_DRAWN = ("AllPairs", "AdjacentChain")
# Six sweeps over the 19,944 queries of Yahoo are the 119,664 page views of figure (f).
_ALL_SWEEPS = 6
# Claims are undecided if the error of AllPairs exceeds this share of the error of a constant curve.
_MAX_RELATIVE_ERROR = 0.5**2


def run_study(lab: Laboratory, name: str) -> Outcome:
    """Run one of the figures (a) to (f)."""
    study = STUDIES[name]
    values = study.values[:: lab.sizes.point_step]
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
    constant = np.array([point["constant"] for point in measured]).reshape(len(values), runs).mean(axis=1)
    if np.any(mean_and_spread(errors["AllPairs"])[0] > _MAX_RELATIVE_ERROR * constant):
        verdicts = tuple(replace(verdict, holds=None) for verdict in verdicts)
    return Outcome(name, _rows(study.column, values, errors, similarity), figure, verdicts)


def judge_data(x: Sequence[float], errors: Errors) -> tuple[Verdict, ...]:
    """Judge figure (a): how much data is needed?"""
    ours, chain, pivot = _means(errors)
    ratio = _ratio(chain, ours)
    more = data_factor(np.array(x), ours, chain)
    return (
        _better("AdjacentChain is substantially worse than AllPairs", x, errors, "{:g} sweeps"),
        make_verdict(
            "AdjacentChain needs at least an order of magnitude more data for the same MSE as AllPairs",
            f"{more:.1f} times the data, from how fast both errors fall (the MSE of AdjacentChain is "
            f"{_geometric_mean(ratio):.1f} times that of "
            "AllPairs for the same data)",
            more >= 10,
            ours,
            _comparable(chain),
        ),
        make_verdict(
            "PivotOne is typically worse than AdjacentChain",
            f"worse at {int((pivot > chain).sum())} of {len(x)} points; no estimate in any run at "
            f"{int(np.isinf(pivot).sum())} of these points",
            (pivot > chain).mean() > 0.5,
            ours,
            _comparable(chain),
        ),
    )


def judge_overlap(x: Sequence[float], errors: Errors) -> tuple[Verdict, ...]:
    """Judge figure (b): how different should the ranking functions be?"""
    ours, chain, _ = _means(errors)
    best = int(np.argmin(ours))
    middle = ours[:-1]
    ratio = _ratio(chain, ours)
    return (
        make_verdict(
            f"The error of AllPairs stays robust as rankers get more similar (MSE within a factor of {_ROBUST:g} up "
            f"to an overlap of {x[-2]:g})",
            f"MSE {middle.min():.3g} to {middle.max():.3g}",
            middle.max() <= _ROBUST * middle.min(),
            middle,
        ),
        make_verdict(
            "The error goes up when the rankers are very similar",
            f"MSE {ours[-1]:.3g} at an overlap of {x[-1]:g}; the lowest is {ours[best]:.3g} at {x[best]:g}",
            best != len(x) - 1 and ours[-1] > ours[-2],
            ours,
        ),
        make_verdict(
            "The error is also higher when the rankers are too dissimilar",
            f"MSE {ours[0]:.3g} at an overlap of {x[0]:g}; the lowest is {ours[best]:.3g} at {x[best]:g}",
            best != 0 and ours[0] > 1.1 * ours[best],
            ours,
        ),
        make_verdict(
            "AdjacentChain never outperforms AllPairs",
            f"MSE of AdjacentChain {ratio.min():.1f} to {ratio.max():.1f} times that of AllPairs",
            not _chain_wins(errors).any(),
            ours,
            _comparable(chain),
        ),
    )


def judge_fraction(x: Sequence[float], errors: Errors) -> tuple[Verdict, ...]:
    """Judge figure (c): how important is the quality of the rankers?"""
    ours, _, _ = _means(errors)
    return (
        _robust("AllPairs is robust over the whole spectrum of training data", x, ours, "{:g}"),
        _better("AllPairs improves substantially over AdjacentChain", x, errors, "a fraction of {:g}"),
    )


def judge_noise(x: Sequence[float], errors: Errors) -> tuple[Verdict, ...]:
    """Judge figure (d): how does click noise impact estimation accuracy?"""
    ours, _, _ = _means(errors)
    worst = int(ours.argmax())
    return (
        make_verdict(
            f"Noise does not harm AllPairs (at every level, MSE at most {_SUBSTANTIAL:g} times that without noise)",
            f"MSE {ours[0]:.3g} at ε₋ = {x[0]:g}, {ours[-1]:.3g} at {x[-1]:g}; the highest is {ours[worst]:.3g} at "
            f"{x[worst]:g}",
            ours[worst] <= _SUBSTANTIAL * ours[0],
            ours,
        ),
        _robust("AllPairs is stable over levels of noise", x, ours, "ε₋ = {:g}"),
    )


def judge_severity(x: Sequence[float], errors: Errors) -> tuple[Verdict, ...]:
    """Judge figure (e): how does bias severity impact estimation accuracy?"""
    ours, chain, _ = _means(errors)
    low, high = _ratio(ours[-1:], ours[:1])[0], _ratio(chain[-1:], chain[:1])[0]
    ratio = _ratio(chain, ours)
    return (
        make_verdict(
            "AllPairs performs better than AdjacentChain (on average, and nowhere worse by more than two standard "
            "errors)",
            f"MSE of AdjacentChain {_geometric_mean(ratio):.1f} times that of AllPairs on average, {ratio.min():.1f} "
            f"to {ratio.max():.1f} times at single points",
            _geometric_mean(ratio) > 1 and not _chain_wins(errors).any(),
            ours,
            _comparable(chain),
        ),
        make_verdict(
            "The MSE of both increases sharply (tenfold or more) when the curve gets steep",
            f"from η = {x[0]:g} to {x[-1]:g} AllPairs {ours[0]:.2g} to {ours[-1]:.2g}, AdjacentChain {chain[0]:.2g} to "
            f"{chain[-1]:.2g}",
            min(low, high) >= _SHARP,
            ours[[0, -1]],
            chain[[0, -1]],
        ),
    )


def judge_imbalance(x: Sequence[float], errors: Errors) -> tuple[Verdict, ...]:
    """Judge figure (f): how robust is the method to imbalanced datasets?"""
    ours, _, _ = _means(errors)
    # The paper varies whole sweeps (1 to 5 of 6); half a sweep is beyond its range.
    mild = [i for i, sweeps in enumerate(x) if 1 <= sweeps <= 5]
    return (
        _robust("AllPairs is robust to imbalance up to 5:1", [x[i] for i in mild], ours[mild], "{:g} of 6 sweeps"),
        _robust("AllPairs is robust to imbalance up to 11:1", x, ours, "{:g} of 6 sweeps"),
    )


def data_factor(x: FloatArray, ours: FloatArray, theirs: FloatArray) -> float:
    """Return how many times the data the other estimator needs for the same error, if errors follow a power law.

    The function fits both lines with one common slope in logarithms and measures their distance along x. The result is
    infinite if errors do not fall or the other estimator has none.

    Example:
        >>> data_factor(np.array([1.0, 10.0]), np.array([1.0, 0.1]), np.array([3.0, 0.3])).__round__(6)
        3.0
    """
    known = np.isfinite(ours) & np.isfinite(theirs)
    if known.sum() < 2:
        return float("inf")
    place, ours, theirs = np.log(x[known]) - np.log(x[known]).mean(), np.log(ours[known]), np.log(theirs[known])
    slope = (place @ (ours + theirs) / 2) / (place @ place)
    return float(np.exp((theirs - ours).mean() / -slope)) if slope < 0 else float("inf")


def _means(errors: Errors) -> list[FloatArray]:
    """Return the mean errors of AllPairs, AdjacentChain and PivotOne; infinite where no run has an estimate."""
    labels = ("AllPairs", "AdjacentChain", "PivotOne")
    return [np.nan_to_num(mean_and_spread(errors[label])[0], nan=np.inf) for label in labels]


def _chain_wins(errors: Errors) -> BoolArray:
    """Return where AdjacentChain is better than AllPairs by more than two standard errors of their difference."""
    gap = errors["AllPairs"] - errors["AdjacentChain"]
    lead, spread = mean_and_spread(gap)
    return np.asarray(lead > 2 * spread / np.sqrt(gap.shape[1]))


def _ratio(theirs: FloatArray, ours: FloatArray) -> FloatArray:
    """Return the ratio of two errors; NaN where both are infinite."""
    with np.errstate(invalid="ignore"):
        return np.asarray(theirs / ours)


def _comparable(chain: FloatArray) -> float:
    """Return 1 if AdjacentChain has an estimate at half of the points or more, and NaN otherwise."""
    return 1.0 if np.isfinite(chain).mean() >= _MIN_SHARE else float("nan")


def _better(claim: str, x: Sequence[float], errors: Errors, point: str) -> Verdict:
    ours, chain, _ = _means(errors)
    ratio = _ratio(chain, ours)
    return make_verdict(
        f"{claim} (MSE at least {_SUBSTANTIAL:g} times as large on average, and nowhere smaller by two standard "
        "errors)",
        f"MSE of AdjacentChain {_geometric_mean(ratio):.1f} times that of AllPairs on average, lowest "
        f"{ratio.min():.1f} times ({point.format(x[int(ratio.argmin())])})",
        _geometric_mean(ratio) >= _SUBSTANTIAL and not _chain_wins(errors).any(),
        ours,
        _comparable(chain),
    )


def _robust(claim: str, x: Sequence[float], ours: FloatArray, point: str) -> Verdict:
    worst, best = int(ours.argmax()), int(ours.argmin())
    factor = _ratio(ours[[worst]], ours[[best]])[0]
    return make_verdict(
        f"{claim} (MSE within a factor of {_ROBUST:g})",
        f"MSE {ours[best]:.3g} ({point.format(x[best])}) to {ours[worst]:.3g} ({point.format(x[worst])}), a factor of "
        f"{factor:.1f}",
        factor <= _ROBUST,
        ours,
    )


def _geometric_mean(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(np.exp(np.log(known).mean())) if len(known) else float("inf")


@dataclass(frozen=True)
class LaboratorySetting:
    """One point of a figure: the training of rankers, the behaviour of users, and the sweeps of each ranker."""

    frac: float
    overlap: float
    eta: float = 1.0
    noise: float = 0.1
    sweeps: tuple[float, float] = (5, 5)


@dataclass(frozen=True)
class Study:
    """One figure: the base setting, the values of what varies, and the function that judges the paper's claims."""

    base: LaboratorySetting
    values: tuple[float, ...]
    vary: Callable[[LaboratorySetting, float], LaboratorySetting]
    axis: SettingAxis
    judge: Callable[[Sequence[float], Mapping[str, FloatArray]], tuple[Verdict, ...]]
    column: str
    similarity_on_top: bool = False


STUDIES = {
    "a": Study(
        LaboratorySetting(0.02, 0.8),
        (1, 2, 3, 5, 10, 20, 40),
        lambda base, x: replace(base, sweeps=(x, x)),
        SettingAxis("Number of sweeps", log=True, ticks=(1, 2, 5, 10, 20, 40)),
        judge_data,
        "sweeps",
    ),
    "b": Study(
        LaboratorySetting(0.02, 0.8),
        (0.01, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99),
        lambda base, x: replace(base, overlap=x),
        SettingAxis("Overlap of the training sets", ticks=(0, 0.2, 0.4, 0.6, 0.8, 1)),
        judge_overlap,
        "overlap",
        similarity_on_top=True,
    ),
    "c": Study(
        LaboratorySetting(0.02, 0.8),
        (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5),
        lambda base, x: replace(base, frac=x),
        SettingAxis("Fraction of the training data", log=True, ticks=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5)),
        judge_fraction,
        "frac",
    ),
    "d": Study(
        LaboratorySetting(0.5, 0.5),
        (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5),
        lambda base, x: replace(base, noise=x),
        SettingAxis("Noise $\\epsilon_-$"),
        judge_noise,
        "eps_minus",
    ),
    "e": Study(
        LaboratorySetting(0.5, 0.5),
        (0.25, 0.5, 1.0, 1.5, 2.0),
        lambda base, x: replace(base, eta=x),
        SettingAxis("Severity of bias $\\eta$"),
        judge_severity,
        "eta",
    ),
    "f": Study(
        LaboratorySetting(0.02, 0.5),
        (0.5, 1, 2, 3, 4, 5, 5.5),
        lambda base, x: replace(base, sweeps=(x, _ALL_SWEEPS - x)),
        SettingAxis("Sweeps of $f_1$ (of 6 in all)"),
        judge_imbalance,
        "sweeps_1",
    ),
}


def _measure(lab: Laboratory, name: str, setting: LaboratorySetting, value: float, run: int) -> dict[str, float]:
    rankings = lab.rankers(setting.frac, setting.overlap, run)
    seed = seed_of(lab.seed, name, value, run)
    views = {ranker: lab.views(n, seed_of(seed, ranker)) for ranker, n in zip("ab", setting.sweeps, strict=True)}
    user = PositionBased(eta=setting.eta, noise=setting.noise, threshold=lab.threshold)
    harvest = lab.harvest(rankings, views, user, seed)
    truth = user.propensity(harvest.max_rank)
    errors = {label: inverse_error(_fit(kind, harvest), truth) for label, kind in ESTIMATORS.items()}
    # The error of a curve that is 1 at all ranks.
    constant = inverse_error(np.ones_like(truth), truth)
    return errors | {"similarity": same_rank_share(*rankings.values()), "constant": constant}


def inverse_error(estimate: FloatArray, truth: FloatArray) -> float:
    """Return the MSE of the inverse relative propensities, section "Robustness Analysis": Σ (p̂_1/p̂_k − p_1/p_k)² / M.

    NaN if a rank has no estimate, or an estimate of 0 (its inverse is infinite).

    Example:
        >>> inverse_error(np.array([1.0, 0.5, 0.25]), np.array([1, 1 / 2, 1 / 3]))
        0.333...
    """
    if not np.all(estimate > 0):
        return float("nan")
    return float(np.mean((1 / estimate - 1 / truth) ** 2))


def _fit(kind: type[PairEstimator], harvest: Harvest) -> FloatArray:
    try:
        return kind(interval=None).fit(harvest).propensity_
    except EstimateError:
        # The rankers agree on all clicked documents, so nothing is identified.
        return np.full(harvest.max_rank, np.nan)


def _rows(
    column: str, values: Sequence[float], errors: Mapping[str, FloatArray], similarity: FloatArray
) -> Sequence[Row]:
    summary = {label: mean_and_spread(table) for label, table in errors.items()}
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
