"""Counting a replay that names no ranker in one pass, where pairs are told apart by their ranks alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posbias.engines import OpenLog
from posbias.harvesting.refusals import refuse_unusable
from posbias.harvesting.row_counts import RowCounts
from posbias.sql.exposures import NAMELESS
from posbias.sql.rank_digits import BUSY, busy_cells, digits_of, rank_digits
from posbias.sql.shown import Plan

if TYPE_CHECKING:
    from posbias.harvesting.strata import Cells

# With more ranks than this, there are more numbers to add up than one pass is worth.
_MOST_RANKS = 60
# The rows of so many queries are looked up by their ids; of more, all rows are looked at.
_MOST_NAMED = 20_000


def fits_one_pass(plan: Plan) -> bool:
    """Return whether the pairs of a log that names no ranker can be counted in one pass."""
    schema = plan.schema
    wide = plan.dialect.wide_numbers and plan.max_rank <= _MOST_RANKS
    return schema.natural and wide and not schema.aggregated


def count_natural(
    opened: OpenLog, plan: Plan, counts: RowCounts, most: int
) -> tuple[Cells, list[tuple[str | None, ...]]] | None:
    """Return the cells and segments of such a log; None where there are more than `most` strata."""
    # Rows of a stratum that differ in clicks are joined afterwards: 1.6 of them each in a log of ten million rows.
    answer = opened.table_up_to(rank_digits(plan), 2 * most, "Harvesting")
    if answer is None:
        return None
    from posbias.engines.answers import rows_of, segment_numbers, select, stacked
    from posbias.harvesting import strata

    bucket = answer["bucket"]
    nameless = bucket == NAMELESS
    if nameless.any():
        refuse_unusable(opened, plan, counts.rows, int(answer["pairs"][nameless].sum()))
    tables = [select(answer, bucket >= 0)]
    busy = answer["held_0"][bucket == BUSY]
    if len(busy):
        queries = sorted(set(busy.tolist()))
        sql = busy_cells(plan, queries if len(queries) <= _MOST_NAMED else ())
        more = opened.table_up_to(sql, most, "Harvesting busy pairs")
        if more is None:
            return None
        tables.append(more)
    labels = stacked(tables, ["bucket", *plan.segments])
    segment, segments = segment_numbers(labels, plan.segments)
    split = rows_of(tables[0])
    parts = [strata.cells_from_digits(tables[0], segment[:split], digits_of(plan))]
    if parts[0].stratum.max(initial=-1) >= most:
        return None
    if len(tables) > 1:
        parts.append(strata.cells_from_rows(tables[1], segment[split:]))
    return strata.Cells.joined(strata.renumbered(parts)), list(segments)
