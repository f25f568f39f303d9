"""Where rankers showed fewer results than their traffic promised: pages that end above a rank, or begin below it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from posbias.arrays import FloatArray, tally
from posbias.harvesting.strata import Cells

# Less than so much of what was promised is short, if it is more than chance would leave out.
_SHORT, _SIGMAS = 0.9, 6.0


class Short(NamedTuple):
    """What a ranker, by number, showed at a rank, and what was promised."""

    ranker: int
    rank: int
    shown: int
    promised: float


def find_short(cells: Cells, views: FloatArray, max_rank: int) -> list[Short]:
    """Return where rankers showed too little, the shortest first; `views` are the page views of each.

    Promised is what the pairs of a stratum had in all, shared by traffic among the rankers that rank them.
    """
    strata = int(cells.stratum.max(initial=-1)) + 1
    total = tally(cells.stratum, cells.impressions, strata)
    traffic = tally(cells.stratum, views[cells.ranker], strata)
    promised = np.divide(total, traffic, out=np.zeros(strata), where=traffic > 0)[cells.stratum] * views[cells.ranker]
    several = np.bincount(cells.stratum, minlength=strata)[cells.stratum] > 1
    where = cells.ranker * max_rank + cells.rank - 1
    size = len(views) * max_rank
    shown, wanted = (tally(where[several], values[several], size) for values in (cells.impressions, promised))
    short = (shown < _SHORT * wanted) & (wanted - shown > _SIGMAS * np.sqrt(np.maximum(wanted, 1)))
    found = (
        Short(i // max_rank, i % max_rank + 1, int(shown[i]), float(wanted[i])) for i in np.flatnonzero(short).tolist()
    )
    return sorted(found, key=lambda one: one.shown / one.promised)
