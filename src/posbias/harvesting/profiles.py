"""What a first look at a log tells: rows, impressions and clicks by ranker and position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from posbias.engines import OpenLog
from posbias.logs.bounds import refuse_rankers, refuse_sums
from posbias.sql import exposures as exposure_sql
from posbias.sql.shown import Plan


class Entry(NamedTuple):
    """What one ranker showed at one position: 0 stands for those beyond M, -1 for rows that cannot be counted."""

    ranker: str | None
    position: int
    rows: int
    impressions: int
    clicks: int


class Shown(NamedTuple):
    """What was shown at one position."""

    position: int
    impressions: int
    clicks: int


@dataclass(frozen=True)
class Profile:
    """Rows, impressions and clicks by ranker and position."""

    entries: tuple[Entry, ...]

    @property
    def rows(self) -> int:
        """Rows in all."""
        return sum(entry.rows for entry in self.entries)

    @property
    def rows_counted(self) -> int:
        """Rows within the top M."""
        return sum(entry.rows for entry in self.entries if entry.position > 0)

    @property
    def rows_beyond(self) -> int:
        """Rows beyond the top M."""
        return sum(entry.rows for entry in self.entries if entry.position == 0)

    @property
    def rows_unusable(self) -> int:
        """Rows that cannot be counted."""
        return sum(entry.rows for entry in self.entries if entry.position < 0)

    @cached_property
    def rankers(self) -> tuple[str, ...]:
        """The rankers that were shown, sorted."""
        return tuple(sorted({entry.ranker for entry in self.entries if entry.ranker is not None}))

    @property
    def impressions(self) -> int:
        """Impressions in all."""
        return sum(entry.impressions or 0 for entry in self.entries)

    @property
    def most(self) -> int:
        """The most impressions that one ranker has at one position of the top M."""
        return max((entry.impressions for entry in self.entries if entry.position > 0), default=0)

    @cached_property
    def positions(self) -> tuple[Shown, ...]:
        """What was shown at each position of the top M, all rankers together."""
        found: dict[int, Shown] = {}
        for entry in self.entries:
            if entry.position > 0:
                so_far = found.get(entry.position, Shown(entry.position, 0, 0))
                found[entry.position] = Shown(
                    entry.position, so_far.impressions + entry.impressions, so_far.clicks + entry.clicks
                )
        return tuple(found[position] for position in sorted(found))

    @cached_property
    def page_views(self) -> dict[str, int]:
        """The page views of each ranker."""
        import numpy as np

        from posbias.harvesting.page_views import count_page_views

        depth = max((entry.position for entry in self.entries), default=0)
        impressions = np.zeros((len(self.rankers), max(depth, 1)), dtype=np.int64)
        for entry in self.entries:
            if entry.position > 0 and entry.ranker is not None:
                impressions[self.rankers.index(entry.ranker), entry.position - 1] += entry.impressions
        return dict(zip(self.rankers, count_page_views(impressions).tolist(), strict=True))


def take_profile(opened: OpenLog, plan: Plan) -> Profile:
    """Look at the rows of a log."""
    found = opened.rows(exposure_sql.profile(plan), "Looking at the rankers")
    profile = Profile(tuple(Entry(*row) for row in found))
    refuse_rankers(opened.schema, profile.rankers)
    refuse_sums(opened.schema, profile.impressions)
    return profile
