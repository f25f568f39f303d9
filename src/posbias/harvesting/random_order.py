"""Whether a ranker that is said to show results in random order does so, as far as results that it repeats tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from posbias.arrays import AnyArray, FloatArray, IntArray, group, tally
from posbias.errors import EstimateError
from posbias.findings import Finding
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.strata import Cells
from posbias.wording import listed

# With fewer pairs that were shown again nothing is said of their order.
_FEWEST_PAIRS = 20
# The share of pairs in a fixed order, beyond what chance leaves, from which an order is not quite random, and from
# which it is no random one at all.
_SOME, _MOST = 0.05, 0.5
# So many standard deviations from what chance leaves are no chance.
_SURE = 4.0


def number_of(ranker: str | None, rankers: Sequence[str]) -> int:
    """Return the number of the ranker that shows results in random order; refuse a name that is not there."""
    if ranker is None:
        raise EstimateError(f"Which ranker shows results in random order? Name one of those found: {listed(rankers)}.")
    if str(ranker) not in rankers:
        raise EstimateError(
            f"There is no ranker {ranker!r} that could show results in random order. Rankers found: {listed(rankers)}."
        )
    return rankers.index(str(ranker))


@dataclass(frozen=True)
class Repeated:
    """(Query, document) pairs that a ranker showed several times: how many, how many of them at one rank only.

    `expected` is how many of them random order leaves at one rank.
    """

    pairs: int
    fixed: int
    expected: float

    @classmethod
    def of_rows(cls, rows: Mapping[str, AnyArray]) -> Self:
        """Return those that a log's engine counted, by the last rank of their query and by views."""
        # All later views at the rank of the first.
        chance = rows["rank"].astype(np.float64) ** (1.0 - rows["views"])
        return cls._summed(rows["pairs"], rows["fixed"], chance)

    @classmethod
    def of_harvest(cls, harvest: Harvest, ranker: int) -> Self | None:
        """Return those of a harvest; None where it does not tell pairs apart."""
        if harvest.kind != "exposures" or not isinstance(harvest.table, Cells):
            return None
        cells = harvest.table.where((harvest.table.ranker == ranker) & (harvest.table.impressions > 0))
        first, stratum = group([cells.stratum])
        views = tally(stratum, cells.impressions / np.maximum(cells.pairs, 1), len(first))
        again = views > 1
        ranks = tally(stratum, np.ones(len(cells)), len(first))
        shown = tally(cells.rank - 1, cells.impressions, harvest.max_rank)
        share = shown / max(1.0, shown.sum())
        seen, which = np.unique(views[again], return_inverse=True)
        chance = np.array([(share**n).sum() for n in seen])[which]
        pairs = cells.pairs[first][again]
        return cls._summed(pairs, np.where(ranks[again] == 1, pairs, 0), chance)

    @classmethod
    def _summed(cls, pairs: IntArray, fixed: IntArray, chance: FloatArray) -> Self:
        return cls(int(pairs.sum()), int(fixed.sum()), float((pairs * chance).sum()))

    @property
    def told(self) -> bool:
        """Whether there are enough of them to tell an order."""
        return self.pairs >= _FEWEST_PAIRS

    def findings(self, ranker: str) -> list[Finding]:
        """Return what speaks against random order, if anything does."""
        beyond = self.fixed - self.expected
        share = beyond / max(self.pairs - self.expected, 1e-9)
        if not self.told or share < _SOME or beyond < _SURE * np.sqrt(self.expected + 1):
            return []
        plainly = share > _MOST
        remedy = (
            "It is a ranking, and better results stand higher: name the ranker that shows results in random order. "
            "Only if that order was drawn once for each query and kept is all well."
            if plainly
            else "Part of its pages, or some of its page views, may be ranked: then better results stand higher, and "
            "the curve falls too fast."
        )
        return [
            Finding(
                "not-random",
                "error" if plainly else "warning",
                f"{{count}} of {{pairs}} (query, document) pairs that {ranker!r} showed several times always stood at "
                "one rank, where random order leaves {expected}",
                self.fixed,
                evidence={"pairs": self.pairs, "expected": round(self.expected)},
                remedy=remedy,
            )
        ]
