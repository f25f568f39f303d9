"""Counting a replay that names no ranker in one pass, where pairs are told apart by their ranks alone.

Reference: Aslanyan and Porwal, SPIRE 2019 (ranks that vary by themselves).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posbias.engines import OpenLog
from posbias.harvesting.refusals import refuse_unusable
from posbias.harvesting.row_counts import RowCounts
from posbias.sql.exposures import NAMELESS
from posbias.sql.rank_digits import BUSY, busy_cells, digits_of, rank_digits
from posbias.sql.shown import Plan

if TYPE_CHECKING:
    from concurrent.futures import Future

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
) -> tuple[Future[Cells], list[tuple[str | None, ...]]] | None:
    """Return where the cells of such a log will be, and its segments; None where there are more than `most` strata."""
    # Rows of a stratum that differ in clicks are joined afterwards: 1.6 of them each in a log of ten million rows.
    digits = digits_of(plan, counts.rows)
    answer = opened.table_up_to(rank_digits(plan, digits), 2 * most, "Harvesting")
    if answer is None:
        return None
    from posbias.arrays import begun
    from posbias.engines.answers import joined_segments, rows_of, segment_numbers, select
    from posbias.harvesting import strata

    bucket = answer["bucket"]
    nameless = bucket == NAMELESS
    if nameless.any():
        refuse_unusable(opened, plan, counts.rows, int(answer["pairs"][nameless].sum()))
    still = select(answer, bucket >= 0)
    segment, segments = segment_numbers(still, plan.segments)
    cells = begun(lambda: strata.cells_from_digits(still, segment, digits))
    busy = answer["held_0"][bucket == BUSY]
    more = None
    if len(busy):
        queries = sorted(set(busy.tolist()))
        sql = busy_cells(plan, queries if len(queries) <= _MOST_NAMED else ())
        more = opened.table_up_to(sql, most, "Harvesting busy pairs")
        if more is None:
            return None
    if rows_of(still) > most and cells.result().stratum.max(initial=-1) >= most:
        return None
    if more is None:
        return cells, segments
    other, others = segment_numbers(more, plan.segments)
    all_segments = joined_segments([segments, others])

    def make() -> strata.Cells:
        parts = [cells.result(), strata.cells_from_rows(more, other)]
        numbered = zip(parts, [segments, others], strict=True)
        return strata.Cells.joined(strata.renumbered([part.of(found, all_segments) for part, found in numbered]))

    return begun(make), all_segments
