"""A look at a log: what every finder of its problems is given, each thing counted once and only if asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from posbias.engines import OpenLog
from posbias.findings import Finding, any_error
from posbias.harvesting.defects import find_bad_rankings, find_defects
from posbias.harvesting.interleaving import find_interleaved
from posbias.harvesting.mixed_files import find_mixed_files
from posbias.harvesting.profiles import Profile
from posbias.harvesting.row_counts import RowCounts
from posbias.harvesting.set_sizes import Pairs, count_pairs_of
from posbias.judging.contradictions import find_contradictions
from posbias.sql.shown import Plan


@dataclass(frozen=True)
class Look:
    """An opened log, what to ask of it, and what a first look at its rows told: which of them can be counted, too."""

    opened: OpenLog
    plan: Plan
    profile: Profile
    counts: RowCounts

    @cached_property
    def mixed_files(self) -> list[Finding]:
        """Columns on which the files of the log disagree."""
        return find_mixed_files(self.opened)

    @cached_property
    def defects(self) -> list[Finding]:
        """What is wrong with single rows, which are looked at one by one only if anything is."""
        if self.counts.rows_unusable or self.lacks_ids:
            return find_defects(self.opened, self.plan)
        return find_bad_rankings(self.opened)

    @cached_property
    def lacks_ids(self) -> bool:
        """Whether rows lack the id of a query, a document or, where the log has one, a page view."""
        schema, d = self.plan.schema, self.plan.dialect
        names = [name for name in (schema.query, schema.doc, schema.impression) if name is not None]
        counts = ", ".join(f"COUNT({d.known(d.quote(name), schema.types[name])})" for name in names)
        rows, *found = self.opened.rows(f"SELECT COUNT(*), {counts} FROM log", "Looking for ids")[0]
        return any(n < rows for n in found)

    @cached_property
    def contradictions(self) -> list[Finding]:
        """Rows that are shown where their own ranker does not put them."""
        if not self.counts.rows_contradicted or any_error([*self.mixed_files, *self.defects]):
            return []
        interleaved = find_interleaved(self.opened, self.plan, self.counts)
        return interleaved or find_contradictions(self.opened, self.plan)

    @cached_property
    def pairs(self) -> Pairs | None:
        """How many pairs there are and lie at different ranks; None where rows are too defective to count."""
        if any_error([*self.mixed_files, *self.defects, *self.contradictions]):
            return None
        return count_pairs_of(self.opened, self.plan, self.profile.rankers, self.counts)
