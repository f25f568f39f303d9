"""What each two ranks say of each other by themselves, beside what a curve says of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posbias.arrays import FloatArray
from posbias.estimators.intervals import deletions
from posbias.harvesting.interventions import Interventions

# So many numbers of refits are held.
_MOST_NUMBERS = 4 * 10**7
# A pair that lies so many standard errors off the curve stands out.
APART = 3.0
_INTERVAL = 1.96


@dataclass(frozen=True)
class PairRatio:
    """What the clicks of one pair of ranks say of p_k' / p_k.

    Attributes:
        rank, other: k and k', of which k is the higher on the page.
        ratio: by the clicks of the pair alone, with its 95% interval from `low` to `high`.
        expected: by the curve.
        apart: whether they are more than three standard errors apart.
    """

    rank: int
    other: int
    ratio: float
    low: float
    high: float
    expected: float
    apart: bool


def too_many(counts: Interventions) -> bool:
    """Return whether there are more pairs of ranks than can be measured at once."""
    return counts.buckets * counts.max_rank**2 > _MOST_NUMBERS


def measure_pair_ratios(counts: Interventions, propensity: FloatArray) -> tuple[PairRatio, ...]:
    """Return the ratio of every two ranks with clicks on both sides, the surest first, beside that of a curve.

    Standard errors are of the log ratio, by leaving out a bucket of queries at a time. There are none where the pairs
    are too many.
    """
    buckets, ranks = counts.buckets, len(propensity)
    if buckets < 2 or too_many(counts):
        return ()
    with np.errstate(divide="ignore", invalid="ignore"):
        x = _log_ratios(counts.total()[0])
        moved = _log_ratios(counts.tables(deletions(buckets))[0]) - x
        error = np.sqrt((buckets - 1) / buckets * (moved**2).sum(axis=0))
        expected = np.log(propensity[None, :]) - np.log(propensity[:, None])
    k, other = np.triu_indices(ranks, 1)
    x, error, expected = x[k, other], error[k, other], expected[k, other]
    told = np.flatnonzero(np.isfinite(x) & np.isfinite(error) & np.isfinite(expected) & (error > 0))
    surest = told[np.argsort(error[told], kind="stable")]
    return tuple(
        PairRatio(
            rank=int(k[i]) + 1,
            other=int(other[i]) + 1,
            ratio=float(np.exp(x[i])),
            low=float(np.exp(x[i] - _INTERVAL * error[i])),
            high=float(np.exp(x[i] + _INTERVAL * error[i])),
            expected=float(np.exp(expected[i])),
            apart=bool(abs(x[i] - expected[i]) > APART * error[i]),
        )
        for i in surest
    )


def _log_ratios(clicks: FloatArray) -> FloatArray:
    """Return log ĉ_k'^{k,k'} / ĉ_k^{k,k'} from (..., M, M); NaN where one side has no click."""
    other = np.swapaxes(clicks, -1, -2)
    return np.asarray(np.where((clicks > 0) & (other > 0), np.log(other / clicks), np.nan))
