"""Choosing between rankers by clicks on queries that none of them was learned from."""

from __future__ import annotations

from typing import Any

import numpy as np

from posbias.arrays import FloatArray
from posbias.learning.objectives import grouped


def ips_dcg(scores: Any, weights: Any, groups: Any) -> float:
    """Return the self-normalised IPS DCG of a ranker on held-out queries: Σ W λ(rank) / Σ W, λ(r) = 1 / log2(1 + r).

    Arguments:
        scores: what the ranker gives each row, learned without the queries of these rows.
        weights: the IPS label W of every row, 0 where there was no click.
        groups: how many rows each query has, in their order: the documents that were shown for it. Ranks are among
            these, and rows of one score share their ranks.

    Example:
        >>> ips_dcg([0.2, 0.9, 0.5], [0.0, 3.0, 1.0], [3]).__round__(3)
        0.908
        >>> ips_dcg([0.0, 0.0], [3.0, 1.0], [2]).__round__(3)
        0.815
    """
    gains, total = _gains(scores, weights, groups)
    return float(gains.sum() / total)


def ips_dcg_gain(scores: Any, others: Any, weights: Any, groups: Any) -> tuple[float, float]:
    """Return by how much the IPS DCG of one ranker is above that of another, and the standard error of it.

    Both are measured by the same clicks, so that most of what is uncertain about either cancels.

    Example:
        >>> gain, error = ips_dcg_gain([0.9, 0.1, 0.8, 0.2], [0.1, 0.9, 0.2, 0.8], [1.0, 0.0, 1.0, 0.0], [2, 2])
        >>> round(gain, 3), round(error, 3)
        (0.369, 0.0)
    """
    one, total = _gains(scores, weights, groups)
    other, _ = _gains(others, weights, groups)
    return paired_gain(one - other, total)


def paired_gain(differences: FloatArray, total: float) -> tuple[float, float]:
    """Return a sum of differences of queries over a total, and its standard error as queries vary."""
    error = np.sqrt(len(differences) * differences.var(ddof=1)) / total if len(differences) > 1 else np.inf
    return float(differences.sum() / total), float(error)


def _gains(scores: Any, weights: Any, groups: Any) -> tuple[FloatArray, float]:
    """Return Σ W λ(rank) of each group, and Σ W of all."""
    s, w, sizes = grouped(scores, weights, groups)
    if not w.sum() > 0:
        from posbias.errors import PosbiasError

        raise PosbiasError("No row was clicked: all weights are 0, and clicks are what rankers are compared by.")
    group = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.cumsum(sizes) - sizes
    order = np.lexsort((-s, group))
    discount = 1 / np.log2(np.arange(len(s)) - starts[group] + 2)
    # Rows of one score share the mean of their discounts: a ranker that scores all alike is no better than chance.
    new = np.concatenate([[True], (np.diff(s[order]) != 0) | (np.diff(group) != 0)])
    tie = np.cumsum(new) - 1
    shared = (np.bincount(tie, discount) / np.bincount(tie))[tie]
    return np.bincount(group, w[order] * shared, len(sizes)), float(w.sum())
