"""Fewer ranks where there are more than a page has room for: the first, and then some of the others."""

from __future__ import annotations

from dataclasses import replace

from posbias.curves.curve import Curve
from posbias.reporting.uses import Weights

# So many ranks are drawn and told of, half of them the first.
_MOST = 50


def spread(ranks: int, most: int = _MOST) -> list[int]:
    """Return places from 0: all of them or, where there are too many, the first and then every so many to the last.

    >>> spread(4), spread(100, most=6)
    ([0, 1, 2, 3], [0, 1, 2, 34, 67, 99])
    """
    if ranks <= most:
        return list(range(ranks))
    first = most // 2
    rest = most - first
    return [*range(first), *(first - 1 + round((ranks - first) * step / rest) for step in range(1, rest + 1))]


def thin_curve(curve: Curve) -> Curve:
    """Return a curve with no more ranks than there is room for, those of its segments likewise."""
    kept = spread(len(curve.positions))
    if len(kept) == len(curve.positions):
        return curve
    covariance = curve.covariance
    return replace(
        curve,
        positions=tuple(curve.positions[place] for place in kept),
        covariance=None if covariance is None else tuple(tuple(covariance[i][j] for j in kept) for i in kept),
        segments={key: thin_curve(part) for key, part in curve.segments.items()},
    )


def thin_weights(weights: Weights) -> Weights:
    """Return weights with no more ranks than there is room for; what is told of all of them stays."""
    return replace(weights, ranks=tuple(weights.ranks[place] for place in spread(len(weights.ranks))))
