"""Traffic that hangs on a few queries: rankers' page views that are far from what most buckets of queries say."""

from __future__ import annotations

import numpy as np

from posbias.arrays import BoolArray, FloatArray

# Without the buckets that are left out, traffic is off by no more than this factor.
_EVEN = 2.0
# So large a share of the buckets may be left out, one at the least; where that does not mend it, nothing is.
_MOST_LEFT_OUT = 0.05
# What is left out because traffic hangs on it has more than this share of the page views.
_MOST_VIEWS = 0.5


def lopsidedness(views: FloatArray) -> float:
    """Return by which factor the odds of two rankers' page views, (B, m), are off their odds in a bucket as it comes.

    All buckets have the same say in the latter, so that no query can move it far. It is about 1 where each view draws
    its ranker, however few queries have most of the views; in sticky assignment it is off by the luck of those few.

    Example:
        >>> views = np.array([[9.0, 11.0], [11.0, 9.0], [10.0, 10.0], [10.0, 10.0]])
        >>> lopsidedness(views), lopsidedness(views + [[0, 0], [0, 0], [0, 0], [960, 0]]).__round__(1)
        (1.0, 15.2)
    """
    return float(_factors(views.sum(axis=0)[None], _usual(views))[0]) if views.any() else 1.0


def even_buckets(views: FloatArray) -> BoolArray | None:
    """Return which buckets are left without the few that have most of the views and make traffic lopsided.

    None if it does not hang on a few: it stays lopsided without them, or they have not most of the views.
    """
    kept = np.ones(len(views), dtype=np.bool_)
    for _ in range(max(1, int(_MOST_LEFT_OUT * len(views)))):
        # Without one more bucket, each of those that are left in turn.
        factors = _factors(views[kept].sum(axis=0) - views[kept], _usual(views))
        worst = np.flatnonzero(kept)[int(np.argmin(factors))]
        kept[worst] = False
        if factors.min() <= _EVEN:
            return kept if views[~kept].sum() > _MOST_VIEWS * views.sum() else None
    return None


def say_left_out(views: FloatArray, kept: BoolArray) -> str:
    """Say which part of the buckets was left out, and why."""
    share = int(100 - 100 * views[kept].sum() / views.sum())
    return (
        f"{np.count_nonzero(~kept)} of {len(kept)} buckets of queries, with {share}% of the page views, left out: "
        "rankers served them in other proportions than the rest, so that traffic was off by a factor of "
        f"{lopsidedness(views):,.0f}. Look for a query, or an aggregated row, with most of the impressions."
    )


def say_lopsided(views: FloatArray) -> str:
    """Say why there is no curve where traffic hangs on more buckets than may be left out."""
    return (
        "no curve fits the traffic: queries with many page views were served by rankers in other proportions than the "
        f"rest, by a factor of {lopsidedness(views):,.0f}, and are too many to be left out; compare with AllPairs, or "
        "with exposure as observed"
    )


def effective_buckets(views: FloatArray) -> float:
    """Return how many buckets of equal views the page views of a ranker are as good as, of the one with the fewest.

    Example:
        >>> effective_buckets(np.array([[5.0, 9.0], [5.0, 1.0], [5.0, 0.0], [5.0, 0.0]])).__round__(2)
        1.22
    """
    served = views[:, views.any(axis=0)]
    return float((served.sum(axis=0) ** 2 / (served**2).sum(axis=0)).min(initial=len(views)))


def _usual(views: FloatArray) -> FloatArray:
    """Return the mean over buckets of each ranker's share of the views, (m,)."""
    served = views[views.sum(axis=1) > 0]
    return np.asarray((served / served.sum(axis=1, keepdims=True)).mean(axis=0))


def _factors(traffic: FloatArray, usual: FloatArray) -> FloatArray:
    """Return the largest factor between odds of traffic, (n, m), and usual odds; infinite where a ranker has none."""
    seen = usual > 0
    with np.errstate(divide="ignore"):
        off = np.log(traffic[:, seen]) - np.log(usual[seen])
    with np.errstate(invalid="ignore"):
        factor = np.exp(off.max(axis=1) - off.min(axis=1))
    return np.asarray(np.where(np.isnan(factor), np.inf, factor))
