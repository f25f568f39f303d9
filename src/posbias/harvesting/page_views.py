"""Page views n_i: what a ranker showed at its busiest position, which in whole pages is the first."""

from __future__ import annotations

import numpy as np

from posbias.arrays import AnyArray, IntArray

# With fewer page views than this, what a ranker compares is chance.
FEW_VIEWS = 30


def busiest(impressions: AnyArray) -> IntArray:
    """Return, by ranker, where (from 0) most was shown; from impressions by ranker and rank: (m, M) -> (m,)."""
    return np.asarray(np.argmax(impressions, axis=-1))


def count_page_views(impressions: AnyArray, at: IntArray | None = None) -> AnyArray:
    """Return the page views of each ranker from impressions by ranker and rank: (..., m, M) -> (..., m).

    They are counted at the busiest rank of all, or `at` other ranks: those of the log that a part belongs to.
    """
    if at is None:
        at = busiest(impressions.sum(axis=tuple(range(impressions.ndim - 2))))
    place = np.broadcast_to(at[:, None], (*impressions.shape[:-1], 1))
    return np.take_along_axis(impressions, place, axis=-1)[..., 0]
