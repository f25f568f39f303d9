"""Where rankers showed fewer results than their traffic promised.

At some ranks: pages that end above a rank, or begin below it. At all of them together: traffic that was not what it is
in all, wherever a document is ranked as it is; a ranker took another's place, or its ranks were not logged at first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from posbias.arrays import BoolArray, FloatArray, IntArray, tally
from posbias.harvesting.strata import Cells

# Less than so much of what was promised is short, if chance, by which queries went to which ranker, would not do it.
_SHORT, _SIGMAS = 0.9, 5.0
# Over all ranks together, what pages leave out by their length evens out.
_UNEVEN = 0.85


class Short(NamedTuple):
    """What a ranker, by number, showed at a rank, and what was promised."""

    ranker: int
    rank: int
    shown: int
    promised: float


class Uneven(NamedTuple):
    """What a ranker, by number, showed of all that others rank too, and what was promised."""

    ranker: int
    shown: int
    promised: float


def find_short(cells: Cells, views: FloatArray, max_rank: int) -> list[Short]:
    """Return where rankers showed too little, the shortest first; `views` are the page views of each.

    Promised is what the pairs of a stratum had in all, shared by traffic among the rankers that rank them.
    """
    found = _Compared.of(cells, views, cells.ranker * max_rank + cells.rank - 1, len(views) * max_rank)
    short = [
        Short(i // max_rank, i % max_rank + 1, int(found.shown[i]), float(found.promised[i]))
        for i in np.flatnonzero(found.short(_SHORT)).tolist()
    ]
    return sorted(short, key=lambda one: one.shown / one.promised)


def find_uneven(cells: Cells, views: FloatArray) -> Uneven | None:
    """Return the ranker that showed least of what its traffic promised, over all ranks, if that is too little."""
    found = _Compared.of(cells, views, cells.ranker, len(views))
    short = found.short(_UNEVEN)
    if not short.any():
        return None
    least = int(np.argmin(np.where(short, found.shown / np.maximum(found.promised, 1), np.inf)))
    return Uneven(least, int(found.shown[least]), float(found.promised[least]))


class _Compared(NamedTuple):
    """What was shown and what was promised, of strata that several rankers rank, and how far chance goes."""

    shown: FloatArray
    promised: FloatArray
    chance: FloatArray

    @classmethod
    def of(cls, cells: Cells, views: FloatArray, where: IntArray, size: int) -> _Compared:
        """Return sums as `where` says. What a bucket is off by is chance: its queries may have gone to one ranker."""
        strata = int(cells.stratum.max(initial=-1)) + 1
        total = tally(cells.stratum, cells.impressions, strata)
        traffic = tally(cells.stratum, views[cells.ranker], strata)
        each = np.divide(total, traffic, out=np.zeros(strata), where=traffic > 0)
        several = np.bincount(cells.stratum, minlength=strata)[cells.stratum] > 1
        shown = np.where(several, cells.impressions, 0).astype(np.float64)
        promised = np.where(several, each[cells.stratum] * views[cells.ranker], 0.0)
        places, place = np.unique(cells.bucket * size + where, return_inverse=True)
        off = tally(place, shown - promised, len(places))
        return cls(tally(where, shown, size), tally(where, promised, size), np.sqrt(tally(places % size, off**2, size)))

    def short(self, share: float) -> BoolArray:
        """Return where less than a share of what was promised was shown, by more than chance."""
        return (self.shown < share * self.promised) & (self.promised - self.shown > _SIGMAS * self.chance)
