"""What the paper says of figures (a) to (f), put so that numbers can tell.

Each function takes the settings and, for each estimator, its errors as points by runs. Where AllPairs has no estimate
at a point, or AdjacentChain at too few to be compared with, there is too little data to tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.outcomes import Verdict, judged
from posbias._arrays import BoolArray, FloatArray

Errors = Mapping[str, FloatArray]

# "Robust": the worst setting is within this factor of the best, where the errors of runs differ by a factor of 3.
_ROBUST = 5.0
# "Substantially better": less than two thirds of the error.
_SUBSTANTIAL = 1.5
# "Sharply": by a power of ten.
_SHARP = 10.0
# An estimator without an estimate at more points than this share has nothing to be compared by.
_HALF = 0.5


def judge_data(x: Sequence[float], errors: Errors) -> tuple[Verdict, ...]:
    """Figure (a): how much data is needed?"""
    ours, chain, pivot = _means(errors)
    ratio = _ratio(chain, ours)
    more = data_factor(np.array(x), ours, chain)
    return (
        _better("AdjacentChain is substantially worse than AllPairs", x, errors, "{:g} sweeps"),
        judged(
            "AdjacentChain needs at least an order of magnitude more data for the MSE of AllPairs",
            f"{more:.1f} times the data, as both errors fall (AdjacentChain's is {_geometric(ratio):.1f} times that of "
            "AllPairs for the same data)",
            more >= 10,
            ours,
            _comparable(chain),
        ),
        judged(
            "PivotOne is typically worse than AdjacentChain",
            f"worse at {int((pivot > chain).sum())} of {len(x)} points, at {int(np.isinf(pivot).sum())} of them with "
            "no estimate in any run",
            (pivot > chain).mean() > 0.5,
            ours,
            _comparable(chain),
        ),
    )


def judge_overlap(x: Sequence[float], errors: Errors) -> tuple[Verdict, ...]:
    """Figure (b): how different should the ranking functions be?"""
    ours, chain, _ = _means(errors)
    best = int(np.argmin(ours))
    middle = ours[:-1]
    ratio = _ratio(chain, ours)
    return (
        judged(
            f"The error of AllPairs stays robust as rankers get more similar (within a factor of {_ROBUST:g} up to an "
            f"overlap of {x[-2]:g})",
            f"MSE {middle.min():.3g} to {middle.max():.3g}",
            middle.max() <= _ROBUST * middle.min(),
            middle,
        ),
        judged(
            "The error goes up when the rankers are very similar",
            f"MSE {ours[-1]:.3g} at an overlap of {x[-1]:g}; the lowest is {ours[best]:.3g} at {x[best]:g}",
            best != len(x) - 1 and ours[-1] > ours[-2],
            ours,
        ),
        judged(
            "The error is also higher when the rankers are too dissimilar",
            f"MSE {ours[0]:.3g} at an overlap of {x[0]:g}; the lowest is {ours[best]:.3g} at {x[best]:g}",
            best != 0 and ours[0] > 1.1 * ours[best],
            ours,
        ),
        judged(
            "AdjacentChain at best matches AllPairs, never outperforms it",
            f"MSE of AdjacentChain {ratio.min():.1f} to {ratio.max():.1f} times that of AllPairs",
            not _beaten(errors).any(),
            ours,
            _comparable(chain),
        ),
    )


def judge_fraction(x: Sequence[float], errors: Errors) -> tuple[Verdict, ...]:
    """Figure (c): how important is the quality of the rankers?"""
    ours, _, _ = _means(errors)
    return (
        _robust("AllPairs is robust over the whole spectrum of training data", x, ours, "{:g}"),
        _better("AllPairs improves substantially over AdjacentChain", x, errors, "a fraction of {:g}"),
    )


def judge_noise(x: Sequence[float], errors: Errors) -> tuple[Verdict, ...]:
    """Figure (d): how does click noise impact estimation accuracy?"""
    ours, _, _ = _means(errors)
    worst = int(ours.argmax())
    return (
        judged(
            f"Noise does AllPairs no harm (MSE at no level more than {_SUBSTANTIAL:g} times that without noise)",
            f"MSE {ours[0]:.3g} at ε₋ = {x[0]:g}, {ours[-1]:.3g} at {x[-1]:g}; the highest is {ours[worst]:.3g} at "
            f"{x[worst]:g}",
            ours[worst] <= _SUBSTANTIAL * ours[0],
            ours,
        ),
        _robust("AllPairs is stable over levels of noise", x, ours, "ε₋ = {:g}"),
    )


def judge_severity(x: Sequence[float], errors: Errors) -> tuple[Verdict, ...]:
    """Figure (e): how does bias severity impact estimation accuracy?"""
    ours, chain, _ = _means(errors)
    low, high = _ratio(ours[-1:], ours[:1])[0], _ratio(chain[-1:], chain[:1])[0]
    ratio = _ratio(chain, ours)
    return (
        judged(
            "AllPairs performs better than AdjacentChain (on average, and nowhere worse by two standard errors)",
            f"MSE of AdjacentChain {_geometric(ratio):.1f} times that of AllPairs on average, {ratio.min():.1f} to "
            f"{ratio.max():.1f} times at single points",
            _geometric(ratio) > 1 and not _beaten(errors).any(),
            ours,
            _comparable(chain),
        ),
        judged(
            "The MSE of both increases sharply (tenfold or more) when the curve gets steep",
            f"from η = {x[0]:g} to {x[-1]:g} AllPairs {ours[0]:.2g} to {ours[-1]:.2g}, AdjacentChain {chain[0]:.2g} to "
            f"{chain[-1]:.2g}",
            min(low, high) >= _SHARP,
            ours[[0, -1]],
            chain[[0, -1]],
        ),
    )


def judge_imbalance(x: Sequence[float], errors: Errors) -> tuple[Verdict, ...]:
    """Figure (f): how robust is the method to imbalanced datasets?"""
    ours, _, _ = _means(errors)
    # Whole sweeps of 6 are the paper's own axis; half a sweep against five and a half goes beyond it.
    mild = [i for i, sweeps in enumerate(x) if 1 <= sweeps <= 5]
    return (
        _robust("AllPairs is robust to imbalance up to 5:1", [x[i] for i in mild], ours[mild], "{:g} of 6 sweeps"),
        _robust("AllPairs is robust to imbalance up to 11:1", x, ours, "{:g} of 6 sweeps"),
    )


def data_factor(x: FloatArray, ours: FloatArray, theirs: FloatArray) -> float:
    """Return how many times the data the other estimator needs for our error, if errors fall as a power of the data.

    Both lines are fitted with one common slope in logarithms, and their distance along x is measured. It is infinite
    where errors do not fall, or the other has none.

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


