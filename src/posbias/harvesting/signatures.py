"""Counting where every ranker's rank is known (wide, long): by signature and ranker shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posbias.engines import OpenLog
from posbias.findings import Finding
from posbias.harvesting.counts import Counted, Settings
from posbias.harvesting.interleaving import find_interleaved
from posbias.harvesting.mixed_files import find_mixed_files
from posbias.harvesting.notes import note_contradicted
from posbias.harvesting.one_sided_ranks import note_one_sided
from posbias.harvesting.refusals import refuse_unusable
from posbias.harvesting.row_counts import RowCounts, trust_ranks
from posbias.harvesting.samples import small_sample
from posbias.harvesting.several_ranks import find_several_ranks
from posbias.harvesting.unranked import explain_unranked
from posbias.logs.bounds import refuse_rankers, refuse_sums
from posbias.sql import signatures as signature_sql
from posbias.sql.shown import Plan

if TYPE_CHECKING:
    from posbias.engines.answers import Answer


def known_rankers(opened: OpenLog) -> tuple[str, ...]:
    """Return the rankers whose ranks are known: those of the rank columns, or of the rankings table."""
    rankers = tuple(opened.schema.rank_columns)
    if opened.schema.layout.ranks_in == "table":
        name = opened.dialect.as_text(opened.dialect.quote(opened.schema.ranker))
        rankers = tuple(sorted(row[0] for row in opened.rows(f"SELECT DISTINCT {name} FROM rankings") if row[0]))
    refuse_rankers(opened.schema, rankers)
    return rankers


def count_signatures(opened: OpenLog, settings: Settings) -> Counted:
    """Count in one scan, in which rows that cannot be counted come back as groups of their own."""
    plan = trust_ranks(opened, settings.plan(opened, known_rankers(opened)))
    sql = signature_sql.signatures(plan)
    if signature_sql.most_signatures(plan) <= settings.max_strata:
        # Sums take several times the room of counts: such a table is for counts.
        answer: Answer | None = opened.table(sql, "Harvesting", few_groups=not plan.schema.aggregated)
    else:
        answer = opened.table_up_to(sql, settings.max_strata, "Harvesting")
    if answer is None:
        return _sum_signatures(opened, plan)
    from posbias.engines.answers import segment_numbers, select
    from posbias.harvesting.strata import cells_from_signatures

    counts = _count_rows(opened, plan, answer)
    good = select(answer, answer["code_0"] >= 0)
    segment, segments = segment_numbers(good, plan.segments)
    cells = cells_from_signatures(good, segment, plan.coding)
    # A second table tells ranks whoever was shown.
    one_sided = note_one_sided(cells, plan.rankers) if plan.schema.layout.ranks_in == "columns" else []
    findings = [*_notes(opened, plan, counts), *one_sided]
    return Counted("signatures", plan.rankers, segments, cells, counts, findings)


def _count_rows(opened: OpenLog, plan: Plan, answer: Answer) -> RowCounts:
    """Count the rows that are in the harvest and those that are not; refuse those that cannot be."""
    counts = RowCounts.by_code(answer["code_0"], answer["row_count"])
    if opened.schema.aggregated:
        refuse_sums(opened.schema, sum(map(int, answer["impressions"].tolist())))
    refuse_unusable(opened, plan, counts.rows, counts.rows_unusable)
    return counts


def _sum_signatures(opened: OpenLog, plan: Plan) -> Counted:
    """Sum over interventional sets, where there are more signatures than are worth keeping."""
    from posbias.engines.answers import select
    from posbias.harvesting.strata import busiest_ranks, pair_sums

    totals = opened.table(signature_sql.signature_totals(plan), "Counting page views")
    counts = _count_rows(opened, plan, totals)
    totals = select(totals, totals["code_0"] >= 0)
    sums = opened.table(signature_sql.signature_pair_sums(plan, busiest_ranks(totals, len(plan.rankers))), "Summing")
    table, segments = pair_sums(totals, sums, plan.segments)
    return Counted("pairs", plan.rankers, segments, table, counts, _notes(opened, plan, counts))


def _notes(opened: OpenLog, plan: Plan, counts: RowCounts) -> list[Finding]:
    """Return what is said of rows that are left out, and of files that lack a ranker's column if that may be why.

    A second table may tell several ranks, of which none is known; in rows where another ranker was shown, only it
    tells.
    """
    mixed = find_mixed_files(opened) if counts.rows_contradicted else []
    long = plan.schema.layout.ranks_in == "table"
    if long and counts.rows_contradicted and not counts.rows_counted and (reason := explain_unranked(opened, plan)):
        raise reason
    interleaved = find_interleaved(opened, plan, counts, small_sample(opened, counts.rows))
    several = find_several_ranks(opened, plan) if long else []
    return [*mixed, *(interleaved or note_contradicted(counts)), *several]
