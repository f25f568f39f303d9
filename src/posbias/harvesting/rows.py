"""The door of everything that counts the rows of a log: what cannot be counted, or is damaged, does not pass."""

from __future__ import annotations

from posbias.engines import OpenLog
from posbias.findings import Finding
from posbias.harvesting.interleaving import find_interleaved
from posbias.harvesting.notes import note_contradicted
from posbias.harvesting.refusals import refuse_errors, refuse_unusable
from posbias.harvesting.repeats import find_repeats
from posbias.harvesting.row_counts import count_rows
from posbias.harvesting.samples import small_sample
from posbias.harvesting.shortages import find_no_clicks
from posbias.harvesting.signatures import known_rankers
from posbias.sql.shown import Plan


def check_rows(opened: OpenLog, max_rank: int, *, force: bool) -> list[Finding]:
    """Refuse rows that cannot be counted and logs that are damaged, and return what else was found."""
    plan = Plan(opened.schema, opened.dialect, known_rankers(opened), max_rank)
    profile, counts = count_rows(opened, plan)
    refuse_unusable(opened, plan, counts.rows, counts.rows_unusable)
    sample = small_sample(opened, profile.rows)
    repeats = find_repeats(opened, plan, sample)
    left_out = find_interleaved(opened, plan, counts, sample) or note_contradicted(counts)
    findings = [*left_out, *find_no_clicks(profile.positions), *repeats]
    refuse_errors(findings, force=force)
    return findings