def mean_and_spread(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return each point's mean and standard deviation over the runs that have an estimate; NaN where too few have.

    Example:
        >>> mean_and_spread(np.array([[1.0, 3.0, np.nan], [2.0, np.nan, np.nan]]))
        (array([2., 2.]), array([1.41421356,        nan]))
    """
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, values, 0).sum(axis=1) / count
        squares = np.where(known, (values - mean[:, None]) ** 2, 0).sum(axis=1)
        return mean, np.sqrt(squares / np.where(count > 1, count - 1, np.nan))


def _means(errors: Errors) -> list[FloatArray]:
    """The mean errors of AllPairs, AdjacentChain and PivotOne; infinite where no run has an estimate."""
    labels = ("AllPairs", "AdjacentChain", "PivotOne")
    return [np.nan_to_num(mean_and_spread(errors[label])[0], nan=np.inf) for label in labels]


def _beaten(errors: Errors) -> BoolArray:
    """Where AdjacentChain beats AllPairs by more than two standard errors of the difference between them in a run."""
    gap = errors["AllPairs"] - errors["AdjacentChain"]
    lead, spread = mean_and_spread(gap)
    return np.asarray(lead > 2 * spread / np.sqrt(gap.shape[1]))


def _ratio(theirs: FloatArray, ours: FloatArray) -> FloatArray:
    """Return their errors in terms of ours; NaN where neither has any."""
    with np.errstate(invalid="ignore"):
        return np.asarray(theirs / ours)


def _comparable(chain: FloatArray) -> float:
    """Return a number if AdjacentChain has an estimate at half of the points or more, and NaN if it has not."""
    return 1.0 if np.isfinite(chain).mean() >= _HALF else float("nan")


def _better(claim: str, x: Sequence[float], errors: Errors, point: str) -> Verdict:
    ours, chain, _ = _means(errors)
    ratio = _ratio(chain, ours)
    return judged(
        f"{claim} ({_SUBSTANTIAL:g} times its MSE or more on average, and nowhere better by two standard errors)",
        f"MSE of AdjacentChain {_geometric(ratio):.1f} times that of AllPairs on average, {ratio.min():.1f} times at "
        f"the least ({point.format(x[int(ratio.argmin())])})",
        _geometric(ratio) >= _SUBSTANTIAL and not _beaten(errors).any(),
        ours,
        _comparable(chain),
    )


def _robust(claim: str, x: Sequence[float], ours: FloatArray, point: str) -> Verdict:
    worst, best = int(ours.argmax()), int(ours.argmin())
    factor = _ratio(ours[[worst]], ours[[best]])[0]
    return judged(
        f"{claim} (MSE within a factor of {_ROBUST:g})",
        f"MSE {ours[best]:.3g} ({point.format(x[best])}) to {ours[worst]:.3g} ({point.format(x[worst])}), a factor of "
        f"{factor:.1f}",
        factor <= _ROBUST,
        ours,
    )


def _geometric(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(np.exp(np.log(known).mean())) if len(known) else float("inf")
