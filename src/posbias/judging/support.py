"""Support: what each rank of a curve hangs on: pairs of ranks, buckets of queries, documents that recur."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from posbias.arrays import FloatArray, group, tally
from posbias.curves.reasons import spans
from posbias.estimators.intervals import FEW_DEGREES
from posbias.findings import Finding
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.strata import Cells
from posbias.judging.contests import Contests, Surprises
from posbias.judging.disagreement import Refitted
from posbias.judging.trials import satterthwaite

# A bucket with more than this of a rank's variance, and so many times its share of the buckets, is named.
_HEAVY, _TIMES = 0.25, 10
# A bucket that has so many times an even share of what was shown or clicked is heavy by a query in it; by chance, with
# queries that are alike, buckets had four times at the most in trials.
_LARGE = 5.0
# Rankers that put so much of what both show at the same ranks tell little of other ranks.
_ALIKE = 0.9
# Documents of which fewer than this were shown at two ranks recur rarely.
_RARE = 0.1
_MOST_LINKS = 3


@dataclass(frozen=True)
class RankSupport:
    """What one rank hangs on.

    Attributes:
        rank: from 1.
        degrees: of freedom of its standard error: about as many as queries of equal say decide it; None if unknown.
        heaviest: the share of its variance that one bucket of queries makes.
        times: how many times an even share of all impressions, or of all clicks, that bucket has, whichever is more.
        links: the ranks that it is compared with, by their share of what is known, the largest first.
    """

    rank: int
    degrees: float | None
    heaviest: float | None
    times: float | None
    links: dict[int, float]

    @property
    def large(self) -> bool:
        """Whether its heaviest bucket has so much of what was shown or clicked that chance does not explain it."""
        return self.times is not None and self.times >= _LARGE

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return asdict(self)


def measure_support(curve: Refitted | None, surprises: Surprises | None, harvest: Harvest) -> tuple[RankSupport, ...]:
    """Return what each rank from the second on hangs on, by the deletions of a curve and the contests of a harvest."""
    ranks = harvest.max_rank
    links = links_of(surprises) if surprises is not None else [{}] * ranks
    degrees, heaviest, times = np.full((3, ranks), np.nan)
    if curve is not None:
        known = np.isfinite(curve.curve) & np.isfinite(curve.moved).all(axis=0)
        moved = np.where(known, curve.moved, 0.0)
        squares = (moved**2).sum(axis=0)
        moving = known & (squares > 1e-12)
        degrees = np.where(moving, satterthwaite(moved), np.nan)
        heaviest = np.where(moving, (moved**2).max(axis=0) / np.where(squares > 0, squares, 1), np.nan)
        # A curve that leaves buckets out does not tell which of them its deletions are.
        if len(moved) == len(harvest.buckets):
            shown = harvest.shown("bucket")
            shares = (shown / np.maximum(shown.mean(axis=1, keepdims=True), 1e-300)).max(axis=0)
            times = np.where(moving, shares[(moved**2).argmax(axis=0)], np.nan)
    told = zip(map(_plain, degrees), map(_plain, heaviest), map(_plain, times), links, strict=True)
    return tuple(RankSupport(k, *one) for k, one in enumerate(told, 1) if k > 1)


def find_weak_support(support: tuple[RankSupport, ...], harvest: Harvest, contests: Contests | None) -> list[Finding]:
    """Return what a curve hangs on that is too little, and what it hangs on at all."""
    found = [_hanging(support)]
    thin = [one for one in support if one.degrees is not None and one.degrees < FEW_DEGREES]
    if thin:
        ranks = ", ".join(str(one.rank) for one in thin)
        found.append(
            Finding(
                "thin-support",
                "warning",
                f"Few queries decide rank{'s' * (len(thin) > 1)} {ranks}: {min(one.degrees or 0 for one in thin):.1f} "
                "degrees of freedom, the least",
                len(thin),
                evidence={"ranks": [one.rank for one in thin]},
                remedy="Intervals are wider for it. Harvest a longer period, or look at what plan says.",
            )
        )
    most_usual = max(_HEAVY, _TIMES / max(len(harvest.buckets), 1))
    heavy = [one for one in support if (one.heaviest or 0) > most_usual and (one.large or one not in thin)]
    if heavy:
        found.append(_heavy(heavy, len(harvest.buckets)))
    if contests is not None:
        found += _alike(contests, harvest)
    return found + _rare(harvest)


def _heavy(heavy: list[RankSupport], buckets: int) -> Finding:
    """Return that one bucket makes much of a variance: by a query in it that is large, or by chance, of few queries."""
    large = [one for one in heavy if one.large]
    most = max(large or heavy, key=lambda one: one.heaviest or 0)
    what = f"One bucket of queries of {buckets} makes {most.heaviest:.0%} of the variance at rank {most.rank}"
    if large:
        times = f", and has {most.times:.0f} times an even share of all that was shown or clicked"
        remedy = "Look for a query, or an aggregated row, with most of the impressions: a crawler, or a test."
    else:
        times = ", though it was not shown or clicked much more than others: few queries decide that rank"
        remedy = "Chance does so where queries are few. Harvest a longer period, or look at what plan says."
    evidence = {"ranks": [one.rank for one in heavy], "times": most.times}
    return Finding("heavy-bucket", "warning", what + times, len(heavy), evidence=evidence, remedy=remedy)


def _hanging(support: tuple[RankSupport, ...]) -> Finding:
    known = {one.rank: one.degrees for one in support if one.degrees is not None}
    unknown = [one.rank for one in support if one.degrees is None]
    told = [f"{_have(known)} {min(known.values()):,.0f} degrees of freedom or more"] if known else []
    told += [f"{_have(unknown)} no standard error"] if unknown else []
    return Finding(
        "support",
        "info",
        "; ".join([*told[:1], *(text.lower() for text in told[1:])]),
        evidence={"ranks": [one.to_dict() for one in support]},
    )


def _have(ranks: Collection[int]) -> str:
    """Return the ranks that have something.

    >>> _have([2, 3, 4]), _have([7])
    ('Ranks 2 to 4 have', 'Rank 7 has')
    """
    return f"Rank{'s' * (len(ranks) > 1)} {spans(list(ranks))} {'have' if len(ranks) > 1 else 'has'}"


def links_of(surprises: Surprises) -> list[dict[int, float]]:
    """Return, for each rank, the ranks whose contests with it hold most of what is known of it, with their shares."""
    c = surprises.contests
    apart = -c.laplacian(surprises.variance)
    np.fill_diagonal(apart, 0.0)
    total = apart.sum(axis=1, keepdims=True)
    return [_largest(shares) for shares in np.divide(apart, total, out=np.zeros_like(apart), where=total > 0)]


def _largest(shares: FloatArray) -> dict[int, float]:
    order = np.argsort(-shares, kind="stable")[:_MOST_LINKS]
    return {int(k) + 1: round(float(shares[k]), 3) for k in order if shares[k] > 0}


def _alike(contests: Contests, harvest: Harvest) -> list[Finding]:
    """Return pairs of rankers that put nearly all of what both show at the same ranks."""
    size = len(harvest.rankers)
    pair = contests.first * size + contests.second
    shown = contests.shown.sum(axis=0)
    total, level = (tally(pair, values, size**2) for values in (shown, shown * contests.level))
    alike = [int(p) for p in np.flatnonzero(total) if level[p] > _ALIKE * total[p]]
    if not alike:
        return []
    most = max(alike, key=lambda p: level[p] / total[p])
    names = f"{harvest.rankers[most // size]!r} and {harvest.rankers[most % size]!r}"
    return [
        Finding(
            "alike-rankers",
            "warning",
            f"{names} put {level[most] / total[most]:.1%} of what both show at the same ranks",
            len(alike),
            evidence={"share": round(float(level[most] / total[most]), 4)},
            remedy="They tell little of the curve. Rankers that differ more make intervals narrower.",
        )
    ]


def _rare(harvest: Harvest) -> list[Finding]:
    """Return whether in replay few pairs were shown at two ranks."""
    cells = harvest.table
    if harvest.kind != "exposures" or not isinstance(cells, Cells) or not len(cells):
        return []
    seen = cells.where(cells.impressions > 0)
    first, which = group([seen.stratum])
    low, high = np.full(len(first), np.iinfo(np.int64).max), np.zeros(len(first), dtype=np.int64)
    np.minimum.at(low, which, seen.rank)
    np.maximum.at(high, which, seen.rank)
    pairs = seen.pairs[first]
    total, moved = int(pairs.sum()), int(pairs[high > low].sum())
    share = moved / max(total, 1)
    return [
        Finding(
            "few-recurring" if share < _RARE else "recurring",
            "warning" if share < _RARE else "info",
            "{moved} of {pairs} (query, document) pairs " + f"({share:.1%}) were shown at two ranks",
            moved,
            evidence={"moved": moved, "pairs": total},
            remedy="Only these are compared. Log each ranker's rank (ranks or rankings), so that queries need not "
            "recur." * (share < _RARE),
        )
    ]


def _plain(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
