"""Traffic: which queries come, how often, and which ranker serves each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.judgments import Judgments
from posbias._arrays import IntArray
from posbias.errors import PosbiasError


def sweeps(queries: int, times: int = 1) -> IntArray:
    """Return page views that go through all queries so many times.

    Example:
        >>> sweeps(3, 2).tolist()
        [0, 1, 2, 0, 1, 2]
        >>> len(sweeps(19_944, 5))
        99720
    """
    return np.tile(np.arange(queries, dtype=np.int64), times)


def split_views(
    judgments: Judgments,
    views: IntArray,
    rankers: Sequence[str] = ("a", "b"),
    *,
    dependence: float = 0.0,
    threshold: int = 3,
    seed: int = 0,
) -> dict[str, IntArray]:
    """Give each page view to one of the rankers at random: evenly, or depending on its query.

    With a `dependence` above 0 it breaks the assumption that traffic is split independently of the query: the more
    relevant candidates a query has, the likelier it goes to the first ranker rather than the last. At 1, the query with
    the most relevant ones never goes to the last of two rankers, and the one with the fewest never to the first.

    Example:
        >>> from experiments.generated import generate_judgments
        >>> judgments = generate_judgments(1000)
        >>> views = split_views(judgments, sweeps(1000), dependence=1)
        >>> share = {name: judgments.take(ids).relevant().mean().round(2) for name, ids in views.items()}
        >>> bool(share["a"] > 1.5 * share["b"])
        True
    """
    if not rankers or not 0 <= dependence <= 1:
        raise PosbiasError(
            f"rankers must not be empty and dependence must be from 0 to 1, found {rankers!r}, {dependence!r}"
        )
    views = np.asarray(views, dtype=np.int64)
    relevant = np.bincount(judgments.query_of[judgments.relevant(threshold)], minlength=judgments.queries)
    shares = relevant / np.maximum(judgments.sizes, 1)
    # Queries by relevance, evenly from -1 to 1, so that each ranker's traffic is the same in all.
    place = np.argsort(np.argsort(shares, kind="stable"), kind="stable")
    leaning = 2 * place / max(1, judgments.queries - 1) - 1
    preference = np.linspace(1, -1, len(rankers)) if len(rankers) > 1 else np.zeros(1)
    bounds = np.cumsum(1 + dependence * leaning[views][:, None] * preference, axis=1) / len(rankers)
    # All but the last bound, which is 1 but for rounding.
    chosen = (np.random.default_rng(seed).random(len(views))[:, None] >= bounds[:, :-1]).sum(axis=1)
    return {name: views[chosen == number] for number, name in enumerate(rankers)}
