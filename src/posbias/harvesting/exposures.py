"""Counting where the log itself tells the ranks (replay): pairs by the exposure they had."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from posbias.engines import OpenLog
from posbias.harvesting.counts import Counted, Settings
from posbias.harvesting.first_looks import FirstLook, look_at_rows, look_first
from posbias.harvesting.natural_variation import count_natural, fits_one_pass
from posbias.harvesting.notes import (
    note_natural,
    note_non_functional,
    note_weighting,
    refuse_no_ranker,
    refuse_non_functional,
)
from posbias.harvesting.refusals import refuse_unusable
from posbias.harvesting.row_counts import RowCounts
from posbias.sql import exposure_counts
from posbias.sql import exposures as exposure_sql
from posbias.sql.added_exposures import added_exposures, digits_of
from posbias.sql.dialect import BUCKETS, PACK
from posbias.sql.shown import Plan

# With more rankers than this, one pass with an aggregate for each of them costs more than grouping by them: less where
# the counts of several are added up in one number.
_ONE_PASS, _ONE_PASS_SIDE_BY_SIDE = 8, 32
# So many buckets are looked at where a look at all of them may be in vain.
_LOOKED_AT = 4


def count_exposures(opened: OpenLog, settings: Settings) -> Counted:
    """Take a cheap look at the rankers, then count in one pass over (query, document)."""
    plan = settings.plan(opened, ())
    counted = _count(opened, settings, look_first(opened, plan))
    # Pairs with more impressions than was likely are counted anew.
    return counted or cast(Counted, _count(opened, settings, look_at_rows(opened, plan)))


def _count(opened: OpenLog, settings: Settings, look: FirstLook) -> Counted | None:
    """Count by what a look has told; None where it was not sure of that, and was wrong."""
    counts = look.counts
    refuse_unusable(opened, settings.plan(opened, ()), counts.rows, counts.rows_unusable)
    plan = settings.plan(opened, look.rankers)
    natural = plan.schema.natural
    refuse_no_ranker(natural, settings.non_functional)
    notes = [*note_natural(plan.schema), *note_weighting(settings.weighting)]
    if fits_one_pass(plan) and not opened.looks_first:
        found = count_natural(opened, plan, counts, settings.max_strata)
        if found is None:
            return _sum_exposures(opened, plan, settings, counts)
        return Counted("exposures", plan.rankers, found[1], found[0], counts, notes)
    one_pass = bool(_one_pass(plan, look))
    sql = _strata_sql(plan, look)
    if not one_pass:
        _refuse_nameless(opened, plan, counts)
    answer = None
    if not opened.looks_first or _seem_few(opened, plan, look, settings.max_strata):
        answer = opened.table_up_to(sql, settings.max_strata, "Harvesting")
    if answer is None:
        return _sum_exposures(opened, plan, settings, counts)
    from posbias.arrays import begun
    from posbias.engines.answers import rows_of, segment_numbers, select, stacked
    from posbias.harvesting import strata

    if not one_pass:
        segment, segments = segment_numbers(answer, plan.segments)
        cells = strata.cells_from_rows(answer, segment)
        several, pairs = (0, 0) if natural else (strata.count_non_functional(cells), strata.count_pairs(cells))
        refuse_non_functional(settings.non_functional, several, pairs)
        counts = replace(counts, non_functional_pairs=several)
        findings = [*note_non_functional(several, pairs), *notes]
        return Counted("exposures", plan.rankers, segments, cells, counts, findings)
    bucket, pairs = answer["bucket"], int(answer["pairs"].sum())
    nameless = bucket == exposure_sql.NAMELESS
    if nameless.any():
        refuse_unusable(opened, plan, counts.rows, int(answer["pairs"][nameless].sum()))
    several = int(answer["pairs"][bucket == exposure_sql.NON_FUNCTIONAL].sum())
    refuse_non_functional(settings.non_functional, several, pairs)
    counts = replace(counts, non_functional_pairs=several)
    tables = [select(answer, bucket >= 0)]
    if several:
        sql = exposure_sql.cells(plan, having=exposure_sql.SEVERAL_RANKS)
        more = opened.table_up_to(sql, settings.max_strata, "Harvesting pairs at several ranks")
        if more is None:
            return _sum_exposures(opened, plan, settings, counts)
        tables.append(more)
    digits = digits_of(plan, look.most) if plan.dialect.wide_numbers else None
    if digits and not look.sure and not strata.all_held(tables, digits, counts.rows_counted):
        return None
    segment, segments = segment_numbers(stacked(tables, ["bucket", *plan.segments]), plan.segments)

    def make() -> strata.Cells:
        split = rows_of(tables[0])
        parts = [strata.cells_from_exposures(tables[0], segment[:split], plan.masks, digits)]
        parts += [strata.cells_from_rows(table, segment[split:]) for table in tables[1:]]
        return strata.Cells.joined(strata.renumbered(parts))

    findings = [*note_non_functional(several, pairs), *notes]
    return Counted("exposures", plan.rankers, segments, begun(make), counts, findings)


def _seem_few(opened: OpenLog, plan: Plan, look: FirstLook, most: int) -> bool:
    """Return whether strata seem to be few enough to be kept, by those of a few buckets where there may be more."""
    if look.counts.rows_counted <= most:
        return True
    part = exposure_counts.of_buckets(plan, _LOOKED_AT, _strata_sql(replace(plan, log="few"), look))
    [(found,)] = opened.rows(part, "Looking at a part")
    return bool(found * BUCKETS <= most * _LOOKED_AT)


def _strata_sql(plan: Plan, look: FirstLook) -> str:
    return _one_pass(plan, look) or exposure_sql.cells(plan)


def _one_pass(plan: Plan, look: FirstLook) -> str:
    """Return the query that counts in one pass over (query, document), or none where that would cost more than two."""
    if plan.dialect.wide_numbers:
        fits = len(plan.rankers) <= _ONE_PASS_SIDE_BY_SIDE and bool(plan.masks.groups) and not plan.schema.natural
        return added_exposures(plan, digits_of(plan, look.most)) if fits else ""
    # Packed counters hold 2^31 impressions of a pair, which only an aggregated log could exceed.
    fits = not plan.schema.aggregated or look.impressions < PACK // 2
    fits = fits and len(plan.rankers) <= _ONE_PASS and bool(plan.masks.groups) and not plan.schema.natural
    return exposure_sql.exposures(plan) if fits else ""


def _refuse_nameless(opened: OpenLog, plan: Plan, counts: RowCounts) -> None:
    """Refuse rows without an id where the counting itself leaves them out."""
    [(nameless,)] = opened.rows(exposure_counts.nameless(plan), "Looking for ids")
    refuse_unusable(opened, plan, counts.rows, nameless)


def _sum_exposures(opened: OpenLog, plan: Plan, settings: Settings, counts: RowCounts) -> Counted:
    """Sum over interventional sets by the weighting asked for, where there are more strata than are worth keeping."""
    from posbias.harvesting.strata import busiest_ranks, pair_sums

    _refuse_nameless(opened, plan, counts)
    findings = [*note_natural(plan.schema), *note_weighting(settings.weighting)]
    if not plan.schema.natural:
        several, pairs = opened.rows(exposure_counts.non_functional(plan), "Looking for pairs at several ranks")[0]
        refuse_non_functional(settings.non_functional, several, pairs)
        counts = replace(counts, non_functional_pairs=several)
        findings = [*note_non_functional(several, pairs), *findings]
    totals = opened.table(exposure_counts.totals(plan), "Counting page views")
    firsts = busiest_ranks(totals, len(plan.rankers))
    sums = opened.table(exposure_sql.exposure_pair_sums(plan, settings.weighting, firsts), "Summing")
    table, segments = pair_sums(totals, sums, plan.segments)
    return Counted("pairs", plan.rankers, segments, table, counts, findings)
