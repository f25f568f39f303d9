"""The door of everything that counts the rows of a log: what cannot be counted, or is damaged, does not pass."""

from __future__ import annotations

from posbias.engines import OpenLog
from posbias.findings import Finding
from posbias.harvesting.notes import note_contradicted
from posbias.harvesting.profiles import take_profile
from posbias.harvesting.refusals import refuse_errors, refuse_unusable
from posbias.harvesting.repeats import find_repeats
from posbias.harvesting.row_counts import RowCounts
from posbias.harvesting.samples import small_sample
from posbias.harvesting.shortages import find_no_clicks
from posbias.harvesting.signatures import known_rankers
from posbias.sql import signatures as signature_sql
from posbias.sql.shown import Plan


def check_rows(opened: OpenLog, max_rank: int, *, force: bool) -> list[Finding]:
    """Refuse rows that cannot be counted and logs that are damaged, and return what else was found."""
    plan = Plan(opened.schema, opened.dialect, (), max_rank)
    profile = take_profile(opened, plan)
    refuse_unusable(opened, plan, profile.rows, profile.rows_unusable)
    findings: list[Finding] = []
    if opened.schema.layout.ranks_known:
        plan = Plan(opened.schema, opened.dialect, known_rankers(opened), max_rank)
        answer = opened.table(signature_sql.row_counts(plan), "Looking at the ranks")
        counts = RowCounts.by_code(answer["code_0"], answer["row_count"])
        refuse_unusable(opened, plan, counts.rows, counts.rows_unusable)
        findings += note_contradicted(counts)
    findings += [*find_no_clicks(profile.positions), *find_repeats(opened, plan, small_sample(opened, profile.rows))]
    refuse_errors(findings, force=force)
    return findings
