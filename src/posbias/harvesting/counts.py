"""What a harvest is asked for, and what counting gives: the two ends of every way to count."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from posbias.engines import OpenLog
from posbias.findings import Finding
from posbias.harvesting.row_counts import RowCounts
from posbias.logs.layouts import Layout
from posbias.logs.weightings import Weighting
from posbias.sql.shown import Plan

if TYPE_CHECKING:
    from posbias.harvesting.strata import Cells, PairSums

# What a harvest's table holds: strata by signature or by observed exposure, or sums where strata do not compress.
Kind = Literal["signatures", "exposures", "pairs"]
# Beyond this many rows of strata a harvest keeps sums over interventional sets instead.
MAX_STRATA = 2_000_000
# What a harvest can hold: top ranks (tables are of M × M), segments (each is estimated by itself), rankers, and in all
# its rows impressions, which numbers of 64 bits count exactly.
MOST_RANKS = 1_000
MOST_SEGMENTS = 10_000
MOST_RANKERS = 100_000
MOST_COUNT = 2**53


def kind_of(layout: Layout, weighting: Weighting) -> Kind:
    """Return what is counted: by signature where ranks are known, unless pairs are to be told apart."""
    return "signatures" if layout.ranks_known and weighting == "traffic" else "exposures"


@dataclass(frozen=True)
class Settings:
    """What a harvest was asked for."""

    max_rank: int
    by: tuple[str, ...]
    weighting: Weighting
    non_functional: str
    max_strata: int

    def plan(self, opened: OpenLog, rankers: Sequence[str]) -> Plan:
        """Return what to ask of the log."""
        return Plan(opened.schema, opened.dialect, tuple(rankers), self.max_rank, self.by)


@dataclass(frozen=True)
class Counted:
    """What was counted of a log."""

    kind: Kind
    rankers: tuple[str, ...]
    segments: list[tuple[str | None, ...]]
    # The table, or where it will be: it may be made while the engine is asked for something else.
    made: Cells | PairSums | Future[Cells]
    rows: RowCounts
    findings: list[Finding]

    @property
    def table(self) -> Cells | PairSums:
        """The counts themselves."""
        return self.made.result() if isinstance(self.made, Future) else self.made
