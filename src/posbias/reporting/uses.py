"""What one does with a curve: the weights it gives to clicks, and what they are worth."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from posbias.curves.curve import Curve

# The most that a click counts, as `posbias.learning.weights` has it, whose import would bring the engine along.
CAP = 20.0


@dataclass(frozen=True)
class RankWeight:
    """The weight of a click at one rank: p_1 / p_k, no more than the cap; None where p_k is not known or 0.

    Where there are segments, it is the mean over clicks, and `capped` if any of them was.
    """

    rank: int
    weight: float | None
    clicks: int
    capped: bool


@dataclass(frozen=True)
class Weights:
    """The inverse propensity weights of the clicks that a curve was made of, of each segment by its own curve.

    Attributes:
        cap: the most that a click counts.
        ranks: the weight of a click at each rank.
        clicks: those that have a weight.
        effective_clicks: as many clicks of equal weight would be as good: (Σ w)² / Σ w².
        capped_share: the share of the weight that the cap took off.
        without: clicks at ranks without a weight.
        by: the segment columns, if any.
    """

    cap: float
    ranks: tuple[RankWeight, ...]
    clicks: int
    effective_clicks: float
    capped_share: float
    without: int
    by: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """How much of the clicks is left: the effective ones among those that have a weight."""
        return self.effective_clicks / self.clicks if self.clicks else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return them as plain data."""
        return asdict(self) | {"ranks": [asdict(one) for one in self.ranks]}


def weigh(curve: Curve, cap: float = CAP) -> Weights:
    """Return the weights of a curve's own clicks.

    >>> from posbias.curves.curve import Position
    >>> at = [Position(1, 1.0, None, None, 50, 30, None), Position(2, 0.5, None, None, 50, 10, None)]
    >>> found = weigh(Curve("x", 2, None, None, None, tuple(at), {}))
    >>> [one.weight for one in found.ranks], round(found.effective_clicks, 2)
    ([1.0, 2.0], 35.71)
    """
    parts = curve.segments.values() if curve.by else (curve,)
    at: dict[int, list[tuple[int, float]]] = {p.position: [] for p in curve.positions}
    for part in parts:
        for p in part.positions:
            if p.propensity:
                at[p.position].append((p.clicks, 1 / p.propensity))
    every = {p.position: p.clicks for p in curve.positions}
    ranks = tuple(
        RankWeight(rank, _mean([(n, min(w, cap)) for n, w in own]), every[rank], any(w > cap for _, w in own))
        for rank, own in at.items()
    )
    known = [(n, min(w, cap), w) for own in at.values() for n, w in own]
    clicks = sum(n for n, _, _ in known)
    total, squares = sum(n * w for n, w, _ in known), sum(n * w * w for n, w, _ in known)
    uncapped = sum(n * w for n, _, w in known)
    return Weights(
        cap=cap,
        ranks=ranks,
        clicks=clicks,
        effective_clicks=total**2 / squares if squares else 0.0,
        capped_share=1 - total / uncapped if uncapped else 0.0,
        # Those of a segment without a curve are among them.
        without=sum(every.values()) - clicks,
        by=curve.by,
    )


def _mean(weights: list[tuple[int, float]]) -> float | None:
    """Return the mean weight over clicks, or where there are none over segments."""
    clicks = sum(n for n, _ in weights)
    if clicks:
        return sum(n * w for n, w in weights) / clicks
    return sum(w for _, w in weights) / len(weights) if weights else None
