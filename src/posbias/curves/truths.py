"""The truth beside a curve, where it is known: of a simulated log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from posbias.arguments import number
from posbias.errors import CurveError

if TYPE_CHECKING:
    from posbias.curves.curve import Curve


def known_truth(truth: object, curves: Sequence[Curve]) -> list[float]:
    """Return the true propensities from rank 1 on; refuse what is none, or ends above a rank that has a number."""
    listed = hasattr(truth, "__iter__") and not isinstance(truth, str | bytes | Mapping)
    found = [number(value) for value in truth] if listed else [None]  # type: ignore[attr-defined]
    deepest = max((p.position for one in curves for p in one.positions if p.propensity is not None), default=1)
    told = [value for value in found if value is not None]
    if len(told) < max(len(found), deepest):
        raise CurveError(f"truth must be a list of numbers, one for each rank from 1 to {deepest}, not {truth!r}.")
    return told
