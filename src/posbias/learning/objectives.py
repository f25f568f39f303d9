"""Losses of rankers that learn from biased clicks, with gradients and Hessians, as functions of arrays.

Rows are (query, document) pairs, sorted by query; `groups` holds the number of rows of each query. Scale weights to
mean 1 over clicked rows (`scaled_weights`), and counts likewise (`scaled_counts`), because the regularisation of
learners is absolute.

With the IPS weight W, clicks C, exposure E, scores s, T = ΣW and π the softmax of the scores in a group:

    softmax    L = −Σ W_i log π_i                          g_i = T π_i − W_i                h_i = T π_i (1 − π_i)
    pairwise   L = Σ_i W_i Σ_j log(1 + e^{s_j − s_i})      over the other documents j of the group
    Poisson    L = Σ E e^s − C s                           g = E e^s − C                    h = E e^s

`lightgbm_objective`, `lightgbm_ranker_objective` and `xgboost_objective` wrap them as these libraries call them.

Reference: Joachims, Swaminathan and Schnabel: Unbiased Learning-to-Rank with Biased Feedback. WSDM 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from posbias._arrays import AnyArray, FloatArray, IntArray
from posbias.errors import PosbiasError

# Pairs of rows per batch, which bounds the memory.
_PAIRS_PER_BATCH = 2**22
# Above this, e^s exceeds the 32-bit floats in which learners keep gradients.
_LARGEST_LOG = 60.0
# The name of the metric that learners print.
_METRIC = "ips_dcg"
# Returns gradient and Hessian, as `softmax_ips` does.
Objective = Callable[[Any, Any, Any], tuple[FloatArray, FloatArray]]
_ROW_WEIGHTS = (
    "Row weights are not IPS: they multiply the gradient of a row after documents were compared, so the gradients of a "
    "query no longer sum to 0. Give the column `weight` as label, and no weight."
)


def group_numbers(name: str, values: Any) -> IntArray:
    """Return a number for each row, the same for the same id.

    >>> group_numbers("query", ["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    column = as_column(name, values)
    if column.dtype.kind in "iu":
        return np.asarray(np.unique(column, return_inverse=True)[1], dtype=np.int64)
    ids = column.tolist()
    # A missing value is None, or does not equal itself: NaN, and NA of pandas.
    missing = sum(value is None or (value == value) is not True for value in ids)
    if missing:
        raise PosbiasError(f"{missing:,} of {len(ids):,} rows have no value in {name}. Leave them out.")
    number: dict[Any, int] = {}
    try:
        return np.array([number.setdefault(value, len(number)) for value in ids], dtype=np.int64)
    except TypeError:
        example = next(value for value in ids if isinstance(value, list | dict | set | bytearray))
        raise PosbiasError(f"{name} must be single values, such as numbers or texts, not {example!r}.") from None


def as_column(name: str, values: Any, what: str = "one value for each row") -> AnyArray:
    """Return values of any type as a one-dimensional array."""
    _check_unmasked(name, values)
    try:
        column = np.asarray(values)
    except ValueError as error:
        raise PosbiasError(f"{name} must be {what}: {error}.") from None
    if column.ndim != 1:
        raise PosbiasError(f"{name} must be {what}, not {_shape(values, column)}.")
    return column


def _check_unmasked(name: str, values: Any) -> None:
    """Reject masked values, which would be read as if they were not masked."""
    hidden = int(np.ma.getmaskarray(values).sum()) if isinstance(values, np.ma.MaskedArray) else 0
    if hidden:
        raise PosbiasError(f"{hidden:,} of {values.size:,} values of {name} are masked. Leave these rows out.")


def _shape(values: Any, column: AnyArray) -> str:
    return repr(values) if column.ndim == 0 else f"an array of the shape {column.shape}"


def softmax_loss(scores: Any, weights: Any, groups: Any) -> float:
    """Return L = −Σ W_i log π_i, where π is the softmax of the scores in a group. Arguments as in `softmax_ips`."""
    s, w, sizes = _check_groups(scores, weights, groups)
    largest, total = _softmax_parts(s, sizes)
    return float(-(w * (s - largest - np.log(total))).sum())


def _check_groups(scores: Any, weights: Any, groups: Any) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return scores, weights and the sizes of groups as arrays; reject those that do not fit together."""
    s = _finite_scores(scores)
    _check_lengths(s, weights=_numbers("weights", weights))
    return s, *grouped_weights(weights, groups)


def _finite_scores(values: Any) -> FloatArray:
    """Return scores as an array; reject those of a ranker that has diverged."""
    array = _numbers("scores", values)
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise PosbiasError(
            f"{len(bad):,} of {len(array):,} scores are not finite, for example {array[bad[0]]} in row {bad[0]:,}: the "
            "ranker has diverged. Use a lower learning rate, or more regularisation."
        )
    return array


def _numbers(name: str, values: Any) -> FloatArray:
    return as_numbers(name, values).reshape(-1)


def as_numbers(name: str, values: Any, what: str = "numbers, one for each row") -> FloatArray:
    """Return numbers as an array of floats, NaN where one is missing.

    >>> as_numbers("weights", [1, None]).tolist()
    [1.0, nan]
    """
    _check_unmasked(name, values)
    try:
        array = np.asarray(values)
        if array.dtype.kind in "cmM":
            raise TypeError(f"they are of type {array.dtype}")
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise PosbiasError(f"{name} must be {what}: {error}.") from None


def _check_lengths(s: FloatArray, **others: FloatArray) -> None:
    for name, values in others.items():
        if len(values) != len(s):
            raise PosbiasError(f"There are {len(s):,} scores and {len(values):,} {name}. Expected one of each per row.")


def grouped_weights(weights: Any, groups: Any) -> tuple[FloatArray, IntArray]:
    """Return weights and the sizes of non-empty groups as arrays; reject those that do not fit together."""
    w = non_negative_numbers("weights", weights)
    sizes = as_column("groups", groups, "the number of rows of each query")
    refuse_groups(sizes.tolist(), len(w), whole=not len(sizes) or sizes.dtype.kind in "iu")
    return w, sizes[sizes > 0].astype(np.int64)


def refuse_groups(sizes: list[Any], rows: int, *, whole: bool = True) -> None:
    """Refuse sizes of groups, as Python's integers, which do not overflow, unless they add up to the rows."""
    if not whole:
        problem = f"are not whole numbers, such as {sizes[0]!r}"
    elif min(sizes, default=0) < 0:
        problem = f"are in part negative, such as {min(sizes):,}"
    elif sum(sizes) != rows:
        problem = f"add up to {sum(sizes):,}"
    else:
        return
    raise PosbiasError(
        f"groups must be the number of rows of each query, which add up to all rows: there are {rows:,} rows, "
        f"and {len(sizes):,} groups that {problem}. Do not give a column of query ids."
    )


def non_negative_numbers(name: str, values: Any) -> FloatArray:
    """Return weights or counts as an array; reject negative and missing ones."""
    array = _numbers(name, values)
    bad = np.flatnonzero(~np.isfinite(array) | (array < 0))
    if len(bad):
        raise PosbiasError(
            f"{len(bad):,} of {len(array):,} {name} are negative or not finite, for example {array[bad[0]]} in row "
            f"{bad[0]:,}. Expected finite numbers of 0 or more, as in the table of `ips_weights`."
        )
    return array


def _softmax_parts(s: FloatArray, sizes: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the largest score of each row's group, and Σ e^s above it."""
    largest = _reduce_groups(np.maximum, s, sizes)
    return largest, _reduce_groups(np.add, np.exp(s - largest), sizes)


def _reduce_groups(ufunc: np.ufunc, values: FloatArray, sizes: IntArray) -> FloatArray:
    """Reduce each group by a function, and repeat the result for each of its rows."""
    if not len(values):
        return values
    starts = np.cumsum(sizes) - sizes
    return np.repeat(np.asarray(ufunc.reduceat(values, starts), dtype=np.float64), sizes)


def softmax_ips(scores: Any, weights: Any, groups: Any) -> tuple[FloatArray, FloatArray]:
    """Return the gradient and the diagonal of the Hessian of `softmax_loss`, the best IPS loss in our trials.

    Arguments:
        scores (array): the present score of every row.
        weights (array): the IPS label W of every row, 0 where there was no click.
        groups (array of int): the number of rows of each query, in their order. A group has the documents that were
            *shown* for a query.

    Returns:
        The gradient and the diagonal of the Hessian, one number of each per row.

    Example:
        >>> gradient, hessian = softmax_ips([0.0, 0.0], [1.0, 0.0], [2])
        >>> gradient.tolist(), hessian.tolist()
        ([-0.5, 0.5], [0.25, 0.25])
    """
    s, w, sizes = _check_groups(scores, weights, groups)
    largest, total = _softmax_parts(s, sizes)
    share = np.exp(s - largest) / total
    # g = T π_i − W_i and h = T π_i (1 − π_i), where T is the weight of the whole group.
    total_weight = _reduce_groups(np.add, w, sizes)
    return total_weight * share - w, total_weight * share * (1 - share)


def pairwise_loss(scores: Any, weights: Any, groups: Any) -> float:
    """Return L = Σ_i W_i Σ_j log(1 + e^{s_j − s_i}) over the other documents j of a group.

    Arguments as in `softmax_ips`.
    """
    s, w, sizes = _check_groups(scores, weights, groups)
    return float(sum((w[i] * np.logaddexp(0, s[j] - s[i])).sum() for i, j in _pairs(w, sizes)))


def _pairs(w: FloatArray, sizes: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield pairs of rows (i, j) of one group, where i has a weight, in batches."""
    clicked = np.flatnonzero(w > 0)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)[clicked]
    others = np.repeat(sizes, sizes)[clicked]
    ends = np.cumsum(others)
    first = 0
    while first < len(clicked):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + _PAIRS_PER_BATCH, side="right")))
        part = slice(first, last)
        i = np.repeat(clicked[part], others[part])
        within = np.arange(len(i)) - np.repeat(ends[part] - others[part] - before, others[part])
        j = np.repeat(starts[part], others[part]) + within
        apart = i != j
        yield i[apart], j[apart]
        first = last


def pairwise_ips(scores: Any, weights: Any, groups: Any) -> tuple[FloatArray, FloatArray]:
    """Return the gradient and the diagonal of the Hessian of `pairwise_loss`.

    Arguments and result as in `softmax_ips`.

    Example:
        >>> gradient, hessian = pairwise_ips([0.0, 0.0], [1.0, 0.0], [2])
        >>> gradient.tolist(), hessian.tolist()
        ([-0.5, 0.5], [0.25, 0.25])

    Reference: Joachims, Swaminathan and Schnabel, WSDM 2017, with the logistic loss in place of the hinge.
    """
    s, w, sizes = _check_groups(scores, weights, groups)
    gradient, hessian = np.zeros_like(s), np.zeros_like(s)
    for i, j in _pairs(w, sizes):
        wrong = 1 / (1 + np.exp(np.clip(s[i] - s[j], -500, 500)))
        slope, bend = w[i] * wrong, w[i] * wrong * (1 - wrong)
        gradient += np.bincount(j, slope, len(s)) - np.bincount(i, slope, len(s))
        hessian += np.bincount(j, bend, len(s)) + np.bincount(i, bend, len(s))
    return gradient, hessian


def poisson_loss(scores: Any, clicks: Any, exposure: Any) -> float:
    """Return L = Σ E e^s − C s, the negative log-likelihood of clicks at the rate e^s per view at rank 1.

    Arguments as in `poisson_exposure`.
    """
    s, c, e = _check_counts(scores, clicks, exposure)
    return float((e * np.exp(np.minimum(s, _LARGEST_LOG)) - c * s).sum())


def _check_counts(scores: Any, clicks: Any, exposure: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
    s, c, e = _finite_scores(scores), non_negative_numbers("clicks", clicks), non_negative_numbers("exposure", exposure)
    _check_lengths(s, clicks=c, exposure=e)
    impossible = int(((c > 0) & (e == 0)).sum())
    if impossible:
        raise clicks_without_exposure(impossible, len(c))
    return s, c, e


def clicks_without_exposure(count: int, rows: int) -> PosbiasError:
    """Return the error for rows with clicks but no exposure, which no click rate explains."""
    return PosbiasError(
        f"{count:,} of {rows:,} rows have clicks but no exposure: the curve has propensity 0 at their ranks. Estimate "
        "it from more data, or give candidates to `ips_weights`: then no p is below 1 / cap."
    )


def poisson_start(clicks: Any, exposure: Any) -> float:
    """Return the score to start from, log(ΣC / ΣE), at which one rate fits all rows best.

    >>> round(poisson_start([1, 0, 0], [2.0, 0.5, 0.5]), 4)
    -1.0986
    """
    c = non_negative_numbers("clicks", clicks)
    _, c, e = _check_counts(np.zeros(len(c)), c, exposure)
    if not c.sum() > 0 or not e.sum() > 0:
        raise PosbiasError("There are no clicks, or no exposure, so there is no start score.")
    return float(np.log(c.sum() / e.sum()))


def scaled_weights(weights: Any) -> FloatArray:
    """Return weights with mean 1 over the clicked rows.

    >>> scaled_weights([0, 2, 6]).tolist()
    [0.0, 0.5, 1.5]
    """
    w = non_negative_numbers("weights", weights)
    return w / _mean_of_clicked("weights", w)


def _mean_of_clicked(name: str, values: FloatArray) -> float:
    clicked = values[values > 0]
    if not len(clicked):
        raise PosbiasError(f"No row was clicked: all {len(values):,} {name} are 0, so there is nothing to learn from.")
    return float(clicked.mean())


def scaled_counts(clicks: Any, exposure: Any) -> tuple[FloatArray, FloatArray]:
    """Return clicks and exposure divided by the mean clicks of a clicked row, which leaves click rates unchanged.

    >>> [counts.tolist() for counts in scaled_counts([0, 1, 3], [1.0, 2.0, 4.0])]
    [[0.0, 0.5, 1.5], [0.5, 1.0, 2.0]]
    """
    c = non_negative_numbers("clicks", clicks)
    _, c, e = _check_counts(np.zeros(len(c)), c, exposure)
    mean = _mean_of_clicked("clicks", c)
    return c / mean, e / mean


def lightgbm_objective(objective: Objective) -> Callable[[Any, Any], tuple[FloatArray, FloatArray]]:
    """Return an objective as `lightgbm.train` takes it: `{"objective": lightgbm_objective(softmax_ips)}`.

    For `softmax_ips` and `pairwise_ips` the Dataset has the IPS weight as label, and groups. For `poisson_exposure` it
    has clicks / exposure as label and exposure as weight, as for LightGBM's own Poisson objective.

    Arguments:
        objective (callable): `softmax_ips`, `pairwise_ips`, `poisson_exposure`, or a function like these.
    """
    _check_callable(objective)
    # A partial function can be pickled, as models that hold it are.
    return partial(_lightgbm_loss, objective)


def _lightgbm_loss(objective: Objective, scores: Any, data: Any) -> tuple[FloatArray, FloatArray]:
    if getattr(data, "position", None) is not None:
        raise PosbiasError(
            "The Dataset has positions, with which LightGBM would correct a second time. Leave `position` out."
        )
    return _call_objective(objective, scores, data.get_label(), data.get_weight(), data.get_group())


def _check_callable(objective: object) -> None:
    """Reject an objective that is not a function before the training starts."""
    if not callable(objective):
        raise PosbiasError(
            f"objective must be a function such as posbias.objectives.softmax_ips, not {objective!r}. learner_form "
            "takes names."
        )


def _call_objective(
    objective: Objective, scores: Any, label: Any, weight: Any, group: Any
) -> tuple[FloatArray, FloatArray]:
    weighted, grouped = (values is not None and np.size(values) > 0 for values in (weight, group))
    if objective is poisson_exposure:
        if not weighted or np.size(weight) != np.size(label):
            raise PosbiasError(
                "Exposure is missing: the Poisson objective takes clicks / exposure as label and exposure as weight of "
                "each row. With groups, XGBoost takes one weight per group: leave groups out."
            )
        exposure = np.asarray(weight, dtype=np.float64)
        return objective(scores, np.asarray(label, dtype=np.float64) * exposure, exposure)
    if weighted:
        raise PosbiasError(_ROW_WEIGHTS)
    if not grouped:
        raise PosbiasError(
            "The data have no groups, but documents are compared within a query. Sort rows by query, and give the "
            "number of rows of each query as group."
        )
    return objective(scores, label, np.asarray(group, dtype=np.int64))


def poisson_exposure(scores: Any, clicks: Any, exposure: Any) -> tuple[FloatArray, FloatArray]:
    """Return the gradient and the Hessian of `poisson_loss`. There are no groups; start from `poisson_start`.

    Arguments:
        scores (array): the score of every row: the log of its click rate at rank 1.
        clicks (array): C, the clicks of every row.
        exposure (array): E, the exposure of every row, Σ_k N_k p_k / p_1: how often it was examined, counted in views
            at rank 1. Documents that were never shown have a small exposure.

    Returns:
        The gradient and the Hessian, one number of each per row.

    Example:
        >>> gradient, hessian = poisson_exposure([0.0, 0.0], [1, 0], [2.0, 0.5])
        >>> gradient.tolist(), hessian.tolist()
        ([1.0, 0.5], [2.0, 0.5])
    """
    s, c, e = _check_counts(scores, clicks, exposure)
    rate = e * np.exp(np.minimum(s, _LARGEST_LOG))
    return rate - c, rate


def lightgbm_ranker_objective(objective: Objective) -> Callable[..., tuple[FloatArray, FloatArray]]:
    """Return an objective as `LGBMRanker` takes it.

    Use it as `LGBMRanker(objective=lightgbm_ranker_objective(softmax_ips), metric="none")`: LightGBM's own metrics take
    whole labels only. `poisson_exposure` has no groups, so it goes to `LGBMRegressor`.

    Arguments:
        objective (callable): as in `lightgbm_objective`.
    """
    _check_callable(objective)
    return partial(_regressor_loss if objective is poisson_exposure else _ranker_loss, objective)


def _ranker_loss(
    objective: Objective, label: Any, scores: Any, weight: Any, group: Any
) -> tuple[FloatArray, FloatArray]:
    return _call_objective(objective, scores, label, weight, group)


def _regressor_loss(objective: Objective, label: Any, scores: Any, weight: Any) -> tuple[FloatArray, FloatArray]:
    return _call_objective(objective, scores, label, weight, None)


def xgboost_objective(objective: Objective) -> Callable[[Any, Any], tuple[FloatArray, FloatArray]]:
    """Return an objective as `xgboost.train` takes it: `obj=xgboost_objective(softmax_ips)`.

    The DMatrix has labels, weights and groups as in `lightgbm_objective`. `XGBRanker` takes no custom objective.

    Arguments:
        objective (callable): as in `lightgbm_objective`.
    """
    _check_callable(objective)
    return partial(_xgboost_loss, objective)


def _xgboost_loss(objective: Objective, scores: Any, data: Any) -> tuple[FloatArray, FloatArray]:
    return _call_objective(objective, scores, data.get_label(), data.get_weight(), _group_sizes(data))


def _group_sizes(data: Any) -> AnyArray | None:
    """Return the sizes of the groups of a DMatrix; None without groups."""
    starts = data.get_uint_info("group_ptr")
    return np.diff(starts) if len(starts) else None


def lightgbm_metric(scores: Any, data: Any) -> tuple[str, float, bool]:
    """Return the self-normalised IPS DCG of validation data, as `feval` of `lightgbm.train` and `lightgbm.cv`.

    The labels are IPS weights, as in the softmax and pairwise forms. Higher is better.
    """
    return _METRIC, grouped_dcg(scores, data.get_label(), data.get_group()), True


def lightgbm_ranker_metric(label: Any, scores: Any, weight: Any, group: Any) -> tuple[str, float, bool]:
    """Return the same metric as `lightgbm_metric`, as `eval_metric` of `LGBMRanker.fit`."""
    return _METRIC, grouped_dcg(scores, label, group), True


def xgboost_metric(scores: Any, data: Any) -> tuple[str, float]:
    """Return the same metric as `lightgbm_metric`, as `custom_metric` of `xgboost.train` and `xgboost.cv`.

    Give `maximize=True` too: more is better.
    """
    return _METRIC, grouped_dcg(scores, data.get_label(), _group_sizes(data))


def grouped_dcg(scores: Any, weights: Any, groups: Any, depth: int = 10) -> float:
    """Return Σ W λ(rank) / ΣW with λ = 1 / log2(1 + rank) down to `depth`; 0 without clicks.

    Documents of equal scores share the mean gain of their ranks.

    Arguments:
        scores, weights (array): the score and the IPS label W of every row.
        groups (array of int): the number of rows of each query, in their order.
        depth (int, default 10): ranks that count.

    >>> grouped_dcg([3.0, 2.0, 1.0], [1.0, 0.0, 1.0], [3])
    0.75
    """
    if groups is None:
        raise PosbiasError("The data have no groups, but documents are ranked within a query. Give group.")
    s, w, sizes = _check_groups(scores, weights, groups)
    return float(dcg_of_groups(s, w, sizes, depth).sum() / w.sum()) if w.sum() > 0 else 0.0


def dcg_of_groups(s: FloatArray, w: FloatArray, sizes: IntArray, depth: int = 10) -> FloatArray:
    """Return Σ W λ(rank) of each group; no group may be empty."""
    query = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((-s, query))
    rank = np.arange(len(s)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    gain = np.where(rank <= depth, 1 / np.log2(1 + rank), 0.0)
    # Rows of one query with one score are neighbours in this order.
    tied = np.cumsum(np.r_[True, (np.diff(query[order]) != 0) | (np.diff(s[order]) != 0)]) - 1
    gain = (np.bincount(tied, gain) / np.bincount(tied))[tied]
    return np.asarray(np.bincount(query, w[order] * gain, len(sizes)))
