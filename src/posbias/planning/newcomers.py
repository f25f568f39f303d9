"""A ranker that nobody has seen yet: as like the present ones as they are like each other.

Ranks are taken for those of scores that share one factor, z_i = √ρ f + √(1−ρ) e_i with normal f and e, among L
candidates. A newcomer's score given those of m others is then normal, with mean ρ Σz / (1 + (m−1)ρ) and variance
1 − mρ² / (1 + (m−1)ρ). ρ and L are those with which it differs from the others as they do from each other: as far on
average where both rank a document, and as often where only one does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from posbias.arrays import FloatArray, IntArray, tally
from posbias.planning.twins import Twin

# Candidates of a query, as multiples of M, among which the likeliest is looked for.
_POOLS = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)
_HALVINGS = 12
# Documents of a row, where it is not known how many queries there are.
_VIEWS_OF_QUERY = 10


@dataclass(frozen=True)
class Likeness:
    """How alike two rankers are on the documents that one of them puts in the top M.

    Attributes:
        apart: by how many ranks they differ, on average, where both have the document in their top M.
        shared: how often the other has it there, too.
    """

    apart: float
    shared: float


def likeness(one: IntArray, other: IntArray, views: FloatArray) -> Likeness:
    """Return how alike two rankers are, from the ranks they give to documents, 0 beyond M."""
    both, either = (one > 0) & (other > 0), (views * (one > 0)).sum() + (views * (other > 0)).sum()
    shared = 2 * views[both].sum()
    apart = (views[both] * np.abs(one - other)[both]).sum() / max(shared / 2, 1e-300)
    return Likeness(float(apart), float(shared / max(either, 1e-300)))


def mean_likeness(ranks: IntArray, views: FloatArray, newcomer: IntArray | None = None) -> Likeness:
    """Return the likeness of any two rankers, or of a newcomer to each of them, on average."""
    m = ranks.shape[1]
    if newcomer is None:
        found = [likeness(ranks[:, i], ranks[:, j], views) for i in range(m) for j in range(i)]
    else:
        # What only the newcomer ranks was never shown: as many as the others' that it leaves out.
        found = []
        for i in range(m):
            own = ranks[:, i] > 0
            found.append(likeness(ranks[own, i], newcomer[own], views[own]))
        found = [Likeness(each.apart, each.shared / max(2 - each.shared, 1e-300)) for each in found]
    return Likeness(float(np.mean([each.apart for each in found])), float(np.mean([each.shared for each in found])))


def joined_by_newcomer(twin: Twin, queries: int | None, rng: np.random.Generator) -> Twin:
    """Return the twin with one more ranker, which draws its ranks of every document."""
    each = _VIEWS_OF_QUERY if queries is None else max(1.0, twin.harvest.views.sum() / queries)
    documents = np.maximum(1, np.rint(twin.views / each)).astype(np.int64)
    row = np.repeat(np.arange(len(twin.bucket)), documents)
    ranks, views = twin.ranks[row], twin.views[row] / documents[row]
    newcomer = _drawn_alike(ranks, views, len(twin.propensity), rng)
    # Documents of one bucket that all rankers treat alike are one row again, so that it has all their clicks.
    m = twin.rankers
    key = row * (len(twin.propensity) + 1) + newcomer
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    kept = row[first]
    ranks, views = np.concatenate([ranks[first], newcomer[first][:, None]], axis=1), tally(which, views, len(first))
    clicks = _as_relevant(ranks, views, twin.clicks[kept], len(twin.propensity))
    return replace(twin, bucket=twin.bucket[kept], ranks=ranks.reshape(-1, m + 1), views=views, clicks=clicks)


def _as_relevant(ranks: IntArray, views: FloatArray, clicks: FloatArray, most: int) -> FloatArray:
    """Return clicks and misses so that the newcomer, the last ranker, finds as relevant documents for each rank.

    It knows more of a document than the others' ranks tell: of those that they treat alike, it puts the better first.
    """
    weight = clicks.sum(axis=1)
    relevance = clicks[:, 0] / weight
    size = most + 1
    found, among = (np.stack([tally(own, values, size) for own in ranks.T]) for values in (views * relevance, views))
    present = found[:-1].sum(axis=0) / np.maximum(among[:-1].sum(axis=0), 1e-300)
    gain = np.where(
        (found[-1] > 0) & (present > 0), present / np.maximum(found[-1] / np.maximum(among[-1], 1e-300), 1e-300), 1.0
    )
    # What the newcomer leaves out is as much less relevant as what it ranks is more.
    rest = found[-1][0]
    gain[0] = np.clip(1 - (found[-1][1:] @ (gain[1:] - 1)) / rest, 0.1, 10) if rest > 0 else 1.0
    tilted = np.clip(relevance * gain[ranks[:, -1]], 1e-9, 1 - 1e-9)
    return np.stack([weight * tilted, weight * (1 - tilted)], axis=1)


def _drawn_alike(ranks: IntArray, views: FloatArray, most: int, rng: np.random.Generator) -> IntArray:
    """Return the ranks of a newcomer that is to the rankers as they are to each other."""
    wanted = mean_likeness(ranks, views)
    place, noise = rng.random(ranks.shape), rng.standard_normal(len(ranks))
    best, off = np.zeros(len(ranks), dtype=np.int64), np.inf
    for times in _POOLS:
        pool = times * most
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            rho = (low + high) / 2
            drawn = newcomer_ranks(ranks, most, pool, rho, place, noise)
            low, high = (low, rho) if mean_likeness(ranks, views, drawn).apart < wanted.apart else (rho, high)
        found = abs(mean_likeness(ranks, views, drawn).shared - wanted.shared)
        if found < off:
            best, off = drawn, found
    return best


def newcomer_ranks(
    ranks: IntArray, most: int, pool: float, rho: float, place: FloatArray, noise: FloatArray
) -> IntArray:
    """Return a newcomer's rank of each document, 0 beyond `most`, given those by the others among `pool` candidates."""
    from scipy.special import ndtr, ndtri

    m = ranks.shape[1]
    # Beyond M a document is anywhere; within its rank, too.
    beyond = most + place * max(pool - most, 0.5)
    z = -ndtri(np.where(ranks > 0, ranks - 1 + place, beyond) / max(pool, most + 0.5))
    z = np.clip(z, -5, 5)
    spread = 1 + (m - 1) * rho
    score = rho * z.sum(axis=1) / spread + np.sqrt(max(1 - m * rho**2 / spread, 0)) * noise
    rank = np.floor(max(pool, most + 0.5) * ndtr(-score)).astype(np.int64) + 1
    return np.where(rank <= most, rank, 0)
