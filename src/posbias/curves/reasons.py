"""Reasons of a curve's ranks, said once where several have the same; and segments that have more to tell than these."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posbias.curves.curve import Curve, Segment


def own_reasons(curve: Curve) -> list[str]:
    """Return what is to be said at each position alone; nothing where other ranks have the same reason."""
    shared = _shared(curve)
    return ["" if p.reason is None or p.reason in shared else p.reason for p in curve.positions]


def shared_reasons(curve: Curve) -> list[str]:
    """Return each reason that several ranks have, with these ranks."""
    return [f"Ranks {spans(ranks)}: {reason}." for reason, ranks in _shared(curve).items()]


def _shared(curve: Curve) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for p in curve.positions:
        if p.reason is not None:
            found.setdefault(p.reason, []).append(p.position)
    return {reason: ranks for reason, ranks in found.items() if len(ranks) > 1}


def spans(ranks: Sequence[int]) -> str:
    """Return increasing ranks in words.

    >>> spans([2, 3, 4, 7, 9]), spans([2, 3])
    ('2 to 4, 7 and 9', '2 and 3')
    """
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), key=lambda one: one[1] - one[0])]
    words = [word for run in runs for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def telling_segments(curve: Curve, most: int) -> dict[Segment, Curve]:
    """Return so many segments, in their order: those with most page views, of those that have a number beside rank 1.

    Where these are fewer, others follow them.
    """

    def merit(key: Segment) -> tuple[bool, int]:
        part = curve.segments[key]
        told = any(p.propensity is not None for p in part.positions if p.position > 1)
        return told, sum(part.page_views.values())

    chosen = {*sorted(curve.segments, key=merit, reverse=True)[:most]}
    return {key: part for key, part in curve.segments.items() if key in chosen}
