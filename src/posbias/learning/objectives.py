"""Losses of rankers that learn from biased clicks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from posbias._arrays import AnyArray, FloatArray, IntArray
from posbias.errors import PosbiasError

# Pairs looked at at once, of whole groups: a loop over these and not over groups.
_PAIRS_AT_ONCE = 2**22
# Beyond this a rate has no place in the 32 bits that learners keep gradients in.
_GREATEST_LOG = 60.0
# The gradient and the Hessian of arrays, as `softmax_ips` gives them.
Objective = Callable[[Any, Any, Any], tuple[FloatArray, FloatArray]]
_NOT_IPS = (
    "A weight of each row multiplies its gradient after documents were compared, which is not IPS: gradients of a "
    "query no longer add up to 0. Give the column `weight` as label, and no weight."
)


def numbered(name: str, values: Any) -> IntArray:
    """Return a number for each row: the same for the same id.

    >>> numbered("query", ["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    column = as_column(name, values)
    if column.dtype.kind in "iu":
        return np.asarray(np.unique(column, return_inverse=True)[1], dtype=np.int64)
    told = column.tolist()
    # What is missing is None, or does not equal itself: NaN, and NA of pandas.
    missing = sum(value is None or (value == value) is not True for value in told)
    if missing:
        raise PosbiasError(f"{missing:,} of {len(told):,} rows have no value in {name}. Leave them out.")
    number: dict[Any, int] = {}
    try:
        return np.array([number.setdefault(value, len(number)) for value in told], dtype=np.int64)
    except TypeError:
        odd = next(value for value in told if isinstance(value, list | dict | set | bytearray))
        raise PosbiasError(f"{name} must be single values, such as numbers or texts, not {odd!r}.") from None


def as_column(name: str, values: Any, what: str = "one value for each row") -> AnyArray:
    """Return single values of any kind as an array; refuse what is no column of them."""
    _refuse_mask(name, values)
    try:
        column = np.asarray(values)
    except ValueError as error:
        raise PosbiasError(f"{name} must be {what}: {error}.") from None
    if column.ndim != 1:
        raise PosbiasError(f"{name} must be {what}, not {_shape(values, column)}.")
    return column


def _refuse_mask(name: str, values: Any) -> None:
    """Refuse what a mask hides: an array reads through it."""
    hidden = int(np.ma.getmaskarray(values).sum()) if isinstance(values, np.ma.MaskedArray) else 0
    if hidden:
        raise PosbiasError(f"{hidden:,} of {values.size:,} values of {name} are masked. Leave these rows out.")


def _shape(values: Any, column: AnyArray) -> str:
    return repr(values) if column.ndim == 0 else f"an array of the shape {column.shape}"


def softmax_loss(scores: Any, weights: Any, groups: Any) -> float:
    """Return L = −Σ W_i log π_i, where π is the softmax of the scores of a group."""
    s, w, sizes = _grouped(scores, weights, groups)
    largest, total = _softmax_parts(s, sizes)
    return float(-(w * (s - largest - np.log(total))).sum())


def _grouped(scores: Any, weights: Any, groups: Any) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return scores, weights and the sizes of groups, refusing what does not fit together."""
    s = _scores(scores)
    _same_length(s, weights=_numbers("weights", weights))
    return s, *grouped_weights(weights, groups)


def _scores(values: Any) -> FloatArray:
    """Return scores as an array: what a ranker says that has diverged is no gradient's beginning."""
    array = _numbers("scores", values)
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise PosbiasError(
            f"{len(bad):,} of {len(array):,} scores are no numbers, for example {array[bad[0]]} in row {bad[0]:,}: the "
            "ranker has diverged. Learn at a lower rate, or with more regularisation."
        )
    return array


def _numbers(name: str, values: Any) -> FloatArray:
    return as_numbers(name, values).reshape(-1)


def as_numbers(name: str, values: Any, what: str = "numbers, one for each row") -> FloatArray:
    """Return numbers as an array of doubles, NaN where one is missing; refuse what is none.

    >>> as_numbers("weights", [1, None]).tolist()
    [1.0, nan]
    """
    _refuse_mask(name, values)
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise PosbiasError(f"{name} must be {what}: {error}.") from None


def _same_length(s: FloatArray, **others: FloatArray) -> None:
    for name, values in others.items():
        if len(values) != len(s):
            raise PosbiasError(f"There are {len(s):,} scores and {len(values):,} {name}. Expected one of each a row.")


def grouped_weights(weights: Any, groups: Any) -> tuple[FloatArray, IntArray]:
    """Return weights and the sizes of groups that have rows, refusing what does not fit together."""
    w = row_numbers("weights", weights)
    sizes = as_column("groups", groups, "the number of rows of each query")
    whole = not len(sizes) or sizes.dtype.kind in "iu"
    if not whole or (sizes < 0).any() or sizes.sum() != len(w):
        found = f"add up to {sizes.sum():,}" if whole else f"are no whole numbers, such as {sizes.tolist()[0]!r}"
        raise PosbiasError(
            f"groups must be the sizes of query groups, which add up to the number of rows: {len(w):,} rows, and "
            f"{len(sizes):,} groups that {found}. A column of query ids is not what is meant."
        )
    return w, sizes[sizes > 0].astype(np.int64)


def row_numbers(name: str, values: Any) -> FloatArray:
    """Return numbers of rows as an array, refusing what is no weight or count."""
    array = _numbers(name, values)
    bad = np.flatnonzero(~np.isfinite(array) | (array < 0))
    if len(bad):
        raise PosbiasError(
            f"{len(bad):,} of {len(array):,} {name} are negative or no numbers, for example {array[bad[0]]} in row "
            f"{bad[0]:,}. Expected finite numbers from 0 on, as `posbias weights` writes them."
        )
    return array


def _softmax_parts(s: FloatArray, sizes: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the largest score of each row's group, and Σ e^s above it."""
    largest = _of_group(np.maximum, s, sizes)
    return largest, _of_group(np.add, np.exp(s - largest), sizes)


def _of_group(ufunc: np.ufunc, values: FloatArray, sizes: IntArray) -> FloatArray:
    """Return what a function makes of each group, at every row of it."""
    if not len(values):
        return values
    starts = np.cumsum(sizes) - sizes
    return np.repeat(np.asarray(ufunc.reduceat(values, starts), dtype=np.float64), sizes)


def softmax_ips(scores: Any, weights: Any, groups: Any) -> tuple[FloatArray, FloatArray]:
    """Return the gradient and the diagonal of the Hessian of `softmax_loss`: a listwise loss, the best in our trials.

    Arguments:
        scores: of every row, as the ranker has them now.
        weights: the IPS label W of every row, 0 where there was no click.
        groups: how many rows each query has, in their order: the documents that were *shown* for it.

    Example:
        >>> gradient, hessian = softmax_ips([0.0, 0.0], [1.0, 0.0], [2])
        >>> gradient.tolist(), hessian.tolist()
        ([-0.5, 0.5], [0.25, 0.25])
    """
    s, w, sizes = _grouped(scores, weights, groups)
    largest, total = _softmax_parts(s, sizes)
    share = np.exp(s - largest) / total
    # T π_i − W_i and T π_i (1 − π_i), where T is the weight of the whole group.
    weight = _of_group(np.add, w, sizes)
    return weight * share - w, weight * share * (1 - share)


def pairwise_loss(scores: Any, weights: Any, groups: Any) -> float:
    """Return L = Σ_i W_i Σ_j log(1 + e^{s_j − s_i}) over the other documents j of a group."""
    s, w, sizes = _grouped(scores, weights, groups)
    return float(sum((w[i] * np.logaddexp(0, s[j] - s[i])).sum() for i, j in _pairs(w, sizes)))


def _pairs(w: FloatArray, sizes: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield pairs of rows (i, j) of one group, i with a weight and j another one, some millions at once."""
    clicked = np.flatnonzero(w > 0)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)[clicked]
    others = np.repeat(sizes, sizes)[clicked]
    ends = np.cumsum(others)
    first = 0
    while first < len(clicked):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + _PAIRS_AT_ONCE, side="right")))
        part = slice(first, last)
        i = np.repeat(clicked[part], others[part])
        within = np.arange(len(i)) - np.repeat(ends[part] - others[part] - before, others[part])
        j = np.repeat(starts[part], others[part]) + within
        apart = i != j
        yield i[apart], j[apart]
        first = last


def pairwise_ips(scores: Any, weights: Any, groups: Any) -> tuple[FloatArray, FloatArray]:
    """Return the gradient and the diagonal of the Hessian of `pairwise_loss`: propensity-weighted pairs.

    Arguments are those of `softmax_ips`.

    Example:
        >>> gradient, hessian = pairwise_ips([0.0, 0.0], [1.0, 0.0], [2])
        >>> gradient.tolist(), hessian.tolist()
        ([-0.5, 0.5], [0.25, 0.25])

    Reference: Joachims, Swaminathan and Schnabel, WSDM 2017, with the logistic loss in place of the hinge.
    """
    s, w, sizes = _grouped(scores, weights, groups)
    gradient, hessian = np.zeros_like(s), np.zeros_like(s)
    for i, j in _pairs(w, sizes):
        wrong = 1 / (1 + np.exp(np.clip(s[i] - s[j], -500, 500)))
        slope, bend = w[i] * wrong, w[i] * wrong * (1 - wrong)
        gradient += np.bincount(j, slope, len(s)) - np.bincount(i, slope, len(s))
        hessian += np.bincount(j, bend, len(s)) + np.bincount(i, bend, len(s))
    return gradient, hessian


def poisson_loss(scores: Any, clicks: Any, exposure: Any) -> float:
    """Return L = Σ E e^s − C s, the likelihood of clicks that come at the rate e^s of a view at rank 1."""
    s, c, e = _counted(scores, clicks, exposure)
    return float((e * np.exp(np.minimum(s, _GREATEST_LOG)) - c * s).sum())


def _counted(scores: Any, clicks: Any, exposure: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
    s, c, e = _scores(scores), row_numbers("clicks", clicks), row_numbers("exposure", exposure)
    _same_length(s, clicks=c, exposure=e)
    unseen = int(((c > 0) & (e == 0)).sum())
    if unseen:
        raise clicks_without_exposure(unseen, len(c))
    return s, c, e


def clicks_without_exposure(unseen: int, rows: int) -> PosbiasError:
    """Return the error of rows with clicks that nobody can have seen: no rate is high enough for these."""
    return PosbiasError(
        f"{unseen:,} of {rows:,} rows have clicks and no exposure: the curve says that their ranks are never seen. "
        "Estimate it from more data, or give `ips_weights` candidates, where no p is less than 1 / cap."
    )


def poisson_start(clicks: Any, exposure: Any) -> float:
    """Return the score to begin at, log(ΣC / ΣE).

    >>> round(poisson_start([1, 0, 0], [2.0, 0.5, 0.5]), 4)
    -1.0986
    """
    c = row_numbers("clicks", clicks)
    _, c, e = _counted(np.zeros(len(c)), c, exposure)
    if not c.sum() > 0 or not e.sum() > 0:
        raise PosbiasError("There is no click, or no exposure, to learn from: no score to begin at can be told.")
    return float(np.log(c.sum() / e.sum()))


def scaled_weights(weights: Any) -> FloatArray:
    """Return weights with mean 1 over the clicked rows.

    >>> scaled_weights([0, 2, 6]).tolist()
    [0.0, 0.5, 1.5]
    """
    w = row_numbers("weights", weights)
    return w / _mean_of_clicked("weights", w)


def _mean_of_clicked(name: str, values: FloatArray) -> float:
    clicked = values[values > 0]
    if not len(clicked):
        raise PosbiasError(f"No row was clicked: all {len(values):,} {name} are 0, and there is nothing to learn from.")
    return float(clicked.mean())


def scaled_counts(clicks: Any, exposure: Any) -> tuple[FloatArray, FloatArray]:
    """Return clicks and exposure, both over the mean clicks of a clicked row: rates stay, regularisation fits.

    >>> [counts.tolist() for counts in scaled_counts([0, 1, 3], [1.0, 2.0, 4.0])]
    [[0.0, 0.5, 1.5], [0.5, 1.0, 2.0]]
    """
    c = row_numbers("clicks", clicks)
    _, c, e = _counted(np.zeros(len(c)), c, exposure)
    mean = _mean_of_clicked("clicks", c)
    return c / mean, e / mean


def lightgbm_objective(objective: Objective) -> Callable[[Any, Any], tuple[FloatArray, FloatArray]]:
    """Return an objective as `lightgbm.train` takes it: `{"objective": lightgbm_objective(softmax_ips)}`.

    Of `softmax_ips` and `pairwise_ips` the Dataset has the IPS weight as label, and groups; of `poisson_exposure` it
    has clicks / exposure as label and exposure as weight, like the built-in one.
    """

    _refuse_other(objective)

    def lightgbm_loss(scores: Any, data: Any) -> tuple[FloatArray, FloatArray]:
        if getattr(data, "position", None) is not None:
            raise PosbiasError(
                "The Dataset has positions, by which LightGBM corrects a second time. Leave `position` out."
            )
        return _called(objective, scores, data.get_label(), data.get_weight(), data.get_group())

    return lightgbm_loss


def _refuse_other(objective: object) -> None:
    """Refuse what is no function: learners would call it in the midst of their training."""
    if not callable(objective):
        raise PosbiasError(
            f"objective must be a function such as posbias.objectives.softmax_ips, not {objective!r}. By name there "
            "are forms (learner_form)."
        )


def _called(objective: Objective, scores: Any, label: Any, weight: Any, group: Any) -> tuple[FloatArray, FloatArray]:
    weighted, grouped = (given is not None and np.size(given) > 0 for given in (weight, group))
    if objective is poisson_exposure:
        if not weighted or np.size(weight) != np.size(label):
            raise PosbiasError(
                "Exposure is missing: the Poisson objective takes clicks / exposure as label and exposure as weight of "
                "each row. XGBoost takes one weight a group where there are groups: leave them out, it has none."
            )
        exposure = np.asarray(weight, dtype=np.float64)
        return objective(scores, np.asarray(label, dtype=np.float64) * exposure, exposure)
    if weighted:
        raise PosbiasError(_NOT_IPS)
    if not grouped:
        raise PosbiasError(
            "The data have no groups: documents are compared within a query. Give the number of rows of each query as "
            "group, rows of a query next to each other."
        )
    return objective(scores, label, np.asarray(group, dtype=np.int64))


def poisson_exposure(scores: Any, clicks: Any, exposure: Any) -> tuple[FloatArray, FloatArray]:
    """Return the gradient and the Hessian of `poisson_loss`. There are no groups; begin at `poisson_start`.

    Arguments:
        scores: of every row, the log of how often it is clicked when seen as rank 1 is.
        clicks: C of every row.
        exposure: E of every row, Σ_k N_k p_k / p_1: how often it was seen, counted in views at rank 1. Of documents
            never shown too, which have a small one.

    Example:
        >>> gradient, hessian = poisson_exposure([0.0, 0.0], [1, 0], [2.0, 0.5])
        >>> gradient.tolist(), hessian.tolist()
        ([1.0, 0.5], [2.0, 0.5])
    """
    s, c, e = _counted(scores, clicks, exposure)
    rate = e * np.exp(np.minimum(s, _GREATEST_LOG))
    return rate - c, rate


def lightgbm_ranker_objective(objective: Objective) -> Callable[..., tuple[FloatArray, FloatArray]]:
    """Return an objective as `LGBMRanker` takes it.

    `LGBMRanker(objective=lightgbm_ranker_objective(softmax_ips), metric="none")`: its own metrics take whole labels
    only. Of `poisson_exposure` it goes to `LGBMRegressor`, for it knows no groups.
    """

    _refuse_other(objective)

    def ranker_loss(label: Any, scores: Any, weight: Any, group: Any) -> tuple[FloatArray, FloatArray]:
        return _called(objective, scores, label, weight, group)

    def regressor_loss(label: Any, scores: Any, weight: Any) -> tuple[FloatArray, FloatArray]:
        return _called(objective, scores, label, weight, None)

    return regressor_loss if objective is poisson_exposure else ranker_loss


def xgboost_objective(objective: Objective) -> Callable[[Any, Any], tuple[FloatArray, FloatArray]]:
    """Return an objective as `xgboost.train` takes it: `obj=xgboost_objective(softmax_ips)`.

    The DMatrix holds what `lightgbm_objective` wants. `XGBRanker` takes no objective of one's own.
    """

    _refuse_other(objective)

    def xgboost_loss(scores: Any, data: Any) -> tuple[FloatArray, FloatArray]:
        starts = data.get_uint_info("group_ptr")
        return _called(objective, scores, data.get_label(), data.get_weight(), np.diff(starts) if len(starts) else None)

    return xgboost_loss
