"""What a ranker is to minimise on biased clicks: losses with their gradients and Hessians, as functions of arrays.

Rows are (query, document) pairs, those of a query next to each other, and `groups` holds how many each query has.
Scale weights to mean 1 over clicked rows (`scaled_weights`), and counts alike (`scaled_counts`): what learners take
off for regularisation is absolute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from posbias.arrays import FloatArray, IntArray
from posbias.errors import PosbiasError
from posbias.learning.columns import as_column, as_numbers

# Pairs looked at at once, of whole groups: a loop over these and not over groups.
_PAIRS_AT_ONCE = 2**22
# Beyond this a rate has no place in the 32 bits that learners keep gradients in.
_GREATEST_LOG = 60.0


def softmax_loss(scores: Any, weights: Any, groups: Any) -> float:
    """Return L = −Σ W_i log π_i, where π is the softmax of the scores of a group."""
    s, w, sizes = _grouped(scores, weights, groups)
    largest, total = _softmax_parts(s, sizes)
    return float(-(w * (s - largest - np.log(total))).sum())


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


def scaled_counts(clicks: Any, exposure: Any) -> tuple[FloatArray, FloatArray]:
    """Return clicks and exposure, both over the mean clicks of a clicked row: rates stay, regularisation fits.

    >>> [counts.tolist() for counts in scaled_counts([0, 1, 3], [1.0, 2.0, 4.0])]
    [[0.0, 0.5, 1.5], [0.5, 1.0, 2.0]]
    """
    c = row_numbers("clicks", clicks)
    _, c, e = _counted(np.zeros(len(c)), c, exposure)
    mean = _mean_of_clicked("clicks", c)
    return c / mean, e / mean


def _mean_of_clicked(name: str, values: FloatArray) -> float:
    clicked = values[values > 0]
    if not len(clicked):
        raise PosbiasError(f"No row was clicked: all {len(values):,} {name} are 0, and there is nothing to learn from.")
    return float(clicked.mean())


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


def _numbers(name: str, values: Any) -> FloatArray:
    return as_numbers(name, values).reshape(-1)


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


def _same_length(s: FloatArray, **others: FloatArray) -> None:
    for name, values in others.items():
        if len(values) != len(s):
            raise PosbiasError(f"There are {len(s):,} scores and {len(values):,} {name}. Expected one of each a row.")


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


def _grouped(scores: Any, weights: Any, groups: Any) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return scores, weights and the sizes of groups, refusing what does not fit together."""
    s = _scores(scores)
    _same_length(s, weights=_numbers("weights", weights))
    return s, *grouped_weights(weights, groups)


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


def _of_group(ufunc: np.ufunc, values: FloatArray, sizes: IntArray) -> FloatArray:
    """Return what a function makes of each group, at every row of it."""
    if not len(values):
        return values
    starts = np.cumsum(sizes) - sizes
    return np.repeat(np.asarray(ufunc.reduceat(values, starts), dtype=np.float64), sizes)


def _softmax_parts(s: FloatArray, sizes: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the largest score of each row's group, and Σ e^s above it."""
    largest = _of_group(np.maximum, s, sizes)
    return largest, _of_group(np.add, np.exp(s - largest), sizes)


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
