"""A look at a log: what every finder of its problems is given, each thing counted once and only if asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from posbias.engines import OpenLog
from posbias.findings import Finding, any_error
from posbias.harvesting.defects import find_defects
from posbias.harvesting.mixed_files import find_mixed_files
from posbias.harvesting.profiles import Profile
from posbias.harvesting.set_sizes import Sets, count_sets
from posbias.judging.contradictions import find_contradictions
from posbias.sql.shown import Plan


@dataclass(frozen=True)
class Look:
    """An opened log, what to ask of it, and what a first look at its rows told."""

    opened: OpenLog
    plan: Plan
    profile: Profile

    @cached_property
    def mixed_files(self) -> list[Finding]:
        """Columns on which the files of the log disagree."""
        return find_mixed_files(self.opened)

    @cached_property
    def defects(self) -> list[Finding]:
        """What is wrong with single rows."""
        return find_defects(self.opened, self.plan)

    @cached_property
    def contradictions(self) -> list[Finding]:
        """Rows that are shown where their own ranker does not put them."""
        if not self.plan.rankers or any_error([*self.mixed_files, *self.defects]):
            return []
        return find_contradictions(self.opened, self.plan)

    @cached_property
    def sets(self) -> Sets | None:
        """The sizes of the interventional sets; None where rows are too defective to count."""
        if any_error([*self.mixed_files, *self.defects, *self.contradictions]):
            return None
        return count_sets(self.opened, self.plan.max_rank)
