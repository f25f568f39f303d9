"""What a harvest refuses to count."""

from __future__ import annotations

from posbias.engines import OpenLog
from posbias.errors import LogError
from posbias.harvesting.defects import explain_unusable
from posbias.logs.weightings import WEIGHTINGS, Weighting
from posbias.sql.shown import Plan
from posbias.wording import listed


def refuse_settings(max_rank: int, weighting: Weighting | None) -> None:
    """Refuse what no harvest can be made with."""
    if max_rank < 2:
        raise LogError(f"max_rank must be 2 or more to compare ranks, not {max_rank}.")
    if weighting is not None and weighting not in WEIGHTINGS:
        raise LogError(f"The weighting {weighting!r} is not known. Use one of {listed(WEIGHTINGS)}.")


def refuse_unusable(opened: OpenLog, plan: Plan, rows: int, unusable: int) -> None:
    """Refuse a log without rows, or with rows that cannot be counted, saying why."""
    if rows == 0:
        raise LogError("The log is empty: it has its columns but no row. Check the path, or the filter that made it.")
    if unusable:
        raise explain_unusable(opened, plan, unusable, rows)


def refuse_pages_without_id(opened: OpenLog, plan: Plan) -> None:
    """Rows of no page view cannot be told from repeats of each other, so none of them may be dropped as such."""
    name = opened.schema.impression or ""
    view = opened.dialect.known(opened.dialect.quote(name), opened.schema.types[name])
    rows, known = opened.rows(f"SELECT COUNT(*), COUNT({view}) FROM log")[0]
    refuse_unusable(opened, plan, rows, rows - known)
