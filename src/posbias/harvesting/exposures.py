"""Counting where the log itself tells the ranks (replay): pairs by the exposure they had."""

from __future__ import annotations

from dataclasses import replace

from posbias.engines import OpenLog
from posbias.harvesting.counts import Counted, Settings
from posbias.harvesting.notes import note_non_functional, note_weighting, refuse_non_functional
from posbias.harvesting.profiles import take_profile
from posbias.harvesting.refusals import refuse_unusable
from posbias.harvesting.row_counts import RowCounts
from posbias.sql import exposure_counts
from posbias.sql import exposures as exposure_sql
from posbias.sql.dialect import PACK
from posbias.sql.shown import Plan

# With more rankers than this, one pass with an aggregate for each of them costs more than grouping by them.
_ONE_PASS = 8


def count_exposures(opened: OpenLog, settings: Settings) -> Counted:
    """Take a cheap look at the rankers, then count in one pass over (query, document)."""
    profile = take_profile(opened, settings.plan(opened, ()))
    counts = RowCounts.by_profile(profile)
    refuse_unusable(opened, settings.plan(opened, ()), counts.rows, counts.rows_unusable)
    plan = settings.plan(opened, profile.rankers)
    # Packed counters hold 2^31 impressions of a pair, which only an aggregated log could exceed.
    fits = not opened.schema.aggregated or profile.impressions < PACK // 2
    one_pass = len(plan.rankers) <= _ONE_PASS and bool(plan.masks.groups) and fits
    sql = exposure_sql.exposures(plan) if one_pass else exposure_sql.cells(plan, non_functional_only=False)
    if not one_pass:
        _refuse_nameless(opened, plan, counts)
    answer = opened.table_up_to(sql, settings.max_strata, "Harvesting")
    if answer is None:
        return _sum_exposures(opened, plan, settings, counts)
    from posbias.engines.answers import rows_of, segment_numbers, select, stacked
    from posbias.harvesting import strata

    bucket = answer["bucket"]
    nameless = bucket == exposure_sql.NAMELESS
    if nameless.any():
        refuse_unusable(opened, plan, counts.rows, int(answer["pairs"][nameless].sum()))
    tables = [select(answer, bucket >= 0)]
    if one_pass:
        several = int(answer["pairs"][bucket == exposure_sql.NON_FUNCTIONAL].sum())
        counts = replace(counts, non_functional_pairs=several)
        refuse_non_functional(settings.non_functional, several, int(answer["pairs"].sum()))
    if counts.non_functional_pairs:
        sql = exposure_sql.cells(plan, non_functional_only=True)
        more = opened.table_up_to(sql, settings.max_strata, "Harvesting pairs at several ranks")
        if more is None:
            return _sum_exposures(opened, plan, settings, counts)
        tables.append(more)
    labels = stacked(tables, ["bucket", *plan.segments])
    segment, segments = segment_numbers(labels, plan.segments)
    split = rows_of(tables[0])
    if one_pass:
        parts = [strata.cells_from_exposures(tables[0], segment[:split], plan.masks)]
    else:
        parts = [strata.cells_from_rows(tables[0], segment[:split])]
        counts = replace(counts, non_functional_pairs=strata.count_non_functional(parts[0]))
        refuse_non_functional(settings.non_functional, counts.non_functional_pairs, strata.count_pairs(parts[0]))
    if len(tables) > 1:
        parts.append(strata.cells_from_rows(tables[1], segment[split:]))
    cells = strata.Cells.joined(strata.renumbered(parts))
    findings = note_non_functional(counts.non_functional_pairs, strata.count_pairs(cells))
    findings += note_weighting(settings.weighting)
    return Counted("exposures", plan.rankers, segments, cells, counts, findings)


def _refuse_nameless(opened: OpenLog, plan: Plan, counts: RowCounts) -> None:
    """Refuse rows without an id where the counting itself leaves them out."""
    [(nameless,)] = opened.rows(exposure_counts.nameless(plan), "Looking for ids")
    refuse_unusable(opened, plan, counts.rows, nameless)


def _sum_exposures(opened: OpenLog, plan: Plan, settings: Settings, counts: RowCounts) -> Counted:
    """Sum over interventional sets by the weighting asked for, where there are more strata than are worth keeping."""
    from posbias.harvesting.strata import busiest_ranks, pair_sums

    _refuse_nameless(opened, plan, counts)
    several, pairs = opened.rows(exposure_counts.non_functional(plan), "Looking for pairs at several ranks")[0]
    refuse_non_functional(settings.non_functional, several, pairs)
    counts = replace(counts, non_functional_pairs=several)
    findings = [*note_non_functional(several, pairs), *note_weighting(settings.weighting)]
    totals = opened.table(exposure_counts.totals(plan), "Counting page views")
    firsts = busiest_ranks(totals, len(plan.rankers))
    sums = opened.table(exposure_sql.exposure_pair_sums(plan, settings.weighting, firsts), "Summing")
    table, segments = pair_sums(totals, sums, plan.segments)
    return Counted("pairs", plan.rankers, segments, table, counts, findings)
