"""How much each (query, document) pair counts in a comparison of two ranks."""

from __future__ import annotations

from typing import Literal

Weighting = Literal["traffic", "uniform", "harmonic"]
WEIGHTINGS: tuple[Weighting, ...] = ("traffic", "uniform", "harmonic")


def default_weighting(*, ranks_known: bool) -> Weighting:
    """Return the paper's weighting where ranks are known (wide, long), else one that is unbiased without them."""
    return "traffic" if ranks_known else "harmonic"
