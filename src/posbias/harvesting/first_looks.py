"""What a replay is known by before its pairs are counted: who was shown, and which rows can be counted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from posbias.engines import OpenLog
from posbias.harvesting.profiles import take_profile
from posbias.harvesting.row_counts import RowCounts
from posbias.logs.bounds import refuse_rankers
from posbias.logs.column_refusals import INTEGERS
from posbias.sql import exposures as exposure_sql
from posbias.sql.added_exposures import digits_of
from posbias.sql.shown import Plan

# More impressions of a ranker at a rank than this are unlikely in pairs that are alike, whatever the log. So many rows
# of one pair do not overflow its number even then.
_LIKELY, _FEW_ROWS = 2**20 - 1, 2**27


@dataclass(frozen=True)
class FirstLook:
    """The rankers, the rows, and how many impressions one ranker has at one position at the most, and all have.

    Where it is not `sure` of the most, pairs that are counted with it may have more.
    """

    rankers: tuple[str, ...]
    counts: RowCounts
    most: int
    impressions: int
    sure: bool = True


def look_first(opened: OpenLog, plan: Plan) -> FirstLook:
    """Look at the columns of a log: at their bounds where those tell that every row is counted, or at all rows."""
    return _look_at_bounds(opened, plan) or look_at_rows(opened, plan)


def look_at_rows(opened: OpenLog, plan: Plan) -> FirstLook:
    """Look at all rows of a log."""
    profile = take_profile(opened, plan)
    return FirstLook(profile.rankers, RowCounts.by_profile(profile), profile.most, profile.impressions)


def _look_at_bounds(opened: OpenLog, plan: Plan) -> FirstLook | None:
    schema = plan.schema
    numbers = schema.click is not None and {schema.types[schema.position], schema.types[schema.click]} <= INTEGERS
    if not (opened.tells_bounds and numbers):
        return None
    rows, named, *bounds = opened.rows(exposure_sql.bounds(plan), "Looking at the rankers")[0]
    placed, least, greatest, judged, low, high = bounds
    sound = rows > 0 and rows == named == placed == judged
    if not (sound and least >= 1 and greatest <= plan.max_rank and low >= 0 and high <= 1):
        return None
    name = plan.dialect.as_text(plan.dialect.quote(schema.ranker))
    rankers = tuple(sorted(row[0] for row in opened.rows(f"SELECT DISTINCT {name} FROM log", "Looking at the rankers")))
    refuse_rankers(schema, rankers)
    look = FirstLook(rankers, RowCounts(rows, rows, 0), rows, rows)
    plan = replace(plan, rankers=rankers)
    if schema.natural or len(digits_of(plan, rows).groups) == 1:
        return look
    # One number to add up is worth a guess; with more of them, it pays to know how large counts can be.
    fits = rows < _FEW_ROWS and not schema.drop_duplicates and len(digits_of(plan, _LIKELY).groups) == 1
    return replace(look, most=_LIKELY, sure=False) if fits else None
