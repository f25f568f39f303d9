"""Which ranks can be compared with rank 1: those that chains of clicks lead to.

Reference: Chen et al., Identifiability Matters, arXiv 2309.15560, 2023.
"""

from __future__ import annotations

import numpy as np

from posbias.arrays import BoolArray, FloatArray, IntArray


def linked(keys: IntArray, ranks: int) -> BoolArray:
    """Return which ranks are linked, k M + l saying that k is to l: (M, M)."""
    links = np.zeros(ranks * ranks, dtype=np.bool_)
    links[keys] = True
    return links.reshape(ranks, ranks)


def curve_of(x: FloatArray, links: BoolArray) -> FloatArray:
    """Return p_k / p_1 from log p; NaN where nothing connects k to rank 1, 0 where it was never clicked."""
    compared = component(links)
    # A rank without a click, beside ranks that have a number.
    never = ~links.any(axis=1) & links[compared].any(axis=0)
    return np.where(compared, np.exp(x), np.where(never, 0.0, np.nan))


def component(links: BoolArray) -> BoolArray:
    """Return which ranks chains of clicks connect with rank 1, both there and back; none if rank 1 has no link."""
    found = reachable(links) & reachable(links.T)
    return found if found.sum() > 1 else np.zeros_like(found)


def reachable(links: BoolArray) -> BoolArray:
    """Return which ranks a chain of links leads to from rank 1."""
    found: BoolArray = np.arange(len(links)) == 0
    while not np.array_equal(found, further := np.asarray(found | links[found].any(axis=0))):
        found = further
    return found
