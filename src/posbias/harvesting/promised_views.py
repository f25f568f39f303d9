"""Where rankers showed fewer results than their traffic promised.

At some ranks: pages that end above a rank, or begin below it. At all of them together: traffic that was not what it is
in all, wherever a document is ranked as it is; a ranker took another's place, or its ranks were not logged at first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from posbias.arrays import FloatArray, IntArray, group, tally
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


class Promised(NamedTuple):
    """What was shown and what was promised, of strata that several rankers rank, by bucket, ranker and rank from 0.

    Promised is what the pairs of a stratum had in all, shared by traffic among the rankers that rank them.
    """

    bucket: IntArray
    ranker: IntArray
    rank: IntArray
    shown: FloatArray
    promised: FloatArray

    @classmethod
    def of(cls, cells: Cells, views: FloatArray) -> Promised:
        """Return them of cells; `views` are the page views of each ranker."""
        strata = int(cells.stratum.max(initial=-1)) + 1
        total = tally(cells.stratum, cells.impressions, strata)
        traffic = tally(cells.stratum, views[cells.ranker], strata)
        each = np.divide(total, traffic, out=np.zeros(strata), where=traffic > 0)
        several = np.bincount(cells.stratum, minlength=strata)[cells.stratum] > 1
        first, which = group([cells.bucket, cells.ranker, cells.rank])
        shown = tally(which, np.where(several, cells.impressions, 0), len(first))
        promised = tally(which, np.where(several, each[cells.stratum] * views[cells.ranker], 0.0), len(first))
        return cls(cells.bucket[first], cells.ranker[first], cells.rank[first] - 1, shown, promised)

    def short(self) -> list[Short]:
        """Return where rankers showed too little, the shortest first."""
        ranks = int(self.rank.max(initial=0)) + 1
        found = [
            Short(place // ranks, place % ranks + 1, int(shown), promised)
            for place, shown, promised in self._short(self.ranker * ranks + self.rank, _SHORT)
        ]
        return sorted(found, key=lambda one: one.shown / one.promised)

    def uneven(self) -> Uneven | None:
        """Return the ranker that showed least of what its traffic promised, over all ranks, if that is too little."""
        found = (Uneven(ranker, int(shown), promised) for ranker, shown, promised in self._short(self.ranker, _UNEVEN))
        return min(found, key=lambda one: one.shown / max(one.promised, 1), default=None)

    def _short(self, where: IntArray, share: float) -> list[tuple[int, float, float]]:
        """Return the places where less than a share of what was promised was shown, by more than chance, with both.

        What a bucket is off by is chance: its queries may have gone to one ranker.
        """
        size = int(where.max(initial=-1)) + 1
        shown, promised = (tally(where, values, size) for values in (self.shown, self.promised))
        first, which = group([self.bucket, where])
        off = tally(which, self.shown - self.promised, len(first))
        chance = np.sqrt(tally(where[first], off**2, size))
        short = np.flatnonzero((shown < share * promised) & (promised - shown > _SIGMAS * chance))
        return [(int(place), float(shown[place]), float(promised[place])) for place in short]
